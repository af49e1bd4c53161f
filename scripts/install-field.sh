#!/usr/bin/env bash
# Installs the peers that `make field` measures together with the broker (pinned in field/) into a cache outside the clone. Does nothing
# when the pins have not changed since the last run. Prints the folder at the end.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pins=$root/field
target=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/field

# shellcheck source=scripts/venv.sh
source "$root/scripts/venv.sh"

mkdir -p "$target"
if command -v flock >/dev/null; then
    exec 9>"$target/lock"
    flock 9 # two runs on one machine share the cache
fi
need_python
install_python_part tools "$pins/requirements/tools.txt"
install_python_part fastmcp "$pins/requirements/fastmcp.txt"
install_python_part contextforge "$pins/requirements/contextforge.txt"
install_python_part mcp-proxy "$pins/requirements/mcp-proxy.txt"
install_node_part node "$pins/npm"
printf '%s\n' "$target"
