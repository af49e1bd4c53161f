"""The client of FastMCP in its default mode and in its mode with sessions, see eras.py. It cannot receive resource updates."""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from checks import Failure, Json
from eras import main
from fastmcp import Client
from mcp.shared.exceptions import MCPError

warnings.filterwarnings("ignore")  # features that the next revision removes are what is checked here


async def answered(awaitable: Awaitable[Any]) -> Json:
    try:
        return (await awaitable).model_dump(by_alias=True, mode="json", exclude_none=True)
    except MCPError as error:
        raise Failure(error.code, error.message, error.data) from error


class Peer:
    can_watch = False

    def __init__(self, client: Client, asked: list[str]) -> None:
        self.client, self.asked = client, asked
        self.protocol_version = client.protocol_version

    async def request(self, method: str, params: Json | None = None) -> Json:
        params, client = params or {}, self.client
        typed: dict[str, Callable[[], Awaitable[Any]]] = {
            "tools/list": client.list_tools_mcp,
            "prompts/list": client.list_prompts_mcp,
            "resources/list": client.list_resources_mcp,
            "resources/templates/list": client.list_resource_templates_mcp,
            "resources/read": lambda: client.read_resource_mcp(params["uri"]),
            "prompts/get": lambda: client.get_prompt_mcp(params["name"], params.get("arguments")),
        }
        return await answered(typed[method]())

    async def call(self, tool: str, arguments: Json, progress: Callable[[float, float | None], Awaitable[None]] | None = None) -> Json:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            await progress(done, total)

        return await answered(self.client.call_tool_mcp(tool, arguments, progress_handler=on_progress if progress else None))


@asynccontextmanager
async def connect(url: str, mode: str, declares: bool) -> AsyncIterator[Peer]:
    asked: list[str] = []

    async def elicit(message: str, *_: Any) -> Json:
        asked.append(f"elicitation {message}")
        return {"name": "Ada"}

    async def sample(messages: list[Any], params: Any, _: Any) -> str:
        asked.append(f"sampling {messages[0].content.text} {params.max_tokens}")
        return "word"

    async def roots(_: Any) -> list[str]:
        asked.append("roots")
        return ["file:///srv/project"]

    handlers: Json = dict(elicitation_handler=elicit, sampling_handler=sample, roots=roots)
    async with Client(url, mode=mode, **(handlers if declares else {})) as client:
        yield Peer(client, asked)


if __name__ == "__main__":
    main(connect)
