"""A small MCP client over Streamable HTTP for measurements and attacks: the standard library, and nothing of an SDK.

It sends what it is told to, also what no client should send. Every wait has a deadline.
"""

import json
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Iterator
from urllib.parse import urlsplit

Json = dict[str, Any]
WITHIN_S = 10.0
REVISION = "2025-11-25"


class Unanswered(Exception):
    """The peer closed the connection or kept silent."""


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes = b""
    # The messages of the body, whether it was JSON or an event stream.
    messages: list[Json] = field(default_factory=list)

    def answer(self) -> Json:
        for message in self.messages:
            # An authorization server's error is JSON with an `error` too, and no message.
            if isinstance(message.get("result"), dict) or isinstance(message.get("error"), dict):
                return message
        return {}

    def text(self) -> str:
        content = (self.answer().get("result") or {}).get("content") or [{}]
        return str(content[0].get("text", ""))

    def is_refusal(self) -> bool:
        """Whether the request got an error: of HTTP, of the protocol, or of the tool."""
        answer = self.answer()
        return self.status >= 400 or "error" in answer or bool((answer.get("result") or {}).get("isError"))

    def shown(self) -> str:
        answer = self.answer()
        if "error" in answer:
            return f"HTTP {self.status}, code {answer['error'].get('code')}"
        if (answer.get("result") or {}).get("isError"):
            return f"HTTP {self.status}, error of the tool"
        return f"HTTP {self.status}" + (", a result" if "result" in answer else "")


class Connection:
    """One TCP connection, for exact bytes."""

    def __init__(self, address: tuple[str, int], within: float = WITHIN_S) -> None:
        self.within = within
        self.socket = socket.create_connection(address, timeout=within)
        self.buffer = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def close(self) -> None:
        self.socket.close()

    def more(self) -> bool:
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            raise Unanswered("no answer") from None
        except OSError as error:
            raise Unanswered(f"connection ended: {error}") from None
        self.buffer += data
        return bool(data)

    def line(self) -> bytes:
        while b"\n" not in self.buffer:
            if not self.more():
                raise Unanswered("connection closed")
        line, self.buffer = self.buffer.split(b"\n", 1)
        return line.rstrip(b"\r")

    def exactly(self, count: int) -> bytes:
        while len(self.buffer) < count:
            if not self.more():
                raise Unanswered("connection closed in a body")
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def head(self) -> Response:
        status = self.line().split(b" ", 2)
        if len(status) < 2 or not status[0].startswith(b"HTTP/"):
            raise Unanswered(f"no HTTP response: {status!r}"[:80])
        headers: dict[str, str] = {}
        while line := self.line():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return Response(int(status[1]), headers)

    def pieces(self, head: Response) -> Iterator[bytes]:
        """The body as it comes."""
        if head.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(self.line().split(b";")[0] or b"0", 16):
                yield self.exactly(size)
                self.line()
            self.line()
        elif "content-length" in head.headers:
            yield self.exactly(int(head.headers["content-length"]))
        elif head.status not in (202, 204, 304):
            while self.buffer or self.more():
                data, self.buffer = self.buffer, b""
                yield data

    def response(self) -> Response:
        head = self.head()
        head.body = b"".join(self.pieces(head))
        head.messages = parsed(head.body, head.headers.get("content-type", ""))
        return head


def parsed(body: bytes, kind: str) -> list[Json]:
    try:
        if kind.startswith("text/event-stream"):
            return [message for _, message in events(body.decode("utf-8", "replace"))]
        value = json.loads(body) if body else []
    except (ValueError, RecursionError):
        return []
    return [message for message in (value if isinstance(value, list) else [value]) if isinstance(message, dict)]


def events(text: str) -> Iterator[tuple[str, Json]]:
    """The id and the message of each event; events without data are not messages."""
    for block in text.replace("\r\n", "\n").split("\n\n"):
        identity, data = "", []
        for line in block.split("\n"):
            if line.startswith("id:"):
                identity = line[3:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
        if any(data):
            try:
                yield identity, json.loads("\n".join(data))
            except ValueError:
                continue


class EventReader:
    """Reads an event stream in a thread of its own."""

    def __init__(self, connection: Connection, head: Response) -> None:
        self.connection, self.head = connection, head
        self.seen: list[tuple[str, Json]] = []
        self.changed = threading.Condition()
        self.is_over = False
        connection.socket.settimeout(60)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        text = b""
        try:
            for piece in self.connection.pieces(self.head):
                text = (text + piece).replace(b"\r\n", b"\n")
                while b"\n\n" in text:
                    block, text = text.split(b"\n\n", 1)
                    with self.changed:
                        self.seen += events(block.decode("utf-8", "replace"))
                        self.changed.notify_all()
        except (Unanswered, OSError, ValueError):
            pass
        with self.changed:
            self.is_over = True
            self.changed.notify_all()

    def wait(self, holds, within: float = WITHIN_S) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: any(holds(message) for _, message in self.seen) or self.is_over, within) and any(
                holds(message) for _, message in self.seen
            )

    def last_id(self) -> str:
        return next((identity for identity, _ in reversed(self.seen) if identity), "")

    def close(self) -> None:
        self.connection.close()


class Client:
    """One caller with one session. `named` gives the name of a tool as the peer shows it."""

    def __init__(self, url: str, headers: dict[str, str] | None = None, tool: str = "{}") -> None:
        parts = urlsplit(url)
        self.address = (parts.hostname or "127.0.0.1", parts.port or 80)
        self.path = parts.path + (f"?{parts.query}" if parts.query else "")
        self.headers, self.tool, self.session, self.next_id = dict(headers or {}), tool, "", 0

    def named(self, name: str) -> str:
        return self.tool.format(name)

    def head(self, method: str = "POST", length: int | None = None, **changes: str | None) -> bytes:
        """The head of a request. A change to None leaves a header out."""
        headers: dict[str, str | None] = {
            "Host": "{}:{}".format(*self.address), "Accept": "application/json, text/event-stream", "Content-Type": "application/json",
            "MCP-Protocol-Version": REVISION if self.session else None, "Mcp-Session-Id": self.session or None,
            "Content-Length": None if length is None else str(length), **self.headers,
        }
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value is not None)
        return f"{method} {self.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1")

    def connect(self, within: float = WITHIN_S) -> Connection:
        return Connection(self.address, within)

    def post(self, body: bytes, within: float = WITHIN_S, **changes: str | None) -> Response:
        connection = self.connect(within)
        try:
            try:
                connection.send(self.head(length=len(body), **changes) + body)
            except TimeoutError:
                raise Unanswered("the request is not read") from None
            except OSError:
                pass  # refused before all was sent; the answer may be there
            return connection.response()
        finally:
            connection.close()

    def message(self, method: str, params: Json | None = None, identity: Any = None) -> bytes:
        if identity is None:
            self.next_id += 1
            identity = self.next_id
        return json.dumps({"jsonrpc": "2.0", "id": identity, "method": method, "params": params or {}}).encode()

    def ask(self, method: str, params: Json | None = None, within: float = WITHIN_S, identity: Any = None) -> Response:
        return self.post(self.message(method, params, identity), within)

    def call(self, tool: str, arguments: Json, within: float = WITHIN_S, identity: Any = None, **more: Any) -> Response:
        return self.ask("tools/call", {"name": self.named(tool), "arguments": arguments, **more}, within, identity)

    def tell(self, method: str, params: Json | None = None) -> Response:
        return self.post(json.dumps({"jsonrpc": "2.0", "method": method, "params": params or {}}).encode())

    def open(self, capabilities: Json | None = None) -> "Client":
        client = {"protocolVersion": REVISION, "capabilities": capabilities or {}, "clientInfo": {"name": "field", "version": "1"}}
        self.session = ""
        response = self.ask("initialize", client, 30)
        if response.is_refusal() or not response.answer():
            raise Unanswered(f"initialize: {response.shown()}")
        self.session = response.headers.get("mcp-session-id", "")
        self.tell("notifications/initialized")
        return self

    def stream(self, body: bytes | None = None, **changes: str | None) -> EventReader:
        """The events of a POST, or of a GET without a body."""
        connection = self.connect()
        head = self.head("GET" if body is None else "POST", None if body is None else len(body), **changes)
        connection.send(head + (body or b""))
        response = connection.head()
        if response.status != 200 or not response.headers.get("content-type", "").startswith("text/event-stream"):
            connection.close()
            raise Unanswered(f"no event stream: HTTP {response.status}")
        return EventReader(connection, response)


def until(holds, within: float, pause: float = 0.05) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(pause)
    return False
