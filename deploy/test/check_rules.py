#!/usr/bin/env python3
"""Holds the alert rules and the dashboards against the broker's own table of metrics. Called by deploy/check.sh.

Every metric and label a query names must be declared in the sources, every alert must have a test in which it fires and one
in which it does not, and a paragraph in docs/operations.md that its `runbook_url` leads to.
"""

import json
import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "helm/mcp-broker/files/alerts.yaml"
RULE_TESTS = ROOT / "deploy/prometheus/alerts.test.yaml"
DASHBOARDS = ROOT / "helm/mcp-broker/files/dashboards"
# What Prometheus itself puts on every series, and what belongs to every histogram.
GIVEN_LABELS = {"job", "instance", "le"}
NAME = re.compile(r"(?<![\w$\"'])((?:mcp|process)_[a-z_]+|up)(?![\w(])")
SELECTOR = re.compile(r"((?:mcp|process)_[a-z_]+|up)\{([^}]*)\}")


def declared() -> dict[str, set[str]]:
    """Names and labels, as Prometheus shows them: a histogram is three series."""
    metrics: dict[str, set[str]] = {"up": set(), "mcp_build_info": {"version"}}
    files = [ROOT / "broker/src/metrics.rs", *sorted((ROOT / "broker/src/metrics").glob("*.rs"))]
    source = "\n".join(path.read_text().split("#[cfg(test)]")[0] for path in files)
    start = r'(counters|counter|gauges|gauge|histograms|closed_counters|closed_gauges)\(\s*"(mcp_\w+)",\s*"[^"]*"'
    # A metric of labels alone, or one that has the values of each label with it.
    calls = re.compile(start + r',?\s*(?:&\[([^\]]*)\]|\[((?:\(\s*"\w+",.*?\),?\s*)+)\])?', re.S)
    for kind, name, plain, closed in calls.findall(source):
        labels = plain or "".join(f'"{label}"' for label in re.findall(r'\(\s*"(\w+)",', closed))
        names = [name + end for end in ("_bucket", "_sum", "_count")] if kind == "histograms" else [name]
        metrics |= {one: set(re.findall(r'"(\w+)"', labels)) for one in names}
    process = (ROOT / "broker/src/metrics/process.rs").read_text()
    metrics |= {name: set() for name in re.findall(r'metric\(\s*text,\s*"((?:mcp|process)_\w+)"', process)}
    return metrics


def queries() -> list[tuple[str, str]]:
    found = []
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        found += [(rule["alert"], rule["expr"]) for rule in group["rules"]]
    for path in sorted(DASHBOARDS.glob("*.json")):
        board = json.loads(path.read_text())
        found += [(f"{path.name}: {panel['title']}", target["expr"]) for panel in board["panels"] for target in panel["targets"]]
        found += [(f"{path.name}: variable", one["query"]["query"]) for one in board["templating"]["list"] if one["type"] == "query"]
    return found


def faults_of(where: str, query: str, metrics: dict[str, set[str]]) -> list[str]:
    faults = []
    bare = re.sub(r'"[^"]*"', '""', query)
    names = set(NAME.findall(re.sub(r"\b(?:by|on|without)\s*\([^)]*\)", "", bare)))
    if not names:
        faults.append(f"{where}: no metric found in {query}")
    faults += [f"{where}: no metric is called {name}" for name in names - metrics.keys()]
    known = set.union(GIVEN_LABELS, *(metrics.get(name, set()) for name in names))
    for name, matchers in SELECTOR.findall(bare):
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        faults += [f"{where}: {name} has no label {label}" for label in labels - GIVEN_LABELS - metrics.get(name, set())]
    for grouped in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", bare):
        faults += [f"{where}: nothing here has a label {label}" for label in {one.strip() for one in grouped.split(",")} - known]
    return faults


def faults_of_variables() -> list[str]:
    """Metrics of processes have one name for all programs: only the values of a variable keep other programs out."""
    faults = []
    for path in sorted(DASHBOARDS.glob("*.json")):
        listed = json.loads(path.read_text())["templating"]["list"]
        faults += [f"{path.name}: All of ${one['name']} is {one['allValue']}, and not what its query finds" for one in listed if "allValue" in one]
        faults += [f"{path.name}: ${one['name']} finds other programs" for one in listed if one["type"] == "query" and not one["query"]["query"].startswith("label_values(mcp_")]
    return faults


def faults_of_tests() -> list[str]:
    page = (ROOT / "docs/operations.md").read_text()
    anchors = {heading.strip().lower().replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", page, re.M)}
    tested: dict[str, set[bool]] = {}
    for test in yaml.safe_load(RULE_TESTS.read_text())["tests"]:
        for one in test["alert_rule_test"]:
            tested.setdefault(one["alertname"], set()).add(bool(one["exp_alerts"]))
    faults = []
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            name = rule["alert"]
            if tested.pop(name, set()) != {True, False}:
                faults.append(f"{name}: needs a test in which it fires and one in which it does not")
            if rule["annotations"].get("runbook_url") != f"docs/operations.md#{name.lower()}" or name.lower() not in anchors:
                faults.append(f"{name}: docs/operations.md has no paragraph for it, or its runbook_url does not lead there")
    return faults + [f"{name}: tested, and no rule" for name in tested]


def main() -> int:
    metrics = declared()
    if len(metrics) < 40:
        print(f"check_rules: only {len(metrics)} series found in the sources: the table has another form now", file=sys.stderr)
        return 1
    faults = [fault for where, query in queries() for fault in faults_of(where, query, metrics)] + faults_of_variables() + faults_of_tests()
    for fault in faults:
        print(f"check_rules: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
