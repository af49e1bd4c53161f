"""The 2.x line of the Python SDK, in its mode with sessions, against
server-everything: `python_2.py URL [BACKEND]`, see checks.py."""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import mcp_types as types
from checks import Answers, Connect, Failure, Json, Wire, delete_then_post, http_client, main
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

warnings.filterwarnings("ignore")  # features that the next revision removes are what is checked here


def plain(model: Any) -> Json:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


class Peer:
    def __init__(self, client: Client, answers: Answers, url: str, wire: Wire, http: httpx2.AsyncClient) -> None:
        self.client, self.answers, self.url, self.wire, self.http = client, answers, url, wire, http
        self.protocol_version = client.protocol_version
        self.server_capabilities = plain(client.server_capabilities)
        assert wire.methods[:1] == (["initialize"] if client.mode == "legacy" else ["server/discover"]), wire.methods

    async def request(self, method: str, params: Json | None = None) -> Json:
        params = params or {}
        client = self.client
        typed: dict[str, Callable[[], Awaitable[Any]]] = {
            "ping": client.send_ping,
            "tools/list": client.list_tools,
            "logging/setLevel": lambda: client.set_logging_level(params["level"]),
            "resources/list": client.list_resources,
            "resources/templates/list": client.list_resource_templates,
            "resources/read": lambda: client.read_resource(params["uri"]),
            "resources/subscribe": lambda: client.subscribe_resource(params["uri"]),
            "resources/unsubscribe": lambda: client.unsubscribe_resource(params["uri"]),
            "prompts/list": client.list_prompts,
            "prompts/get": lambda: client.get_prompt(params["name"], params.get("arguments")),
            "completion/complete": lambda: self.complete(params),
        }
        return await answered(typed[method]())

    async def complete(self, params: Json) -> Any:
        kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
        reference = kinds[params["ref"]["type"]].model_validate(params["ref"])
        return await self.client.complete(reference, params["argument"], params.get("context", {}).get("arguments"))

    async def call(self, tool: str, arguments: Json, progress: Callable[[float, float | None], Awaitable[None]] | None = None) -> Json:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            await progress(done, total)

        return await answered(self.client.call_tool(tool, arguments, progress_callback=on_progress if progress else None))

    async def roots_changed(self) -> None:
        await self.client.send_roots_list_changed()

    async def cancel_running_call(self, tool: str, arguments: Json, started: anyio.Event, seen: list[float]) -> None:
        async def on_progress(done: float, total: float | None) -> None:
            seen.append(done)
            if done == 2:
                started.set()

        async with anyio.create_task_group() as group:
            group.start_soon(self.call, tool, arguments, on_progress)
            await started.wait()
            group.cancel_scope.cancel()
        assert "notifications/cancelled" in self.wire.methods, "the SDK did not tell of the cancellation"

    async def delete_session_then_post(self) -> int:
        return await delete_then_post(self.http, self.url, self.wire)


async def answered(awaitable: Awaitable[Any]) -> Json:
    try:
        return plain(await awaitable)
    except MCPError as error:
        raise Failure(error.code, error.message, error.data) from error


def connect_to(url: str, mode: str = "legacy") -> Connect:
    @asynccontextmanager
    async def connect(wire: Wire | None = None) -> AsyncIterator[Peer]:
        wire, answers = wire or Wire(), Answers()

        async def on_message(message: Any) -> None:
            if hasattr(message, "method") and hasattr(message, "model_dump"):
                answers.notifications.append(plain(message))

        async def on_sampling(_: Any, params: Any) -> types.CreateMessageResult:
            return types.CreateMessageResult.model_validate(answers.create_message(plain(params)))

        async def on_elicitation(_: Any, params: Any) -> types.ElicitResult:
            return types.ElicitResult.model_validate(answers.elicit(plain(params)))

        async def on_roots(_: Any) -> types.ListRootsResult:
            return types.ListRootsResult.model_validate(answers.list_roots())

        async with http_client(httpx2, wire) as http:
            async with Client(
                streamable_http_client(url, http_client=http),
                sampling_callback=on_sampling,
                elicitation_callback=on_elicitation,
                list_roots_callback=on_roots,
                message_handler=on_message,
                mode=mode,
            ) as client:
                yield Peer(client, answers, url, wire, http)

    return connect


if __name__ == "__main__":
    main(connect_to)
