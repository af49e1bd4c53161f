# shellcheck shell=bash
# What the scripts that install into the cache share. Sourced by install-peers.sh, install-deploy.sh and install-field.sh, which
# set `target`.

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }
fail() {
    say "$*"
    exit 1
}

# A stamp holds the hash of all that decides the content of a part; it is written last, so an interrupted run starts over.
hash_of() { cat "$@" | sha256sum | cut -d' ' -f1; }
is_current() { [[ -f $target/$1.stamp && $(<"$target/$1.stamp") == "$2" ]]; }
mark_current() { printf '%s\n' "$2" >"$target/$1.stamp"; }

need_python() {
    command -v python3 >/dev/null || fail "python3 is missing; install it, for example: apt-get install python3 python3-venv"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || fail "python3 is $(python3 -V), 3.10 or newer is needed"
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
        apt-get -o DPkg::Lock::Timeout=120 install -y -q python3-venv >&2 || (apt-get update -q >&2 && apt-get -o DPkg::Lock::Timeout=120 install -y -q python3-venv >&2) || true
        python3 -m venv "$folder" && return
        rm -rf "$folder"
    fi
    fail "python3 cannot create a virtual environment; run: apt-get install python3-venv"
}

need_node() {
    command -v node >/dev/null && command -v npm >/dev/null && return
    fail "node and npm (version 20 or newer) are missing; install them, for example: apt-get install nodejs npm"
}

# Packages of npm, pinned by a lock file; the third argument is a check that runs once they are installed.
install_node_part() {
    local part=$1 from=$2 wanted
    wanted=$( (hash_of "$from/package.json" "$from/package-lock.json" && uname -m) | sha256sum | cut -d' ' -f1)
    is_current "$part" "$wanted" && return
    need_node
    say "installing $part into $target/$part"
    rm -rf "${target:?}/$part" "$target/$part.stamp"
    mkdir -p "$target/$part"
    cp "$from/package.json" "$from/package-lock.json" "$target/$part/"
    (cd "$target/$part" && npm ci --no-audit --no-fund --loglevel=error >&2) || fail "npm ci failed (see above)"
    "${3:-true}"
    mark_current "$part" "$wanted"
}

# A virtual environment of pinned packages.
install_python_part() {
    local part=$1 requirements=$2 wanted
    wanted=$( (hash_of "$requirements" && python3 -V) | sha256sum | cut -d' ' -f1)
    is_current "$part" "$wanted" && [[ -x $target/$part/bin/python ]] && "$target/$part/bin/python" -c '' 2>/dev/null && return
    say "installing $part into $target/$part"
    rm -f "$target/$part.stamp"
    make_venv "$target/$part"
    "$target/$part/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements" >&2 \
        || fail "pip install of $(basename "$requirements") failed (see above)"
    mark_current "$part" "$wanted"
}
