#!/usr/bin/env python3
"""Writes the Grafana dashboards of helm/mcp-broker/files/dashboards from the tables below.

`scripts/dashboards.py` writes them, `scripts/dashboards.py --check` says whether they are current (`make check`). Every
metric and label in a query is held against the broker's own table by deploy/test/check_rules.py, and every query is asked
of a real Prometheus by deploy/test/topology.py.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "helm/mcp-broker/files/dashboards"
COLUMNS = 24
FAILED = 'outcome=~"error|refused|timeout"'
CALLS = 'method="tools/call"'
# What every query is narrowed to; both are variables of each dashboard.
AT = 'job=~"$job",instance=~"$instance"'


def rate(metric: str, by: str = "", labels: str = "") -> str:
    narrowed = f"{metric}{{{AT}{',' + labels if labels else ''}}}"
    return f"sum by ({by}) (rate({narrowed}[$__rate_interval]))" if by else f"sum(rate({narrowed}[$__rate_interval]))"


def gauge(metric: str, by: str, how: str = "sum", labels: str = "") -> str:
    return f"{how} by ({by}) ({metric}{{{AT}{',' + labels if labels else ''}}})"


def quantile(share: float, metric: str, by: str, labels: str = "") -> str:
    return f"histogram_quantile({share}, {rate(metric + '_bucket', by + ', le', labels)})"


# A panel: title, unit, what a reader should know, queries with their legends, width (of 24 columns).
def panel(title: str, unit: str, says: str, *queries: tuple[str, str], width: int = 12, kind: str = "timeseries") -> dict:
    return {"title": title, "unit": unit, "says": says, "queries": queries, "width": width, "kind": kind}


def stat(title: str, unit: str, says: str, query: str) -> dict:
    return panel(title, unit, says, (query, ""), width=6, kind="stat")


DASHBOARDS = {
    "traffic": ("Traffic", [
        stat("Requests", "reqps", "Requests of clients that got their answer.", rate("mcp_requests_total")),
        stat("Failed", "percentunit", "Share of errors of backends, refusals and timeouts. Results with isError are answers.",
             f"({rate('mcp_requests_total', labels=FAILED)} or vector(0)) / {rate('mcp_requests_total')}"),
        stat("In flight", "short", "Requests that wait for an answer.", f"sum(mcp_requests_pending{{{AT}}})"),
        stat("95 % within", "s", "From reading a tools/call to its answer.",
             f"histogram_quantile(0.95, {rate('mcp_request_seconds_bucket', 'le', CALLS)})"),
        panel("Requests by method", "reqps", "", (rate("mcp_requests_total", "method"), "{{method}}")),
        panel("Requests by outcome", "reqps", "ok, tool_error (a result with isError), error (the backend's), refused (the broker's), cancelled, timeout.",
              (rate("mcp_requests_total", "outcome"), "{{outcome}}")),
        panel("Time to answer tools/call", "s", "From reading the request to its answer, broker and backend together.",
              *((quantile(share, "mcp_request_seconds", "method", CALLS), f"{share:.0%}") for share in (0.5, 0.95, 0.99))),
        panel("Time to answer, 95 %", "s", "", (quantile(0.95, "mcp_request_seconds", "method"), "{{method}}")),
        panel("Errors by code", "reqps", "JSON-RPC codes sent to clients; their meaning is in docs/errors.md.", (rate("mcp_errors_total", "code"), "{{code}}")),
        panel("Turned away by a limit", "reqps", "", (rate("mcp_rate_limited_total", "scope"), "{{scope}}")),
        panel("Requests in flight", "short", "By replica. The chart's autoscaler looks at this one.", (gauge("mcp_requests_pending", "instance"), "{{instance}}")),
        panel("Bytes of messages", "Bps", "", (rate("mcp_bytes_total", "direction, side"), "{{side}} {{direction}}")),
        panel("Protocol versions agreed", "cps", "Handshakes with clients and backends.", (rate("mcp_protocol_version_negotiated_total", "version, side"), "{{side}} {{version}}")),
        panel("Passed on to other replicas", "reqps", "Requests that met a replica without their session. unreachable and broken should be rare.",
              (rate("mcp_forwarded_requests_total", "outcome"), "{{outcome}}")),
    ]),
    "backends": ("Backends", [
        panel("Calls", "reqps", "By name of the backend; 200 names, then other. Tenants with backends of one name share its line.",
              (rate("mcp_backend_request_seconds_count", "backend"), "{{backend}}")),
        panel("Time to answer, 95 %", "s", "From sending a call to the backend to its answer.", (quantile(0.95, "mcp_backend_request_seconds", "backend"), "{{backend}}")),
        panel("Mean time to answer", "s", "",
              (f"{rate('mcp_backend_request_seconds_sum', 'backend')} / {rate('mcp_backend_request_seconds_count', 'backend')}", "{{backend}}")),
        panel("Open links", "short", "A link is one way to one backend for those who may share it.", (gauge("mcp_links", "backend_transport, state"), "{{backend_transport}} {{state}}")),
        panel("Unavailable, failing, timed out", "reqps", "Codes 1008 (out of reach, also database and replicas), 1009 (wrong or lost answers), 1069 (too late).",
              (rate("mcp_errors_total", "code", 'code=~"1008|1009|1069"'), "{{code}}")),
        panel("Messages waiting", "short", "pipe: for child processes; http_one_way: notifications and answers over HTTP.", (gauge("mcp_queue_depth", "queue", labels='queue!="persister"'), "{{queue}}")),
        panel("Answers without a waiting request", "cps", "", (rate("mcp_dropped_answers_total", "reason"), "{{reason}}")),
        panel("Dropped notifications", "cps", "Had no owner, no reader or no room.", (rate("mcp_dropped_notifications_total", "kind"), "{{kind}}")),
        panel("Circuit breakers", "none", "0 closed, 1 half-open (being probed), 2 open. Of backends of one name, and of all replicas, the worst.",
              (gauge("mcp_breaker_state", "backend", how="max"), "{{backend}}")),
        panel("Breakers opened", "ops", "Failed probes counted.", (rate("mcp_breaker_transitions_total", "backend", 'to="open"'), "{{backend}}")),
        panel("Calls that found no room in time", "reqps", "At a backend, or in the broker.", (rate("mcp_calls_crowded_out_total", "queue"), "{{queue}}")),
        panel("Calls sent again, and calls at a time", "none", "Retries a second, those that were over the budget, and what adaptive concurrency lets through.",
              (rate("mcp_retries_total", "outcome"), "retries {{outcome}}"), (gauge("mcp_backend_calls_max", "backend"), "at a time {{backend}}")),
    ]),
    "tenants": ("Tenants", [
        panel("Requests by tenant", "reqps", "Needs telemetry.tenant_labels: true; 1000 tenants by name, then other.", (rate("mcp_tenant_requests_total", "tenant"), "{{tenant}}"), width=24),
        panel("Refused and timed out by tenant", "reqps", "", (rate("mcp_tenant_requests_total", "tenant, outcome", 'outcome=~"refused|timeout"'), "{{tenant}} {{outcome}}")),
        panel("Errors of backends by tenant", "reqps", "", (rate("mcp_tenant_requests_total", "tenant, outcome", 'outcome=~"error|tool_error"'), "{{tenant}} {{outcome}}")),
        panel("Loudest tenants", "reqps", "", (f"topk(10, {rate('mcp_tenant_requests_total', 'tenant')})", "{{tenant}}")),
        panel("Turned away by a limit", "reqps", "All tenants together: tenant is the request rate of one.", (rate("mcp_rate_limited_total", "scope"), "{{scope}}")),
        panel("Turned away by a limit, by tenant", "reqps", "", (rate("mcp_tenant_rate_limited_total", "tenant, scope"), "{{tenant}} {{scope}}")),
        panel("Time to answer tools/call, 95 %", "s", "", (quantile(0.95, "mcp_tenant_call_seconds", "tenant"), "{{tenant}}")),
        panel("Sessions by tenant", "short", "", (gauge("mcp_tenant_sessions", "tenant"), "{{tenant}}")),
        panel("Requests in flight by tenant", "short", "", (gauge("mcp_tenant_calls_in_flight", "tenant"), "{{tenant}}")),
        panel("Circuit breakers by tenant and backend", "none", "0 closed, 1 half-open (being probed), 2 open. Of all replicas, the worst. 2000 backends by name, then other.",
              (gauge("mcp_tenant_breaker_state", "tenant, backend", how="max"), "{{tenant}}/{{backend}}")),
        panel("Failures of backends by tenant", "ops", "Failures that the circuit breaker counts.",
              (rate("mcp_tenant_backend_failures_total", "tenant, backend"), "{{tenant}}/{{backend}}")),
        panel("Time of backends to answer, 95 %", "s", "", (quantile(0.95, "mcp_tenant_backend_request_seconds", "tenant, backend"), "{{tenant}}/{{backend}}")),
    ]),
    "sessions-tasks": ("Sessions and tasks", [
        stat("Sessions", "short", "Open sessions of all replicas.", f"sum(mcp_sessions{{{AT}}})"),
        stat("Subscriptions", "short", "Resources subscribed to, counted per session.", f"sum(mcp_subscriptions{{{AT}}})"),
        stat("Tasks at work", "short", "In the database, of all replicas.", f'max(mcp_tasks{{{AT},status="working"}}) or vector(0)'),
        stat("Tasks that wait for input", "short", "Until their client answers.", f'max(mcp_tasks{{{AT},status="input_required"}}) or vector(0)'),
        panel("Sessions by replica", "short", "", (gauge("mcp_sessions", "instance, transport, state"), "{{instance}} {{transport}} {{state}}")),
        panel("Steps of sessions", "cps", "", (rate("mcp_phase_transitions_total", "from, to"), "{{from}} to {{to}}")),
        panel("Sessions that move", "cps", "Given away by replicas that drain, and taken over from the store.",
              (rate("mcp_sessions_released_total", "instance"), "{{instance}} given away"), (rate("mcp_sessions_adopted_total", "instance"), "{{instance}} taken over")),
        panel("Tasks by status", "short", "Each replica counts all of them every few seconds.", (gauge("mcp_tasks", "status", "max"), "{{status}}")),
        panel("Changes of tasks", "cps", "", (rate("mcp_task_transitions_total", "to"), "{{to}}")),
        panel("Event streams", "cps", "Sent again to streams that were resumed; lost to the log; clients told of a gap.",
              (rate("mcp_events_replayed_total"), "sent again"), (rate("mcp_events_lost_total"), "lost"), (rate("mcp_event_gaps_total"), "gaps told")),
        panel("Removed as their time was over", "cps", "", (rate("mcp_expired_total", "kind"), "{{kind}}")),
        panel("Calls that wait for a person", "short", "Pending approvals, by the count of the database.",
              (f'max(mcp_approvals{{{AT},state="pending"}}) or vector(0)', "pending")),
        panel("Changes of approvals", "cps", "", (rate("mcp_approval_transitions_total", "to"), "{{to}}")),
        panel("Wait for a decision", "s", "",
              (f"histogram_quantile(0.95, {rate('mcp_approval_wait_seconds_bucket', 'le, decision')})", "p95 {{decision}}")),
    ]),
    "stores": ("Stores", [
        panel("Operations", "ops", "", (rate("mcp_store_seconds_count", "store, operation"), "{{store}} {{operation}}")),
        panel("Failed operations", "ops", "A store failed, or did not answer within 2 s.", (rate("mcp_store_errors_total", "store, operation"), "{{store}} {{operation}}")),
        panel("Time, 99 %", "s", "", (quantile(0.99, "mcp_store_seconds", "store"), "{{store}}")),
        panel("Time by operation, 95 %", "s", "", (quantile(0.95, "mcp_store_seconds", "store, operation"), "{{store}} {{operation}}")),
        panel("Writes waiting for the database", "short", "", (gauge("mcp_queue_depth", "instance", labels='queue="persister"'), "{{instance}}")),
        panel("Renewals of leases", "cps", "lost: it had expired and was acquired again.", (rate("mcp_node_lease_renewals_total", "instance, outcome"), "{{instance}} {{outcome}}")),
        panel("Words reach other replicas at once", "short", "1 yes, 0 no: within a second.", (gauge("mcp_hot_store_connected", "instance, store", "min"), "{{instance}} {{store}}")),
        panel("Writes that came too late", "cps", "What they were about had another owner already.", (rate("mcp_fenced_writes_total", "instance"), "{{instance}}")),
        panel("Records that cannot be read", "short", "Since the process started.",
              (gauge("mcp_rows_unreadable_total", "instance"), "{{instance}} rows"), (gauge("mcp_sessions_unreadable_total", "instance"), "{{instance}} sessions")),
    ]),
    "process": ("Process", [
        panel("Up", "short", "", (gauge("up", "job, instance", "min"), "{{instance}}")),
        panel("Accepts new sessions", "short", "1 while /readyz returns 200, 0 during a drain and without the database.", (gauge("mcp_accepting", "instance", "min"), "{{instance}}")),
        panel("Build", "short", "Replicas by build.", (f"count by (version) (mcp_build_info{{{AT}}})", "{{version}}")),
        panel("Processors", "short", "Processor seconds a second.", (rate("process_cpu_seconds_total", "instance"), "{{instance}}")),
        panel("Memory", "bytes", "Held in RAM by the broker; its child processes are not in it.", (gauge("process_resident_memory_bytes", "instance"), "{{instance}}")),
        panel("Open files", "percentunit", "Of those the process may open.", (f"process_open_fds{{{AT}}} / process_max_fds{{{AT}}}", "{{instance}}")),
        panel("Threads", "short", "", (gauge("process_threads", "instance"), "{{instance}}")),
        panel("Time since start", "s", "", (f"time() - process_start_time_seconds{{{AT}}}", "{{instance}}")),
    ]),
}


def variable(name: str, query: str) -> dict:
    # Without `allValue`, "All" is the values that the query found: `.*` would be every process that Prometheus scrapes.
    return {
        "name": name, "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"}, "query": {"query": query, "refId": name},
        "refresh": 2, "includeAll": True, "multi": True, "current": {"text": "All", "value": "$__all"},
    }


def drawn(number: int, made: dict, x: int, y: int, height: int) -> dict:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": {"type": "prometheus", "uid": "${datasource}"}, "expr": query, "legendFormat": legend or "__auto"}
        for index, (query, legend) in enumerate(made["queries"])
    ]
    return {
        "id": number, "type": made["kind"], "title": made["title"], "description": made["says"],
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": made["width"], "h": height},
        "fieldConfig": {"defaults": {"unit": made["unit"], "min": 0}, "overrides": []},
        "targets": targets,
    }


def dashboard(name: str, title: str, made: list[dict]) -> dict:
    panels, x, y = [], 0, 0
    for number, one in enumerate(made, start=1):
        height = 4 if one["kind"] == "stat" else 8
        if x + one["width"] > COLUMNS:
            x, y = 0, y + panels[-1]["gridPos"]["h"]
        panels.append(drawn(number, one, x, y, height))
        x += one["width"]
    return {
        "uid": f"mcp-broker-{name}", "title": f"MCP broker: {title}", "tags": ["mcp-broker"], "schemaVersion": 39, "version": 1,
        "editable": True, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "links": [{"type": "dashboards", "title": "MCP broker", "tags": ["mcp-broker"], "asDropdown": True, "includeVars": True, "keepTime": True}],
        "templating": {"list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus", "current": {}, "includeAll": False, "multi": False},
            variable("job", "label_values(mcp_build_info, job)"),
            variable("instance", 'label_values(mcp_build_info{job=~"$job"}, instance)'),
        ]},
        "panels": panels,
    }


def main() -> int:
    wanted = {f"{name}.json": json.dumps(dashboard(name, *table), indent=1) + "\n" for name, table in DASHBOARDS.items()}
    if "--check" in sys.argv[1:]:
        there = {path.name: path.read_text() for path in FOLDER.glob("*.json")}
        wrong = sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name))
        if wrong:
            print(f"dashboards: not as scripts/dashboards.py writes them: {', '.join(wrong)}", file=sys.stderr)
        return 1 if wrong else 0
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for name, text in wanted.items():
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
