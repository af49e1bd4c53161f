#!/usr/bin/env bash
# Tries new inputs on the fuzz targets for as long as wanted. Called by `make fuzz`.
#   scripts/fuzz.sh [--time 60s|10m|1h] [--seed N] [--engine coverage|mutations] [TARGET]
# Without a target, each target gets that time, one after the other. The engine `coverage` is libFuzzer, on the stable compiler:
# it prefers inputs that reach new code, and needs a C++ compiler. Without one, `mutations` is used, as in the tests. An input
# that a target fails on is written to fuzz/corpus/TARGET as found-*: commit it with the repair, and the tests replay it.
# `scripts/fuzz.sh merge [TARGET]` adds to the corpus, of what long runs kept, only inputs that reach code which it does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'fuzz: %s\n' "$*" >&2; }
fail() {
    say "$*"
    exit 2
}

engine=coverage time=60s seed='' merges='' only=''
command -v c++ >/dev/null || engine=mutations
while (($# > 0)); do
    case $1 in
    --time) time=${2:?} && shift ;;
    --seed) seed=${2:?} && shift ;;
    --engine) engine=${2:?} && shift ;;
    merge) merges=yes ;;
    -*) fail "unknown option: $1" ;;
    *) only=$1 ;;
    esac
    shift
done
[[ $time =~ ^([0-9]+)([smh]?)$ ]] || fail "TIME is a number of seconds, minutes or hours, such as 60s, 10m or 1h"
case ${BASH_REMATCH[2]} in m) unit=60 ;; h) unit=3600 ;; *) unit=1 ;; esac
seconds=$((BASH_REMATCH[1] * unit))

all=$(sed -n 's/^    \([a-z_]*\)::TARGET,$/\1/p' fuzz/src/targets/mod.rs)
[[ -z $only ]] || grep -qx "$only" <<<"$all" || fail "no target is named $only; there are: ${all//$'\n'/ }"

# The flags instrument all crates that a target reads with, those of other authors too. Build scripts and macros run on the
# compiler's side and stay as they are, because a target platform is named.
build_coverage() {
    host=$(rustc -vV | sed -n 's/^host: //p')
    local flags='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters'
    flags+=' -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions=on -Coverflow-checks=on'
    RUSTFLAGS="$flags" cargo build --locked --profile fuzz -p fuzz --features coverage --bin fuzz-coverage --target "$host" \
        --target-dir "${CARGO_TARGET_DIR:-target}/coverage"
    program=${CARGO_TARGET_DIR:-target}/coverage/$host/fuzz/fuzz-coverage
}

kept=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/fuzz
[[ -z $merges && $engine != coverage ]] || build_coverage
failed=()
for target in ${only:-$all}; do
    corpus=fuzz/corpus/$target
    mkdir -p "$kept/$target"
    export MCP_BROKER_FUZZ_TARGET=$target
    if [[ -n $merges ]]; then
        say "adding to $corpus what reaches new code"
        "$program" -merge=1 -max_len=2048 "$corpus" "$kept/$target" 2>&1 | grep -E 'MERGE-OUTER: [0-9]+ new' || true
    elif [[ $engine == coverage ]]; then
        say "$target for $seconds s"
        "$program" -max_total_time="$seconds" ${seed:+-seed="$seed"} -max_len=2048 -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
            -artifact_prefix="$corpus/found-" "$kept/$target" "$corpus" 2>&1 | grep -vE '^#[0-9]+.(REDUCE|NEW|pulse|RELOAD)|^INFO: ' || failed+=("$target")
    else
        say "$target for $seconds s"
        MCP_BROKER_FUZZ_TIME=$seconds ${seed:+env MCP_BROKER_FUZZ_SEED="$seed"} \
            cargo test --locked --quiet -p fuzz --test it -- --exact "$target" --nocapture || failed+=("$target")
    fi
done
((${#failed[@]} == 0)) || { say "failed: ${failed[*]}"; exit 1; }
