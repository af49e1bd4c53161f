#!/usr/bin/env bash
# Simulates replicas, clients, stores and networks in virtual time, each run from one seed. Called by `make simulate`.
#   scripts/simulate.sh [--seed N] [--count N] [--times N] [--reports yes] [--log FILTER] [--trace FILE]
# The program is built in the profile `fuzz`: fast code that still checks itself. docs/internals/simulation.md describes the runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --locked --profile fuzz -p simulation
exec "${CARGO_TARGET_DIR:-target}/fuzz/simulate" "$@"
