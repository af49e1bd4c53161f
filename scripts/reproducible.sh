#!/usr/bin/env bash
# Builds the program in two folders whose names differ in length, and compares the bytes. Called by `make reproducible`.
#   scripts/reproducible.sh [--profile dist] [--package mcp-broker] [--bin mcp-broker]
# The sources are those of the working tree that Git knows. Takes twice the time of a build and about 6 GB; a smaller profile
# takes less.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
profile=dist package=mcp-broker bin=mcp-broker
while (($# > 0)); do
    case $1 in
    --profile) profile=${2:?} ;;
    --package) package=${2:?} ;;
    --bin) bin=${2:?} ;;
    *) printf 'reproducible: unknown option: %s\n' "$1" >&2 && exit 2 ;;
    esac
    shift 2
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Runs in a subshell: the folder is part of the environment.
build() (
    root=$1
    mkdir -p "$root"
    git -C "$2" ls-files -z | (cd "$2" && xargs -0 cp --parents -P -t "$root")
    # shellcheck source=scripts/build-paths.sh
    source "$root/scripts/build-paths.sh"
    cd "$root"
    export CARGO_TARGET_DIR=$root/target
    cargo build --locked --quiet --profile "$profile" --target "$build_host" -p "$package" --bin "$bin" >&2
    folder=$profile
    [[ $profile == dev ]] && folder=debug
    cp "target/$build_host/$folder/$bin" "$scratch/$3"
    rm -rf "$root"
)

build "$scratch/a" "$root" one
build "$scratch/another-folder-with-a-longer-name" "$root" other
(cd "$scratch" && sha256sum one other)
if ! cmp "$scratch/one" "$scratch/other"; then
    # Folders of this machine in the program are the usual cause.
    strings -n 8 "$scratch/one" | grep -F "$scratch" | sort -u | head -n 20 >&2 || true
    printf 'reproducible: the two builds of %s differ\n' "$bin" >&2
    exit 1
fi
printf 'reproducible: two builds of %s (%s) have the same %s bytes\n' "$bin" "$profile" "$(stat -c %s "$scratch/one")"
