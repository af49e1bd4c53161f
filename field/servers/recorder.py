"""An MCP server of 2025-11-25 that writes down every message as it came: `recorder.py --port N` or `recorder.py --stdio`.

The file that RECORD names gets one JSON string for each message, with the bytes as Latin-1. The benchmark judges by it what a
peer passed on. The server has what a crash of a peer can lose: sessions, resumable streams, tasks and subscriptions. Only the
standard library.
"""

import argparse
import json
import os
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable

Json = dict[str, Any]
Emit = Callable[[Json], None]
PROGRESS_S = 0.1
STREAM_WAIT_S = 60
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
TOOLS = {
    "echo": ("Returns its text.", TEXT),
    "wait": ("Returns its text after some seconds, with progress.", {"type": "object", "properties": {"text": {"type": "string"}, "seconds": {"type": "number"}}}),
    "big": ("Returns as many bytes.", {"type": "object", "properties": {"bytes": {"type": "integer"}}}),
    "ask": ("Returns what the client's model says to a text.", TEXT),
    "touch": ("Announces a change of the resource record://one.", {"type": "object"}),
}
CAPABILITIES = {
    "tools": {"listChanged": True}, "resources": {"subscribe": True}, "prompts": {}, "logging": {},
    "tasks": {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}},
}
recording = threading.Lock()


def record(raw: bytes) -> None:
    if path := os.environ.get("RECORD"):
        with recording, open(path, "a") as file:
            file.write(json.dumps(raw.decode("latin-1")) + "\n")


class Stream:
    """Messages to a client that can be read again from any position."""

    def __init__(self) -> None:
        self.messages: list[Json] = []
        self.is_complete = False
        self.changed = threading.Condition()

    def push(self, message: Json, last: bool = False) -> None:
        with self.changed:
            self.messages.append(message)
            self.is_complete = self.is_complete or last
            self.changed.notify_all()

    def after(self, position: int):
        """The messages from a position on, until the stream is complete or silent for long."""
        while True:
            with self.changed:
                if not self.changed.wait_for(lambda: len(self.messages) > position or self.is_complete, STREAM_WAIT_S):
                    return
                batch, complete = self.messages[position:], self.is_complete
            for message in batch:
                position += 1
                yield position, message
            if complete and not batch:
                return


class Session:
    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {"get": Stream()}
        self.subscribed: set[str] = set()
        self.answers: dict[str, tuple[threading.Event, list[Json]]] = {}
        self.cancelled: set[Any] = set()
        self.asked = 0


class Server:
    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.tasks: dict[str, tuple[threading.Event, Json, list[Json]]] = {}

    def respond(self, session: Session, message: Json, emit: Emit) -> Json | None:
        method, identity, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method is None:
            event, answers = session.answers.get(str(identity), (None, []))
            if event:
                answers.append(message)
                event.set()
            return None
        if identity is None:
            if method == "notifications/cancelled":
                session.cancelled.add(params.get("requestId"))
            return None
        try:
            return {"jsonrpc": "2.0", "id": identity, "result": self.result(session, method, params, emit, identity)}
        except KeyError as missing:
            return {"jsonrpc": "2.0", "id": identity, "error": {"code": -32602, "message": f"unknown or missing: {missing}"}}

    def result(self, session: Session, method: str, params: Json, emit: Emit, identity: Any) -> Json:
        if method == "initialize":
            return {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": {"name": "recorder", "version": "1.0.0"}}
        if method in ("ping", "logging/setLevel"):
            return {}
        if method == "tools/list":
            support = {"wait": {"execution": {"taskSupport": "optional"}}}
            return {"tools": [{"name": name, "description": text, "inputSchema": schema, **support.get(name, {})} for name, (text, schema) in TOOLS.items()]}
        if method == "resources/list":
            return {"resources": [{"uri": "record://one", "name": "one"}]}
        if method == "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "record://{name}", "name": "record"}]}
        if method == "prompts/list":
            return {"prompts": []}
        if method == "resources/read":
            return {"contents": [{"uri": params["uri"], "mimeType": "text/plain", "text": "a record"}]}
        if method in ("resources/subscribe", "resources/unsubscribe"):
            (session.subscribed.add if method.endswith("/subscribe") else session.subscribed.discard)(params["uri"])
            return {}
        if method == "tools/call" and "task" in params:
            return self.new_task(session, params)
        if method == "tools/call":
            return self.call(session, params, emit, identity)
        if method in ("tasks/get", "tasks/result", "tasks/cancel"):
            ended, task, results = self.tasks[params["taskId"]]
            if method == "tasks/get":
                return task
            ended.wait(STREAM_WAIT_S)
            return {**results[0], "_meta": {"io.modelcontextprotocol/related-task": {"taskId": params["taskId"]}}}
        if method == "tasks/list":
            return {"tasks": [task for _, task, _ in self.tasks.values()]}
        raise KeyError(method)

    def new_task(self, session: Session, params: Json) -> Json:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        task = {"taskId": uuid.uuid4().hex, "status": "working", "createdAt": now, "lastUpdatedAt": now, "ttl": 600_000, "pollInterval": 100}
        ended, results = threading.Event(), []

        def work() -> None:
            results.append(self.call(session, params, lambda _: None, None))
            task["status"] = "completed"
            ended.set()

        self.tasks[task["taskId"]] = (ended, task, results)
        threading.Thread(target=work, daemon=True).start()
        return {"task": dict(task)}

    def call(self, session: Session, params: Json, emit: Emit, identity: Any) -> Json:
        name, arguments = params["name"], params.get("arguments") or {}
        text = arguments.get("text", "")
        if name not in TOOLS:
            raise KeyError(name)
        if name == "wait":
            self.wait(session, params, emit, identity, float(arguments.get("seconds", 1)))
        elif name == "big":
            text = "x" * int(arguments.get("bytes", 1))
        elif name == "ask":
            text = self.ask(session, text, emit)
        elif name == "touch":
            for other in self.sessions.values():
                if "record://one" in other.subscribed:
                    other.streams["get"].push({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "record://one"}})
        return {"content": [{"type": "text", "text": text}]}

    @staticmethod
    def wait(session: Session, params: Json, emit: Emit, identity: Any, seconds: float) -> None:
        token, begun, step = (params.get("_meta") or {}).get("progressToken"), time.monotonic(), 0
        while time.monotonic() - begun < seconds and (identity is None or identity not in session.cancelled):
            time.sleep(min(PROGRESS_S, seconds))
            step += 1
            if token is not None:
                emit({"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": step, "message": str(params["arguments"].get("text", ""))}})

    @staticmethod
    def ask(session: Session, text: str, emit: Emit) -> str:
        session.asked += 1
        identity = session.asked
        event: threading.Event = threading.Event()
        answers: list[Json] = []
        session.answers[str(identity)] = (event, answers)
        content = {"type": "text", "text": text}
        emit({"jsonrpc": "2.0", "id": identity, "method": "sampling/createMessage", "params": {"messages": [{"role": "user", "content": content}], "maxTokens": 10}})
        event.wait(20)
        return json.dumps(answers[0].get("result") or answers[0].get("error")) if answers else "no answer"


SERVER = Server()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def plain(self, status: int, body: Json | None = None, **headers: str) -> None:
        data = json.dumps(body).encode() if body is not None else b""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if body is not None:
            self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def events(self, name: str, stream: Stream, position: int) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(f"id: {name}/0\ndata: \n\n".encode())
        self.wfile.flush()
        try:
            for number, message in stream.after(position):
                self.wfile.write(f"id: {name}/{number}\ndata: {json.dumps(message)}\n\n".encode())
                self.wfile.flush()
        except OSError:
            pass  # the client is gone; the stream can be resumed

    def session(self) -> Session | None:
        return SERVER.sessions.get(self.headers.get("Mcp-Session-Id", ""))

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        record(raw)
        try:
            message = json.loads(raw)
            assert isinstance(message, dict)
        except (ValueError, AssertionError, RecursionError):
            return self.plain(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "not a message"}})
        if message.get("method") == "initialize":
            name = uuid.uuid4().hex
            SERVER.sessions[name] = Session()
            return self.plain(200, SERVER.respond(SERVER.sessions[name], message, lambda _: None), Mcp_Session_Id=name)
        session = self.session()
        if session is None:
            return self.plain(404, {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": -32001, "message": "no such session"}})
        params = message.get("params") or {}
        if message.get("method") == "tools/call" and params.get("name") in ("wait", "ask") and "task" not in params:
            name = uuid.uuid4().hex
            stream = session.streams[name] = Stream()
            threading.Thread(target=lambda: stream.push(SERVER.respond(session, message, stream.push) or {}, last=True), daemon=True).start()
            return self.events(name, stream, 0)
        answer = SERVER.respond(session, message, session.streams["get"].push)
        return self.plain(202) if answer is None else self.plain(200, answer)

    def do_GET(self) -> None:
        session = self.session()
        if session is None:
            return self.plain(404, {})
        name, _, position = self.headers.get("Last-Event-ID", "get/0").partition("/")
        stream = session.streams.get(name)
        return self.plain(404, {}) if stream is None else self.events(name, stream, int(position or 0))

    def do_DELETE(self) -> None:
        self.plain(200 if SERVER.sessions.pop(self.headers.get("Mcp-Session-Id", ""), None) else 404)


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024


def serve_stdio() -> None:
    session, writing = Session(), threading.Lock()
    SERVER.sessions["stdio"] = session

    def emit(message: Json) -> None:
        with writing:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def work(message: Json) -> None:
        answer = SERVER.respond(session, message, emit)
        if answer is not None:
            emit(answer)

    threading.Thread(target=lambda: [emit(message) for _, message in session.streams["get"].after(0)], daemon=True).start()
    for line in sys.stdin.buffer:
        record(line.rstrip(b"\r\n"))
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict):
            threading.Thread(target=work, args=(message,), daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--stdio", action="store_true")
    options = parser.parse_args()
    if options.stdio:
        serve_stdio()
    else:
        Listener(("127.0.0.1", options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
