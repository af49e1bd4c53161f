"""The 2.x line of the Python SDK in its default mode, which detects revision 2026-07-28 and uses it, against
server-everything: `python_2_modern.py URL [BACKEND]`, see checks.py."""

import checks
from checks import Checks, Peer
from python_2 import connect_to


class ModernChecks(Checks):
    async def everything(self) -> None:
        async with self.connect() as peer:
            await self.era(peer)
            await self.tool_results(peer)
            await self.questions(peer)
            await self.prompts(peer)

    async def era(self, peer: Peer) -> None:
        async def discovered() -> None:
            assert peer.protocol_version == "2026-07-28", peer.protocol_version
            for kind in ("tools", "prompts", "resources", "logging", "completions"):
                assert kind in peer.server_capabilities, f"no {kind} capability"

        async def lists() -> None:
            names = [tool["name"] for tool in (await peer.request("tools/list"))["tools"]]
            assert self.named("echo") in names, names
            listed = (await peer.request("resources/list"))["resources"]
            contents = (await peer.request("resources/read", {"uri": listed[0]["uri"]}))["contents"]
            assert contents[0]["uri"] == listed[0]["uri"], contents

        async def progress() -> None:
            seen: list[float] = []

            async def on_progress(done: float, _: float | None) -> None:
                seen.append(done)

            arguments = {"duration": 0.4, "steps": 4}
            assert "completed" in await self.text(peer, "trigger-long-running-operation", arguments, progress=on_progress)
            assert seen == [1, 2, 3, 4], seen

        await self.run("discover", discovered)
        await self.run("lists", lists)
        await self.run("progress", progress)

    async def questions(self, peer: Peer) -> None:
        """The server needs input during a call. In this revision the answer to the call carries the request for it."""

        async def sampling() -> None:
            peer.answers.sample = lambda params: f"heard {params['messages'][0]['content']['text']}"
            answer = await self.text(peer, "trigger-sampling-request", {"prompt": "what is up?", "maxTokens": 77})
            assert "heard" in answer and "what is up?" in answer, answer

        async def elicitation() -> None:
            peer.answers.elicit = lambda params: {"action": "accept", "content": {"name": "Grace", "check": False, "integer": 7}}
            answer = await self.text(peer, "trigger-elicitation-request")
            assert "Name: Grace" in answer and "Favorite Integer: 7" in answer, answer
            peer.answers.elicit = lambda params: {"action": "decline"}
            assert "declined" in await self.text(peer, "trigger-elicitation-request")

        async def url() -> None:
            asked = []

            def elicit(params):
                asked.append(params)
                return {"action": "accept"}

            peer.answers.elicit = elicit
            arguments = {"url": "https://example.com/authorise?a=1", "elicitationId": "elicit-1"}
            assert "User completed" in await self.text(peer, "trigger-url-elicitation", arguments)
            assert (asked[0]["mode"], asked[0]["url"]) == ("url", arguments["url"]), asked

        await self.run("sampling", sampling)
        await self.run("elicitation-form", elicitation)
        await self.run("elicitation-url", url)


if __name__ == "__main__":
    checks.main(lambda url: connect_to(url, "auto"), ModernChecks)
