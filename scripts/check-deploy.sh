#!/usr/bin/env bash
# Checks what the broker is deployed with: image, compose file, chart, alerts, dashboards, and the OpenAPI document; and the
# configurations of `make field`. Called by `make check`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools=$(scripts/install-deploy.sh)
python=$tools/bin/python

"$tools/bin/hadolint" Dockerfile
"$python" deploy/test/check_compose.py
promtool check config --syntax-only deploy/prometheus/prometheus.yml >/dev/null
promtool check rules helm/mcp-broker/files/alerts.yaml >/dev/null
(cd deploy/prometheus && promtool test rules alerts.test.yaml >/dev/null) || { (cd deploy/prometheus && promtool test rules alerts.test.yaml); exit 1; }
python3 scripts/dashboards.py --check
"$python" deploy/test/check_rules.py
# A test keeps the file equal to what the broker serves.
"$tools/bin/openapi-spec-validator" docs/openapi.json >/dev/null || { "$tools/bin/openapi-spec-validator" docs/openapi.json; exit 1; }
"$python" helm/readme.py --check
"$python" helm/check.py
"$python" helm/check_programs.py "$tools/../helm"
PYTHONDONTWRITEBYTECODE=1 "$python" field/run.py --check >/dev/null
