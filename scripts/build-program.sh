#!/usr/bin/env bash
# Builds the program that is published. Called by the Dockerfile, by dist.sh and by `make bench-report`.
#   scripts/build-program.sh OUT
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=scripts/build-paths.sh
source "$root/scripts/build-paths.sh"
cargo build --locked --profile dist --target "$build_host" --package mcp-broker --bin mcp-broker
install -D -m 0755 "${CARGO_TARGET_DIR:-target}/$build_host/dist/mcp-broker" "${1:?the file to write}"
