#!/usr/bin/env bash
# What must hold before the tests are worth running. Called by `make check`. That generated files are current is a test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() { printf '== %s\n' "$*"; }

step formatting
cargo fmt --all --check
step lints
cargo clippy --locked --workspace --all-targets -- -D warnings
step documentation
RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items
step licences
python3 scripts/licences.py
step 'syntax of the scripts'
mapfile -t shell < <(git ls-files '*.sh' .ci/run)
for file in "${shell[@]}"; do bash -n "$file"; done
mapfile -t python < <(git ls-files '*.py')
python3 -c 'import ast, sys; [ast.parse(open(name).read(), name) for name in sys.argv[1:]]' "${python[@]}"
mapfile -t node < <(git ls-files '*.mjs' '*.cjs' '*.js')
for file in "${node[@]}"; do node --check "$file"; done
step 'all checks passed'
