#!/usr/bin/env bash
# Installs the real MCP peers that the tests run the broker against (pinned in peers/) into a cache outside the clone.
# Called by `make test`; does nothing when the pins have not changed since the last run. Prints the folder at the end.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pins=$root/peers
target=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/peers

say() { printf 'install-peers: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# A stamp holds the hash of all that decides the content of a part; it is written last, so an interrupted run starts over.
hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
is_current() { [[ -f $target/$1.stamp && $(<"$target/$1.stamp") == "$2" ]]; }
mark_current() { printf '%s\n' "$2" >"$target/$1.stamp"; }

need_node() {
    command -v node >/dev/null && command -v npm >/dev/null && return
    fail "node and npm (version 20 or newer) are missing; install them, for example: apt-get install nodejs npm"
}

need_python() {
    command -v python3 >/dev/null || fail "python3 is missing; install it, for example: apt-get install python3 python3-venv"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "python3 is $(python3 -V), 3.10 or newer is needed"
}

install_node_part() {
    local wanted
    wanted=$( (hash_of "$pins/package.json" "$pins/package-lock.json" && uname -m) | sha256sum | cut -d' ' -f1)
    is_current node "$wanted" && return
    need_node
    say "installing the node peers into $target/node"
    rm -rf "$target/node" "$target/node.stamp"
    mkdir -p "$target/node"
    cp "$pins/package.json" "$pins/package-lock.json" "$target/node/"
    (cd "$target/node" && npm ci --no-audit --no-fund --loglevel=error >&2) || fail "npm ci failed (see above)"
    local node=$target/node/node_modules/.bin/node
    # The package named node fetches its binary in an install script, which npm may be configured not to run.
    "$node" --version >/dev/null 2>&1 || (cd "$target/node/node_modules/node" && node installArchSpecificPackage.js >&2) || true
    "$node" --version >/dev/null || fail "the pinned node did not arrive; run 'npm rebuild node' in $target/node and look at its output"
    mark_current node "$wanted"
}

# Three ways to a virtual environment: Debian splits ensurepip into python3-venv and pip into python3-pip.
make_venv() {
    local folder=$1
    rm -rf "$folder"
    python3 -m venv "$folder" >/dev/null 2>&1 && return
    rm -rf "$folder"
    python3 -m virtualenv --quiet "$folder" >/dev/null 2>&1 && return
    rm -rf "$folder"
    python3 -m pip --version >/dev/null 2>&1 && python3 -m venv --without-pip "$folder" \
        && python3 -m pip --python "$folder/bin/python" install --quiet pip >&2 && return
    rm -rf "$folder"
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        say "installing the distribution's python3-venv"
        apt-get install -y -q python3-venv >&2 || (apt-get update -q >&2 && apt-get install -y -q python3-venv >&2) || true
        python3 -m venv "$folder" && return
        rm -rf "$folder"
    fi
    fail "python3 can not create a virtual environment; run: apt-get install python3-venv"
}

install_python_part() {
    local part=$1 wanted
    wanted=$( (hash_of "$pins/requirements-$part.txt" && python3 -V) | sha256sum | cut -d' ' -f1)
    is_current "$part" "$wanted" && [[ -x $target/$part/bin/python ]] && "$target/$part/bin/python" -c '' 2>/dev/null && return
    say "installing the $part peers into $target/$part"
    rm -f "$target/$part.stamp"
    make_venv "$target/$part"
    "$target/$part/bin/python" -m pip install --quiet --disable-pip-version-check -r "$pins/requirements-$part.txt" >&2 \
        || fail "pip install of requirements-$part.txt failed (see above)"
    mark_current "$part" "$wanted"
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
install_node_part
install_python_part python1
install_python_part python2
install_fixture_part
printf '%s\n' "$target"
