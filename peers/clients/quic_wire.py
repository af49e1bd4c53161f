"""aioquic in front of the QUIC listener: the binding of docs/transports.md, with a library that shares no code with the broker.

    python quic_wire.py HOST PORT CA RECORD PID

RECORD is the file to which backend `b` writes its input. PID is the broker's process, which gets SIGTERM at the end.
"""

import asyncio
import json
import os
import signal
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, ProtocolNegotiated, QuicEvent, StreamDataReceived, StreamReset
from wire_checks import DEADLINE, INITIALIZED, Checks, Json, Recorded, call, initialize, line, request, text_of

CONTROL = 0
# The code with which a client cancels a request, by convention.
CANCELLED = 16


class Peer(QuicConnectionProtocol):
    """A connection and the messages that came on its streams."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.protocol_name: str | None = None
        self.ended: asyncio.Future[ConnectionTerminated] = asyncio.get_running_loop().create_future()
        self.rest: dict[int, bytes] = {}
        self.queues: dict[int, asyncio.Queue[Json | None]] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        match event:
            case ProtocolNegotiated(alpn_protocol=name):
                self.protocol_name = name
            case StreamDataReceived(data=data, stream_id=stream, end_stream=end):
                *lines, self.rest[stream] = (self.rest.get(stream, b"") + data).split(b"\n")
                for text in filter(None, lines):
                    self.queue(stream).put_nowait(json.loads(text))
                if end:
                    self.queue(stream).put_nowait(None)
            case StreamReset(stream_id=stream):
                self.queue(stream).put_nowait(None)
            case ConnectionTerminated() if not self.ended.done():
                self.ended.set_result(event)

    def queue(self, stream: int) -> asyncio.Queue[Json | None]:
        return self.queues.setdefault(stream, asyncio.Queue())

    def send(self, stream: int, message: Json, end: bool = False) -> None:
        self._quic.send_stream_data(stream, line(message), end)
        self.transmit()

    def begin(self, message: Json, end: bool = True) -> int:
        """Opens a stream for one request."""
        stream = self._quic.get_next_available_stream_id()
        self.send(stream, message, end)
        return stream

    def give_up(self, stream: int) -> None:
        self._quic.reset_stream(stream, CANCELLED)
        self.transmit()

    def want_no_more(self, stream: int) -> None:
        self._quic.stop_stream(stream, CANCELLED)
        self.transmit()

    async def next(self, stream: int) -> Json | None:
        return await asyncio.wait_for(self.queue(stream).get(), DEADLINE)

    async def all(self, stream: int) -> list[Json]:
        """Reads every message until the stream's end."""
        said = []
        while (message := await self.next(stream)) is not None:
            said.append(message)
        return said

    async def exchange(self, message: Json) -> Json:
        """Sends a request on the control stream, on which no other is in flight."""
        self.send(CONTROL, message)
        while (said := await self.next(CONTROL)) is not None:
            if said.get("id") == message["id"]:
                return said
        raise EOFError("the control stream ended")

    async def open_session(self) -> Json:
        answer = await self.exchange(initialize())
        self.send(CONTROL, INITIALIZED)
        return answer


def connecting(
    host: str, port: int, ca: str, protocol: str = "mcp", tickets: Any = None, **more: Any
) -> AbstractAsyncContextManager[Peer]:
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[protocol], cafile=ca, server_name="localhost")
    vars(configuration).update(more)
    return connect(host, port, configuration=configuration, create_protocol=Peer, session_ticket_handler=tickets)  # type: ignore[return-value]


async def main(host: str, port: int, ca: str, record: str, pid: int) -> None:
    checks, recorded = Checks(), Recorded(record)

    async def refused() -> None:
        try:
            async with connecting(host, port, ca, "h3"):
                raise AssertionError("a connection with another protocol")
        except ConnectionError:
            pass

    await checks.run("another protocol is refused", refused)

    async with connecting(host, port, ca) as first:

        async def opened() -> None:
            # Stream ids of clients begin at 0 (RFC 9000, 2.1).
            answer = await first.open_session()
            assert answer["result"]["protocolVersion"] == "2025-11-25", answer
            assert first.protocol_name == "mcp", first.protocol_name

        async def ended_by_client() -> None:
            first.close(error_code=0)
            assert (await asyncio.wait_for(first.ended, DEADLINE)).error_code == 0

        await checks.run("initialize", opened)
        await checks.run("a client closes", ended_by_client)

    async with connecting(host, port, ca) as peer:

        async def on_control() -> None:
            await peer.open_session()
            assert text_of(await peer.exchange(call(10, "b__echo", {"n": 10}))) == '{"n":10}'
            large = "x" * (1 << 20)
            assert large in text_of(await peer.exchange(call(11, "b__echo", {"text": large})))

        async def on_streams() -> None:
            stream = peer.begin(call(20, "b__progress", _meta={"progressToken": "p"}))
            *progress, answer = await peer.all(stream)
            assert [note["params"]["progressToken"] for note in progress] == ["p"] * 3, progress
            assert (answer["id"], text_of(answer)) == (20, "done")
            streams = {number: peer.begin(call(number, "b__echo", {"n": number})) for number in range(100, 190)}
            for number, stream in streams.items():
                (answer,) = await peer.all(stream)
                assert (answer["id"], text_of(answer)) == (number, f'{{"n":{number}}}')

        async def reset() -> None:
            stream = peer.begin(call(30, "b__hang"), end=False)
            await recorded.count('"hang"', 1)
            peer.give_up(stream)
            await recorded.count("notifications/cancelled", 1)

        async def stopped() -> None:
            stream = peer.begin(call(31, "b__hang"))
            await recorded.count('"hang"', 2)
            peer.want_no_more(stream)
            await recorded.count("notifications/cancelled", 2)
            assert (await peer.exchange(request(32, "ping")))["result"] == {}

        async def drained() -> None:
            os.kill(pid, signal.SIGTERM)
            ended = await asyncio.wait_for(peer.ended, DEADLINE)
            assert ended.error_code == 1, ended

        await checks.run("calls over the control stream", on_control)
        await checks.run("calls over streams of their own", on_streams)
        await checks.run("a stream that is reset is a cancellation", reset)
        await checks.run("a stream without a reader is a cancellation", stopped)
        await checks.run("a broker that ends says goodbye", drained)
    checks.done()


if __name__ == "__main__":
    host, port, ca, record, pid = sys.argv[1:]
    asyncio.run(main(host, int(port), ca, record, int(pid)))
