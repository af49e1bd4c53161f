"""The 2.x line of the Python SDK, whose calls wait for the approval of a person: `approvals.py URL MODE`.

MODE is `legacy` (sessions) or `auto` (2026-07-28). The test approves what is sent to Ann and denies the rest.
"""

import sys

import anyio
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

REVISIONS = {"legacy": "2025-11-25", "auto": "2026-07-28"}


async def main(url: str, mode: str) -> None:
    async with Client(streamable_http_client(url), mode=mode) as client:
        assert client.protocol_version == REVISIONS[mode], client.protocol_version
        print("ok the revision is that of the mode")
        approved = await client.call_tool("b__send", {"to": "Ann"})
        assert approved.content[0].text == "sent Ann", approved
        print("ok a call that a person approves is executed")
        denied = await client.call_tool("b__send", {"to": "Eve"})
        assert denied.is_error and "denied this call" in denied.content[0].text, denied
        print("ok a call that a person denies is an error of the tool")


anyio.run(main, *sys.argv[1:3])
