"""The stable 1.x line of the Python SDK against server-everything: `python_1.py URL [BACKEND]`, see checks.py."""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
from checks import Answers, Connect, Failure, Json, Wire, delete_then_post, http_client, main
from mcp import ClientSession, McpError, types
from mcp.client.streamable_http import streamable_http_client
from pydantic import AnyUrl

warnings.filterwarnings("ignore", category=DeprecationWarning)  # tasks are deprecated here, and checked here


def plain(model: Any) -> Json:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


class Peer:
    def __init__(self, session: ClientSession, answers: Answers, url: str, wire: Wire, http: httpx.AsyncClient) -> None:
        self.session, self.answers, self.url, self.wire, self.http = session, answers, url, wire, http

    async def start(self) -> None:
        result = await self.session.initialize()
        self.protocol_version = result.protocolVersion
        self.server_capabilities = plain(result.capabilities)
        assert self.wire.methods[0] == "initialize", self.wire.methods

    async def request(self, method: str, params: Json | None = None) -> Json:
        params = params or {}
        session = self.session
        uri = AnyUrl(params["uri"]) if "uri" in params else None
        typed: dict[str, Callable[[], Awaitable[Any]]] = {
            "ping": session.send_ping,
            "tools/list": session.list_tools,
            "logging/setLevel": lambda: session.set_logging_level(params["level"]),
            "resources/list": session.list_resources,
            "resources/templates/list": session.list_resource_templates,
            "resources/read": lambda: session.read_resource(uri),
            "resources/subscribe": lambda: session.subscribe_resource(uri),
            "resources/unsubscribe": lambda: session.unsubscribe_resource(uri),
            "prompts/list": session.list_prompts,
            "prompts/get": lambda: session.get_prompt(params["name"], params.get("arguments")),
            "completion/complete": lambda: self.complete(params),
        }
        return await answered(typed[method]())

    async def complete(self, params: Json) -> Any:
        kinds = {"ref/prompt": types.PromptReference, "ref/resource": types.ResourceTemplateReference}
        reference = kinds[params["ref"]["type"]].model_validate(params["ref"])
        return await self.session.complete(reference, params["argument"], params.get("context", {}).get("arguments"))

    async def call(self, tool: str, arguments: Json, progress: Callable[[float, float | None], Awaitable[None]] | None = None) -> Json:
        async def on_progress(done: float, total: float | None, message: str | None) -> None:
            await progress(done, total)

        return await answered(self.session.call_tool(tool, arguments, progress_callback=on_progress if progress else None))

    async def roots_changed(self) -> None:
        await self.session.send_roots_list_changed()

    async def cancel_running_call(self, tool: str, arguments: Json, started: anyio.Event, seen: list[float]) -> None:
        async def on_progress(done: float, total: float | None) -> None:
            seen.append(done)
            if done == 2:
                started.set()

        async with anyio.create_task_group() as group:
            request_id = self.session._request_id  # this line of the SDK leaves the notification to its user
            group.start_soon(self.call, tool, arguments, on_progress)
            await started.wait()
            params = types.CancelledNotificationParams(requestId=request_id, reason="enough")
            await self.session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
            group.cancel_scope.cancel()

    async def run_as_task(self, tool: str, arguments: Json) -> tuple[list[str], Json]:
        """Returns the observed states of the task, and its result."""
        tasks = self.session.experimental
        created = await tasks.call_tool_as_task(tool, arguments)
        statuses = [created.task.status]
        statuses += [polled.status async for polled in tasks.poll_task(created.task.taskId)]
        return statuses, await answered(tasks.get_task_result(created.task.taskId, types.CallToolResult))

    async def delete_session_then_post(self) -> int:
        return await delete_then_post(self.http, self.url, self.wire)


async def answered(awaitable: Awaitable[Any]) -> Json:
    try:
        return plain(await awaitable)
    except McpError as error:
        raise Failure(error.error.code, error.error.message, error.error.data) from error


def connect_to(url: str) -> Connect:
    @asynccontextmanager
    async def connect(wire: Wire | None = None) -> AsyncIterator[Peer]:
        wire, answers = wire or Wire(), Answers()

        async def on_message(message: Any) -> None:
            if isinstance(message, types.ServerNotification):
                answers.notifications.append(plain(message.root))

        async def on_sampling(_: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
            return types.CreateMessageResult.model_validate(answers.create_message(plain(params)))

        async def on_elicitation(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            return types.ElicitResult.model_validate(answers.elicit(plain(params)))

        async def on_roots(_: Any) -> types.ListRootsResult:
            return types.ListRootsResult.model_validate(answers.list_roots())

        async with (
            http_client(httpx, wire) as http,
            streamable_http_client(url, http_client=http) as (read, write, _),
            ClientSession(
                read,
                write,
                sampling_callback=on_sampling,
                elicitation_callback=on_elicitation,
                list_roots_callback=on_roots,
                message_handler=on_message,
            ) as session,
        ):
            peer = Peer(session, answers, url, wire, http)
            await peer.start()
            yield peer

    return connect


if __name__ == "__main__":
    main(connect_to)
