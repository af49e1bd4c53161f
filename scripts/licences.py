#!/usr/bin/env python3
"""Refuses a dependency whose licence is not on the list below. Offline: reads `cargo metadata`. Called by `make check`.

An SPDX expression passes when some choice of its alternatives (OR) needs only licences of the list (AND).
"""

import json
import re
import subprocess
import sys

ALLOWED = {
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}

TOKEN = re.compile(r"\(|\)|\bAND\b|\bOR\b|/|[A-Za-z0-9.+-]+(?:\s+WITH\s+[A-Za-z0-9.+-]+)?")


class Expression:
    """Recursive descent over `term (OR term)*`, `term = factor (AND factor)*`; `/` is the old spelling of OR."""

    def __init__(self, text: str) -> None:
        self.tokens = [" ".join(token.split()) for token in TOKEN.findall(text)]

    def take(self, *wanted: str) -> bool:
        if self.tokens and self.tokens[0] in wanted:
            self.tokens.pop(0)
            return True
        return False

    def permitted(self) -> bool:
        result = self.any_of()
        return result and not self.tokens

    def any_of(self) -> bool:
        result = self.all_of()
        while self.take("OR", "/"):
            result = self.all_of() or result
        return result

    def all_of(self) -> bool:
        result = self.one()
        while self.take("AND"):
            result = self.one() and result
        return result

    def one(self) -> bool:
        if self.take("("):
            result = self.any_of()
            return self.take(")") and result
        return bool(self.tokens) and self.tokens.pop(0) in ALLOWED


def main() -> int:
    metadata = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked"], check=True, capture_output=True, text=True)
    packages = json.loads(metadata.stdout)["packages"]
    refused = [package for package in packages if not Expression(package["license"] or "").permitted()]
    for package in refused:
        print(f"licence of {package['name']} {package['version']} is not on the list: {package['license']}", file=sys.stderr)
    print(f"licences: {len(packages)} packages, {len(refused)} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
