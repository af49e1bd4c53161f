#!/usr/bin/env bash
# Kills replicas under load with the counts of docs/durability.md, and prints a verdict for each run. Called by `make chaos`;
# the arguments are those of the `chaos` program. Fault points exist in debug builds only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install-servers.sh >/dev/null
# The promises about limits and noisy neighbours (R6, R13 to R20, R23), with the promised counts, and limits over replicas.
limits() {
  MCP_BROKER_FULL_COUNTS=1 cargo nextest run --locked -p mcp-broker --test it --no-capture --no-fail-fast \
    -E 'test(/(^|::)(r6|r1[3-9]|r20|r23)_/) or test(/^limits::places::/) or test(/^protection_replicas::/)'
}
case " $* " in
*" limits "*)
  limits
  exit
  ;;
*" tasks "* | *" points "* | *" rolling "* | *" expiry "*) ;;
*) limits ;;
esac

# A part of its own: a million tasks that expire at once.
case " $* " in
*" tasks "* | *" points "* | *" rolling "*) ;;
*) cargo test --locked -p storage --lib -- --ignored f_50 ;;
esac
[[ " $* " != *" expiry "* ]] || exit 0
cargo build --locked -p mcp-broker -p testkit --bins
exec "${CARGO_TARGET_DIR:-target}/debug/chaos" "$@"
