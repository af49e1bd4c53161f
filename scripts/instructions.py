#!/usr/bin/env python3
"""Counts the instructions that the broker carries out for one `tools/call`, by callgrind.

`scripts/instructions.py` (after `cargo build --release -p mcp-broker -p loadtest`; needs valgrind) starts the load tester's
backend and the broker under callgrind, opens connections, warms up, counts what so many calls take, and divides. What the
kernel does is not counted. Other work of the broker in that time is counted: it tidies the store once a second, and callgrind
turns milliseconds into seconds. Unlike times, the figure is the same on a busy machine, to a few percent.

    scripts/instructions.py --in-flight 16 --calls 640 --parts
    scripts/instructions.py --in-flight 16 --calls 640 --alone
    scripts/instructions.py --wire tcp --in-flight 64 --calls 1280
    scripts/instructions.py --bytes 65536 --calls 100 --keep call.out && callgrind_annotate --inclusive=yes call.out
"""

import argparse
import collections
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

TARGET = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parent.parent / "target")) / "release"
# What requests that stand alone say of themselves.
STANDALONE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "instructions", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
PROSE = "It was the best of times, it was the worst of times; "
# Parts of a call, with what the names of their source files contain. The first one that fits counts.
PARTS = [
    ("messages: decoding, editing, UTF-8", ["/protocol/src/", "/simdutf8-", "/memchr-"]),
    ("HTTP: heads, bodies, kept connections", ["/transport/src/", "/httparse-", "/http-1", "/http-body"]),
    ("listeners: checks of a request, its session", ["/broker/src/listeners/", "/broker/src/auth/", "/broker/src/broker", "/broker/src/session_location/"]),
    ("sessions: requests, calls, streams", ["/broker/src/sessions/"]),
    ("links: wire ids, breaker, permits", ["/broker/src/backends/", "/broker/src/admission/"]),
    ("rules: routing, event log, deadlines", ["/rules/src/"]),
    ("metrics and telemetry", ["/broker/src/metrics", "/broker/src/telemetry/", "/prometheus-", "/tracing"]),
    ("runtime: tasks, readiness, timers", ["/tokio-", "/futures-", "/mio-", "/core/src/future/"]),
    ("allocator", ["mimalloc", "/raw_vec/"]),
    ("snapshots, locks and tables", ["/arc-swap-", "/parking_lot", "/lock_api-", "/dashmap-", "/hashbrown-", "/foldhash-"]),
    ("clocks", ["/unix/time.rs", "clock_gettime", "/std/src/time.rs"]),
    ("copied and compared memory", ["memmove", "memcmp", "memset", "/bytes-"]),
]


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def initialize(meta: dict) -> bytes:
    info = {"name": "instructions", "version": "1"}
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info} | ({"_meta": meta} if meta else {})
    return json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()


class Client:
    """One connection."""

    def __init__(self, args: argparse.Namespace, port: int, key: str):
        self.alone = args.alone
        self.http, self.key, self.session, self.number, self.held = args.wire == "http", key, "", 0, b""
        self.text = (PROSE * (args.bytes // len(PROSE) + 1))[: max(1, args.bytes - 95)]
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host = f"127.0.0.1:{port}"
        if self.alone:
            return
        self.send(initialize({} if self.http else {"dev.mcp-broker/token": key, "dev.mcp-broker/backend": "fast"}))
        self.answer()
        self.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        if self.http:
            self.answer()

    def send(self, *messages: bytes) -> None:
        if not self.http:
            return self.socket.sendall(b"".join(message + b"\n" for message in messages))
        for message in messages:
            said = f"Mcp-Session-Id: {self.session}\r\nMCP-Protocol-Version: 2025-11-25\r\n" if self.session else ""
            if self.alone:
                said = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: echo\r\n"
            head = (
                f"POST /mcp/fast HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {self.key}\r\n{said}"
                "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
                f"Content-Length: {len(message)}\r\n\r\n"
            )
            self.socket.sendall(head.encode() + message)

    def until(self, end: bytes) -> bytes:
        while end not in self.held:
            self.more()
        found, self.held = self.held.split(end, 1)
        return found

    def more(self) -> None:
        read = self.socket.recv(1 << 18)
        if not read:
            sys.exit("the broker closed the connection")
        self.held += read

    def answer(self) -> bytes:
        if not self.http:
            return self.until(b"\n")
        head = self.until(b"\r\n\r\n").decode()
        lines = (line.split(": ", 1) for line in head.split("\r\n")[1:])
        named = {name.lower(): value for name, value in lines}
        self.session = named.get("mcp-session-id", self.session)
        length = int(named.get("content-length", 0))
        while len(self.held) < length:
            self.more()
        body, self.held = self.held[:length], self.held[length:]
        return body

    def ask(self, count: int) -> None:
        messages = []
        for _ in range(count):
            self.number += 1
            meta = {"_meta": STANDALONE} if self.alone else {}
            params = json.dumps(meta | {"name": "echo", "arguments": {"text": self.text}}, separators=(",", ":"))
            messages.append(f'{{"jsonrpc":"2.0","id":{self.number},"method":"tools/call","params":{params}}}'.encode())
        self.send(*messages)

    def check(self, count: int) -> None:
        for _ in range(count):
            answer = self.answer()
            if b'"result"' not in answer:
                sys.exit(f"not a result: {answer[:200]!r}")


def set_up(admin: int, transport: dict) -> str:
    """Registers the backend and makes a key."""

    def ask(method: str, path: str, body=None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{admin}/admin/v1/tenants/default/{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    ask("PUT", "backends/fast", {"transport": transport})
    deadline = time.monotonic() + 120
    while "ready" not in json.dumps(ask("GET", "backends/fast")):
        if time.monotonic() > deadline:
            sys.exit("the backend was not ready in two minutes")
        time.sleep(0.1)
    return ask("POST", "keys", {})["key"]


def callgrind(broker: subprocess.Popen, order: str) -> None:
    subprocess.run(["callgrind_control", *order.split(), str(broker.pid)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def counted(args: argparse.Namespace, folder: Path, started: list) -> str:
    """Returns what callgrind wrote about the calls."""
    backend, clients, admin = free_port(), free_port(), free_port()
    started.append(subprocess.Popen([args.loadtest, "backend", f"--{args.wire}", f"127.0.0.1:{backend}"], stdout=subprocess.DEVNULL))
    listen = {args.wire: f"127.0.0.1:{clients}", "admin": f"127.0.0.1:{admin}"}
    listen.setdefault("http", f"127.0.0.1:{free_port()}")
    limits = {"requests_per_second": 1_000_000, "burst": 1_000_000}
    (folder / "broker.yaml").write_text(json.dumps({"listen": listen, "egress": {"allow": ["127.0.0.0/8"]}, "limits": limits}))
    out = folder / "calls.out"
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", args.broker, "serve", "--config", "broker.yaml"]
    log = open(folder / "log", "w", encoding="utf-8")
    broker = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    started.append(broker)
    deadline = time.monotonic() + 120
    while "ready" not in (folder / "log").read_text():
        if broker.poll() is not None or time.monotonic() > deadline:
            sys.exit((folder / "log").read_text())
        time.sleep(0.1)
    url = {"type": "http", "url": f"http://127.0.0.1:{backend}/mcp"}
    key = set_up(admin, url if args.wire == "http" else {"type": "tcp", "address": f"127.0.0.1:{backend}"})
    connections = args.in_flight if args.wire == "http" else 1
    callers, at_once = [Client(args, clients, key) for _ in range(connections)], args.in_flight // connections

    def run(count: int) -> None:
        for _ in range(count // args.in_flight):
            for caller in callers:
                caller.ask(at_once)
            for caller in callers:
                caller.check(at_once)

    run(100)
    callgrind(broker, "-i on")
    run(64)
    callgrind(broker, "-z")
    run(args.calls)
    callgrind(broker, "-d")
    dumped = Path(f"{out}.1")
    if args.keep:
        Path(args.keep).write_bytes(dumped.read_bytes())
    return dumped.read_text()


def by_part(dump: str) -> collections.Counter:
    """Instructions by part of a call. Inlined code of the standard library counts for its caller's file."""
    files: dict = {}

    def file(text: str) -> str:
        number, _, name = text.partition(" ")
        return files.setdefault(number, name)

    def part(path: str):
        return next((name for name, marks in PARTS if any(mark in path for mark in marks)), None)

    found, home, here, is_call = collections.Counter(), "", "", False
    for line in dump.splitlines():
        key, _, value = line.partition("=")
        if key == "fl":
            home = here = file(value)
        elif key in ("fi", "fe"):
            here = file(value)
        elif key in ("cfi", "cfl"):
            file(value)
        elif key == "calls":
            is_call = True  # the next line holds the cost of the call, which its own lines hold too
        elif cost := re.match(r"[-+*\d]\S* (\d+)$", line):
            if not is_call:
                found[part(here) or part(home) or "the rest"] += int(cost[1])
            is_call = False
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", default=TARGET / "mcp-broker", help="the program that is looked at")
    parser.add_argument("--loadtest", default=TARGET / "mcp-loadtest", help="the load tester, for its backend")
    parser.add_argument("--wire", choices=["http", "tcp"], default="http", help="in front and behind")
    parser.add_argument("--bytes", type=int, default=256, help="of a call")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--in-flight", type=int, default=1, help="on one connection over TCP, each on its own over HTTP/1.1")
    parser.add_argument("--alone", action="store_true", help="requests of 2026-07-28, without a session (over HTTP)")
    parser.add_argument("--keep", metavar="FILE", help="where to keep callgrind's output")
    parser.add_argument("--parts", action="store_true", help="print the instructions of each part of a call")
    args = parser.parse_args()
    if args.alone and args.wire != "http":
        parser.error("--alone is for --wire http")
    calls = args.calls // args.in_flight * args.in_flight
    with tempfile.TemporaryDirectory() as folder:
        started: list = []
        try:
            dump = counted(args, Path(folder), started)
        finally:
            for process in started:
                process.terminate()
                process.wait(60)
    total = int(re.search(r"^totals: (\d+)", dump, re.M)[1])
    print(f"{total // calls} instructions a call ({args.wire}, {args.bytes} bytes, {args.in_flight} in flight, {calls} calls)")
    for name, cost in by_part(dump).most_common() if args.parts else []:
        print(f"| {name} | {cost // calls} | {100 * cost / total:.0f} % |")


if __name__ == "__main__":
    main()
