#!/usr/bin/env bash
# Installs the programs that the tests start, from the distribution's packages: PostgreSQL, PgBouncer, Redis, faketime (a
# process with its own clock), h2load (another HTTP/2), openssl, ip, nginx (for comparison, and as a proxy in front), HAProxy
# (another proxy) and Go (for a server that reads JSON as Go does), glewlwyd (an authorization server) and Chromium without a
# display. Called by `make test`. Arguments name further commands (valgrind, which counts instructions). Without the right to
# install, it prints the one command to run and fails.
set -euo pipefail

packages=()
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || command -v initdb >/dev/null || packages+=(postgresql)
command -v redis-server >/dev/null || packages+=(redis-server)
command -v faketime >/dev/null || packages+=(faketime)
command -v h2load >/dev/null || packages+=(nghttp2-client)
command -v openssl >/dev/null || packages+=(openssl)
command -v ip >/dev/null || packages+=(iproute2)
command -v nginx >/dev/null || packages+=(nginx-light)
command -v go >/dev/null || packages+=(golang-go)
command -v glewlwyd >/dev/null || packages+=(glewlwyd)
command -v chromium-headless-shell >/dev/null || packages+=(chromium-headless-shell)
command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]] || packages+=(pgbouncer)
command -v haproxy >/dev/null || [[ -x /usr/sbin/haproxy ]] || packages+=(haproxy)
for named in "$@"; do command -v "$named" >/dev/null || packages+=("$named"); done
((${#packages[@]} == 0)) && exit 0

if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "install-servers: installing ${packages[*]}" >&2
    export DEBIAN_FRONTEND=noninteractive
    get=(apt-get -o DPkg::Lock::Timeout=120 install -y -q)
    "${get[@]}" "${packages[@]}" >&2 || (apt-get update -q >&2 && "${get[@]}" "${packages[@]}" >&2) && exit 0
fi
echo "install-servers: ${packages[*]} missing; the tests start these themselves. Run: apt-get install ${packages[*]}" >&2
exit 1
