"""The library `websockets` in front of /ws: the upgrade, calls, pings, ends of connections, and sessions that continue.

    python websocket_wire.py URL

The broker pings every tenth of a second, closes after half a second of silence, and accepts messages up to a mebibyte.
"""

import asyncio
import json
import logging
import sys
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from wire_checks import INITIALIZED, Checks, Json, call, initialize, request, text_of, until


class PingsSeen(logging.Handler):
    """Counts the broker's pings, which the library answers by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += record.getMessage().startswith("< PING")


def connecting(url: str, headers: dict[str, str] | None = None, **more: Any) -> connect:
    # It sends no pings: those of the broker keep the connection alive.
    return connect(url, subprotocols=["mcp"], additional_headers=headers, ping_interval=None, max_size=None, proxy=None, **more)


async def exchange(socket: ClientConnection, message: Json) -> Json:
    await socket.send(json.dumps(message))
    while True:
        said = json.loads(await socket.recv())
        if said.get("id") == message["id"]:
            return said


async def open_session(socket: ClientConnection) -> str:
    answer = await exchange(socket, initialize())
    await socket.send(json.dumps(INITIALIZED))
    return answer["result"]["_meta"]["dev.mcp-broker/session"]


async def main(url: str) -> None:
    checks = Checks()

    async def upgraded() -> None:
        async with connecting(url) as socket:
            assert socket.subprotocol == "mcp", socket.subprotocol
            # The library offers compression.
            assert "Sec-WebSocket-Extensions" not in socket.response.headers
            await open_session(socket)

    async def calls() -> None:
        async with connecting(url) as socket:
            await open_session(socket)
            assert text_of(await exchange(socket, call(2, "b__echo", {"n": 2}))) == '{"n":2}'
            large = "x" * 500_000
            assert large in text_of(await exchange(socket, call(3, "b__echo", {"text": large})))
            # Messages in fragments, and many at once.
            text = json.dumps(call(4, "b__echo", {"n": 4}))
            await socket.send(iter([text[:10], "", text[10:]]))
            for number in range(100, 200):
                await socket.send(json.dumps(call(number, "b__echo", {"n": number})))
            left = {4, *range(100, 200)}
            while left:
                answer = json.loads(await socket.recv())
                assert text_of(answer) == f'{{"n":{answer["id"]}}}'
                left.remove(answer["id"])

    async def pings() -> None:
        seen = PingsSeen()
        logger = logging.getLogger("peer.pings")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(seen)
        async with connecting(url, logger=logger) as socket:
            await open_session(socket)
            await (await socket.ping(b"payload"))
            # Twice the silence that the broker permits.
            await until("ten pings", lambda: seen.count >= 10)
            assert (await exchange(socket, request(5, "ping")))["result"] == {}

    async def closed_with(code: int, message: str | bytes, **more: Any) -> None:
        async with connecting(url) as socket:
            await open_session(socket)
            try:
                await socket.send(message, **more)
                while True:
                    await socket.recv()
            except ConnectionClosed as closed:
                assert closed.rcvd is not None and closed.rcvd.code == code, closed

    async def resumed() -> None:
        socket = await connecting(url)
        session = await open_session(socket)
        for number in (10, 11):
            await exchange(socket, call(number, "b__echo", {"n": number}))
        socket.transport.abort()
        await socket.wait_closed()
        headers = {"Mcp-Session-Id": session, "Mcp-Broker-Received": "2"}
        async with connecting(url, headers) as again:
            assert again.response.headers["Mcp-Session-Id"] == session
            # The client had the answers to `initialize` and to the first call.
            assert json.loads(await again.recv())["id"] == 11
            assert text_of(await exchange(again, call(12, "b__echo", {"n": 12}))) == '{"n":12}'
        # The close frame has ended the session.
        try:
            async with connecting(url, {"Mcp-Session-Id": session}):
                raise AssertionError("a session that was ended")
        except InvalidStatus as refused:
            assert refused.response.status_code == 404, refused

    await checks.run("the upgrade", upgraded)
    await checks.run("calls", calls)
    await checks.run("pings both ways", pings)
    await checks.run("binary messages are refused", lambda: closed_with(1003, b"{}"))
    await checks.run("messages over the limit are refused", lambda: closed_with(1009, "x" * (2 << 20)))
    await checks.run("text that is not UTF-8 is refused", lambda: closed_with(1007, b"\xff\xfe", text=True))
    await checks.run("a session is gone on with", resumed)
    checks.done()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
