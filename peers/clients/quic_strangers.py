"""aioquic with transport parameters no library sends: invalid, doubled, huge, cut at each byte.

    python quic_strangers.py HOST PORT CA
"""

import asyncio
import sys
from collections.abc import Callable

from aioquic.buffer import encode_uint_var
from aioquic.quic.connection import QuicConnection
from aioquic.tls import SessionTicket
from quic_wire import connecting
from wire_checks import Checks, call, text_of

# RFC 9000, 18.2.
MAX_IDLE_TIMEOUT, MAX_UDP_PAYLOAD, MAX_DATA, ACK_DELAY_EXPONENT, MAX_ACK_DELAY, CID_LIMIT = 0x01, 0x03, 0x04, 0x0A, 0x0B, 0x0E
# Parameters that a client may not send.
ORIGINAL_DESTINATION, RESET_TOKEN, PREFERRED_ADDRESS, RETRY_SOURCE = 0x00, 0x02, 0x0D, 0x10
GREATEST = (1 << 62) - 1


def parameter(number: int, value: bytes) -> bytes:
    return encode_uint_var(number) + encode_uint_var(len(value)) + value


honest_parameters = QuicConnection._serialize_transport_parameters


def parameters(connection: QuicConnection) -> bytes:
    """Returns the library's parameters with the changes of its configuration."""
    change: Callable[[bytes], bytes] = getattr(connection._configuration, "change", lambda honest: honest)
    return change(honest_parameters(connection))


async def let_in(host: str, port: int, ca: str, change: Callable[[bytes], bytes]) -> bool:
    try:
        async with asyncio.timeout(10), connecting(host, port, ca, change=change) as peer:
            await peer.ping()
            return True
    except ConnectionError:
        return False


async def main(host: str, port: int, ca: str) -> None:
    checks = Checks()

    async def served() -> None:
        async with connecting(host, port, ca) as peer:
            await peer.open_session()
            assert text_of(await peer.exchange(call(2, "b__echo", {"n": 2}))) == '{"n":2}'

    async def refused() -> None:
        lies = {
            "an idle timeout twice": parameter(MAX_IDLE_TIMEOUT, encode_uint_var(1000)),
            "a payload of nothing": parameter(MAX_UDP_PAYLOAD, encode_uint_var(100)),
            "an exponent beyond measure": parameter(ACK_DELAY_EXPONENT, encode_uint_var(21)),
            "an acknowledgement never": parameter(MAX_ACK_DELAY, encode_uint_var(1 << 14)),
            "one connection id": parameter(CID_LIMIT, encode_uint_var(1)),
            "a server's connection id": parameter(ORIGINAL_DESTINATION, b"x" * 8),
            "a server's token": parameter(RESET_TOKEN, b"x" * 16),
            "a server's address": parameter(PREFERRED_ADDRESS, b"x" * 41),
            "a server's retry": parameter(RETRY_SOURCE, b"x" * 8),
            "a value longer than it is": encode_uint_var(MAX_DATA) + encode_uint_var(200) + b"x",
            "an integer cut short": parameter(MAX_DATA, b"\xc0"),
        }
        for what, lie in lies.items():
            assert not await let_in(host, port, ca, lambda honest, lie=lie: honest + lie), what

    async def cut() -> None:
        length = 0

        def measured(honest: bytes) -> bytes:
            nonlocal length
            length = len(honest)
            return honest

        assert await let_in(host, port, ca, measured)
        outcomes = await asyncio.gather(*(let_in(host, port, ca, lambda honest, at=at: honest[:at]) for at in range(length)))
        assert not any(outcomes[:10]), "without the name of its own connection nobody is let in"

    async def unknown() -> None:
        # An unknown parameter is skipped, whatever its size.
        assert await let_in(host, port, ca, lambda honest: honest + parameter(27, b"") + parameter(GREATEST - 3, b"x" * 500))

    async def no_early_data() -> None:
        tickets: list[SessionTicket] = []
        async with connecting(host, port, ca, tickets=tickets.append) as peer:
            await peer.open_session()
            assert text_of(await peer.exchange(call(3, "b__echo", {"n": 3}))) == '{"n":3}'
        assert all(not ticket.max_early_data_size for ticket in tickets), tickets

    await checks.run("what may not be said is refused", refused)
    await checks.run("parameters cut at each byte", cut)
    await checks.run("unknown parameters are passed over", unknown)
    await checks.run("no early data is offered", no_early_data)
    await checks.run("an honest client is served", served)
    checks.done()


if __name__ == "__main__":
    QuicConnection._serialize_transport_parameters = parameters  # type: ignore[method-assign]
    host, port, ca = sys.argv[1:]
    asyncio.run(main(host, int(port), ca))
