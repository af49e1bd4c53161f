"""A user with a client and a browser, in front of a backend at which accounts are connected.

The client calls a tool. When the broker names an address instead of a result, the browser opens it, and the client calls again.
The address comes in one of three ways, by what the client declares: `input_required` (2026-07-28), error -32042 (2025-11-25), or
the text of a tool error for a client that opens no URLs. The browser runs no scripts: it follows redirects, keeps cookies and
sends the first form of each page. Only the standard library is used, because the conformance suite runs many of these at once.
"""

import http.cookiejar
import itertools
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from html.parser import HTMLParser

MODERN = "2026-07-28"
SECONDS = 20
# Addresses that one call may need: one to connect, and further ones for scopes.
ADDRESSES_MAX = 3


class NotConnected(Exception):
    """The pages did not lead to a connection."""


class Form(HTMLParser):
    """The first form of a page: its action, its hidden members, and the text of the page."""

    def __init__(self, page: str):
        super().__init__()
        self.action: str | None = None
        self.members: dict[str, str] = {}
        self.is_over = False
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "form" and self.action is None:
            self.action = given["action"]
        if tag == "input" and self.action is not None and not self.is_over:
            self.members[given["name"]] = given.get("value", "")

    def handle_endtag(self, tag):
        self.is_over = self.is_over or tag == "form"

    def handle_data(self, data):
        self.text += data


class Browser:
    def __init__(self):
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(cookies)

    def load(self, url: str, form: dict[str, str] | None = None) -> tuple[str, Form]:
        data = None if form is None else urllib.parse.urlencode(form).encode()
        try:
            with self.opener.open(url, data, timeout=SECONDS) as answer:
                return answer.url, Form(answer.read().decode())
        except urllib.error.HTTPError as error:
            raise NotConnected(f"{url}: {error.code} {Form(error.read().decode()).text}") from error

    def connect(self, url: str) -> None:
        """Opens the address and sends the form of its page. The authorization server redirects back at once."""
        place, page = self.load(url)
        if page.action is None:
            raise NotConnected(f"{place} has no form: {page.text}")
        place, page = self.load(urllib.parse.urljoin(place, page.action), page.members)
        if not page.text.startswith("Connected"):
            raise NotConnected(f"{place}: {page.text}")


class Client:
    """A client of one revision. `opens_urls`: it declares elicitation by URL."""

    def __init__(self, endpoint: str, revision: str, opens_urls: bool):
        self.endpoint, self.revision = endpoint, revision
        self.capabilities = {"elicitation": {"url": {}}} if opens_urls else {}
        self.ids = itertools.count(1)
        self.headers: dict[str, str] = {}
        if revision < MODERN:
            about = {"protocolVersion": revision, "capabilities": self.capabilities, "clientInfo": {"name": "accounts", "version": "1"}}
            self.ask("initialize", about)
            self.headers["mcp-protocol-version"] = revision
            self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    def ask(self, method: str, params: dict) -> dict:
        """Sends a request; returns the message that answers it."""
        more = {}
        if self.revision >= MODERN:
            namespace = "io.modelcontextprotocol"
            meta = {
                f"{namespace}/protocolVersion": self.revision,
                f"{namespace}/clientCapabilities": self.capabilities,
                f"{namespace}/clientInfo": {"name": "accounts", "version": "1"},
            }
            params = {**params, "_meta": meta}
            more = {"mcp-protocol-version": self.revision, "mcp-method": method}
            if "name" in params:
                more["mcp-name"] = params["name"]
        number = next(self.ids)
        messages = self.post({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, more)
        return next(message for message in messages if message.get("id") == number)

    def post(self, message: dict, more: dict[str, str]) -> list[dict]:
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **self.headers, **more}
        request = urllib.request.Request(self.endpoint, json.dumps(message).encode(), headers)
        try:
            answer = urllib.request.urlopen(request, timeout=SECONDS)
        except urllib.error.HTTPError as error:
            answer = error  # errors of stateless requests have a status of their own
        with answer:
            if session := answer.headers.get("mcp-session-id"):
                self.headers["mcp-session-id"] = session
            body = answer.read().decode()
            if "event-stream" in answer.headers.get("content-type", ""):
                events = [line.removeprefix("data:").strip() for line in body.splitlines() if line.startswith("data:")]
                return [json.loads(event) for event in events if event]
            return [json.loads(body)] if body else []

    def call(self, tool: str) -> dict:
        """Calls a tool, and connects what the call needs. Returns the answer without an address."""
        params: dict = {"name": tool, "arguments": {}}
        for _ in range(ADDRESSES_MAX):
            answer = self.ask("tools/call", params)
            address, params = needed(answer, tool)
            if address is None:
                return answer
            Browser().connect(address)
        return self.ask("tools/call", params)


def needed(answer: dict, tool: str) -> tuple[str | None, dict]:
    """Returns the address that an answer names, and the params of the next try."""
    params: dict = {"name": tool, "arguments": {}}
    result, error = answer.get("result", {}), answer.get("error", {})
    if result.get("resultType") == "input_required":
        requests = result["inputRequests"]
        params |= {"requestState": result["requestState"], "inputResponses": {key: {"action": "accept"} for key in requests}}
        return next(request["params"]["url"] for request in requests.values()), params
    if error.get("code") == -32042:
        return error["data"]["elicitations"][0]["url"], params
    if result.get("isError"):
        found = re.search(r"https?://\S+/connect/[a-z0-9-]+", json.dumps(result["content"]))
        return (found.group() if found else None), params
    return None, params
