#!/usr/bin/env bash
# Every test of the workspace, against the real binary and real peers. Called by `make test`. The test runner speaks last,
# so whoever reads the end of the log sees its summary; what a test needs and does not find fails the test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install-servers.sh
scripts/install-peers.sh >/dev/null
# Tests start these as processes; cargo builds only the binaries of the crate under test by itself.
cargo build --locked --workspace --bins
if cargo nextest --version >/dev/null 2>&1; then
    cargo test --locked --workspace --doc --quiet
    exec cargo nextest run --locked --workspace --no-fail-fast
fi
exec cargo test --locked --workspace --no-fail-fast
