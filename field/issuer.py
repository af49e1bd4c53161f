"""The benchmark's issuer of tokens: one RSA key, its JWKS on loopback, and tokens as a caller would present them."""

import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

AUDIENCE = "http://127.0.0.1/mcp"


class Issuer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = serialization.Encoding.PEM
        private = self.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / "private.pem").write_bytes(private)
        (folder / "public.pem").write_bytes(self.key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        keys = json.dumps({"keys": [{**public, "kid": "field", "alg": "RS256", "use": "sig"}]}).encode()

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(keys)))
                self.end_headers()
                self.wfile.write(keys)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(self, subject: str, audience: str = AUDIENCE, **claims: Any) -> str:
        now = int(time.time())
        body = {"iss": self.url, "sub": subject, "aud": audience, "iat": now, "exp": now + 86_400, "jti": uuid.uuid4().hex, **claims}
        return jwt.encode(body, self.key, algorithm="RS256", headers={"kid": "field"})

    def close(self) -> None:
        self.server.shutdown()
