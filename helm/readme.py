#!/usr/bin/env python3
"""Writes mcp-broker/README.md from values.yaml: `readme.py`; `readme.py --check` fails when it is outdated (`make check`).

The comment right above a value documents it. A map without a comment is a group. A map with one is a single value, like
every list.
"""

import json
import re
import sys
from pathlib import Path

import yaml

CHART = Path(__file__).resolve().parent / "mcp-broker"
HEAD = """# Chart `mcp-broker`

This page is written from `values.yaml` by `helm/readme.py`.

The chart runs the broker in several replicas on Kubernetes 1.29 or newer:

- a Deployment whose rolling update waits for the drain
- Services for clients, for operators and between replicas
- a Job that checks the configuration and migrates the schema of the database before an upgrade
- monitors, alerts and dashboards

No image is published. Build one, push it to a registry that your cluster can pull from, and install the chart:

```bash
docker build -t registry.example.com/mcp-broker:0.1.0 . && docker push registry.example.com/mcp-broker:0.1.0
helm install mcp ./helm/mcp-broker --namespace mcp --create-namespace --set trial.enabled=true --set image.repository=registry.example.com/mcp-broker
```

The last command tries the broker out with its own PostgreSQL and Redis. A production release uses your database, Redis and secrets, which `secrets.*` name. Example values are in [`helm/examples`](../examples): `production.yaml`, `ingress-nginx.yaml`, `ingress-haproxy.yaml` (session affinity by header), `gateway.yaml`, `autoscaling.yaml`.

[docs/operations.md](../../docs/operations.md) describes upgrades and each alert. `values.schema.json` defines the allowed values; Helm rejects others before it changes anything.

## What the chart decides

`listen`, `node`, `storage`, `shutdown`, `include.folder`, `auth.admin_token` and `auth.admin_token_file` of the broker's configuration follow from the values below. `config` cannot contain them. It cannot contain `tls.require_https` either, because probes use HTTP. `config` takes every other key of [docs/configuration.md](../../docs/configuration.md). A wrong key stops the installation or upgrade before anything changes: see [Faulty configuration](#faulty-configuration). In a trial, or if `migration.enabled` or `migration.checkConfig` is `false`, the Pod ends with exit code 64 instead.

The chart opens no TCP or QUIC listener. It sets neither `listen.forwarded_header` nor the PROXY protocol. `extraEnv` refuses `MCP_BROKER__LISTEN__...`.

Pods read the Secrets of `secrets.*` at their start, and the tokens and keys in files that `config` names. They follow the files of `tls`, and the logins in the URLs of the database and Redis. They do not follow a token that changes by itself, such as the projected token of a service account. After a change of another Secret, run `kubectl rollout restart --namespace NAMESPACE deployment/FULLNAME`. `FULLNAME` is `fullnameOverride`, or else the release and the chart name: `mcp-mcp-broker` for the release `mcp`. If the name of the release contains the chart name, `FULLNAME` is the name of the release.

A Pod keeps no state: the homes of stdio backends (below `/var/lib/mcp-broker`) and `/tmp` are empty when it starts. The image contains neither Node nor Python; build an image `FROM` it for stdio backends that need them.

## Faulty configuration

The Job `FULLNAME-migrate` runs `mcp-broker check-config` before it migrates the schema. The check has the configuration, the environment, the Secrets and the volumes of the new Pods, and the image of the new release. A fault ends the Job, and Helm reports that the hook failed. The running Pods and the schema stay as they are. `kubectl logs --namespace NAMESPACE job/FULLNAME-migrate --container check-config` prints one line for each fault.

The check reads the files of `configFolder.configMap` too. The broker itself starts without the entries of a faulty file there, so their tenants would lose them. Secrets and ConfigMaps that the values name must exist before the installation. If they do not, set `migration.checkConfig` to `false`. A Pod then ends with exit code 64 at a faulty configuration, and the rolling update stops.

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
