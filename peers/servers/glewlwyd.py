"""Starts glewlwyd, an authorization server in C of the distribution (package `glewlwyd`), on a port of 127.0.0.1, with a
database of its own in a temporary folder. Prints `glewlwyd listening on URL` on standard error; URL is the issuer.

    python glewlwyd.py RESOURCE

Machines get tokens by client_credentials for RESOURCE, with the scopes `read` and `write` as far as they have them: `robot`
has both, `guest` has `read`. `broker` may ask about tokens. The secret of each is `secret-of-` and its name.
"""

import http.cookiejar
import json
import os
import pathlib
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

SCHEMA = "/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3"
CONFIGURATION = """
port={port}
bind_address="127.0.0.1"
external_url="{url}"
login_url="login.html"
api_prefix="api"
log_mode="console"
log_level="WARNING"
cookie_domain="127.0.0.1"
cookie_secure=0
session_expiration=3600
session_key="GLEWLWYD2_SESSION_ID"
admin_scope="g_admin"
profile_scope="g_profile"
user_module_path="/usr/lib/glewlwyd/user"
client_module_path="/usr/lib/glewlwyd/client"
user_auth_scheme_module_path="/usr/lib/glewlwyd/scheme"
plugin_module_path="/usr/lib/glewlwyd/plugin"
hash_algorithm="SHA512"
database={{ type="sqlite3" path="{folder}/glewlwyd.db" }};
"""


class Admin:
    def __init__(self, url: str):
        self.api = f"{url}/api"
        cookies = http.cookiejar.CookieJar(http.cookiejar.DefaultCookiePolicy(secure_protocols=("http", "https")))
        self.opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(cookies))

    def post(self, path: str, body: object) -> None:
        request = urllib.request.Request(f"{self.api}/{path}", json.dumps(body).encode(), {"content-type": "application/json"})
        try:
            self.opener.open(request, timeout=20).read()
        except urllib.error.HTTPError as refused:
            sys.exit(f"{path}: {refused} {refused.read().decode()}")

    def is_up(self) -> bool:
        try:
            self.opener.open(f"{self.api}/../config", timeout=20).read()
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def make_key(folder: pathlib.Path) -> tuple[str, str]:
    private, public = folder / "private.pem", folder / "public.pem"
    subprocess.run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", private], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True, capture_output=True)
    return private.read_text(), public.read_text()


def configure(admin: Admin, url: str, folder: pathlib.Path, resource: str) -> None:
    admin.post("auth/", {"username": "admin", "password": "password"})
    for scope in ["read", "write"]:
        admin.post("scope/", {"name": scope, "password_required": False, "scheme": {}})
    key, cert = make_key(folder)
    parameters = {
        "iss": f"{url}/api/oidc",
        "jwt-type": "rsa",
        "jwt-key-size": "256",
        "key": key,
        "cert": cert,
        "access-token-duration": 3600,
        "refresh-token-duration": 3600,
        "code-duration": 600,
        "allow-non-oidc": True,
        "auth-type-code-enabled": False,
        "auth-type-token-enabled": False,
        "auth-type-id-token-enabled": False,
        "auth-type-none-enabled": False,
        "auth-type-password-enabled": False,
        "auth-type-client-enabled": True,
        "auth-type-refresh-enabled": False,
        "introspection-revocation-allowed": True,
        "introspection-revocation-allow-target-client": True,
        "resource-allowed": True,
        "resource-scope": {"read": [resource], "write": [resource]},
        "scope": [],
    }
    plugin = {"module": "oidc", "name": "oidc", "display_name": "oidc", "parameters": parameters}
    admin.post("mod/plugin/", plugin)
    for name, scopes in {"robot": ["read", "write"], "guest": ["read"], "broker": []}.items():
        client = {"client_id": name, "name": name, "password": f"secret-of-{name}", "scope": scopes}
        kinds = {"authorization_type": ["client_credentials"], "confidential": True, "enabled": True, "token_endpoint_auth_method": ["client_secret_basic"]}
        admin.post("client/?source=database", {**client, **kinds})


def main(resource: str) -> None:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="glewlwyd-"))
    database = sqlite3.connect(folder / "glewlwyd.db")
    database.executescript(pathlib.Path(SCHEMA).read_text())
    database.close()
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    (folder / "glewlwyd.conf").write_text(CONFIGURATION.format(port=port, url=url, folder=folder))
    server = os.getpid()
    if os.fork() == 0:
        prepare(server, url, folder, resource)
    # The server takes the place of this process, so that a signal to it ends the server.
    os.dup2(2, 1)
    os.execvp("glewlwyd", ["glewlwyd", "--config-file", str(folder / "glewlwyd.conf")])


def prepare(server: int, url: str, folder: pathlib.Path, resource: str) -> None:
    """Configures the server, waits for its end, and removes its folder."""
    try:
        admin = Admin(url)
        deadline = time.monotonic() + 20
        while not admin.is_up():
            if time.monotonic() > deadline or os.getppid() != server:
                sys.exit("glewlwyd does not answer")
            time.sleep(0.05)
        configure(admin, url, folder, resource)
        print(f"glewlwyd listening on {url}/api/oidc", file=sys.stderr, flush=True)
        os.close(2)
        while os.getppid() == server:
            time.sleep(0.2)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
