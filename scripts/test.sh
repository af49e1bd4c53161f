#!/usr/bin/env bash
# Runs every test of the workspace, against the real binary and real peers. Called by `make test`. The summary of the test
# runner comes last, so it is at the end of the log. A test fails if something that it needs is missing.
# `scripts/test.sh grounds` (`make test-grounds`) runs the broker's tests that do not choose their store: once on PostgreSQL
# with Redis, and once over two replicas behind a balancer. The peers run on a cluster in every run, which covers one broker;
# here they also run on SQLite and on PostgreSQL alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install-servers.sh
scripts/install-peers.sh >/dev/null
# Tests start these as processes; cargo builds only the binaries of the crate under test by itself.
cargo build --locked --workspace --bins

# Most tests mostly wait. The others take two or four of these places (.config/nextest.toml).
export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$((6 * $(nproc)))}
# Each test is a process. Without this, the runner starts itself once more for each of them, so that Ctrl-Z stops them reliably.
export NEXTEST_DOUBLE_SPAWN=0

on_ground() {
    echo "== on $1"
    # These modules choose their stores themselves.
    if cargo nextest --version >/dev/null 2>&1; then
        # Of the whole workspace, as `make test` builds it: another selection of crates builds their dependencies again.
        MCP_BROKER_TEST_ON=$1 cargo nextest run --locked --workspace --no-fail-fast \
            -E 'package(mcp-broker) & binary(it) & not test(/^(chaos|clocks|cluster|cluster_outages|cluster_streams|failover|peers|replicas|starts)::/)'
    else
        MCP_BROKER_TEST_ON=$1 cargo test --locked -p mcp-broker --test it --no-fail-fast -- --skip chaos:: --skip clocks:: \
            --skip cluster --skip failover:: --skip peers:: --skip replicas:: --skip starts::
    fi
}

peers_alone() {
    echo "== peers on sqlite and on postgres"
    cargo test --locked --workspace --test it --no-fail-fast -- --ignored on_sqlite on_postgres --test-threads "$(nproc)"
}

if [ "${1:-}" = grounds ]; then
    failed=()
    for ground in postgres cluster; do
        on_ground "$ground" || failed+=("$ground")
    done
    peers_alone || failed+=("peers on sqlite and postgres")
    [ ${#failed[@]} -eq 0 ] || { echo "failed on: ${failed[*]}" >&2; exit 1; }
    exit
fi

# Starts a job in the background, with a process group that has all that the job starts.
start() {
    set -m
    "$@" </dev/null &
    set +m
}
logged() { # FILE COMMAND...
    "${@:2}" 2>&1 | tee "$1"
}
said=$(mktemp)
contained_said=$(mktemp)
# Ends the jobs that still run when this script ends, also by a signal. They have time to end their servers.
finish() {
    local group groups limit=$((SECONDS + 30))
    trap '' HUP INT TERM
    groups=$(jobs -rp)
    for group in $groups; do kill -- "-$group" 2>/dev/null || true; done
    for group in $groups; do
        while ((SECONDS < limit)) && kill -0 -- "-$group" 2>/dev/null; do sleep 0.1; done
        kill -KILL -- "-$group" 2>/dev/null || true
    done
    rm -f "$said" "$contained_said"
}
trap finish EXIT

# Runs at the same time as the other tests and ends long before them. Its failure does not end the run, because the others may
# show the cause. Its last lines are then printed again after them.
start logged "$said" scripts/test-deploy.sh --binary "${CARGO_TARGET_DIR:-target}/debug/mcp-broker"
deploying=$!
# The first run on a machine makes images. These writes would hold up what tests write to disk for many seconds.
images=(${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/containers/services-*.tar)
start logged "$contained_said" scripts/test-containers.sh --binary "${CARGO_TARGET_DIR:-target}/debug/mcp-broker"
containing=$!
contained=0
deployed=0
tested=0
runner=(test)
! cargo nextest --version >/dev/null 2>&1 || runner=(nextest run)
start cargo "${runner[@]}" --locked --workspace --no-run
wait $!
[[ -e ${images[0]} ]] || wait "$containing" || contained=1
start cargo "${runner[@]}" --locked --workspace --no-fail-fast
wait $! || tested=1
wait "$deploying" || deployed=1
[ $deployed -eq 0 ] || { tail -n 60 "$said"; echo "scripts/test-deploy.sh failed too; above are its last lines"; } >&2
wait "$containing" || contained=1
[ $contained -eq 0 ] || { tail -n 60 "$contained_said"; echo "scripts/test-containers.sh failed too; above are its last lines"; } >&2
exit $((deployed | contained | tested))
