#!/usr/bin/env bash
# Runs the Autobahn test suite against the WebSocket layer's echo example and judges the report. Called by `make autobahn`.
# The suite is Python 2: without a python2.7 on the machine, that of Debian 11 is unpacked (not installed) into the cache.
# Compression (12 and 13) is left out, since no extension is ever agreed on. Two cases may be "non-strict": text that stops being
# UTF-8 inside a frame is refused at the end of that frame, which RFC 6455 allows.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/autobahn
pins=$PWD/scripts/autobahn-requirements.txt
library=autobahn==0.10.9 # later ones do not run this suite
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two runs on one machine share the cache

# Sets `python`: a command line that runs Python 2.7.
find_python() {
    local found
    for found in "${PYTHON27:-}" python2.7 "$HOME"/.pyenv/versions/2.7.*/bin/python2.7; do
        if [[ -n $found ]] && "$found" -c 'import ssl, ctypes' 2>/dev/null; then
            python=("$found")
            return
        fi
    done
    local root=$cache/python2.7
    [[ -e $root/stamp ]] || unpack_python "$root"
    python=(env "LD_LIBRARY_PATH=$(echo "$root"/usr/lib/*-linux-gnu)" "PYTHONHOME=$root/usr" "$root/usr/bin/python2.7")
}

unpack_python() {
    local root=$1 apt=$1/apt
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || {
        echo "autobahn: Python 2.7 is missing and this is not Debian; name one with PYTHON27=" >&2
        exit 1
    }
    echo "autobahn: unpacking Python 2.7 from Debian 11 into $root" >&2
    rm -rf "$root"
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bullseye main' >"$apt/sources.list"
    local options=(-q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$apt/lists"
        -o "Dir::Cache=$apt/cache" -o "APT::Sandbox::User=$(id -un)")
    (
        cd "$apt"
        apt-get "${options[@]}" update >&2
        apt-get "${options[@]}" download python2.7-minimal libpython2.7-minimal libpython2.7-stdlib libssl1.1 libffi7 >&2
        for package in *.deb; do dpkg -x "$package" "$root"; done
    )
    rm -rf "$apt"
    touch "$root/stamp"
}

install_suite() {
    local wanted
    wanted=$(sha256sum <"$pins")$library
    [[ -f $cache/stamp && $(<"$cache/stamp") == "$wanted" ]] && return
    echo "autobahn: installing the suite into $cache/site" >&2
    rm -rf "$cache/site" "$cache/stamp"
    # Wheels only, so that nothing is built and any Python 3 can fetch them.
    python3 -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --no-deps --no-compile --ignore-requires-python --target "$cache/site" \
        --only-binary=:all: --python-version 27 --implementation cp --abi cp27mu --platform manylinux2010_x86_64 --platform manylinux1_x86_64 -r "$pins"
    # The one that has none; it is Python alone.
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary=:all: --dest "$cache/site" "$library"
    tar -xzf "$cache"/site/autobahn-*.tar.gz -C "$cache/site" --strip-components=1 --wildcards '*/autobahn/*'
    touch "$cache/site/zope/__init__.py" # a namespace package that Python 2 knows only from a .pth file
    printf '%s\n' "$wanted" >"$cache/stamp"
}

python=()
find_python
install_suite
cargo build --locked --release -p transport --example websocket_echo

reports=$(mktemp -d)
trap 'kill "$echo_pid" 2>/dev/null || true; rm -rf "$reports"' EXIT
coproc echo_server { exec "${CARGO_TARGET_DIR:-target}/release/examples/websocket_echo" 127.0.0.1:0 2>"$reports/echo.log"; }
echo_pid=$echo_server_PID
read -r address <&"${echo_server[0]}"

cat >"$reports/spec.json" <<SPEC
{"outdir": "$reports", "servers": [{"agent": "mcp-broker", "url": "ws://$address"}],
 "cases": ["*"], "exclude-cases": ["12.*", "13.*"], "exclude-agent-cases": {}}
SPEC
echo "autobahn: running against $address" >&2
PYTHONPATH=$cache/site PYTHONDONTWRITEBYTECODE=1 "${python[@]}" -c 'import txaio; txaio.use_twisted(); from autobahntestsuite.wstest import run; run()' \
    -m fuzzingclient -s "$reports/spec.json" >"$reports/suite.log" 2>&1 || { tail -20 "$reports/suite.log" >&2; exit 1; }
python3 scripts/autobahn-verdict.py "$reports/index.json"
