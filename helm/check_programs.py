#!/usr/bin/env python3
"""Checks the chart with the programs of Helm 3 and Helm 4: `check_programs.py FOLDER`, called by `make check`.

check.py uses the library of Helm 4. Most people run Helm 3. Each program in FOLDER lints the chart strictly, renders every
file of values to the manifests that the library renders, refuses every file of bad values with the expected words, and
packages the chart.
"""

import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from check import CHART, KUBERNETES, Fault, good_values, need, rendered, values_of


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)


def comparable(documents: list[dict]) -> list[str]:
    """Returns the manifests in one order. The trial's secrets are random, and so is their checksum."""
    found = []
    for document in documents:
        text = json.dumps(document, sort_keys=True)
        if document["kind"] == "Secret":
            text = json.dumps({**document, "stringData": sorted(document.get("stringData", {}))}, sort_keys=True)
        found.append(re.sub(r'"checksum/[a-z-]+": "[0-9a-f]{64}"', "", text))
    return sorted(found)


def check_good(program: Path, values: Path) -> None:
    version = ["--kube-version", f"v{KUBERNETES[-1]}.0"]
    linted = run(program, "lint", "--strict", "--quiet", "--namespace", "prod", *version, "--values", values, CHART)
    need(linted.returncode == 0, f"{values.name}: lint: {linted.stdout}{linted.stderr}")
    made = run(program, "template", "mcp", CHART, "--namespace", "prod", "--values", values)
    need(made.returncode == 0, f"{values.name}: template: {made.stderr}")
    documents = [document for document in yaml.safe_load_all(made.stdout) if document]
    need(
        comparable(documents) == comparable(rendered(CHART, values_of(values))),
        f"{values.name}: the manifests are not those that the library renders",
    )


def check_bad(program: Path, values: Path) -> None:
    expected = re.match(r"# expect: (.*)", values.read_text())[1]
    made = run(program, "template", "mcp", CHART, "--namespace", "prod", "--values", values)
    need(made.returncode != 0, f"{values.name}: these values were taken")
    spellings = {expected, expected.removeprefix("/").replace("/", ".")}  # Helm 3 names a value with dots
    need(any(spelling in made.stderr for spelling in spellings), f"{values.name}: refused, but not with {expected!r}: {made.stderr}")


def check(program: Path) -> str:
    version = run(program, "version", "--short").stdout.strip()
    good, bad = good_values(CHART), sorted((CHART / "ci/bad").glob("*.yaml"))
    try:
        for values in good:
            check_good(program, values)
        for values in bad:
            check_bad(program, values)
        with tempfile.TemporaryDirectory(prefix="mcp-broker-chart-") as folder:
            packaged = run(program, "package", CHART, "--destination", folder)
            need(packaged.returncode == 0 and any(Path(folder).iterdir()), f"package: {packaged.stderr}")
    except Fault as fault:
        raise Fault(f"helm {version}: {fault}") from fault
    return f"helm {version}: {len(good)} value files rendered as by the library, {len(bad)} files of bad values refused"


def main() -> int:
    programs = sorted(Path(sys.argv[1]).iterdir())
    if len(programs) != 2:
        print(f"chart: two programs are expected in {sys.argv[1]}, not {len(programs)}", file=sys.stderr)
        return 1
    try:
        with ThreadPoolExecutor(len(programs)) as threads:
            for told in threads.map(check, programs):
                print(f"chart: {told}")
    except Fault as fault:
        print(f"chart: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
