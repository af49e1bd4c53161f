#!/usr/bin/env python3
"""Writes mcp-broker/README.md from values.yaml: `readme.py`; `readme.py --check` says whether it is current (`make check`).

A value is documented by the comment right above it. A map without one is a group; a map with one is a value of its own, and
so is every list.
"""

import json
import re
import sys
from pathlib import Path

import yaml

CHART = Path(__file__).resolve().parent / "mcp-broker"
HEAD = """# Chart `mcp-broker`

This page is written from `values.yaml` by `helm/readme.py`.

The broker in several replicas: a Deployment whose rolling update waits for the drain, Services for clients, operators and the replicas among themselves, a Job that brings the database's schema up to date, and what makes it observable. Kubernetes 1.29 or newer.

```bash
helm install mcp ./helm/mcp-broker --namespace mcp --create-namespace --set trial.enabled=true --set image.repository=REGISTRY/mcp-broker
```

tries it out with a PostgreSQL and a Redis of its own. Otherwise the database, Redis and the secrets are yours, and named by `secrets.*`. Files of values to start from are in [`helm/examples`](../examples): `production.yaml`, `ingress-nginx.yaml`, `ingress-haproxy.yaml` (session affinity by header), `gateway.yaml`, `autoscaling.yaml`.

How to upgrade, and what to do about each alert: [docs/operations.md](../../docs/operations.md). What a value must be is in `values.schema.json`; Helm refuses others before anything is changed.

## What the chart decides

`listen`, `node`, `storage`, `shutdown` and `auth.admin_token_file` of the broker's configuration follow from the values below and can not stand in `config`. Everything else of [docs/configuration.md](../../docs/configuration.md) can, and a wrong key there ends the Pod with exit code 64 and a line for each fault. `mcp-broker check-config` tells beforehand.

Nothing is kept in a Pod: the homes of stdio backends (below `/var/lib/mcp-broker`) and `/tmp` are empty when it starts. The image has no Node and no Python: stdio backends that need them want an image made `FROM` it.

## Values

| value | default | meaning |
|---|---|---|
"""


def rows(text: str) -> list[tuple[str, str, str]]:
    values = yaml.safe_load(text)
    found, comment, path = [], [], []
    skip_below = None
    for line in text.splitlines():
        words = re.match(r"^( *)(#\s?(.*)|([\w-]+):.*|.*)$", line)
        indent, said, key = len(words[1]), words[3], words[4]
        if skip_below is not None and line.strip() and indent > skip_below:
            continue
        skip_below = None
        if said is not None:
            comment.append(said)
            continue
        if key is None:
            comment = []
            continue
        path = [*path[: indent // 2], key]
        value = values
        for part in path:
            value = value[part]
        if comment or not isinstance(value, dict):
            if not comment:
                raise SystemExit(f"readme: {'.'.join(path)} has no comment above it in values.yaml")
            found.append((".".join(path), json.dumps(value), " ".join(comment)))
            skip_below = indent
        comment = []
    return found


def main() -> int:
    table = "".join(f"| `{name}` | `{default}` | {meaning} |\n" for name, default, meaning in rows((CHART / "values.yaml").read_text()))
    page, wanted = CHART / "README.md", HEAD + table
    if "--check" in sys.argv[1:]:
        if not page.exists() or page.read_text() != wanted:
            print("readme: helm/mcp-broker/README.md is not as helm/readme.py writes it", file=sys.stderr)
            return 1
        return 0
    page.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
