"""aioquic with an address that changes during the connection, in a network namespace of its own (broker/tests/it/peers/moves.rs).

    python quic_moves.py INTERFACE HOST CA

It waits for a line with the broker's port; by then the interface exists. The client has the address HOST + 1, then HOST + 2.
"""

import asyncio
import ipaddress
import subprocess
import sys

from quic_wire import CONTROL, connecting
from wire_checks import INITIALIZED, Checks, call, initialize, text_of

CALLS = 100
STREAMS = 10


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


async def main(interface: str, host: str, ca: str) -> None:
    checks = Checks()
    first, second = (f"{ipaddress.ip_address(host) + more}/24" for more in (1, 2))
    port = int(await asyncio.to_thread(sys.stdin.readline))
    ip("link", "set", "lo", "up")
    ip("addr", "add", first, "dev", interface)
    ip("link", "set", interface, "up")

    async def moved() -> None:
        async with connecting(host, port, ca) as peer:
            hello = initialize()
            hello["params"]["capabilities"] = {"elicitation": {}}
            await peer.exchange(hello)
            peer.send(CONTROL, INITIALIZED)
            streams = {}
            for number in range(STREAMS):
                stream = peer.begin(call(1000 + number, "b__elicit", {"message": str(number)}))
                question = await peer.next(stream)
                assert question is not None and question["method"] == "elicitation/create", question
                streams[stream] = question["id"]
            # All of them are in flight when the address changes.
            for number in range(CALLS):
                peer.send(CONTROL, call(number + 10, "b__echo", {"n": number}))
                if number == CALLS // 2:
                    ip("addr", "del", first, "dev", interface)
                    ip("addr", "add", second, "dev", interface)
                    for asked in streams.values():
                        peer.send(CONTROL, {"jsonrpc": "2.0", "id": asked, "result": {"action": "decline"}})
            left = {number + 10 for number in range(CALLS)}
            while left:
                answer = await peer.next(CONTROL)
                assert answer is not None and text_of(answer) == f'{{"n":{answer["id"] - 10}}}', answer
                left.remove(answer["id"])
            for stream in streams:
                (answer,) = await peer.all(stream)
                assert "decline" in text_of(answer), answer
            print("ok moved", flush=True)
            # The test reads the session before it ends.
            await asyncio.to_thread(sys.stdin.readline)

    await checks.run("100 calls and 10 streams while the address changes", moved)
    checks.done()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
