#!/usr/bin/env python3
"""Holds a bill of materials against Cargo.lock and the dependencies of the program.

    scripts/check_sbom.py BILL.json [--workspace FOLDER]

Checked: each crate that the program is linked or built from is in the bill, each crate of the bill is in Cargo.lock with the
same checksum, and each has a licence. Called by `scripts/dist.sh`.
"""

import argparse
import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def locked(workspace: Path) -> dict[tuple[str, str], str | None]:
    lock = tomllib.loads((workspace / "Cargo.lock").read_text())
    return {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}


def linked(workspace: Path) -> set[tuple[str, str]]:
    """Returns the crates of the program, without those of its tests."""
    tree = ["cargo", "tree", "--locked", "-p", "mcp-broker", "-e", "normal,build", "--prefix", "none", "--format", "{p}"]
    lines = subprocess.run(tree, cwd=workspace, check=True, capture_output=True, text=True).stdout.splitlines()
    return {(words[0], words[1].removeprefix("v")) for words in (line.split() for line in lines) if words}


def faults(bill: dict, workspace: Path) -> list[str]:
    known, needed = locked(workspace), linked(workspace)
    components = bill["components"]
    listed = {(component["name"], component["version"]): component for component in components}
    listed_names = set(listed) | {(bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"])}
    found = [f"{name} {version} is part of the program and not of the bill" for name, version in sorted(needed - listed_names)]
    for (name, version), component in sorted(listed.items()):
        if (name, version) not in known:
            found.append(f"{name} {version} is not in Cargo.lock")
            continue
        checksums = {entry["content"] for entry in component.get("hashes", []) if entry["alg"] == "SHA-256"}
        wanted = known[name, version]
        if wanted and checksums != {wanted}:
            found.append(f"{name} {version} has the checksum {checksums or 'none'}, Cargo.lock says {wanted}")
        if not component.get("licenses"):
            found.append(f"{name} {version} has no licence")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bill", type=Path)
    parser.add_argument("--workspace", type=Path, default=ROOT)
    arguments = parser.parse_args()
    bill = json.loads(arguments.bill.read_text())
    found = faults(bill, arguments.workspace)
    print("\n".join(found) or f"{len(bill['components'])} components, as in Cargo.lock", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
