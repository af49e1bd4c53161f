"""An identity provider in front of the conformance suite's, which has no page at which a user signs in.

It signs a user in at once, and issues an ID token of its own. A token exchange goes on to the suite's provider, with the user's ID
token there in place of that one. All other members of the request are the broker's.
"""

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
SECONDS = 20


def jwt(claims: dict) -> str:
    """Returns an unsigned token. The broker gets it from the token endpoint itself."""
    parts = [{"alg": "none"}, claims]
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."


def start(context: dict) -> dict:
    """Starts the provider in a thread. Returns the `provider` of the backend's `auth`."""

    class Provider(BaseHTTPRequestHandler):
        def tell(self, status: int, body: dict, **headers: str) -> None:
            text = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"content-type": "application/json", "content-length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            place = urllib.parse.urlsplit(self.path)
            if place.path == "/.well-known/openid-configuration":
                return self.tell(
                    200,
                    {
                        "issuer": issuer,
                        "authorization_endpoint": f"{issuer}/authorize",
                        "token_endpoint": f"{issuer}/token",
                        "code_challenge_methods_supported": ["S256"],
                    },
                )
            if place.path != "/authorize":
                return self.tell(404, {})
            asked = dict(urllib.parse.parse_qsl(place.query))
            answer = urllib.parse.urlencode({"code": "code", "state": asked["state"]})
            return self.tell(302, {}, location=f"{asked['redirect_uri']}?{answer}")

        def do_POST(self):
            form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
            if form["grant_type"] != EXCHANGE:
                now = int(time.time())
                claims = {"iss": issuer, "aud": context["idp_client_id"], "sub": "demo-user@example.com", "iat": now, "exp": now + 3600}
                return self.tell(200, {"access_token": "opaque", "token_type": "Bearer", "expires_in": 3600, "id_token": jwt(claims)})
            form["subject_token"] = context["idp_id_token"]
            request = urllib.request.Request(context["idp_token_endpoint"], urllib.parse.urlencode(form).encode())
            try:
                with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                    return self.tell(answer.status, json.load(answer))
            except urllib.error.HTTPError as error:
                return self.tell(error.code, json.load(error))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    issuer = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return {"issuer": issuer, "client_id": context["idp_client_id"]}
