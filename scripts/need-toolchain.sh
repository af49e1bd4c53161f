#!/usr/bin/env bash
# Says what to install when Rust or a C compiler is missing; silent otherwise. Called first by every make target.
set -euo pipefail

missing=0
if ! command -v cargo >/dev/null; then
    echo "Rust is missing. Install it with:  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
    missing=1
fi
if ! command -v cc >/dev/null; then
    echo "A C compiler is missing (SQLite and the TLS library are C). Install one, for example:  apt-get install gcc libc6-dev" >&2
    missing=1
fi
exit $missing
