#!/usr/bin/env bash
# The checks before the tests. Called by `make check`. Tests check that generated files are current.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

step() { printf '== %s\n' "$*"; }

# This part compiles nothing. It runs meanwhile, because compilers do not always have work for all processors.
deployed=$(mktemp)
set -m # for a process group with all that it starts
scripts/check-deploy.sh >"$deployed" 2>&1 </dev/null &
set +m
deploying=$!
trap '[[ -z $(jobs -rp) ]] || kill -- "-$deploying" 2>/dev/null || true; rm -f "$deployed"' EXIT

step formatting
cargo fmt --all --check
step lints
cargo clippy --locked --workspace --all-targets -- -D warnings
step documentation
RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --document-private-items
cargo test --locked --workspace --doc --quiet >/dev/null # checks doctests, of which there are none so far
step 'licences, versions and sources of the dependencies'
scripts/dependencies.sh
step 'syntax of the scripts'
# Without git: a checkout may not have it.
scripts_named() { find .ci scripts peers deploy field helm -type f "$@" -not -path '*/node_modules/*' -print0; }
while IFS= read -r -d '' file; do bash -n "$file"; done < <(scripts_named \( -name '*.sh' -o -path '.ci/run' \))
while IFS= read -r -d '' file; do node --check "$file"; done < <(scripts_named \( -name '*.mjs' -o -name '*.cjs' \))
scripts_named -name '*.py' | xargs -0 python3 -c 'import ast, sys; [ast.parse(open(name).read(), name) for name in sys.argv[1:]]'
step 'image, compose file, chart, alerts and dashboards'
wait "$deploying" || { cat "$deployed" >&2; exit 1; }
cat "$deployed"
step 'all checks passed'
