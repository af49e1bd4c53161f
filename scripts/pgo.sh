#!/usr/bin/env bash
# Records the profile that published builds are optimised with: broker/pgo/mcp-broker-TOOLCHAIN.profdata. Called by `make pgo`.
# It builds the program with counters (profile dist), sends it the calls of scripts/pgo_load.py and those of the bench of two
# replicas, and merges what it counted.
# Needs llvm-profdata: `rustup component add llvm-tools`, or the package llvm-19 of Debian, which it installs when it may.
# Takes as long as a build of the profile dist, and that of a bench: some fifteen minutes on two processors.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=scripts/build-paths.sh
source "$root/scripts/build-paths.sh"
target=${CARGO_TARGET_DIR:-$root/target}
need_plain "$target"

say() { printf 'pgo: %s\n' "$*" >&2; }

profdata() {
    local own
    own=$(rustc --print sysroot)/lib/rustlib/$build_host/bin/llvm-profdata
    for tool in "$own" llvm-profdata-22 llvm-profdata-21 llvm-profdata-20 llvm-profdata-19; do
        command -v "$tool" && return
    done
    return 1
}

if ! tool=$(profdata); then
    say "installing llvm-19 for llvm-profdata"
    apt-get install -y --no-install-recommends llvm-19 >&2 || true
    tool=$(profdata) || { say "llvm-profdata is missing: rustup component add llvm-tools" && exit 2; }
fi
# The flags name the folder, and other flags would build all dependencies again.
counts=$target/pgo-counts
mkdir -p "$counts"
trap 'rm -rf "$counts"' EXIT

"$root/scripts/install-servers.sh"
say "building the load tester and the program with counters; some fifteen minutes"
# The flags of published builds are for the program only: with them, all crates of the tools would be built again.
tools() { env -u RUSTFLAGS -u CFLAGS -u CXXFLAGS "$@"; }
tools cargo build --locked --profile quick -p loadtest
tools cargo bench --locked -p benches --no-default-features --bench report --no-run
program=$target/$build_host/dist/mcp-broker
RUSTFLAGS="$plain_rustflags -Cprofile-generate=$counts" cargo build --locked --profile dist --target "$build_host" -p mcp-broker --bin mcp-broker
rm -f "$counts"/*.profraw # of an earlier run that was cut
say "sending calls; a minute"
python3 scripts/pgo_load.py --broker "$program" --loadtest "$target/quick/mcp-loadtest"
MCP_BROKER_BINARY=$(realpath "$program") tools cargo bench --locked -p benches --no-default-features --bench report -- --only=replicas
mkdir -p "$(dirname "$build_profile")"
# Functions that no call reached are left out: the compiler takes them for cold without an entry, too.
"$tool" merge -sparse -o "$build_profile" "$counts"/*.profraw
say "wrote $build_profile ($(stat -c %s "$build_profile") bytes)"
