#!/usr/bin/env bash
# Builds what is published, into the folder dist: the program, its bill of materials (CycloneDX, of Cargo.lock) and the checksums
# of both. Called by `make dist`. Installs the pinned cargo-cyclonedx from crates.io into the cache.
#   scripts/dist.sh [--only-sbom]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
host=$(rustc -vV | sed -n 's/^host: //p')
tools=${MCP_BROKER_CACHE:-$HOME/.cache/mcp-broker}/dependencies/cyclonedx
pinned=0.5.9
out=$root/dist
name=mcp-broker-$version-$host

say() { printf 'dist: %s\n' "$*" >&2; }

if [[ $("$tools/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null || true) != *" $pinned" ]]; then
    say "installing cargo-cyclonedx $pinned into $tools, once; a few minutes"
    cargo install cargo-cyclonedx --locked --version "$pinned" --root "$tools" --target-dir "$tools/target"
    rm -rf "$tools/target"
fi

# cargo-cyclonedx writes a file next to each manifest of the workspace, so it works on a copy.
bill() {
    local copy
    copy=$(mktemp -d)
    (
        cd "$root"
        git ls-files -z -- Cargo.lock rust-toolchain.toml Cargo.toml '*/Cargo.toml' '*.rs' | xargs -0 cp --parents -t "$copy"
        cd "$copy"
        SOURCE_DATE_EPOCH=315532800 "$tools/bin/cargo-cyclonedx" cyclonedx --manifest-path broker/Cargo.toml --format json --spec-version 1.5 \
            --target "$host" --override-filename bill --quiet
    )
    # The crates of the workspace are named by their folders, and the copy's name differs each time.
    sed "s|file://$copy|file://|g" "$copy/broker/bill.json" >"$out/$name.cdx.json"
    python3 scripts/check_sbom.py "$out/$name.cdx.json" --workspace "$copy"
    rm -rf "$copy"
}

rm -rf "$out"
mkdir -p "$out"
say "writing the bill of materials"
bill
if [[ ${1:-} != --only-sbom ]]; then
    say "building the program; some minutes"
    scripts/build-program.sh "$out/$name"
fi
(cd "$out" && sha256sum -- "$name"* >SHA256SUMS && cat SHA256SUMS)
