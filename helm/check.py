#!/usr/bin/env python3
"""Checks the chart: `check.py`, called by `make check`. With `--broker PROGRAM`, by `make test-deploy`: only whether the program
finds every rendered configuration good.

The real Helm library lints it strictly and renders it with every file of mcp-broker/ci and helm/examples; every manifest is
held against the schemas of Kubernetes 1.29 to 1.37 in strict mode; bad values (mcp-broker/ci/bad) must be refused with the
words their first line expects; the rules go through promtool; the Deployment must fit what the configuration says. At last
the chart is broken in several ways, each of which has to be noticed: a check that cannot fail is none.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import helm_python
import kubernetes_validate
import yaml

HERE = Path(__file__).resolve().parent
CHART = HERE / "mcp-broker"
KUBERNETES = [f"1.{minor}" for minor in range(29, 38)]
# Kinds of others, whose schemas are not part of Kubernetes.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "HTTPRoute"}
# Where the broker says what it serves on the data plane: a file of its sources, and the constants or literals in it.
SERVED = {
    "broker/src/listeners/http/challenge.rs": [r'^pub\(super\) const METADATA: &str = "(/[^"]+)";'],
    "broker/src/auth/adapted/mod.rs": [r'^pub const PATH: &str = "(/[^"]+)";'],
    "broker/src/listeners/http/authorization_server/mod.rs": [r'^const OAUTH_METADATA: &str = "(/[^"]+)";', r'^const OPENID_METADATA: &str = "(/[^"]+)";'],
    "broker/src/listeners/http/connect/mod.rs": [r'^const CONNECT: &str = "(/[^"]+)";', r'^const OAUTH: &str = "(/[^"]+)";'],
    "broker/src/listeners/http/http_sse.rs": [r'^const STREAM: &str = "(/[^"]+)";', r'^const MESSAGES: &str = "(/[^"]+)";'],
    "broker/src/listeners/http/websocket.rs": [r'path == "(/ws)"'],
    "broker/src/listeners/http/request.rs": [r'Endpoint::at\("(/mcp)", path\)'],
}
# Sections and keys of the broker's configuration that `config` does not take. README.md of the chart names each of them.
CHART_DECIDES = {"listen", "node", "storage", "shutdown", "include.folder", "auth.admin_token", "auth.admin_token_file", "tls.require_https"}
# Matches in a rule that the Gateway API permits up to version 1.1.
MATCHES_MAX = 8
# Seconds that the steps of a drain after shutdown.grace may take (docs/operations.md, "Stopping").
CLOSING_S = 40
# Seconds that a migration of the schema may take (docs/operations.md, "Upgrades").
MIGRATION_S = 600
# Manifests that were found good already: many are the same whatever the values.
VALIDATED: set[tuple[str, ...]] = set()
BROKEN = [
    # file, what is there, what is put in its place, words of the fault that must be found
    ("templates/deployment.yaml", "maxSurge:", "maxSurges:", "maxSurges"),
    ("templates/deployment.yaml", "containerPort: 8080", "containerPort: http", "containerPort"),
    ("templates/deployment.yaml", "{{- include \"mcp-broker.selector\" . | nindent 6 }}", "app: other", "selector"),
    ("templates/deployment.yaml", "automountServiceAccountToken: false", "automountServiceAccountTokens: false", "automountServiceAccountTokens"),
    ("templates/deployment.yaml", "add (int .Values.shutdown.preStopSeconds)", "add 0", "killed before"),
    ("templates/deployment.yaml", "preStopSeconds)) 40", "preStopSeconds)) 10", "killed before"),
    ("templates/deployment.yaml", "(max (int .Values.shutdown.graceSeconds) (int .Values.shutdown.preStopSeconds))", "(int .Values.shutdown.graceSeconds)", "killed before"),
    ("templates/deployment.yaml", "periodSeconds: 1\n", "periodSeconds: 5\n", "does not notice a drain"),
    ("templates/deployment.yaml", "ternary 30 330", "ternary 30 30", "while it migrates"),
    ("templates/_helpers.tpl", ' "readiness_delay" (printf "%ds" (int .Values.shutdown.preStopSeconds))', "", "refuses connections"),
    ("templates/deployment.yaml", "- name: http\n", "- name: web\n", "http"),
    ("templates/_helpers.tpl", "mountPath: /run/secrets/mcp-broker", "mountPath: /run/secrets/broker", "secret"),
    ("templates/services.yaml", "clusterIP: None", "clusterIP: none", "headless"),
    ("templates/services.yaml", "targetPort: admin", "targetPort: metrics", "metrics"),
    ("templates/services.yaml", "externalTrafficPolicy: {{ . }}", "externalTrafficPolicy: Cluster", "the addresses of clients"),
    ("templates/_helpers.tpl", "mountPath: /etc/mcp-broker.d", "mountPath: /etc/mcp-broker.e", "further configuration files"),
    ("templates/_helpers.tpl", "readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "read-only"),
    ("templates/_helpers.tpl", "add: [SETUID, SETGID, CHOWN, KILL]", "add: [SETUID, SETGID]", "users of their own"),
    ("templates/_helpers.tpl", '"grace" (printf "%ds"', '"grace" (printf "%d"', "shutdown.grace"),
    ("templates/_helpers.tpl", '"trusted_proxies"', '"proxies"', "are not trusted"),
    ("templates/_helpers.tpl", ".Values.adminTrustedProxies", ".Values.trustedProxies", "are not trusted"),
    ("templates/_helpers.tpl", '| trunc 63 | trimAll "._-"', "| trunc 63", "accepts no label"),
    ("templates/scaling.yaml", "policy/v1", "policy/v1beta1", "policy/v1beta1"),
    ("templates/migration.yaml", 'pre-install,pre-upgrade\n    helm.sh/hook-weight: "0"', 'post-install\n    helm.sh/hook-weight: "0"', "hook"),
    ("templates/migration.yaml", 'helm.sh/hook-weight: "-1"', 'helm.sh/hook-weight: "1"', "there before the Job"),
    ("templates/migration.yaml", '(printf "%s-migrate" (include "mcp-broker.fullname" .))', '(include "mcp-broker.fullname" .)', "there before the Job"),
    ("templates/migration.yaml", "with .Values.migration.podLabels", "with .Values.podLabels", "keep a sidecar out"),
    ("templates/migration.yaml", "args: [check-config,", "args: [serve,", "not checked before"),
    ("templates/migration.yaml", "containerName: check-config", "containerName: migrate", "tried again"),
    ("templates/migration.yaml", '{{- include "mcp-broker.configEnv" . | nindent 12 }}', "", "the environment of the Pods"),
    ("templates/networkpolicy.yaml", "- port: internal", "- ports: internal", "ports"),
    ("templates/monitoring.yaml", '"files/alerts.yaml"', '"files/alarms.yaml"', "alerts"),
    ("templates/monitoring.yaml", "| replace ", "| cat ", "alerts"),
    ("files/alerts.yaml", "docs/operations.md#mcpbrokerdown", "docs/operations.md#mcpbroker", "McpBrokerDown: its runbook_url"),
    ("templates/monitoring.yaml", 'absent(up{job=%q})', 'absent(up{instance=%q})', "McpBrokerAbsent"),
    ("templates/routes.yaml", "chunk 8", "chunk 9", "9 matches"),
    ("templates/routes.yaml", "| chunk 8", "| initial | chunk 8", "not all that the broker serves is routed"),
    ("templates/_helpers.tpl", ' "/.well-known/oauth-protected-resource"', "", "not all that the broker serves is routed"),
    ("templates/routes.yaml", "          - path: {{ . }}", "          - path: /mcp", "not all that the broker serves is routed"),
    ("templates/_helpers.tpl", "- name: PGSSLMODE", "- name: SSLMODE", "verified"),
    ("templates/migration.yaml", '{{- include "mcp-broker.databaseEnv" . | nindent 12 }}', "", "verified"),
    ("values.yaml", "sslMode: verify-full", "sslMode: prefer", "verified"),
    ("templates/_helpers.tpl", "path: database-ca.crt", "path: ca.crt", "is not mounted"),
    ("templates/trial.yaml", "redis-server, --requirepass, $(REDISCLI_AUTH)", "redis-server", "trial's Redis"),
    ("templates/trial.yaml", "mcp-broker/trial: postgres\n    spec:", "mcp-broker/trial: postgres\n        version: {{ .Values.image.tag | quote }}\n    spec:", "replaces the Pods"),
    ("templates/configmap.yaml", "{{- include \"mcp-broker.check\" . -}}\n", "", "these values were taken"),
    ("files/alerts.yaml", "== 0", "=== 0", "promtool"),
    ("values.schema.json", '"operators": {', '"operator": {', "config and auth.operators"),
    ("values.schema.json", '"replicas": {', '"replica": {', "replicas"),
]


class Fault(Exception):
    pass


def need(holds: object, sentence: str) -> None:
    if not holds:
        raise Fault(sentence)


def values_of(path: Path) -> dict:
    return yaml.safe_load(path.read_text()) or {}


def good_values(chart: Path) -> list[Path]:
    return [*sorted((chart / "ci").glob("*.yaml")), *sorted((HERE / "examples").glob("*.yaml"))]


def rendered(chart: Path, values: dict) -> list[dict]:
    loaded = helm_python.Chart.load(chart)
    texts = loaded.render(values, name="mcp", namespace="prod")
    found = []
    for path, text in texts.items():
        if path.endswith("NOTES.txt"):
            need("mcp-broker" in text and "{{" not in text.replace("{{index", "") and "<no value>" not in text, f"{path} reads badly")
            continue
        found += [document for document in yaml.safe_load_all(text) if document]
    return found


def one(documents: list[dict], kind: str, end: str = "") -> dict | None:
    return next((one for one in documents if one["kind"] == kind and one["metadata"]["name"].endswith(end)), None)


def check_schemas(documents: list[dict], versions: list[str]) -> None:
    for document in documents:
        name = f"{document['kind']} {document['metadata']['name']}"
        need(len(document["metadata"]["name"]) <= 63, f"{name}: the name is too long")
        text = json.dumps(document, sort_keys=True)
        if document["kind"] in FOREIGN or (text, *versions) in VALIDATED:
            continue
        for version in versions:
            try:
                kubernetes_validate.validate(document, version, strict=True)
            except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
                raise Fault(f"{name}: Kubernetes {version}: {str(error)[:400]}") from error
        VALIDATED.update({(text, *versions), (text, versions[-1])})


def check_fit(documents: list[dict], values: dict) -> None:
    """What no schema of a single manifest can see: that they belong together."""
    deployment = next(one for one in documents if one["kind"] == "Deployment" and "trial" not in one["metadata"]["name"])
    pod = deployment["spec"]["template"]["spec"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for name, value in {**labels, **deployment["metadata"]["labels"]}.items():
        need(re.fullmatch(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?", str(value)), f"{name}: Kubernetes accepts no label {value}")
    [container] = pod["containers"]
    need(deployment["spec"]["selector"]["matchLabels"].items() <= labels.items(), "the Deployment's selector does not fit its Pods")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for service in (one for one in documents if one["kind"] == "Service" and "trial" not in one["metadata"]["name"]):
        need(service["spec"]["selector"].items() <= labels.items(), f"Service {service['metadata']['name']} selects no Pod of the broker")
        for port in service["spec"]["ports"]:
            need(port["targetPort"] in ports, f"Service {service['metadata']['name']}: no port of the Pod is called {port['targetPort']}")
        if service["metadata"]["name"].endswith("-internal"):
            need(service["spec"]["clusterIP"] == "None", "the internal Service is not headless")
        if service["spec"].get("type") in ("LoadBalancer", "NodePort"):
            wanted = values["service"].get("externalTrafficPolicy", "")
            need(service["spec"].get("externalTrafficPolicy", "") == wanted, "nodes keep the addresses of clients otherwise than the values say")
    config = yaml.safe_load(one(documents, "ConfigMap")["data"]["mcp-broker.yaml"])
    for name, key in (("http", "http"), ("admin", "admin"), ("internal", "internal")):
        address = "[::]" if values.get("ipv6") else "0.0.0.0"
        need(config["listen"][key] == f"{address}:{ports[name]}", f"listen.{key} is not the Pod's port {name}")
    for key, value in (("trusted_proxies", "trustedProxies"), ("admin_trusted_proxies", "adminTrustedProxies")):
        need(config["listen"].get(key, []) == values.get(value, []), f"listen.{key}: the proxies of the values are not trusted, or others")
    check_stop(pod, container, config["shutdown"])
    need(container["securityContext"]["readOnlyRootFilesystem"], "the root file system is not read-only")
    capabilities = container["securityContext"]["capabilities"]
    if values.get("childUsers", {}).get("enabled"):
        need(pod["securityContext"]["runAsUser"] == 0 and set(capabilities["add"]) == {"SETUID", "SETGID", "CHOWN", "KILL"}, "children cannot have users of their own")
    else:
        need(pod["securityContext"]["runAsNonRoot"] and "add" not in capabilities, "the user is root, or has capabilities")
    need(capabilities["drop"] == ["ALL"], "capabilities are kept")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    need(set(mounts.values()) <= volumes.keys(), "a volume that is mounted is not there")
    folder = config.get("include", {}).get("folder")
    need(not folder or folder in mounts, "the folder of further configuration files is not mounted")
    secrets = {item["path"] for source in volumes["secrets"]["projected"]["sources"] for item in source["secret"]["items"]}
    for path in [config["node"]["secret_file"], config["auth"]["admin_token_file"], *(operator["token_file"] for operator in config["auth"].get("operators", []) if operator["name"] == "prometheus"), *(value for key, value in config["storage"].items() if key.endswith("_file"))]:
        folder, _, file = path.rpartition("/")
        need(mounts.get(folder) == "secrets" and file in secrets, f"the secret {path} is not mounted")
    job = one(documents, "Job")
    for pod_spec in [pod, *([job["spec"]["template"]["spec"]] if job else [])]:
        check_database(pod_spec, values, secrets)
    need(bool(job) != config["storage"]["migrate_on_start"], "the schema is brought up to date twice, or never")
    startup = container["startupProbe"]
    need(job or startup["periodSeconds"] * startup["failureThreshold"] > MIGRATION_S, "a Pod is killed while it migrates the schema")
    if job:
        need(job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade", "the migration is not a hook before installs and upgrades")
        check_job_config(documents, job, pod, values)
    probe = container["readinessProbe"]["httpGet"]
    need(probe["path"] == values.get("probes", {}).get("readinessPath", "/readyz"), "readiness is asked elsewhere")
    scaler = one(documents, "HorizontalPodAutoscaler")
    need(bool(scaler) != ("replicas" in deployment["spec"]), "both the autoscaler and the Deployment say how many Pods there are")


def check_stop(pod: dict, container: dict, shutdown: dict) -> None:
    grace = re.fullmatch(r"(\d+)s", shutdown["grace"])
    need(grace, "shutdown.grace has no unit")
    stop = int(container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])[1])
    # `mcp-broker drain` runs no preStop hook.
    need(shutdown.get("readiness_delay") == f"{stop}s", "a drain by an operator refuses connections that the Services still send")
    # The two run at the same time.
    drain = max(int(grace[1]), stop)
    need(pod["terminationGracePeriodSeconds"] >= stop + drain + CLOSING_S, "a Pod is killed before its drain is over")
    probe = container["readinessProbe"]
    need(not stop or probe["periodSeconds"] * probe["failureThreshold"] < stop, "Kubernetes does not notice a drain before the listeners close")


def check_job_config(documents: list[dict], job: dict, pod: dict, values: dict) -> None:
    """The check before a migration reads what the Pods will read: the configuration, the environment and the files."""
    checking, about = job["spec"]["template"]["spec"], job["spec"]["template"]["metadata"]
    for key, value in (("annotations", "podAnnotations"), ("labels", "podLabels")):
        need(values.get("migration", {}).get(value, {}).items() <= about.get(key, {}).items(), f"the Job's Pod does not have the {key} of the values, which keep a sidecar out")
    if not values.get("migration", {}).get("checkConfig", True):
        need("initContainers" not in checking and "podFailurePolicy" not in job["spec"], "the configuration is checked although the values do not want it")
        return
    [container] = checking["initContainers"]
    need(container["args"][0] == "check-config", "the configuration is not checked before the migration")
    volumes = {volume["name"]: volume for volume in checking["volumes"]}
    checked = one(documents, "ConfigMap", volumes["config"]["configMap"]["name"])
    annotations = [document["metadata"].get("annotations", {}) for document in (checked, job)]
    weights = [int(of.get("helm.sh/hook-weight", 0)) for of in annotations if of.get("helm.sh/hook") == "pre-install,pre-upgrade"]
    need(len(weights) == 2 and weights[0] < weights[1], "the checked configuration is not there before the Job")
    need(checked["data"] == one(documents, "ConfigMap")["data"], "the checked configuration is not that of the Pods")
    broker = pod["containers"][0]
    need(container["env"] == broker["env"], "the check does not have the environment of the Pods")
    own = {"home", "tmp"}  # What a Pod writes to.
    need(container["volumeMounts"] == [mount for mount in broker["volumeMounts"] if mount["name"] not in own], "the check does not have the files of the Pods")
    need({volume["name"] for volume in pod["volumes"]} - own == volumes.keys(), "the check does not have the volumes of the Pods")
    [rule] = job["spec"]["podFailurePolicy"]["rules"]
    need(rule["action"] == "FailJob" and rule["onExitCodes"]["containerName"] == container["name"], "a faulty configuration is tried again")


def check_database(pod: dict, values: dict, secrets: set[str]) -> None:
    environment = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
    wanted = values.get("database", {}).get("sslMode", "verify-full")
    need(environment.get("PGSSLMODE") == wanted, f"the database's server is not verified as the values say: {wanted}")
    authority = environment.get("PGSSLROOTCERT")
    need(bool(authority) == bool(values.get("database", {}).get("ca", {}).get("name")), "the authority of the values is not believed, or another one")
    need(not authority or authority.rpartition("/")[2] in secrets, f"the secret {authority} is not mounted")


def check_trial(documents: list[dict]) -> None:
    secret = next((one for one in documents if one["kind"] == "Secret" and one["metadata"]["name"].endswith("-trial")), None)
    if not secret:
        return
    told = secret["stringData"]
    need(f":{told['redis-password']}@" in told["redis-url"], "the trial's Redis has no password in its URL")
    need("sslmode=" in told["database-url"], "the trial's database URL names no sslmode")
    redis = one(documents, "Deployment", "-trial-redis")["spec"]["template"]["spec"]["containers"][0]
    need(redis["args"][1:3] == ["--requirepass", "$(REDISCLI_AUTH)"], "the trial's Redis asks for no password")
    source = next(variable["valueFrom"]["secretKeyRef"] for variable in redis["env"] if variable["name"] == "REDISCLI_AUTH")
    need(source["key"] == "redis-password" and source["name"] == secret["metadata"]["name"], "the trial's Redis has another password")


def check_page_of_operations() -> None:
    page = (HERE.parent / "docs/operations.md").read_text()
    sentence = re.search(r"routes all paths that clients need: (.*?)\. ", page)
    need(sentence, "docs/operations.md does not name the paths that clients need")
    named = set(re.findall(r"`([^`]+)`", sentence[1]))
    need(named == served(), f"docs/operations.md: not all paths that clients need, or more: {named ^ served()}")


def check_trial_upgrade(chart: Path, values: dict) -> None:
    """Another version of the broker leaves the trial's stores alone: their data ends with their Pods."""
    if not values.get("trial", {}).get("enabled"):
        return

    def pods(tag: str) -> dict[str, dict]:
        documents = rendered(chart, {**values, "image": {**values.get("image", {}), "tag": tag}})
        return {one["metadata"]["name"]: one["spec"]["template"] for one in documents if "template" in one.get("spec", {}) and "-trial" in one["metadata"]["name"]}

    before, after = pods("1.0.0"), pods("1.0.1")
    need(len(before) == 2, "the trial has other stores: mend check_trial_upgrade in check.py")
    changed = {name for name in before if before[name] != after.get(name)}
    need(not changed, f"another version of the broker replaces the Pods of {changed}")


def served() -> set[str]:
    """Paths of the data plane, as the broker's sources have them."""
    found = set()
    for file, patterns in SERVED.items():
        text = (HERE.parent / file).read_text()
        for pattern in patterns:
            match = re.search(pattern, text, re.M)
            need(match, f"{file}: {pattern} is not found any more: mend SERVED in check.py")
            found.add(match[1])
    return found


def check_keys(chart: Path) -> None:
    """`config` takes every key of the broker that the chart does not decide."""
    page = (HERE.parent / "docs/configuration.md").read_text()
    keys = re.findall(r"^\| `([a-z_.]+)`<br>`MCP_BROKER__", page, re.M)
    need(len(keys) > 100, "docs/configuration.md names no keys any more: mend check_keys in check.py")
    config = json.loads((chart / "values.schema.json").read_text())["properties"]["config"]
    for key in keys:
        taken, schema = True, config
        for part in key.split("."):
            properties = schema.get("properties", {})
            if part not in properties:
                taken = schema.get("additionalProperties") is not False
                break
            schema = properties[part]
        parents = {key[: end.start()] for end in re.finditer(r"\.|$", key)}
        need(taken != bool(parents & CHART_DECIDES), f"config and {key}: the values take it and the chart decides it, or neither")
    section = (chart / "README.md").read_text().split("## What the chart decides")[1].split("## Values")[0]
    unnamed = {key for key in CHART_DECIDES if f"`{key}`" not in section}
    need(not unnamed, f"README.md does not name {unnamed}")


def check_runbooks(rules: dict, base: str) -> None:
    """deploy/test/check_rules.py holds the sections against the page."""
    for group in rules["groups"]:
        for rule in group["rules"]:
            leads_to = rule["annotations"].get("runbook_url")
            need(leads_to == f"{base}#{rule['alert'].lower()}", f"{rule['alert']}: its runbook_url is {leads_to}")


def check_foreign(documents: list[dict], values: dict, work: Path) -> None:
    monitor = one(documents, "ServiceMonitor")
    if monitor:
        service = next(one for one in documents if one["kind"] == "Service" and monitor["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items())
        [endpoint] = monitor["spec"]["endpoints"]
        need(endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}, "the ServiceMonitor names a port its Service does not have")
        need(endpoint["authorization"]["credentials"]["name"], "the ServiceMonitor shows no token")
        need(re.fullmatch(r".*mcp-broker.*", endpoint["relabelings"][0]["replacement"]), "the alerts would not find this job")
    rule = one(documents, "PrometheusRule")
    if rule:
        need(rule["spec"].get("groups"), "the PrometheusRule has no alerts")
        check_runbooks(rule["spec"], values["monitoring"]["prometheusRule"].get("runbookBaseUrl", "docs/operations.md"))
        [absent] = [alert["expr"] for group in rule["spec"]["groups"] for alert in group["rules"] if alert["alert"] == "McpBrokerAbsent"]
        jobs = f'="{endpoint["relabelings"][0]["replacement"]}"' if monitor else '=~".*mcp-broker.*"'
        need(absent == f"absent(up{{job{jobs}}})", f"McpBrokerAbsent looks for other targets: {absent}")
        file = work / "rules.yaml"
        file.write_text(yaml.safe_dump(rule["spec"]))
        done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True)
        need(done.returncode == 0, f"promtool: {done.stdout}{done.stderr}")
    route = one(documents, "HTTPRoute")
    if route:
        routed = set()
        for rule in route["spec"]["rules"]:
            need(len(rule["matches"]) <= MATCHES_MAX, f"HTTPRoute: a rule has {len(rule['matches'])} matches, and the Gateway API up to 1.1 permits {MATCHES_MAX}")
            routed |= {match["path"]["value"] for match in rule["matches"] if match["path"]["type"] == "PathPrefix"}
            need(rule.get("timeouts", {}) == values["gateway"].get("timeouts", {}), "HTTPRoute: a rule does not have the timeouts of the values")
            [backend] = rule["backendRefs"]
            service = one(documents, "Service", backend["name"])
            need(service and service["spec"]["ports"][0]["port"] == backend["port"], "the HTTPRoute leads to no Service")
        need(routed == served(), f"HTTPRoute: not all that the broker serves is routed, or more: {routed ^ served()}")
    if any(document["kind"] == "Ingress" for document in documents):
        for rule in one(documents, "Ingress")["spec"]["rules"]:
            routed = {path["path"] for path in rule["http"]["paths"] if path["pathType"] == "Prefix"}
            need(routed == served(), f"Ingress: not all that the broker serves is routed, or more: {routed ^ served()}")
        backend = one(documents, "Ingress")["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
        service = one(documents, "Service", backend["name"])
        need(service and service["spec"]["ports"][0]["name"] == backend["port"]["name"], "the Ingress leads to no Service")
        snippet = one(documents, "Ingress")["metadata"].get("annotations", {}).get("haproxy-ingress.github.io/config-backend")
        if snippet:
            check_haproxy(snippet, work)


def check_haproxy(snippet: str, work: Path) -> None:
    lines = "".join(f"    {line}\n" for line in snippet.splitlines())
    file = work / "haproxy.cfg"
    file.write_text(f"defaults\n    mode http\n    timeout connect 1s\n    timeout client 1s\n    timeout server 1s\nfrontend f\n    bind 127.0.0.1:8080\n    default_backend b\nbackend b\n{lines}    server a 127.0.0.1:8081\n")
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    done = subprocess.run([program, "-c", "-f", file], capture_output=True, text=True)
    need(done.returncode == 0, f"haproxy does not take the Ingress's lines: {done.stderr}")


def check_config(documents: list[dict], broker: Path, work: Path) -> None:
    text = one(documents, "ConfigMap")["data"]["mcp-broker.yaml"]
    certificate, key = work / "certificate.pem", work / "key.pem"
    if not key.exists():
        made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=mcp.example.com"]
        subprocess.run([*made, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    written = {"redis-url": "redis://redis:6379", "database-url": "postgres://u:p@database/broker", "database-ca.crt": "unused", "tls.crt": certificate.read_text(), "tls.key": key.read_text()}

    def written_at(path: re.Match) -> str:
        file = work / path.group().lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(written.get(file.name, f"0123456789abcdef-{file.name}") + "\n")
        return str(file)

    text = re.sub(r"/run/secrets/\S+?(?=[\"'\s,}]|$)", written_at, text)
    mounted = work / "mcp-broker.d"
    mounted.mkdir(exist_ok=True)
    file = work / "mcp-broker.yaml"
    text = text.replace("/etc/mcp-broker.d", str(mounted))
    # What the Deployment adds by its environment.
    environment = {"MCP_BROKER__NODE__ADVERTISE": "10.0.0.1:7400", "MCP_BROKER__NODE__ID": "mcp-broker-0123456789-abcde"}

    def check(text: str) -> subprocess.CompletedProcess[str]:
        file.write_text(text)
        return subprocess.run([broker, *arguments], capture_output=True, text=True, env=environment)

    job = one(documents, "Job")
    steps = job["spec"]["template"]["spec"].get("initContainers", []) if job else []
    arguments = ["check-config", file]
    if steps:
        arguments = [file if argument == "/etc/mcp-broker/mcp-broker.yaml" else argument for argument in steps[0]["args"]]
    done = check(text)
    need(done.returncode == 0, f"check-config: {done.stdout}{done.stderr}")
    if steps:
        done = check(yaml.safe_dump({**yaml.safe_load(text), "breaker": {"failures": "many"}}))
        [rule] = job["spec"]["podFailurePolicy"]["rules"]
        need(done.returncode in rule["onExitCodes"]["values"] and "breaker.failures" in done.stdout, f"a faulty configuration does not end the Job: {done.returncode} {done.stdout}{done.stderr}")


def check_bad_values(chart: Path) -> int:
    files = sorted((chart / "ci/bad").glob("*.yaml"))
    for path in files:
        expected = re.match(r"# expect: (.*)", path.read_text())[1]
        try:
            rendered(chart, values_of(path))
        except helm_python.HelmError as error:
            need(expected in str(error), f"{path.name}: refused, but not with {expected!r}: {error}")
            continue
        raise Fault(f"{path.name}: these values were taken")
    return len(files)


def check_chart(chart: Path, files: list[Path], work: Path, versions: list[str]) -> str:
    check_keys(chart)
    manifests = 0
    for path in files:
        values = values_of(path)
        report = helm_python.lint(chart, values, strict=True, namespace="prod", kube_version=f"v{versions[-1]}.0")
        faults = [message for message in report["messages"] if message["severity"] > 1]
        need(not faults and not report["errors"], f"{path.name}: lint: {faults or report['errors']}")
        try:
            documents = rendered(chart, values)
        except helm_python.HelmError as error:
            raise Fault(f"{path.name}: {error}") from error
        try:
            check_schemas(documents, versions)
            check_fit(documents, values)
            check_trial(documents)
            check_trial_upgrade(chart, values)
            check_foreign(documents, values, work)
        except Fault as fault:
            raise Fault(f"{path.name}: {fault}") from fault
        behind_proxy = [name for name in ("ingress", "gateway") if values.get(name, {}).get("enabled")]
        named = values.get("trustedProxies") and values.get("networkPolicy", {}).get("clients")
        need(not behind_proxy or named, f"{path.name}: all clients of {behind_proxy} have its address, or others may name one")
        manifests += len(documents)
    bad = check_bad_values(chart)
    return f"{len(files)} value files, {manifests} manifests, {bad} files of bad values refused"


def check_that_faults_are_found(work: Path) -> int:
    for number, (file, there, instead, words) in enumerate(BROKEN):
        chart = work / f"broken-{number}" / "mcp-broker"
        shutil.copytree(CHART, chart)
        text = (chart / file).read_text()
        need(there in text, f"the chart does not have {there!r} any more: a broken variant of check.py has to be mended")
        (chart / file).write_text(text.replace(there, instead, 1))
        try:
            check_chart(chart, [CHART / "ci/everything.yaml", CHART / "ci/trial.yaml"], work, KUBERNETES[-1:])
        except (Fault, helm_python.HelmError, KeyError) as fault:
            need(words in repr(fault), f"{file} with {instead!r}: found, but as {fault!r}")
            continue
        raise Fault(f"{file} with {instead!r} in place of {there!r}: no check failed")
    return len(BROKEN)


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("--broker", type=Path)
    broker = asked.parse_args().broker
    with tempfile.TemporaryDirectory(prefix="mcp-broker-chart-") as folder:
        work = Path(folder)
        try:
            if broker:
                for path in good_values(CHART):
                    check_config(rendered(CHART, values_of(path)), broker, work)
                print(f"chart: the broker takes the configurations of {len(good_values(CHART))} value files")
                return 0
            version = re.search(r'^version = "(.*)"', (HERE.parent / "Cargo.toml").read_text(), re.M)[1]
            need(helm_python.Chart.load(CHART).metadata["appVersion"] == version, f"the chart's appVersion is not the broker's, {version}")
            check_page_of_operations()
            found = check_chart(CHART, good_values(CHART), work, KUBERNETES)
            broken = check_that_faults_are_found(work)
        except Fault as fault:
            print(f"chart: {fault}", file=sys.stderr)
            return 1
    print(f"chart: {found}, Kubernetes {KUBERNETES[0]} to {KUBERNETES[-1]}; {broken} broken variants noticed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
