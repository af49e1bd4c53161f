#!/usr/bin/env python3
"""Judges a report of the Autobahn test suite. Called by scripts/autobahn.sh; fails on any case that is not as documented there."""

import collections
import json
import sys

# Text that stops being UTF-8 in the middle of a frame.
NON_STRICT_ALLOWED = {"6.4.3", "6.4.4"}
CASES_MIN = 300


def is_fine(number, case):
    behaviours = {case["behavior"], case["behaviorClose"]}
    return behaviours <= {"OK", "INFORMATIONAL"} or number in NON_STRICT_ALLOWED and behaviours <= {"OK", "NON-STRICT"}


def main():
    with open(sys.argv[1], encoding="utf-8") as report:
        cases = json.load(report).get("mcp-broker", {})
    counts = collections.Counter(case["behavior"] for case in cases.values())
    bad = {number: case for number, case in cases.items() if not is_fine(number, case)}
    print(f"autobahn: {len(cases)} cases: " + ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
    for number, case in sorted(bad.items()):
        print(f"autobahn: case {number}: {case['behavior']}, closing {case['behaviorClose']}, code {case['remoteCloseCode']}")
    if bad or len(cases) < CASES_MIN:
        sys.exit(f"autobahn: {len(bad)} cases failed, {len(cases)} were run")


main()
