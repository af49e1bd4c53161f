"""The checks that both lines of the Python SDK run against server-everything; python_1.py and python_2.py adapt their SDKs.

Results are plain dictionaries with the names of the wire, so that one set of checks fits both SDKs. Each check prints
`ok NAME` or `FAIL NAME: why`. Without a backend name the names are the server's own, which tests the checks themselves.
"""

import base64
import itertools
import json
import random
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import anyio

Json = dict[str, Any]


class Failure(Exception):
    """A JSON-RPC error, whatever its class in the SDK."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.data = data


@dataclass
class Answers:
    """The client's answers to the server's requests, and the messages it received. One per connection."""

    roots: list[Json] = field(default_factory=lambda: [{"uri": "file:///srv/project", "name": "project"}])
    sample: Callable[[Json], str] = lambda params: f"sampled: {params['messages'][-1]['content']['text']}"
    elicit: Callable[[Json], Json] = lambda params: {"action": "accept", "content": {"name": "Ada", "check": True}}
    roots_asked: list[int] = field(default_factory=list)
    notifications: list[Json] = field(default_factory=list)

    def list_roots(self) -> Json:
        self.roots_asked.append(len(self.roots))
        return {"roots": self.roots}

    def create_message(self, params: Json) -> Json:
        content = {"type": "text", "text": self.sample(params)}
        return {"role": "assistant", "model": "peer", "stopReason": "endTurn", "content": content}

    def logged(self, pattern: str) -> list[Json]:
        """Returns the log entries whose data matches."""
        logs = [note["params"] for note in self.notifications if note["method"] == "notifications/message"]
        return [entry for entry in logs if re.search(pattern, str(entry["data"]))]

    def updated(self) -> list[str]:
        return [note["params"]["uri"] for note in self.notifications if note["method"] == "notifications/resources/updated"]


class Peer(Protocol):
    """A connected client. Every method raises Failure for a JSON-RPC error."""

    answers: Answers
    protocol_version: str
    server_capabilities: Json

    async def request(self, method: str, params: Json | None = None) -> Json: ...
    async def call(self, tool: str, arguments: Json, progress: Callable[[float, float | None], Awaitable[None]] | None = None) -> Json: ...
    async def roots_changed(self) -> None: ...
    async def cancel_running_call(self, tool: str, arguments: Json, started: anyio.Event, seen: list[float]) -> None: ...
    async def delete_session_then_post(self) -> int: ...


@dataclass
class Wire:
    """The HTTP requests of one connection, and whether to cut its first answer stream that carries progress."""

    cut_wanted: bool = False
    cut_happened: bool = False
    resumed: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    session_id: str = ""


def http_client(http: Any, wire: Wire) -> Any:
    """Returns a client of `http` that records into `wire`. `http`: the module httpx or its successor httpx2, by the SDK line."""

    class CutStream(http.AsyncByteStream):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def __aiter__(self) -> Any:
            async for chunk in self.inner:
                yield chunk
                if b"notifications/progress" in chunk and not wire.cut_happened:
                    wire.cut_happened = True
                    return

        async def aclose(self) -> None:
            await self.inner.aclose()

    class RecordingTransport(http.AsyncHTTPTransport):
        async def handle_async_request(self, request: Any) -> Any:
            if "last-event-id" in request.headers:
                wire.resumed.append(request.headers["last-event-id"])
            if request.method == "POST":
                wire.methods.append(json.loads(request.content).get("method", ""))
            response = await super().handle_async_request(request)
            wire.session_id = response.headers.get("mcp-session-id", wire.session_id)
            streams = response.headers.get("content-type", "").startswith("text/event-stream")
            if wire.cut_wanted and request.method == "POST" and streams and not wire.cut_happened:
                response.stream = CutStream(response.stream)
            return response

    return http.AsyncClient(transport=RecordingTransport(), timeout=http.Timeout(30, read=300))


async def delete_then_post(http: Any, url: str, wire: Wire) -> int:
    """Ends the session without the SDK; returns the status of the next request in it."""
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-session-id": wire.session_id,
        "mcp-protocol-version": "2025-11-25",
    }
    deleted = await http.delete(url, headers=headers)
    assert deleted.status_code in (200, 202, 204), f"DELETE answered {deleted.status_code}"
    after = await http.post(url, headers=headers, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    return after.status_code


Connect = Callable[..., AbstractAsyncContextManager[Peer]]


async def eventually(what: str, condition: Callable[[], Any], seconds: float = 10) -> Any:
    """Waits for a message that arrives on another stream than the answer."""
    with anyio.move_on_after(seconds):
        while not (value := condition()):
            await anyio.sleep(0.01)
        return value
    raise AssertionError(f"{what} did not come within {seconds} s")


class Checks:
    def __init__(self, connect: Connect, backend: str) -> None:
        self.connect = connect
        # A name with `{}` is the pattern of the names that another proxy gives to tools and prompts.
        self.pattern = backend if "{}" in backend else "{}"
        self.backend = "" if "{}" in backend else backend
        self.failed = 0

    def named(self, name: str) -> str:
        return f"{self.backend}__{name}" if self.backend else self.pattern.format(name)

    def located(self, uri: str) -> str:
        return f"{self.backend}+{uri}" if self.backend else uri

    async def run(self, name: str, body: Callable[[], Awaitable[None]], seconds: float = 30) -> None:
        try:
            with anyio.fail_after(seconds):
                await body()
            print(f"ok {name}", flush=True)
        except Exception as error:  # noqa: BLE001 - a check may fail in any way, the others still run
            self.failed += 1
            why = " ".join(f"{type(error).__name__}: {error!s} {getattr(error, 'exceptions', '')}".split())[:600]
            print(f"FAIL {name}: {why}", flush=True)

    async def text(self, peer: Peer, tool: str, arguments: Json | None = None, **more: Any) -> str:
        result = await peer.call(self.named(tool), arguments or {}, **more)
        assert not result.get("isError"), result["content"]
        return "\n".join(item.get("text", "") for item in result["content"])

    async def failure(self, awaitable: Awaitable[Any]) -> Failure:
        try:
            value = await awaitable
        except Failure as failure:
            return failure
        raise AssertionError(f"expected a failure, got {json.dumps(value)[:300]}")

    async def everything(self) -> None:
        async with self.connect() as peer:
            await self.catalog(peer)
            await self.tool_results(peer)
            await self.notifications(peer)
            await self.server_requests(peer)
            await self.resources(peer)
            await self.prompts(peer)
            await self.cancellation(peer)
            if hasattr(peer, "run_as_task"):  # the 2.x SDK has left out this revision's tasks
                await self.tasks(peer)
        await self.isolation()
        await self.connection_loss()

    async def catalog(self, peer: Peer) -> None:
        async def initialize() -> None:
            assert peer.protocol_version == "2025-11-25", peer.protocol_version
            for kind in ("tools", "prompts", "resources", "logging", "completions"):
                assert kind in peer.server_capabilities, f"no {kind} capability"

        async def ping() -> None:
            assert await peer.request("ping") == {}

        async def tools_list() -> None:
            listed = await peer.request("tools/list")
            tools = {tool["name"]: tool for tool in listed["tools"]}
            assert len(tools) == len(listed["tools"]), "a name is listed twice"
            for name in ("echo", "get-tiny-image", "trigger-sampling-request", "trigger-elicitation-request", "get-roots-list"):
                assert self.named(name) in tools, f"{self.named(name)} is missing from {sorted(tools)}"
            assert tools[self.named("echo")]["annotations"]["readOnlyHint"] is True
            assert tools[self.named("get-structured-content")]["outputSchema"]["properties"]["humidity"]["type"] == "number"
            assert await peer.request("tools/list") == listed

        await self.run("initialize", initialize)
        await self.run("ping", ping)
        await self.run("tools-list", tools_list)

    async def tool_results(self, peer: Peer) -> None:
        async def text() -> None:
            message = 'quotes " back\\slash \u0001 ümläut 漢字 😀 \u2028 </script>'
            assert await self.text(peer, "echo", {"message": message}) == f"Echo: {message}"

        async def image() -> None:
            content = (await peer.call(self.named("get-tiny-image"), {}))["content"]
            found = next(item for item in content if item["type"] == "image")
            assert found["mimeType"] == "image/png" and base64.b64decode(found["data"])[1:4] == b"PNG"

        async def resources_in_results() -> None:
            content = (await peer.call(self.named("get-resource-links"), {"count": 2}))["content"]
            links = [item["uri"] for item in content if item["type"] == "resource_link"]
            assert len(links) == 2 and all(link.startswith(self.located("demo://resource/dynamic/")) for link in links), links
            assert (await peer.request("resources/read", {"uri": links[0]}))["contents"][0]["uri"] == links[0]
            arguments = {"resourceType": "Text", "resourceId": 3}
            embedded = (await peer.call(self.named("get-resource-reference"), arguments))["content"][1]["resource"]
            assert embedded["uri"] == self.located("demo://resource/dynamic/text/3") and "Resource 3" in embedded["text"]

        async def structured() -> None:
            result = await peer.call(self.named("get-structured-content"), {"location": "Chicago"})
            assert result["structuredContent"] == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
            assert json.loads(result["content"][0]["text"]) == result["structuredContent"]

        async def error_result() -> None:
            result = await peer.call(self.named("get-resource-reference"), {"resourceType": "Text", "resourceId": -1})
            assert result["isError"] is True and "Invalid resourceId" in result["content"][0]["text"]

        async def unknown() -> None:
            try:
                assert (await peer.call(self.named("no-such-tool"), {}))["isError"] is True
            except Failure as failure:
                assert failure.code == -32602, failure

        async def concurrent() -> None:
            messages = [f"call {index} {'x' * index * 37} {random.random()}" for index in range(100)]
            answers: dict[int, str] = {}

            async def one(index: int) -> None:
                answers[index] = await self.text(peer, "echo", {"message": messages[index]})

            async with anyio.create_task_group() as group:
                for index in range(100):
                    group.start_soon(one, index)
            assert [answers[index] for index in range(100)] == [f"Echo: {message}" for message in messages]

        await self.run("tool-text", text)
        await self.run("tool-image", image)
        await self.run("tool-resources", resources_in_results)
        await self.run("tool-structured-content", structured)
        await self.run("tool-error-result", error_result)
        await self.run("tool-unknown", unknown)
        await self.run("concurrent-calls", concurrent)

    async def notifications(self, peer: Peer) -> None:
        async def progress() -> None:
            seen: list[tuple[float, float | None]] = []

            async def on_progress(done: float, total: float | None) -> None:
                seen.append((done, total))

            arguments = {"duration": 0.4, "steps": 4}
            assert "completed" in await self.text(peer, "trigger-long-running-operation", arguments, progress=on_progress)
            await eventually("all progress", lambda: len(seen) >= 4)
            assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)], seen

        async def logging() -> None:
            def uri(number: int) -> str:
                return self.located(f"demo://resource/dynamic/text/{number}")

            await peer.request("logging/setLevel", {"level": "error"})
            await peer.request("resources/subscribe", {"uri": uri(901)})
            await peer.request("logging/setLevel", {"level": "debug"})
            await peer.request("resources/subscribe", {"uri": uri(902)})
            found = await eventually("a log entry about 902", lambda: peer.answers.logged(r"dynamic/text/902\b"))
            assert found[0]["level"] == "info", found
            assert not peer.answers.logged(r"dynamic/text/901\b"), "an info entry came although the level was error"
            for number in (901, 902):
                await peer.request("resources/unsubscribe", {"uri": uri(number)})

        await self.run("progress", progress)
        await self.run("logging-level", logging)

    async def server_requests(self, peer: Peer) -> None:
        async def sampling() -> None:
            peer.answers.sample = lambda params: f"heard {params['messages'][0]['content']['text']} {params['maxTokens']}"
            answer = await self.text(peer, "trigger-sampling-request", {"prompt": "what is up?", "maxTokens": 77})
            assert re.search(r"heard .*what is up\? 77", answer), answer

        async def elicitation() -> None:
            schemas: list[Json] = []

            def elicit(params: Json) -> Json:
                schemas.append(params["requestedSchema"])
                return {"action": "accept", "content": {"name": "Grace", "check": False, "integer": 7}}

            peer.answers.elicit = elicit
            answer = await self.text(peer, "trigger-elicitation-request")
            assert "Name: Grace" in answer and "Favorite Integer: 7" in answer, answer
            assert schemas[0]["properties"]["number"]["default"] == 3.14 and schemas[0]["required"] == ["name"]
            peer.answers.elicit = lambda params: {"action": "decline"}
            assert "declined" in await self.text(peer, "trigger-elicitation-request")

        async def elicitation_url() -> None:
            asked: list[Json] = []

            def elicit(params: Json) -> Json:
                asked.append(params)
                return {"action": "accept"}

            peer.answers.elicit = elicit
            arguments = {"url": "https://example.com/authorise?a=1", "elicitationId": "elicit-1"}
            assert "User completed" in await self.text(peer, "trigger-url-elicitation", arguments)
            assert (asked[0]["mode"], asked[0]["url"], asked[0]["elicitationId"]) == ("url", arguments["url"], "elicit-1")
            refused = {"url": "https://example.com/first", "errorPath": True}
            failure = await self.failure(peer.call(self.named("trigger-url-elicitation"), refused))
            assert failure.code == -32042 and failure.data["elicitations"][0]["mode"] == "url", failure.data

        async def roots() -> None:
            assert "file:///srv/project" in await self.text(peer, "get-roots-list")
            peer.answers.roots = [*peer.answers.roots, {"uri": "file:///srv/second", "name": "second"}]
            await peer.roots_changed()
            await eventually("roots/list after the change", lambda: 2 in peer.answers.roots_asked)
            await eventually("the confirmation", lambda: peer.answers.logged(r"Roots updated: 2"))
            assert "file:///srv/second" in await self.text(peer, "get-roots-list")

        await self.run("sampling", sampling)
        await self.run("elicitation-form", elicitation)
        await self.run("elicitation-url", elicitation_url)
        await self.run("roots", roots)

    async def resources(self, peer: Peer) -> None:
        async def lists() -> None:
            uris = [resource["uri"] for resource in (await peer.request("resources/list"))["resources"]]
            static = self.located("demo://resource/static/document/architecture.md")
            assert static in uris, uris
            contents = (await peer.request("resources/read", {"uri": static}))["contents"]
            assert contents[0]["uri"] == static and contents[0]["text"]
            listed = (await peer.request("resources/templates/list"))["resourceTemplates"]
            assert self.located("demo://resource/dynamic/blob/{resourceId}") in [template["uriTemplate"] for template in listed]

        async def read() -> None:
            blob = await peer.request("resources/read", {"uri": self.located("demo://resource/dynamic/blob/43")})
            assert b"Resource 43" in base64.b64decode(blob["contents"][0]["blob"])
            failure = await self.failure(peer.request("resources/read", {"uri": self.located("demo://resource/nowhere")}))
            assert failure.code in (-32002, -32602), failure

        async def subscription() -> None:
            uri = self.located("demo://resource/dynamic/text/7")
            await peer.request("resources/subscribe", {"uri": uri})
            assert "Started" in await self.text(peer, "toggle-subscriber-updates")
            await eventually("an update", peer.answers.updated)
            assert "Stopped" in await self.text(peer, "toggle-subscriber-updates")
            await peer.request("resources/unsubscribe", {"uri": uri})
            assert set(peer.answers.updated()) == {uri}, peer.answers.updated()

        await self.run("resources-list", lists)
        await self.run("resource-read", read)
        await self.run("resource-subscription", subscription)

    async def prompts(self, peer: Peer) -> None:
        async def prompts() -> None:
            names = [prompt["name"] for prompt in (await peer.request("prompts/list"))["prompts"]]
            assert self.named("args-prompt") in names, names
            arguments = {"city": "Köln", "state": "NRW"}
            filled = await peer.request("prompts/get", {"name": self.named("args-prompt"), "arguments": arguments})
            assert filled["messages"][0]["content"]["text"] == "What's weather in Köln, NRW?", filled
            failure = await self.failure(peer.request("prompts/get", {"name": self.named("no-such-prompt")}))
            assert failure.code == -32602, failure

        async def completion() -> None:
            prompt = {"type": "ref/prompt", "name": self.named("completable-prompt")}
            context = {"arguments": {"department": "Sales"}}
            params = {"ref": prompt, "argument": {"name": "name", "value": ""}, "context": context}
            assert (await peer.request("completion/complete", params))["completion"]["values"] == ["David", "Eve", "Frank"]
            template = {"type": "ref/resource", "uri": self.located("demo://resource/dynamic/text/{resourceId}")}
            params = {"ref": template, "argument": {"name": "resourceId", "value": "12"}}
            assert (await peer.request("completion/complete", params))["completion"]["values"] == ["12"]

        await self.run("prompts", prompts)
        await self.run("completion", completion)

    async def cancellation(self, peer: Peer) -> None:
        async def cancellation() -> None:
            started, seen = anyio.Event(), []
            arguments = {"duration": 2, "steps": 20}
            await peer.cancel_running_call(self.named("trigger-long-running-operation"), arguments, started, seen)
            assert started.is_set(), "the call ended before it could be cancelled"
            count = len(seen)
            # Long enough for more progress of the cancelled call to arrive, if it were relayed.
            assert "completed" in await self.text(peer, "trigger-long-running-operation", {"duration": 0.5, "steps": 1})
            if self.backend:
                assert len(seen) <= count, "progress of the cancelled call was relayed"

        await self.run("cancellation", cancellation)

    async def tasks(self, peer: Any) -> None:
        async def result_of_task() -> None:
            statuses, result = await peer.run_as_task(self.named("simulate-research-query"), {"topic": "brokers"})
            assert statuses[0] == "working" and statuses[-1] == "completed", statuses
            assert "Research Report: brokers" in result["content"][0]["text"], result

        await self.run("task-result", result_of_task)

    async def isolation(self) -> None:
        async def requests_reach_the_caller() -> None:
            async def one(index: int) -> None:
                async with self.connect() as peer:
                    peer.answers.sample = lambda params: f"client {index} heard {params['messages'][0]['content']['text']}"
                    for round_ in range(3):
                        answer = await self.text(peer, "trigger-sampling-request", {"prompt": f"question {index}.{round_}"})
                        assert re.search(rf"client {index} heard .*question {index}\.{round_}", answer), answer

            async with anyio.create_task_group() as group:
                for index in range(4):
                    group.start_soon(one, index)

        await self.run("requests-reach-the-caller", requests_reach_the_caller)

    async def connection_loss(self) -> None:
        async def resume() -> None:
            wire, seen = Wire(cut_wanted=True), []

            async def on_progress(done: float, total: float | None) -> None:
                seen.append(done)

            # server-everything itself replays only earlier events, so without a broker the call must end before the resume.
            arguments = {"duration": 4 if self.backend else 0.4, "steps": 8}
            async with self.connect(wire) as peer:
                assert "completed" in await self.text(peer, "trigger-long-running-operation", arguments, progress=on_progress)
            assert wire.cut_happened, "the stream was never cut"
            assert len(wire.resumed) == 1, wire.resumed
            assert seen == list(range(1, 9)), seen

        async def delete() -> None:
            async with self.connect() as peer:
                status = await peer.delete_session_then_post()
            # server-everything answers 400 where the specification requires 404.
            assert status in ((404,) if self.backend else (400, 404)), status

        await self.run("resume-after-cut", resume)
        await self.run("delete-ends-the-session", delete)


def main(connect_to: Callable[[str], Connect], kind: type[Checks] = Checks) -> None:
    """`python SCRIPT URL [BACKEND]`: runs every check; exits with 1 if one failed."""
    if len(sys.argv) < 2:
        print(f"usage: python {sys.argv[0]} URL [BACKEND]", file=sys.stderr)
        sys.exit(64)
    checks = kind(connect_to(sys.argv[1]), next(itertools.islice(sys.argv, 2, None), ""))

    async def whole() -> None:
        await checks.run("whole-run", checks.everything, 150)

    anyio.run(whole)
    sys.exit(1 if checks.failed else 0)
