"""The 2.x line of the Python SDK in its default mode and in its mode with sessions, see eras.py."""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types as types
from checks import Json
from eras import main
from mcp import Client
from mcp.client.subscriptions import ResourceUpdated
from python_2 import Peer as Requests
from python_2 import answered

warnings.filterwarnings("ignore")  # features that the next revision removes are what is checked here


class Callbacks:
    """The client's answers to the server's requests, and a list of these requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.updated: list[str] = []

    async def elicit(self, _: Any, params: Any) -> types.ElicitResult:
        self.asked.append(f"elicitation {params.message}")
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, _: Any, params: Any) -> types.CreateMessageResult:
        self.asked.append(f"sampling {params.messages[0].content.text} {params.max_tokens}")
        return types.CreateMessageResult(role="assistant", model="peer", content=types.TextContent(type="text", text="word"))

    async def roots(self, _: Any) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv/project", name="project")])

    async def heard(self, message: Any) -> None:
        if isinstance(message, types.ResourceUpdatedNotification):
            self.updated.append(str(message.params.uri))


class Peer(Requests):
    can_watch = True

    def __init__(self, client: Any, callbacks: Callbacks) -> None:
        self.client, self.callbacks, self.asked = client, callbacks, callbacks.asked
        self.protocol_version = client.protocol_version

    @asynccontextmanager
    async def watch(self, uri: str) -> AsyncIterator[Callable[[], Awaitable[str]]]:
        if self.protocol_version == "2026-07-28":
            async with self.client.listen(resource_subscriptions=[uri]) as events:

                async def told() -> str:
                    event = await anext(events)
                    assert isinstance(event, ResourceUpdated), event
                    return event.uri

                yield told
            return
        self.callbacks.updated.clear()
        await answered(self.client.subscribe_resource(uri))

        async def updated() -> str:
            while not self.callbacks.updated:
                await anyio.sleep(0.01)
            return self.callbacks.updated[0]

        yield updated
        await answered(self.client.unsubscribe_resource(uri))


@asynccontextmanager
async def connect(url: str, mode: str, declares: bool) -> AsyncIterator[Peer]:
    said = Callbacks()
    callbacks: Json = dict(sampling_callback=said.sample, elicitation_callback=said.elicit, list_roots_callback=said.roots)
    async with Client(url, message_handler=said.heard, mode=mode, **(callbacks if declares else {})) as client:
        yield Peer(client, said)


if __name__ == "__main__":
    main(connect)
