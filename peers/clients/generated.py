"""Operates a broker with a client that openapi-python-client generated from its OpenAPI document.

`generated.py ADMIN TOKEN MCP HTTP STDIO`: the URL of the admin API and the operator's token, the URL of `/mcp`, the URL of a
backend, and the transport of a stdio backend as JSON. The package `broker_admin` is the generated client. Each check prints
`ok NAME`; a failed one ends the program.
"""

import json
import sys

import httpx
from broker_admin import AuthenticatedClient, models
from broker_admin.api.backends import list_backends, put_backend, show_backend
from broker_admin.api.keys import create_key, list_keys
from broker_admin.api.policies import put_policy, show_policy
from broker_admin.api.sessions import list_sessions
from broker_admin.api.tenants import put_tenant, show_tenant
from broker_admin.types import Unset

TENANT = "acme"
TRANSPORTS = {
    "http": models.HttpTransport,
    "sse": models.SseTransport,
    "tcp": models.TcpTransport,
    "websocket": models.WebsocketTransport,
    "quic": models.QuicTransport,
    "stdio": models.StdioTransport,
}


def refused(answer: object, status: int, kind: str) -> models.Problem:
    assert isinstance(answer, models.Problem), answer
    assert (answer.status, answer.type_) == (status, f"urn:mcp-broker:problem:{kind}"), answer
    return answer


def each_transport_has_a_class() -> None:
    places = {"url": "http://127.0.0.1:1/mcp", "address": "127.0.0.1:1", "command": "true"}
    for kind, wanted in TRANSPORTS.items():
        (place,) = {"url", "address", "command"} & set(wanted.__annotations__)
        body = {"transport": {"type": kind, place: places[place]}}
        spec = models.BackendSpec.from_dict(body)
        assert type(spec.transport) is wanted, spec
        assert spec.to_dict() == body, spec


def a_tenant(admin: AuthenticatedClient) -> None:
    limits = models.TenantLimits(sessions_per_tenant=7)
    made = put_tenant.sync(TENANT, client=admin, body=models.TenantSpec(limits=limits))
    assert isinstance(made, models.TenantView), made
    shown = show_tenant.sync(TENANT, client=admin)
    assert isinstance(shown, models.TenantView) and shown.tenant == TENANT, shown
    assert shown.limits.sessions_per_tenant == 7, shown


def backends_on_two_transports(admin: AuthenticatedClient, http: str, stdio: dict) -> None:
    transports = {
        "far": models.HttpTransport(url=http, type_=models.HttpTransportType.HTTP),
        "near": models.StdioTransport(command=stdio["command"], args=stdio["args"], type_=models.StdioTransportType.STDIO),
    }
    for name, transport in transports.items():
        made = put_backend.sync(TENANT, name, client=admin, body=models.BackendSpec(transport=transport))
        assert isinstance(made, models.BackendView), made
        shown = show_backend.sync(TENANT, name, client=admin)
        assert isinstance(shown, models.BackendView), shown
        assert shown.state == "ready" and shown.tools > 0, shown
        assert type(shown.settings.transport) is type(transport), shown
    listed = list_backends.sync(TENANT, client=admin)
    assert isinstance(listed, models.BackendList), listed
    assert {backend.backend for backend in listed.backends} == set(transports), listed


def a_key(admin: AuthenticatedClient) -> str:
    made = create_key.sync(TENANT, client=admin, body=models.KeyRequest(name="ann's", principal="ann", groups=["staff"]))
    assert isinstance(made, models.KeyShown) and made.key, made
    listed = list_keys.sync(TENANT, client=admin)
    assert isinstance(listed, models.KeyList), listed
    assert [(key.id, key.principal, key.groups) for key in listed.keys] == [(made.id, "ann", ["staff"])], listed
    return made.key


def the_session_of_the_key(admin: AuthenticatedClient, mcp: str, key: str) -> None:
    before = list_sessions.sync(client=admin, tenant=TENANT)
    assert isinstance(before, models.SessionList) and before.sessions == [], before
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "generated", "version": "1"}}
    opened = httpx.post(
        mcp,
        json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        headers={"authorization": f"Bearer {key}", "accept": "application/json, text/event-stream"},
    )
    assert opened.status_code == 200, opened.text
    after = list_sessions.sync(client=admin, tenant=TENANT)
    assert isinstance(after, models.SessionList) and len(after.sessions) == 1, after
    session = after.sessions[0]
    assert (session.tenant, session.principal, session.client_name) == (TENANT, "ann", "generated"), session


def a_policy(admin: AuthenticatedClient) -> None:
    refused(show_policy.sync(TENANT, client=admin), 404, "not-found")
    rule = models.PolicyRule(
        id="echo",
        effect=models.RuleEffect.ALLOW,
        subjects=models.SubjectSelector(groups=["staff"]),
        objects=models.ObjectSelector(tools=["far/echo"]),
    )
    made = put_policy.sync(TENANT, client=admin, body=models.PolicyDocument(default=models.RuleEffect.DENY, rules=[rule]))
    assert isinstance(made, models.PolicyView), made
    shown = show_policy.sync(TENANT, client=admin)
    assert isinstance(shown, models.PolicyView) and shown.default is models.RuleEffect.DENY, shown
    assert not isinstance(shown.rules, Unset) and [rule.id for rule in shown.rules] == ["echo"], shown


def refusals(admin: AuthenticatedClient, url: str) -> None:
    refused(show_tenant.sync("nowhere", client=admin), 404, "not-found")
    transport = models.TcpTransport(address="no port", type_=models.TcpTransportType.TCP)
    answer = put_backend.sync_detailed(TENANT, "bad", client=admin, body=models.BackendSpec(transport=transport))
    problem = refused(answer.parsed, 400, "invalid")
    assert answer.status_code == 400 and problem.field == "transport.address", problem
    stranger = AuthenticatedClient(base_url=url, token="a-token-of-somewhere-else")
    refused(show_tenant.sync(TENANT, client=stranger), 401, "unauthorized")


def main() -> None:
    url, token, mcp, http, stdio = sys.argv[1:]
    admin = AuthenticatedClient(base_url=url, token=token, raise_on_unexpected_status=True)
    each_transport_has_a_class()
    print("ok each transport has a class")
    a_tenant(admin)
    print("ok a tenant")
    backends_on_two_transports(admin, http, json.loads(stdio))
    print("ok backends on two transports")
    key = a_key(admin)
    print("ok a key")
    the_session_of_the_key(admin, mcp, key)
    print("ok the session of the key")
    a_policy(admin)
    print("ok a policy")
    refusals(admin, url)
    print("ok refusals")


main()
