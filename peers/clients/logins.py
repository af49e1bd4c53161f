"""The 2.x line of the Python SDK logs in through OAuth and calls two tools, the second of which
needs another scope: `logins.py URL REDIRECT_URI TOOL TOOL_WITH_SCOPE`.

A person is not needed: the authorization server of the tests grants at once, so one GET of the
authorization URL gives the redirect with the code. Prints `ok` lines."""

import sys
import warnings
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

warnings.filterwarnings("ignore")


class Memory:
    tokens = None
    client = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


class Browser:
    """Follows redirects up to the one that leads back to the client."""

    def __init__(self, redirect_uri):
        self.redirect_uri = redirect_uri
        self.requests = []
        self.answer = None

    async def open(self, url):
        self.requests.append(parse_qs(urlsplit(url).query))
        async with httpx2.AsyncClient(follow_redirects=False) as http:
            while not url.startswith(self.redirect_uri):
                response = await http.get(url)
                assert response.status_code in (302, 303), f"{response.status_code} {response.text}"
                url = response.headers["location"]
        self.answer = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert "error" not in self.answer, self.answer

    async def code(self):
        answer = self.answer
        return AuthorizationCodeResult(code=answer["code"], state=answer.get("state"), iss=answer.get("iss"))


async def main(url, redirect_uri, tool, tool_with_scope):
    browser, memory = Browser(redirect_uri), Memory()
    metadata = OAuthClientMetadata(client_name="peer", redirect_uris=[redirect_uri])
    auth = OAuthClientProvider(url, metadata, memory, redirect_handler=browser.open, callback_handler=browser.code)
    async with httpx2.AsyncClient(auth=auth, timeout=30) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            assert len(browser.requests) == 1, browser.requests
            print("ok logged in with", memory.client.client_id)
            listed = sorted(one.name for one in (await client.list_tools()).tools)
            assert listed == sorted([tool, tool_with_scope]), listed
            print("ok tools are listed")
            assert not (await client.call_tool(tool, {})).is_error
            assert len(browser.requests) == 1, browser.requests
            print("ok a call without another login")
            assert not (await client.call_tool(tool_with_scope, {})).is_error
            assert len(browser.requests) == 2, browser.requests
            asked = [set(request["scope"][0].split()) for request in browser.requests]
            assert asked[0] < asked[1], asked
            print("ok a call with one more scope, after one more login")
            print("ok resource", browser.requests[0]["resource"][0])
            assert not (await client.call_tool(tool, {})).is_error
            assert len(browser.requests) == 2, browser.requests
            print("ok both scopes are held")


anyio.run(main, *sys.argv[1:])
