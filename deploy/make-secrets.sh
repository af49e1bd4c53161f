#!/usr/bin/env bash
# Makes the secrets of docker-compose.yml in deploy/secrets, and keeps those that exist. An argument names another folder.
# Other users cannot enter the folder. They could read the files in it, because containers read them as their own users.
set -euo pipefail

folder=${1:-$(dirname "${BASH_SOURCE[0]}")/secrets}
mkdir -p "$folder"
chmod 0700 "$folder"

random() { head -c 32 /dev/urandom | base64 | tr -d '+/=\n'; }
make() {
    [[ -s $folder/$1 ]] && return
    printf '%s\n' "$2" >"$folder/$1.new"
    chmod 0644 "$folder/$1.new"
    mv "$folder/$1.new" "$folder/$1"
    echo "made $folder/$1"
}

make node_secret "$(random)"
make admin_token "$(random)"
make scraper_token "$(random)"
make grafana_password "$(random)"
make postgres_password "$(random)"
# The server has no certificate: its traffic stays on the network of docker-compose.yml.
make database_url "postgres://broker:$(<"$folder/postgres_password")@postgres:5432/broker?sslmode=disable"
make redis_password "$(random)"
# A line of Redis' own configuration.
make redis_auth "requirepass $(<"$folder/redis_password")"
make redis_url "redis://:$(<"$folder/redis_password")@redis:6379"
