#!/usr/bin/env python3
"""An MCP client on the Python SDK, for topology.py: `client.py URL KEY BACKEND tour|loop`.

`tour` uses one of everything the demo backend has, over several sessions, and prints what it saw as one line of JSON.
`loop` calls a tool again and again until standard input closes, and prints how many calls were answered and what failed.
"""

import json
import sys
import threading
import warnings
from contextlib import asynccontextmanager

import anyio
import httpx
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl

warnings.filterwarnings("ignore", category=DeprecationWarning)
SESSIONS = 6
LOOPS = 4


@asynccontextmanager
async def connected(url: str, key: str, seen: list[str]):
    async def on_message(message) -> None:
        if isinstance(message, types.ServerNotification):
            seen.append(message.root.method)

    async def on_elicitation(_, __) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"answer": "blue"})

    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=30) as http,
        streamable_http_client(url, http_client=http) as (read, write, _),
        ClientSession(read, write, elicitation_callback=on_elicitation, message_handler=on_message) as session,
    ):
        await session.initialize()
        yield session


async def until(holds, what: str) -> None:
    with anyio.move_on_after(10):
        while not holds():
            await anyio.sleep(0.02)
        return
    raise AssertionError(f"waited too long for {what}")


async def tour_once(session: ClientSession, backend: str, seen: list[str]) -> dict:
    tools = [tool.name for tool in (await session.list_tools()).tools]
    echo = await session.call_tool(f"{backend}__echo", {"message": "hello"})
    progress: list[float] = []

    async def on_progress(done: float, _total, _message) -> None:
        progress.append(done)

    await session.call_tool(f"{backend}__countdown", {"from": 3, "pause_ms": 1}, progress_callback=on_progress)
    asked = await session.call_tool(f"{backend}__ask", {"question": "which colour?"})
    counter = AnyUrl(f"{backend}+demo://counter")
    await session.subscribe_resource(counter)
    await session.call_tool(f"{backend}__increment", {})
    await until(lambda: "notifications/resources/updated" in seen, "a word of the changed resource")
    read = await session.read_resource(counter)
    prompt = await session.get_prompt(f"{backend}__greet", {"name": "Ada"})
    try:
        await session.call_tool(f"{backend}__nothing", {})
        refused = "unknown tool was called"
    except McpError as error:
        refused = error.error.data["kind"]
    task = await session.experimental.call_tool_as_task(f"{backend}__countdown", {"from": 2, "pause_ms": 1})
    done = await session.experimental.get_task_result(task.task.taskId, types.CallToolResult)
    return {
        "tools": tools, "echo": echo.content[0].text, "progress": progress, "asked": not asked.isError, "counter": read.contents[0].text,
        "prompt": "Ada" in prompt.messages[0].content.text, "refused": refused, "task": not done.isError,
    }


async def tour(url: str, key: str, backend: str) -> dict:
    tours = []
    for _ in range(SESSIONS):
        seen: list[str] = []
        async with connected(url, key, seen) as session:
            tours.append(await tour_once(session, backend, seen))
    return {"sessions": len(tours), **tours[0], "alike": all({**one, "counter": 0} == {**tours[0], "counter": 0} for one in tours)}


async def loop(url: str, key: str, backend: str) -> dict:
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    answered, failed = 0, []

    async def one() -> None:
        nonlocal answered
        async with connected(url, key, []) as session:
            while not stop.is_set():
                try:
                    result = await session.call_tool(f"{backend}__add", {"a": answered, "b": 1})
                    assert not result.isError, result
                    answered += 1
                except Exception as error:
                    failed.append(repr(error))
                    if len(failed) > 20:
                        return
            print("stopping", file=sys.stderr)

    async with anyio.create_task_group() as group:
        for _ in range(LOOPS):
            group.start_soon(one)
    return {"answered": answered, "failed": failed}


def main() -> None:
    url, key, backend, what = sys.argv[1:]
    result = anyio.run({"tour": tour, "loop": loop}[what], url, key, backend)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
