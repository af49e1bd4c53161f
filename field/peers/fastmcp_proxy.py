"""The proxy of FastMCP as its documentation deploys it: `create_proxy`, an ASGI application, tokens that are verified."""

import os

import uvicorn
from fastmcp.server import create_proxy
from fastmcp.server.auth.providers.jwt import JWTVerifier

issuer = os.environ["ISSUER"]
auth = JWTVerifier(jwks_uri=f"{issuer}/jwks", issuer=issuer, audience="http://127.0.0.1/mcp") if issuer else None
proxy = create_proxy(os.environ["BACKEND"], name="proxy", auth=auth)
uvicorn.run(proxy.http_app(path="/mcp"), host="127.0.0.1", port=int(os.environ["PORT"]), log_level="error")
