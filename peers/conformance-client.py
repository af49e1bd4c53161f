"""The broker as the client of the conformance suite: `conformance client --command "python conformance-client.py"`.

The suite starts a server, appends its URL and checks the messages that arrive. This script registers that server as a backend
of a running broker and waits until every replica is ready. It runs the SDK's own conformance client against the broker's
`/mcp/{backend}`, removes the backend and exits with the client's status.

Environment:

- DRIVER_BROKER: URL of the broker for clients
- DRIVER_ADMINS: URL of the admin API of each replica, separated by spaces
- DRIVER_CLIENT_SPEAKS: revision of the client, if it differs from that of the suite's server
- MCP_CONFORMANCE_CONTEXT: set by the suite; a client in it becomes the `auth` of the backend
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

READY_SECONDS = 20
CLIENT_SECONDS = 40
BACKEND = "suite"
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
    if "private_key_pem" in context:
        return {"auth": {"type": "oauth_client", "client_id": context["client_id"], "client_key": context["private_key_pem"]}}
    if "client_secret" in context:
        return {"auth": {"type": "oauth_client", "client_id": context["client_id"], "client_secret": context["client_secret"]}}
    return {}


def register(admins: list[str], url: str) -> None:
    body = {"transport": {"type": "http", "url": url}, "protocol": os.environ.get("DRIVER_PROTOCOL", "auto"), **auth()}
    status = ask(admins[0], "PUT", body)
    print(f"registered: {json.dumps(status)}", file=sys.stderr)
    until = time.monotonic() + READY_SECONDS
    for admin in admins:
        while (status := ask(admin, "GET")).get("state") != "ready":
            if time.monotonic() > until:
                raise SystemExit(f"the suite's server is not ready at {admin}: {status}")
            time.sleep(0.02)


def main() -> int:
    broker, admins = os.environ["DRIVER_BROKER"], os.environ["DRIVER_ADMINS"].split()
    client = [str(peers() / "python2" / "bin" / "python"), str(peers() / "fixture" / ".github" / "actions" / "conformance" / "client.py")]
    register(admins, sys.argv[-1])
    try:
        speaks = os.environ.get("DRIVER_CLIENT_SPEAKS")
        own = os.environ | ({"MCP_CONFORMANCE_PROTOCOL_VERSION": speaks} if speaks else {})
        return subprocess.run([*client, f"{broker}/mcp/{BACKEND}"], timeout=CLIENT_SECONDS, env=own).returncode
    finally:
        ask(admins[0], "DELETE")


if __name__ == "__main__":
    sys.exit(main())
