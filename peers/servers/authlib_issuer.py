"""An authorization server for tests, made of authlib's parts (RFC 6749, 7009, 7662, 9068) on a free port of 127.0.0.1, with
everything in memory. Prints `authlib listening on URL` on standard error; URL is the issuer.

    python authlib_issuer.py AUDIENCE

Machines get tokens by client_credentials with the scopes they ask for. `robot` gets JWTs and belongs to the group `robots`,
`guest` gets JWTs and belongs to none, `opaque` is a robot with opaque tokens. `broker` may ask about tokens. The secret of
each is `secret-of-` and its name; machines revoke their tokens at /revoke.
"""

import os
import secrets
import sys
import time
from dataclasses import dataclass, field

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, TokenMixin, grants
from authlib.oauth2.rfc6750.token import BearerTokenGenerator
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7662 import IntrospectionEndpoint
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask, jsonify
from joserfc.jwk import KeySet, RSAKey
from werkzeug.serving import make_server

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # loopback has no TLS
LIFETIME = 3600
GROUPS = {"robot": ["robots"], "opaque": ["robots"], "guest": []}
SCOPES = {"read", "write"}
KEYS = KeySet([RSAKey.generate_key(2048, {"kid": "authlib-1", "use": "sig", "alg": "RS256"})])


@dataclass
class Machine(ClientMixin):
    name: str

    def get_client_id(self):
        return self.name

    def get_allowed_scope(self, scope):
        return " ".join(word for word in (scope or "").split() if word in SCOPES)

    def check_client_secret(self, client_secret):
        return secrets.compare_digest(client_secret, f"secret-of-{self.name}")

    def check_endpoint_auth_method(self, method, endpoint):
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type):
        return grant_type == "client_credentials" and self.name in GROUPS


@dataclass
class Issued(TokenMixin):
    text: str
    client: Machine
    scope: str
    issued_at: int = field(default_factory=lambda: int(time.time()))
    revoked: bool = False

    def check_client(self, client):
        return client == self.client

    def is_expired(self):
        return time.time() > self.issued_at + LIFETIME

    def is_revoked(self):
        return self.revoked


audience = sys.argv[1]
application = Flask("authlib_issuer")
listener = make_server("127.0.0.1", 0, application, threaded=True)
issuer = f"http://127.0.0.1:{listener.server_port}"
machines = {name: Machine(name) for name in [*GROUPS, "broker"]}
issued: dict[str, Issued] = {}


def save(token, request):
    text = token["access_token"]
    issued[text] = Issued(text, request.client, token.get("scope", ""))


class Generator(JWTBearerTokenGenerator):
    def get_jwks(self):
        return KEYS

    def get_audiences(self, client, user, scope):
        return audience

    def get_extra_claims(self, client, grant_type, user, scope):
        return {"groups": GROUPS[client.name]}


class Introspection(IntrospectionEndpoint):
    CLIENT_AUTH_METHODS = ["client_secret_basic"]

    def check_permission(self, token, client, request):
        return client.name == "broker"

    def query_token(self, token_string, token_type_hint):
        return issued.get(token_string)

    def introspect_token(self, token):
        name = token.client.name
        return {
            "client_id": name,
            "sub": name,
            "scope": token.scope,
            "aud": audience,
            "iss": issuer,
            "iat": token.issued_at,
            "exp": token.issued_at + LIFETIME,
            "token_type": "Bearer",
            "groups": GROUPS[name],
        }


class Revocation(RevocationEndpoint):
    CLIENT_AUTH_METHODS = ["client_secret_basic"]

    def query_token(self, token_string, token_type_hint):
        return issued.get(token_string)

    def revoke_token(self, token, request):
        token.revoked = True


jwts = Generator(issuer=issuer, expires_generator=lambda *_: LIFETIME)
opaque = BearerTokenGenerator(lambda *_, **__: secrets.token_urlsafe(32), expires_generator=lambda *_: LIFETIME)


def generate(client, **asked):
    return (opaque if client.name == "opaque" else jwts)(client=client, **asked)


server = AuthorizationServer(application, machines.get, save)
server.register_grant(grants.ClientCredentialsGrant)
server.register_token_generator("default", generate)
server.register_endpoint(Introspection)
server.register_endpoint(Revocation)


@application.get("/.well-known/oauth-authorization-server")
def metadata():
    return jsonify(
        issuer=issuer,
        token_endpoint=f"{issuer}/token",
        jwks_uri=f"{issuer}/jwks.json",
        introspection_endpoint=f"{issuer}/introspect",
        revocation_endpoint=f"{issuer}/revoke",
        grant_types_supported=["client_credentials"],
        response_types_supported=[],
        scopes_supported=sorted(SCOPES),
    )


@application.get("/jwks.json")
def keys():
    return jsonify(KEYS.as_dict(private=False))


@application.post("/token")
def token():
    return server.create_token_response()


@application.post("/introspect")
def introspect():
    return server.create_endpoint_response("introspection")


@application.post("/revoke")
def revoke():
    return server.create_endpoint_response("revocation")


print(f"authlib listening on {issuer}", file=sys.stderr, flush=True)
listener.serve_forever()
