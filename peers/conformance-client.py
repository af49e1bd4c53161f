"""The broker as the client of the conformance suite: `conformance client --command "python conformance-client.py"`.

The suite starts a server, appends its URL and checks the messages that arrive. This script registers that server as a backend
of a running broker and waits until every replica is ready. It runs the SDK's own conformance client against the broker's
`/mcp/{backend}`, removes the backend and exits with the client's status.

In a scenario with accounts of users, the client of `clients/accounts.py` takes the place of the SDK's. The suite runs many of
these at once, so each run has a backend of its own name.

Environment:

- DRIVER_BROKER: URL of the broker for clients
- DRIVER_ADMINS: URL of the admin API of each replica, separated by spaces
- DRIVER_CLIENT_SPEAKS: revision of the client, if it differs from that of the suite's server
- DRIVER_OPENS_URLS: set for scenarios with accounts, which alone then run; empty for a client that does not declare
  elicitation by URL
- MCP_CONFORMANCE_SCENARIO, MCP_CONFORMANCE_CONTEXT: set by the suite; a client in the context becomes the `auth` of the backend
- DRIVER_PROTOCOL: `protocol` of the backend; `auto` if it is not set
- MCP_BROKER_CACHE: folder in which scripts/install-peers.sh put the peers
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "clients"))
import accounts  # noqa: E402
import identity_provider  # noqa: E402

READY_SECONDS = 20
CLIENT_SECONDS = 40
# Calls of a client with an account. The suite can change what its server demands after the first.
CALLS = 3
# The only client ID metadata document that the suite accepts.
METADATA_DOCUMENT = "https://conformance-test.local/client-metadata.json"
SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
HAS_ACCOUNTS = SCENARIO.startswith("auth/") and not SCENARIO.startswith("auth/client-credentials")
BACKEND = f"suite-{os.getpid()}" if HAS_ACCOUNTS else "suite"
ADMIN_PATH = f"/admin/v1/tenants/default/backends/{BACKEND}"


def peers() -> Path:
    cache = os.environ.get("MCP_BROKER_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "mcp-broker") / "peers"


def ask(admin: str, method: str, body: dict | None = None) -> dict:
    """Returns an admin API's view of the backend; empty if the backend is unknown."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} if body else {}
    request = urllib.request.Request(admin + ADMIN_PATH, data=data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=READY_SECONDS) as answer:
            return json.loads(answer.read() or "{}")
    except urllib.error.HTTPError as error:
        if method == "GET" and error.code == 404:
            return {}
        raise SystemExit(f"{method} {BACKEND}: {error.code} {error.read().decode()}") from error


def auth() -> dict:
    """Returns the `auth` of the backend for the client of the scenario, if there is one."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    client = {name: context[name] for name in ("client_id", "client_secret") if name in context}
    if SCENARIO == "auth/enterprise-managed-authorization":
        provider = identity_provider.start(context)
        return {"auth": {"type": "enterprise", **client, "provider": provider}}
    if HAS_ACCOUNTS:
        document = {"client_metadata_url": METADATA_DOCUMENT} if SCENARIO == "auth/basic-cimd" else {}
        return {"auth": {"type": "oauth_user", **client, **document}}
    if "private_key_pem" in context:
        return {"auth": {"type": "oauth_client", **client, "client_key": context["private_key_pem"]}}
    return {"auth": {"type": "oauth_client", **client}} if client else {}


def use_account(endpoint: str) -> int:
    """Calls a tool of the suite's server as a user who connects an account when the broker asks for it."""
    revision = os.environ.get("DRIVER_CLIENT_SPEAKS") or os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    try:
        client = accounts.Client(endpoint, revision, bool(os.environ.get("DRIVER_OPENS_URLS", "1")))
        for _ in range(CALLS):
            answer = client.call("test-tool")
            if "error" in answer or answer["result"].get("isError"):
                raise accounts.NotConnected(json.dumps(answer))
    except accounts.NotConnected as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def register(admins: list[str], url: str) -> None:
    body = {"transport": {"type": "http", "url": url}, "protocol": os.environ.get("DRIVER_PROTOCOL", "auto"), **auth()}
    status = ask(admins[0], "PUT", body)
    print(f"registered: {json.dumps(status)}", file=sys.stderr)
    if HAS_ACCOUNTS:
        return  # it is ready once an account is connected
    until = time.monotonic() + READY_SECONDS
    for admin in admins:
        while (status := ask(admin, "GET")).get("state") != "ready":
            if time.monotonic() > until:
                raise SystemExit(f"the suite's server is not ready at {admin}: {status}")
            time.sleep(0.02)


def main() -> int:
    if "DRIVER_OPENS_URLS" in os.environ and not HAS_ACCOUNTS:
        return 1
    broker, admins = os.environ["DRIVER_BROKER"], os.environ["DRIVER_ADMINS"].split()
    client = [str(peers() / "python2" / "bin" / "python"), str(peers() / "fixture" / ".github" / "actions" / "conformance" / "client.py")]
    register(admins, sys.argv[-1])
    try:
        if HAS_ACCOUNTS:
            return use_account(f"{broker}/mcp/{BACKEND}")
        speaks = os.environ.get("DRIVER_CLIENT_SPEAKS")
        own = os.environ | ({"MCP_CONFORMANCE_PROTOCOL_VERSION": speaks} if speaks else {})
        return subprocess.run([*client, f"{broker}/mcp/{BACKEND}"], timeout=CLIENT_SECONDS, env=own).returncode
    finally:
        ask(admins[0], "DELETE")


if __name__ == "__main__":
    sys.exit(main())
