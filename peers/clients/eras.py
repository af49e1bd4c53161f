"""The steps of a Python client at `servers/both_eras.py`. Each must have the same result directly and through the broker.

A script is called as `SCRIPT DIRECT BROKER MODE...`: the server's own URL, the broker's URL, and the modes of the client. The broker
has the server twice: as `/mcp/old`, where it opens sessions, and as `/mcp/new`, where each request is stateless. For every mode and
both backends the script takes the steps through the broker. It compares each result with that of a direct connection, which uses the
era of the broker's link to that backend. Each step prints `ok STEP` or `FAIL STEP: why`; the status is 1 after a failure.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import anyio
from checks import Failure, Json, eventually

NOTE = "note://one"
REVISIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}


class Peer(Protocol):
    """A connected client. Every method raises Failure for a JSON-RPC error, and gives results as the wire has them."""

    asked: list[str]
    protocol_version: str
    can_watch: bool

    async def request(self, method: str, params: Json | None = None) -> Json: ...
    async def call(self, tool: str, arguments: Json, progress: Callable[[float, float | None], Awaitable[None]] | None = None) -> Json: ...
    def watch(self, uri: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[str]]]: ...


Connect = Callable[[str, str, bool], AbstractAsyncContextManager[Peer]]


def by_name(listed: list[Json], members: tuple[str, ...]) -> list[Json]:
    kept = [{member: one.get(member) for member in members} for one in listed]
    return sorted(kept, key=lambda one: str(one[members[0]]))


def content(result: Json) -> Json:
    return {member: result.get(member) for member in ("content", "structuredContent") if result.get(member)} | {
        "isError": bool(result.get("isError"))
    }


async def refused(awaitable: Awaitable[Any]) -> int | None:
    """Returns the code of an error, which for a missing resource differs between the eras. None if there was no error."""
    try:
        result = await awaitable
    except Failure as failure:
        return -32602 if failure.code == -32002 else failure.code
    return -32602 if result.get("isError") else None


class Steps:
    """One connection's steps, by name."""

    def __init__(self, peer: Peer, run: str) -> None:
        self.peer, self.run = peer, run

    async def lists(self) -> Any:
        request = self.peer.request
        return {
            "tools": by_name((await request("tools/list"))["tools"], ("name", "description", "inputSchema", "outputSchema")),
            "prompts": by_name((await request("prompts/list"))["prompts"], ("name", "description", "arguments")),
            "resources": by_name((await request("resources/list"))["resources"], ("uri", "name", "mimeType")),
            "templates": by_name((await request("resources/templates/list"))["resourceTemplates"], ("uriTemplate", "name")),
        }

    async def call(self) -> Any:
        return content(await self.peer.call("echo", {"message": 'quotes " \\ \u0001 ümläut 漢字 😀 \u2028'}))

    async def progress(self) -> Any:
        seen: list[Any] = []

        async def on_progress(done: float, total: float | None) -> None:
            seen.append((done, total))

        result = await self.peer.call("steps", {"run": self.run, "count": 3, "pause": 0.05}, on_progress)
        await eventually("all progress", lambda: len(seen) >= 3)
        return [content(result), seen]

    async def input(self) -> Any:
        """The server sends three requests to the client, in the way of its era."""
        self.peer.asked.clear()
        return [content(await self.peer.call("ask", {})), sorted(self.peer.asked)]

    async def failing_tool(self) -> Any:
        return content(await self.peer.call("fail", {}))

    async def prompt(self) -> Any:
        return (await self.peer.request("prompts/get", {"name": "greet", "arguments": {"name": "Ada"}}))["messages"]

    async def errors(self) -> Any:
        """Servers of the SDK have codes of their own for unknown prompts."""
        request = self.peer.request
        prompt = await refused(request("prompts/get", {"name": "no-such-prompt"}))
        return [
            await refused(self.peer.call("no-such-tool", {})),
            await refused(request("resources/read", {"uri": "note://none"})),
            prompt is not None,
        ]

    async def resources(self) -> Any:
        """Reads a page, and the note before and after it was changed and its reader was notified."""
        request = self.peer.request
        await self.peer.call("write", {"text": "before"})
        seen = [(await request("resources/read", {"uri": uri}))["contents"] for uri in ("page://7/text", NOTE)]
        if not self.peer.can_watch:
            await self.peer.call("write", {"text": "after"})
            return [*seen, NOTE]
        async with self.peer.watch(NOTE) as updated:
            await self.peer.call("write", {"text": "after"})
            with anyio.fail_after(10):
                told = await updated()
        return [*seen, told, (await request("resources/read", {"uri": NOTE}))["contents"]]

    async def cancel(self) -> Any:
        run, started = f"{self.run} cancelled", anyio.Event()

        async def on_progress(done: float, total: float | None) -> None:
            started.set()

        async def call() -> None:
            await self.peer.call("steps", {"run": run, "count": 500, "pause": 0.05}, on_progress)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            with anyio.fail_after(10):
                await started.wait()
            group.cancel_scope.cancel()
        with anyio.move_on_after(10):
            while not (await self.peer.call("was_cancelled", {"run": run}))["structuredContent"]["result"]:
                await anyio.sleep(0.02)
            return "the server was told"
        return "the server was not told"

    async def declared_nothing(self, connect: Connect, url: str, mode: str) -> Any:
        async with connect(url, mode, False) as peer:
            return await refused(peer.call("ask", {})) is not None


STEPS = ("lists", "call", "progress", "input", "failing_tool", "prompt", "errors", "resources", "cancel")


async def transcript(connect: Connect, url: str, mode: str, run: str) -> Json:
    taken: Json = {}
    async with connect(url, mode, True) as peer:
        taken["revision"] = peer.protocol_version
        steps = Steps(peer, run)
        for name in STEPS:
            try:
                with anyio.fail_after(30):
                    taken[name] = await getattr(steps, name)()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is not what was seen directly
                taken[name] = f"{type(error).__name__}: {error!s} {getattr(error, 'exceptions', '')}"
        taken["nothing declared"] = await steps.declared_nothing(connect, url, mode)
    return taken


async def compare(connect: Connect, direct: str, broker: str, modes: list[str]) -> int:
    failed = 0
    speaks = {"old": "legacy", "new": "auto"}
    for backend, own in speaks.items():
        seen = await transcript(connect, direct, own, f"direct {backend}")
        for mode in modes:
            through = await transcript(connect, f"{broker}/mcp/{backend}", mode, f"{mode} {backend}")
            for name, expected in (seen | {"revision": REVISIONS[mode]}).items():
                there, here = (json.dumps(value, sort_keys=True) for value in (expected, through[name]))
                failed += there != here
                print(f"ok {mode} {backend} {name}" if there == here else f"FAIL {mode} {backend} {name}: {here}, not {there}", flush=True)
    return failed


def main(connect: Connect) -> None:
    direct, broker, *modes = sys.argv[1:]
    sys.exit(1 if anyio.run(compare, connect, direct, broker, modes) else 0)
