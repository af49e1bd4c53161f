#!/usr/bin/env python3
"""Starts what docker-compose.yml describes without containers and uses it as people would: `topology.py BROKER PYTHON LOADTEST`.

BROKER is the program, PYTHON an interpreter with the MCP SDK, LOADTEST the load tester. The commands, environments and configuration files are those
of the compose file (see compose.py); every port is a free one on 127.0.0.1. PostgreSQL, Redis, HAProxy and Prometheus are
the distribution's. Grafana is not started; its queries are asked of Prometheus. Called by `make test-deploy`.
"""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from compose import ROOT, Compose
from processes import Processes, wait_for

# Series that exist only after something went wrong, or was rare. A query on others must find something.
MAYBE_EMPTY = {
    "mcp_rate_limited_total", "mcp_dropped_answers_total", "mcp_dropped_notifications_total", "mcp_expired_total", "mcp_store_errors_total",
    "mcp_breaker_transitions_total", "mcp_calls_crowded_out_total", "mcp_retries_total", "mcp_backend_calls_max", "mcp_approval_wait_seconds_bucket",
}
VARIABLES = {"$job": "mcp-broker", "$instance": ".*", "$__rate_interval": "30s"}


class Topology:
    def __init__(self, here: Path, broker: Path, python: Path, loadtest: Path) -> None:
        self.compose = Compose(here)
        self.processes = Processes(self.compose, broker)
        self.broker, self.python, self.loadtest, self.here = broker, python, loadtest, here

    def start(self) -> None:
        (self.here / "home").mkdir(mode=0o777)
        (self.here / "home").chmod(0o777)
        subprocess.run([ROOT / "deploy/make-secrets.sh", self.here / "secrets"], check=True, stdout=subprocess.DEVNULL)
        (self.here / "secrets").chmod(0o755)
        for service, ports in {"postgres": [5432], "redis": [6379], "broker-1": [8080, 9090, 7400], "broker-2": [8080, 9090, 7400], "balancer": [8080, 9090], "prometheus": [9090], "otel-collector": [4318, 13133]}.items():
            for port in ports:
                self.compose.address(service, port)
        for url in (self.here / "secrets/database_url", self.here / "secrets/redis_url"):
            url.write_text(self.compose.local("broker-1", url.read_text()))
        self.compose.release_ports()
        self.token = (self.here / "secrets/admin_token").read_text().strip()
        self.processes.postgres()
        self.processes.redis()
        self.processes.collector()
        self.processes.start_brokers("broker-1", "broker-2")
        self.processes.balancer()
        self.processes.prometheus()
        self.wait_balanced()

    def admin(self, path: str, body: dict | None = None, method: str = "GET", at: str = "balancer"):
        request = urllib.request.Request(
            f"http://{self.compose.address(at, 9090)}{path}", method=method, data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
            return json.loads(text) if "json" in answer.headers.get("content-type", "") else text

    def replicas_of_balancer(self) -> set[str]:
        """Who answers the next requests."""
        url = f"http://{self.compose.address('balancer', 9090)}/readyz"

        def one() -> str:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.headers["x-replica"]

        return {one() for _ in range(4)}

    def wait_balanced(self) -> None:
        wait_for("the balancer to have both replicas", lambda: self.replicas_of_balancer() == {"broker-1", "broker-2"})

    def ask(self, path: str, **parameters: str):
        url = f"http://{self.compose.address('prometheus', 9090)}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"Prometheus refuses {parameters}: {error.read().decode()}") from error

    def query(self, query: str) -> list:
        return self.ask("query", query=query)["result"]

    def client(self, key: str, backend: str, what: str) -> subprocess.Popen:
        url = f"http://{self.compose.address('balancer', 8080)}/mcp"
        command = [self.python, ROOT / "deploy/test/client.py", url, key, backend, what]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(self.here / f"client-{what}.log", "w"), text=True)

    def client_log(self, what: str) -> str:
        """How a client ended. Most of its log is the stack of its libraries."""
        lines = (self.here / f"client-{what}.log").read_text().splitlines()
        return "\n".join(line for line in lines if re.search(r"^[ |+]*[\w.]*(Error|Exception|Group|Disconnect)", line))[-1500:]

    def broken_requests(self) -> list[str]:
        """Lines of the balancer about requests that it could not complete: their state does not begin with `--`."""
        lines = (self.here / "balancer.log").read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(r" \d+ - - (?!--)\S{4} ", line)]

    def command_line(self, *arguments: str) -> str:
        environment = {"MCP_BROKER_ADMIN_URL": f"http://{self.compose.address('balancer', 9090)}", "MCP_BROKER_ADMIN_TOKEN": self.token}
        done = subprocess.run([self.broker, *arguments], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"mcp-broker {' '.join(arguments)}: {done.stderr}"
        return done.stdout


class Session:
    """A client without an SDK, of the service of that name."""

    def __init__(self, it: Topology, key: str, service: str) -> None:
        self.connection = http.client.HTTPConnection(it.compose.address(service, 8080), timeout=30)
        self.headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}
        opened = self.post({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info})
        opened.read()
        self.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).read()

    def post(self, body: dict) -> http.client.HTTPResponse:
        self.connection.request("POST", "/mcp", json.dumps(body), self.headers)
        return self.connection.getresponse()

    def echo(self) -> tuple[str, str]:
        """Who answered, and what."""
        call = {"name": "tools__echo", "arguments": {"message": "still here"}}
        response = self.post({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        return response.headers["x-replica"], response.read().decode()


class Client:
    """Sign-ins through the balancer from one address of this machine."""

    def __init__(self, it: Topology, address: str) -> None:
        host, port = it.compose.address("balancer", 8080).split(":")
        self.connection = http.client.HTTPConnection(host, int(port), timeout=30, source_address=(address, 0))

    def sign_in(self, key: str, **headers: str) -> tuple[str, int]:
        """The replica, and the status of its answer to a request that asks for nothing."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        shown = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers}
        self.connection.request("POST", "/mcp", body, shown)
        response = self.connection.getresponse()
        response.read()
        return response.headers["x-replica"], response.status


class SlowCall(Session):
    """A call of two seconds, to one replica, past the balancer."""

    def __init__(self, it: Topology, key: str, replica: str) -> None:
        super().__init__(it, key, replica)
        arguments = {"from": 4, "pause_ms": 500}
        call = {"name": "tools__countdown", "arguments": arguments, "_meta": {"progressToken": "p"}}
        # The first progress makes the answer an event stream: its head says that the call is under way.
        self.response = self.post({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})

    def answer(self) -> str:
        self.text = self.response.read().decode()
        found = [json.loads(line[6:]) for line in self.text.splitlines() if line.startswith("data: {")]
        return next((one["result"]["content"][0]["text"] for one in found if one.get("id") == 2 and "result" in one), "no answer")


def a_client_without_a_key_is_refused(it: Topology) -> None:
    request = urllib.request.Request(f"http://{it.compose.address('balancer', 8080)}/mcp", method="POST", data=b"{}", headers={"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=10)
        raise AssertionError("it was let in")
    except urllib.error.HTTPError as error:
        assert error.code == 401, error.code


def a_backend_is_registered_and_a_client_uses_it(it: Topology) -> str:
    it.admin("/admin/v1/tenants/acme", {"limits": {"calls_in_flight_per_tenant": 200}}, "PUT")
    # The URL of the compose file's own program.
    transport = {"type": "stdio", "command": str(it.broker), "args": ["demo-backend"]}
    added = it.admin("/admin/v1/tenants/acme/backends/tools", {"transport": transport}, "PUT")
    assert added["state"] == "ready", added
    for replica in ("broker-1", "broker-2"):
        wait_for(f"{replica} to have the backend", lambda replica=replica: it.admin("/admin/v1/tenants/acme/backends", at=replica), 10)
    key = it.admin("/admin/v1/tenants/acme/keys", {"name": "test", "principal": "ann"}, "POST")["key"]
    client = it.client(key, "tools", "tour")
    out, _ = client.communicate(timeout=120)
    assert client.returncode == 0, it.client_log("tour")
    seen = json.loads(out)
    wanted = {
        "tools": ["tools__add", "tools__ask", "tools__countdown", "tools__echo", "tools__increment"], "echo": "hello", "asked": True, "prompt": True,
        "refused": "tool_not_found", "task": True, "alike": True,
    }
    assert {name: sorted(seen[name]) if name == "tools" else seen[name] for name in wanted} == wanted, seen
    assert seen["progress"] and seen["progress"] == sorted(seen["progress"]), seen
    return key


def the_load_tester_finds_every_answer(it: Topology, key: str) -> str:
    """Each of its calls has the one answer that belongs to it, whichever replica the balancer chose."""
    transport = {"type": "stdio", "command": str(it.loadtest), "args": ["backend", "--stdio"]}
    it.admin("/admin/v1/tenants/acme/backends/load", {"transport": transport}, "PUT")
    for replica in ("broker-1", "broker-2"):
        found = "/admin/v1/tenants/acme/backends/load"
        wait_for(f"{replica} to have the backend", lambda replica=replica: it.admin(found, at=replica)["state"] == "ready", 10)
    target = f"http://{it.compose.address('balancer', 8080)}/mcp/load"
    command = [it.loadtest, "run", "--profile", ROOT / "loadtest/profiles/quick.yaml", "--key", key, "--json", it.here / "load.json", target]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"the load tester ended with {done.returncode}: {done.stdout}{done.stderr}"
    calls = [int(count) for count in re.findall(r": (\d+) calls", done.stdout)]
    return f"{sum(calls)} calls of {len(calls)} kinds"


def the_declared_demo_backend_is_there(it: Topology) -> None:
    listed = it.command_line("backend", "list")
    assert re.search(r"^demo\s+ready\s+closed\s+stdio.*config", listed, re.M), listed
    key = json.loads(it.command_line("key", "create", "--tenant", "default", "--name", "me", "--json"))["key"]
    client = it.client(key, "demo", "tour")
    out, _ = client.communicate(timeout=120)
    assert client.returncode == 0 and json.loads(out)["echo"] == "hello", it.client_log("tour")


def prometheus_has_both_replicas_and_all_rules(it: Topology) -> None:
    wait_for("Prometheus to see both replicas", lambda: len(it.query('up{job="mcp-broker"} == 1')) == 2)
    wait_for("the calls to be counted", lambda: len(it.query('mcp_requests_total{method="tools/call",outcome="ok"} > 0')) == 2)
    wait_for("both replicas to have Redis, whose password they know", lambda: len(it.query('mcp_hot_store_connected{store="redis"} == 1')) == 2)
    wait_for("requests passed on", lambda: it.query('sum(mcp_forwarded_requests_total{outcome="answered"}) > 0'))
    groups = it.ask("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    loaded = set(re.findall(r"alert: (\w+)", (ROOT / "helm/mcp-broker/files/alerts.yaml").read_text()))
    assert {rule["name"] for rule in rules} == loaded, rules
    wait_for("all rules to be evaluated", lambda: all(rule["health"] == "ok" for group in it.ask("rules")["groups"] for rule in group["rules"]))
    # Not the others: one of the client's calls is refused on purpose, which is a large share of the first few.
    active = [alert["labels"] for alert in it.ask("alerts")["alerts"] if alert["labels"]["severity"] == "critical"]
    assert not active, f"alerts in a healthy topology: {active}"


def a_trace_is_one_tree_whichever_replica_serves_it(it: Topology, key: str) -> int:
    """Through the balancer, which knows nothing of sessions: one of two requests is passed on to the replica with the session."""
    trace, client_span = "5af7651916cd43dd8448eb211c80319c", "c7ad6b7169203331"
    session = Session(it, key, "balancer")
    session.headers["traceparent"] = f"00-{trace}-{client_span}-01"
    served = {session.echo()[0] for _ in range(6)}
    assert served == {"broker-1", "broker-2"}, served

    def spans() -> list[dict]:
        # It is being written: what has no end of line yet is not all there.
        whole, _, _begun = it.processes.spans.read_text().rpartition("\n")
        return [span for span in map(json.loads, whole.splitlines()) if span["trace"] == trace]

    wait_for("six calls, each with its attempt", lambda: len(spans()) == 12)
    ids = {span["id"] for span in spans()} | {client_span}
    assert all(span["parent"] in ids and span["name"] == "tools/call tools__echo" for span in spans()), spans()
    assert len({span["resource"]["service.instance.id"] for span in spans()}) == 1, "the owner of the session serves all of them"
    return len(spans())


def a_client_with_wrong_keys_keeps_no_other_client_out(it: Topology) -> int:
    """Limits per address count the client, also if it writes other addresses into the header of proxies."""
    guesser, attempts, refusing = Client(it, "127.0.0.2"), 0, set()
    wrong = f"mcpb_{'0' * 16}_{'0' * 43}"
    while len(refusing) < 2:
        assert attempts < 1000, f"only {refusing} refuse an address with {attempts} wrong keys"
        replica, status = guesser.sign_in(wrong, **{"X-Forwarded-For": f"192.0.2.{attempts % 250}"})
        assert status in {401, 429}, status
        refusing |= {replica} if status == 429 else set()
        attempts += 1
    key = it.admin("/admin/v1/tenants/acme/keys", {"name": "new", "principal": "eve"}, "POST")["key"]
    other, served = Client(it, "127.0.0.3"), set()
    while len(served) < 2:
        replica, status = other.sign_in(key)
        assert status not in {401, 429}, f"{replica} keeps a new key out: {status}"
        served.add(replica)
    # Its first failures are none too many.
    refused = {other.sign_in(wrong) for _ in range(8)}
    assert {status for _, status in refused} == {401}, refused
    return attempts


def what_operators_did_is_in_the_audit_log(it: Topology) -> None:
    lines = [json.loads(line) for line in it.command_line("audit", "export", "--tenant", "acme").splitlines()]
    actions = {(line["action"], line["outcome"]) for line in lines}
    assert {("PUT /admin/v1/tenants/{tenant}", "ok"), ("POST /admin/v1/tenants/{tenant}/keys", "ok")} <= actions, actions
    refused = it.processes.sql("delete from audit")
    assert refused.returncode != 0 and "only added to" in refused.stderr, refused


def every_query_of_the_dashboards_finds_something(it: Topology) -> int:
    asked = []
    for path in sorted((ROOT / "helm/mcp-broker/files/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"]
                for name, value in VARIABLES.items():
                    query = query.replace(name, value)
                asked.append((f"{path.name}: {panel['title']}: {query}", query))

    def may_be_empty(query: str) -> bool:
        return bool(set(re.findall(r"\bmcp_\w+", query)) & MAYBE_EMPTY or re.search(r"(outcome|code)=~", query))

    answered: set[str] = set()

    def empty() -> list[str]:
        """Those not answered yet: a rate needs two scrapes."""
        answered.update(query for _, query in asked if query not in answered and it.query(query))
        return [where for where, query in asked if query not in answered and not may_be_empty(query)]

    try:
        wait_for("all queries of the dashboards to find something", lambda: not empty(), 15)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *empty()])) from error
    return len(asked)


def every_metric_of_the_broker_is_documented(it: Topology) -> None:
    page = (ROOT / "docs/operations.md").read_text()
    for replica in ("broker-1", "broker-2"):
        names = set(re.findall(r"^# TYPE (mcp_\w+)", it.admin("/metrics", at=replica), re.M))
        missing = {name for name in names if f"`{name}`" not in page}
        assert len(names) > 15 and not missing, missing


def a_replica_restarts_and_no_call_fails(it: Topology, key: str) -> int:
    client = it.client(key, "tools", "loop")
    before = 'sum by (instance) (mcp_requests_total{method="tools/call",outcome="ok"})'
    counts = {one["metric"]["instance"]: float(one["value"][1]) for one in it.query(before)}

    def both_serve() -> bool:
        now = {one["metric"]["instance"]: float(one["value"][1]) for one in it.query(before)}
        return len(now) == 2 and all(value > counts.get(name, 0) + 20 for name, value in now.items())

    wait_for("both replicas to serve the client", both_serve)
    for replica in ("broker-1", "broker-2"):
        # A call that is in flight when the signal comes is answered; meanwhile the balancer sees that the replica drains.
        slow = SlowCall(it, key, replica)
        code = it.processes.stop(replica)
        assert slow.answer() == "lift-off", slow.text
        assert code == 0, f"{replica} ended with {code}"
        down = {"alertname": "McpBrokerDown", "instance": it.compose.address(replica, 9090)}
        wait_for(f"an alert of {replica}", lambda down=down: [one for one in it.ask("alerts")["alerts"] if one["labels"].items() >= down.items()])
        it.processes.start_brokers(replica)
        it.wait_balanced()
    ended = client.poll()
    out, _ = client.communicate(timeout=60)
    assert ended is None, f"the client gave up: {out[-3000:]} {it.client_log('loop')}"
    seen = json.loads(out)
    assert not seen["failed"] and seen["answered"] > 50, seen
    return seen["answered"]


def calls_go_on_while_the_database_is_away(it: Topology, key: str) -> int:
    """No replica is ready then; the balancer uses the live ones."""
    session = Session(it, key, "balancer")
    assert "still here" in session.echo()[1]

    def unready(replica: str) -> bool:
        try:
            return not it.admin("/readyz", at=replica)
        except urllib.error.HTTPError as error:
            return error.code == 503

    it.processes.stop("postgres", signal.SIGINT)
    answers = []
    for replica in ("broker-1", "broker-2"):
        wait_for(f"{replica} to be unready", lambda replica=replica: answers.append(session.echo()) or unready(replica))
    wait_for("a call to each replica", lambda: answers.append(session.echo()) or {who for who, _ in answers[-20:]} == {"broker-1", "broker-2"})
    wrong = [answer for answer in answers if "still here" not in answer[1]]
    assert not wrong, wrong
    away = {"McpStoreFailing", "McpLeaseNotRenewed"}
    wait_for("an alert", lambda: away & {one["labels"]["alertname"] for one in it.ask("alerts")["alerts"]})
    it.processes.start_postgres()
    for replica in ("broker-1", "broker-2"):
        wait_for(f"{replica} to be ready", lambda replica=replica: not unready(replica))
    assert "still here" in Session(it, key, "balancer").echo()[1], "no session can be opened"
    return len(answers)


def what_is_wrong_at_the_start_is_said(it: Topology) -> None:
    """Exit codes and words of docs/operations.md."""
    environment = it.compose.environment("broker-1", it.processes.more)
    command = [str(it.broker), *it.compose.command("broker-1", it.processes.more)]

    def ends(wanted: int, words: str, **changed: str) -> None:
        done = subprocess.run(command, env={**environment, "PATH": os.environ["PATH"], **changed}, capture_output=True, text=True, timeout=60, cwd=it.here / "home")
        assert done.returncode == wanted and words in done.stderr, f"{done.returncode} instead of {wanted}, {words!r}: {done.stderr}"

    unreachable = it.here / "secrets/unreachable"
    unreachable.write_text("postgres://broker:x@127.0.0.1:1/broker\n")
    ends(64, "limits.burst", MCP_BROKER__LIMITS__BURST="many")
    ends(64, "node.secret_file", MCP_BROKER__NODE__SECRET_FILE="/nonexistent")
    ends(69, "database", MCP_BROKER__STORAGE__URL_FILE=str(unreachable))
    # A taken address is a needed service that cannot be had.
    ends(69, "listen.http", MCP_BROKER__LISTEN__INTERNAL="127.0.0.1:0")
    other = it.here / "secrets/other_secret"
    other.write_text("another-secret-0123456789\n")
    it.processes.stop("broker-1")
    ends(70, "node.secret", MCP_BROKER__NODE__SECRET_FILE=str(other))
    newest = it.processes.sql("select max(version) from _sqlx_migrations").stdout.strip()
    it.processes.sql(f"insert into _sqlx_migrations select {int(newest) + 1}, 'later', now(), true, ''::bytea, 0")
    ends(69, "newer")
    it.processes.sql(f"delete from _sqlx_migrations where version > {newest}")
    it.processes.start_brokers("broker-1")


def the_chart_s_job_brings_the_schema_up_to_date(it: Topology) -> None:
    """By environment alone, as helm/mcp-broker/templates/migration.yaml has it; until then a broker of the chart does not start."""
    assert it.processes.sql("create database fresh").returncode == 0
    url = it.here / "secrets/fresh_url"
    url.write_text((it.here / "secrets/database_url").read_text().replace("/broker?", "/fresh?"))
    job = (ROOT / "helm/mcp-broker/templates/migration.yaml").read_text()
    given = {"MCP_BROKER__STORAGE__URL_FILE": url, "MCP_BROKER__NODE__SECRET_FILE": it.here / "secrets/node_secret"}
    assert set(re.findall(r"MCP_BROKER__\w+", job)) == given.keys() and "args: [migrate]" in job
    environment = {"PATH": os.environ["PATH"], **{name: str(value) for name, value in given.items()}}
    serve = {**environment, "MCP_BROKER__STORAGE__MIGRATE_ON_START": "false", "MCP_BROKER__LISTEN__HTTP": "127.0.0.1:0", "MCP_BROKER__LISTEN__ADMIN": "127.0.0.1:0"}
    refused = subprocess.run([it.broker, "serve"], env=serve, capture_output=True, text=True, timeout=60, cwd=it.here / "home")
    assert refused.returncode == 69 and "mcp-broker migrate" in refused.stderr, refused.stderr
    for _ in range(2):
        done = subprocess.run([it.broker, "migrate"], env=environment, capture_output=True, text=True, timeout=60, cwd=it.here / "home")
        assert done.returncode == 0 and "up to date" in done.stdout, done.stderr
    broker = subprocess.Popen([it.broker, "serve"], env=serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=it.here / "home")
    assert broker.stdout.readline().startswith("ready "), "it does not start after the migration"
    broker.terminate()
    assert broker.wait(30) == 0


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broker, python, loadtest = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), Path(sys.argv[3]).resolve()
    begun = time.monotonic()

    def said(words: str) -> None:
        print(f"topology: {time.monotonic() - begun:5.1f} s  {words}", flush=True)

    with tempfile.TemporaryDirectory(prefix="mcp-broker-topology-") as folder:
        Path(folder).chmod(0o755)
        it = Topology(Path(folder), broker, python, loadtest)
        try:
            it.start()
            said("two replicas, PostgreSQL, Redis, balancer and Prometheus are up")
            a_client_without_a_key_is_refused(it)
            key = a_backend_is_registered_and_a_client_uses_it(it)
            the_declared_demo_backend_is_there(it)
            said("clients of two tenants used everything through the balancer")
            said(f"the load tester: {the_load_tester_finds_every_answer(it, key)}")
            prometheus_has_both_replicas_and_all_rules(it)
            every_metric_of_the_broker_is_documented(it)
            what_operators_did_is_in_the_audit_log(it)
            said(f"{a_client_with_wrong_keys_keeps_no_other_client_out(it)} wrong keys of one client kept no other client out")
            said(f"one trace over both replicas, {a_trace_is_one_tree_whichever_replica_serves_it(it, key)} spans, all connected; the audit log is kept")
            said(f"Prometheus has both replicas and all rules; {every_query_of_the_dashboards_finds_something(it)} queries of dashboards are answered")
            said(f"both replicas restarted, {a_replica_restarts_and_no_call_fails(it, key)} calls meanwhile, none failed")
            said(f"the database was away for {calls_go_on_while_the_database_is_away(it, key)} calls, none failed")
            what_is_wrong_at_the_start_is_said(it)
            the_chart_s_job_brings_the_schema_up_to_date(it)
            said("what is wrong at the start is said, with the documented exit codes; the chart's Job migrates")
        except BaseException as error:
            for path in sorted(Path(folder).glob("*.log")):
                print(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}", file=sys.stderr)
            print("--- requests that the balancer did not complete", *it.broken_requests()[-20:], sep="\n", file=sys.stderr)
            if isinstance(error, AssertionError):
                print(f"topology: FAILED: {error}", file=sys.stderr)
                return 1
            raise
        finally:
            it.processes.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
