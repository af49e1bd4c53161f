#!/bin/bash
# Checks whether the broker of this container is alive or, with the argument `ready`, ready for traffic. It requests the
# admin listener without a client program, because the image has none. Called by the image's health check.
set -euo pipefail

address=${MCP_BROKER_HEALTH_ADDRESS:-127.0.0.1:9090}
path=/healthz
[[ ${1:-} == ready ]] && path=/readyz

exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$path" >&3
IFS=' ' read -r -t 2 _ status _ <&3
[[ $status == 200 ]]
