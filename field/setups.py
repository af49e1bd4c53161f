"""What a peer needs after each start: the registration of the server behind it, through the peer's own admin API."""

import json
import urllib.error
import urllib.request
from typing import Any

Json = dict[str, Any]
# Tenants or users of the two callers; the same names for every peer that tells callers apart.
CALLERS = {"ann": {"tenant": "default"}, "bob": {"tenant": "other"}}


def request(method: str, url: str, body: Json | None = None, token: str = "") -> Any:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=30) as response:
            return json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{method} {url}: {error.code} {error.read()[:300]!r}") from None


def broker(places: dict[str, str], behind: Json, issuer: Any) -> None:
    if "url" in behind:
        transport: Json = {"type": "http", "url": behind["url"]}
    else:
        transport = {"type": "stdio", "command": behind["words"][0], "args": behind["words"][1:], "env": behind["environment"]}
    spec: Json = {"transport": transport}
    if behind.get("roots"):
        spec["resources"] = {"roots": behind["roots"]}
    if "url" not in behind:
        # The child writes its record, and node and Python read what they are made of.
        spec["sandbox"] = behind["sandbox"]
    for caller in CALLERS.values():
        admin = f"http://127.0.0.1:{places['admin']}/admin/v1/tenants/{caller['tenant']}"
        if caller["tenant"] != "default":
            request("PUT", admin, {})
        state = request("PUT", f"{admin}/backends/behind", spec)
        if state["state"] != "ready":
            raise RuntimeError(f"the broker's backend is {state['state']}: {state.get('last_error')}")


def contextforge(places: dict[str, str], behind: Json, issuer: Any) -> None:
    base = f"http://127.0.0.1:{places['port']}"
    admin = {"email": "admin@example.com", "full_name": "Admin", "is_admin": True, "auth_provider": "cli"}
    token = issuer.token("admin@example.com", user=admin, teams=None)
    if any(gateway["name"] == "behind" for gateway in request("GET", f"{base}/gateways", token=token)):
        return
    role = {"name": "caller", "description": "uses what is registered", "scope": "global", "permissions": ["tools.read", "tools.execute", "resources.read", "prompts.read", "servers.read", "servers.use"]}
    role_id = request("POST", f"{base}/rbac/roles", role, token)["id"]
    for name in CALLERS:
        user = {"email": f"{name}@example.com", "password": "Of-This-Benchmark-6!", "full_name": name}
        request("POST", f"{base}/auth/email/admin/users", user, token)
        request("POST", f"{base}/rbac/users/{user['email']}/roles", {"role_id": role_id, "scope": "global"}, token)
    request("POST", f"{base}/gateways", {"name": "behind", "url": behind["url"], "transport": "STREAMABLEHTTP", "visibility": "public"}, token)


SETUPS = {"broker": broker, "contextforge": contextforge}
