#!/usr/bin/env bash
# Installs the real MCP peers that the tests run the broker against (pinned in peers/) into a cache outside the clone.
# Called by `make test`; does nothing when the pins have not changed since the last run. Prints the folder at the end.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pins=$root/peers
target=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/peers

# shellcheck source=scripts/venv.sh
source "$root/scripts/venv.sh"

check_node() {
    local node=$target/node/node_modules/.bin/node
    # The package named node fetches its binary in an install script, which npm may be configured not to run.
    "$node" --version >/dev/null 2>&1 || (cd "$target/node/node_modules/node" && node installArchSpecificPackage.js >&2) || true
    "$node" --version >/dev/null || fail "the pinned node did not arrive; run 'npm rebuild node' in $target/node and look at its output"
}

# The client of the Rust SDK is a program of this repository, with its own lock file. It is built here, and again when it changes.
install_rust_part() {
    local wanted
    wanted=$( (hash_of "$pins/rmcp/Cargo.toml" "$pins/rmcp/Cargo.lock" "$pins"/rmcp/src/*.rs && cd "$root" && rustc -V) | sha256sum | cut -d' ' -f1)
    is_current rmcp "$wanted" && [[ -x $target/rmcp/debug/rmcp-peer ]] && return
    say "building the client of the Rust SDK in $target/rmcp; some minutes when it is the first time"
    rm -f "$target/rmcp.stamp"
    (cd "$pins/rmcp" && CARGO_TARGET_DIR=$target/rmcp cargo build --locked --quiet >&2) || fail "the client of the Rust SDK cannot be built (see above)"
    mark_current rmcp "$wanted"
}

# A server that reads JSON as Go programs do: only the standard library, built here.
install_go_part() {
    local wanted
    command -v go >/dev/null || fail "the Go compiler is missing; install it, for example: apt-get install golang-go"
    wanted=$( (hash_of "$pins/go/go.mod" "$pins/go/main.go" && go version) | sha256sum | cut -d' ' -f1)
    is_current go "$wanted" && [[ -x $target/go/go-server ]] && return
    say "building the server in Go in $target/go"
    rm -f "$target/go.stamp"
    mkdir -p "$target/go"
    (cd "$pins/go" && GOCACHE=$target/go/cache GOFLAGS=-mod=mod GOPROXY=off go build -trimpath -o "$target/go/go-server" . >&2) \
        || fail "the server in Go cannot be built (see above)"
    mark_current go "$wanted"
}

install_fixture_part() {
    local wanted
    wanted=$(hash_of "$pins/requirements-fixture.txt")
    is_current fixture "$wanted" && [[ -d $target/fixture/examples ]] && return
    say "unpacking the SDK's everything-server and conformance client into $target/fixture"
    rm -rf "$target/fixture" "$target/fixture.stamp" "$target/sdist"
    mkdir -p "$target/sdist" "$target/fixture"
    "$target/python2/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary mcp --require-hashes \
        --dest "$target/sdist" -r "$pins/requirements-fixture.txt" >&2 || fail "pip download of the SDK's sources failed (see above)"
    tar -xzf "$target"/sdist/mcp-*.tar.gz --strip-components=1 -C "$target/fixture"
    rm -rf "$target/sdist"
    mark_current fixture "$wanted"
}

mkdir -p "$target"
if command -v flock >/dev/null; then
    exec 9>"$target/lock"
    flock 9 # two test runs on one machine share the cache
fi
need_python
install_node_part node "$pins" check_node
install_node_part typescript2 "$pins/typescript2"
install_node_part browser "$pins/browser"
install_node_part console "$root/console"
install_node_part apps "$pins/apps"
install_python_part python1 "$pins/requirements-python1.txt"
install_python_part python2 "$pins/requirements-python2.txt"
install_python_part fastmcp "$pins/requirements-fastmcp.txt"
install_python_part wires "$pins/requirements-wires.txt"
install_python_part servers "$pins/requirements-servers.txt"
install_python_part admin "$pins/requirements-admin.txt"
install_python_part openapi "$pins/requirements-openapi.txt"
install_python_part authlib "$pins/requirements-authlib.txt"
install_fixture_part
install_rust_part
install_go_part
printf '%s\n' "$target"
