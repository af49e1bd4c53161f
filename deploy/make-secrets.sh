#!/usr/bin/env bash
# Makes the secrets of docker-compose.yml in deploy/secrets, once; those that are there are kept. An argument names another
# folder. The folder is closed to others; the files in it are not, as containers read them as users of their own.
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
make grafana_password "$(random)"
make postgres_password "$(random)"
# The server has no certificate: what is said to it stays on the network of docker-compose.yml.
make database_url "postgres://broker:$(<"$folder/postgres_password")@postgres:5432/broker?sslmode=disable"
make redis_password "$(random)"
# A line of Redis' own configuration.
make redis_auth "requirepass $(<"$folder/redis_password")"
make redis_url "redis://:$(<"$folder/redis_password")@redis:6379"
