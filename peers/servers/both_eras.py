"""A server of the Python SDK that supports every revision, with tools that behave alike in all of them. Differences between two
of its clients therefore come from the software between. `both_eras.py --port PORT` prints the port on standard error. With
`--sse` it serves HTTP+SSE of 2024-11-05, which has sessions only. With `--stdio` it serves its standard input.

`ask` needs an elicitation, a sampling and the roots of its client. For 2025-11-25 it sends requests during the call, for
2026-07-28 it requires the inputs in its answer. `steps` takes a while, sends progress, and notes its cancellation.
"""

import json
import logging
import sys
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, ListRoots, MCPServer, RequestStateSecurity, Resolve, Sample
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CreateMessageResult, EmptyResult, ListRootsResult, SamplingMessage, SubscribeRequestParams, TextContent, UnsubscribeRequestParams
from pydantic import BaseModel

NOTE = "note://one"

mcp = MCPServer(
    name="both-eras",
    version="1",
    instructions="ask, and you shall be asked",
    request_state_security=RequestStateSecurity(keys=[b"a key of tests that is not a secret at all"]),
)
note = {"text": "first"}
cancelled: list[str] = []


class Named(BaseModel):
    name: str


def who() -> Elicit[Named]:
    return Elicit("who are you?", Named)


def what() -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text="say a word"))], max_tokens=7)


def where() -> ListRoots:
    return ListRoots()


@mcp.tool()
def echo(message: str) -> str:
    """Says what it is told."""
    return message


@mcp.tool()
def fail() -> str:
    """Fails."""
    raise ToolError("this tool fails")


@mcp.tool()
async def ask(
    name: Annotated[ElicitationResult[Named], Resolve(who)],
    word: Annotated[CreateMessageResult, Resolve(what)],
    roots: Annotated[ListRootsResult, Resolve(where)],
) -> str:
    """Asks for a name, a word and the roots, and tells what it got."""
    given = name.data.name if name.action == "accept" else name.action
    said = word.content.text if word.content.type == "text" else word.content.type
    return json.dumps({"name": given, "word": said, "roots": [str(root.uri) for root in roots.roots]})


@mcp.tool()
async def steps(run: str, count: int, pause: float, ctx: Context) -> str:
    """Takes so many steps, and tells of each."""
    try:
        for step in range(1, count + 1):
            await ctx.report_progress(progress=step, total=count, message=f"step {step}")
            await anyio.sleep(pause)
    except anyio.get_cancelled_exc_class():
        cancelled.append(run)
        raise
    return f"{count} steps"


@mcp.tool()
def was_cancelled(run: str) -> bool:
    """Whether this run of `steps` was."""
    return run in cancelled


@mcp.tool()
async def write(text: str, ctx: Context) -> str:
    """Changes the note, and tells who wants to know."""
    note["text"] = text
    await ctx.notify_resource_updated(NOTE)
    for session in list(subscribed):
        await session.send_resource_updated(NOTE)
    return "written"


@mcp.resource(NOTE)
def read_note() -> str:
    """A note that changes."""
    return note["text"]


@mcp.resource("page://{number}/text")
def page(number: str) -> str:
    """A page of a book."""
    return f"page {number}"


@mcp.prompt()
def greet(name: str) -> str:
    """Greets."""
    return f"Greet {name}."


subscribed: set[Any] = set()


async def subscribe(ctx: Any, params: SubscribeRequestParams) -> EmptyResult:
    subscribed.add(ctx.session)
    return EmptyResult()


async def unsubscribe(ctx: Any, params: UnsubscribeRequestParams) -> EmptyResult:
    subscribed.discard(ctx.session)
    return EmptyResult()


mcp._lowlevel_server.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
mcp._lowlevel_server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    if "--stdio" in sys.argv:
        mcp.run(transport="stdio")
    else:
        port = int(sys.argv[sys.argv.index("--port") + 1])
        mcp.run(transport="sse" if "--sse" in sys.argv else "streamable-http", port=port)
