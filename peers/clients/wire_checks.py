"""Shared parts of the clients of single wires: messages, and checks that print `ok NAME` or `FAIL NAME: why`."""

import asyncio
import json
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]

# Longest wait in seconds.
DEADLINE = 20.0


def request(number: int, method: str, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}


def call(number: int, tool: str, arguments: Json | None = None, **more: Any) -> Json:
    return request(number, "tools/call", {"name": tool, "arguments": arguments or {}, **more})


def initialize(number: int = 1) -> Json:
    about = {"name": "wire-peer", "version": "1"}
    return request(number, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about})


INITIALIZED: Json = {"jsonrpc": "2.0", "method": "notifications/initialized"}


def text_of(answer: Json) -> str:
    return answer["result"]["content"][0]["text"]


def line(message: Json) -> bytes:
    return json.dumps(message).encode() + b"\n"


async def until(what: str, state: Callable[[], Any]) -> Any:
    """Polls until the state is reached."""
    begun = time.monotonic()
    while not (seen := state()):
        if time.monotonic() - begun > DEADLINE:
            raise TimeoutError(what)
        await asyncio.sleep(0.01)
    return seen


class Recorded:
    """The backend's input, which it writes to a file in this test."""

    def __init__(self, file: str) -> None:
        self.file = Path(file)

    async def count(self, text: str, wanted: int) -> None:
        await until(f"{text} {wanted} times", lambda: self.file.exists() and self.file.read_text().count(text) == wanted)


class Checks:
    def __init__(self) -> None:
        self.failed = 0

    async def run(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(2 * DEADLINE):
                await check()
            print(f"ok {name}", flush=True)
        except Exception as error:
            self.failed += 1
            traceback.print_exc()
            print(f"FAIL {name}: {error!r}", flush=True)

    def done(self) -> None:
        sys.exit(1 if self.failed else 0)
