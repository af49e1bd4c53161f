#!/usr/bin/env bash
# Starts what is deployed, without containers: the image's steps, the chart's configurations, the code of the
# documentation, the topology of docker-compose.yml. Called by `make test-deploy` and `make test`. The program is built first; `--binary PATH` names another.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ ${1:-} == --binary ]]; then
    binary=$2
else
    cargo build --locked -p mcp-broker -p testkit -p loadtest --bins
    binary=${CARGO_TARGET_DIR:-target}/debug/mcp-broker
fi
scripts/install-servers.sh >&2
tools=$(scripts/install-deploy.sh)
peers=$(scripts/install-peers.sh)

# Both parts run at the same time, because each mostly waits. The output of the first is printed when it has ended.
said=$(mktemp)
trap 'rm -f "$said"' EXIT
{
    python3 scripts/image_steps.py --binary "$binary"
    "$tools/bin/python" helm/check.py --broker "$binary"
    "$tools/bin/python" deploy/test/snippets.py "$binary" "$peers"
} >"$said" 2>&1 &
others=$!
topology=0
"$tools/bin/python" deploy/test/topology.py "$binary" "$peers/python1/bin/python" "$(dirname "$binary")/mcp-loadtest" || topology=1
wait "$others" || { cat "$said"; exit 1; }
cat "$said"
exit $topology
