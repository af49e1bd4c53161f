#!/usr/bin/env bash
# The inner half of scripts/test-containers.sh: runs as the first process of its own namespaces, starts the engine, makes the
# images and leaves the rest to containers.py. Exit code 77 means that this machine cannot have an engine; the reason is in
# the file `reason`.
set -euo pipefail

work=$CONTAINERS_WORK cache=$CONTAINERS_CACHE
not_here() {
    printf '%s\n' "$1" >"$work/reason"
    exit 77
}
begun=$SECONDS
said() { printf 'containers: %5.1f s  %s\n' "$((SECONDS - begun))" "$*"; }

ip link set lo up
# A half of version 2 next to version 1 confuses the engine. This is the mount of this namespace only.
umount /sys/fs/cgroup/unified 2>/dev/null || true
touch "$work/namespace"
for _ in $(seq 300); do
    [[ -n $(ip -4 route show default 2>/dev/null) ]] && break
    sleep 0.1
done
ip -4 route show default | grep -q . || not_here "slirp4netns configured no network"

mkdir -p "$work/run" "$work/stage/out" "$work/docker-config"
printf '{}\n' >"$work/docker-config/config.json"
# Root may lack the right to raise limits, so no container asks for more than there is.
files=$(ulimit -Hn) processes=$(ulimit -Hu)
[[ $files != unlimited ]] || files=1048576
[[ $processes != unlimited ]] || processes=32768
printf '[containers]\ndefault_ulimits = ["nofile=%s:%s", "nproc=%s:%s"]\n[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' \
    "$files" "$files" "$processes" "$processes" >"$work/containers.conf"
export CONTAINERS_CONF=$work/containers.conf DOCKER_HOST=unix://$work/run/docker.sock DOCKER_CONFIG=$work/docker-config
podman=(podman --root "$work/podman" --runroot "$CONTAINERS_RUN" --storage-driver overlay)

dockerd --data-root "$work/docker" --exec-root "$work/run/docker" --pidfile "$work/run/docker.pid" -H "$DOCKER_HOST" \
    --default-ulimit "nofile=$files:$files" >"$work/dockerd.log" 2>&1 &
engine=$!
for _ in $(seq 600); do
    /usr/bin/docker version >/dev/null 2>&1 && break
    kill -0 $engine 2>/dev/null || break
    sleep 0.1
done
/usr/bin/docker version >/dev/null 2>&1 || not_here "dockerd does not start: $(grep -v level=info "$work/dockerd.log" | tail -n 2)"

base=docker.io/library/debian:bookworm-slim
"${podman[@]}" import --quiet -c 'CMD ["bash"]' "$cache/base-1-$CONTAINERS_RELEASE.tar" "$base" >"$work/podman.log" 2>&1 \
    || not_here "podman does not start: $(tail -n 2 "$work/podman.log")"
"${podman[@]}" run --rm --network none "$base" true >>"$work/podman.log" 2>&1 \
    || not_here "podman runs no container: $(tail -n 2 "$work/podman.log")"
# The services are one file system under six names, which say themselves how they start.
/usr/bin/docker import "$cache/services-1-$CONTAINERS_RELEASE.tar" services:local >/dev/null
said "engines run"

# The stage `build` would compile for a quarter of an hour: the program that the tests use takes its place.
cp "$CONTAINERS_BINARY" "$work/stage/out/mcp-broker"
"${podman[@]}" build --quiet --network host --format docker --build-context "build=$work/stage" -t docker.io/library/mcp-broker:local . >"$work/build.log" 2>&1 \
    || { tail -n 30 "$work/build.log" >&2; exit 1; }
"${podman[@]}" save --quiet --format docker-archive docker.io/library/mcp-broker:local 2>>"$work/podman.log" | /usr/bin/docker load --quiet >/dev/null
"${podman[@]}" rmi --all --force >/dev/null 2>&1 || true
said "the image of the unmodified Dockerfile is built and loaded"

python3 deploy/test/containers.py
