"""What attacks share: the peer under attack, what its server got, and verdicts."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from peers import Peer
from wire import Client, Response, Unanswered

SAFE, UNSAFE, NONE = "safe", "not safe", "not applicable"
# What the server gets may arrive after the client has its answer.
SETTLE_S = 0.3
OTHERS_WITHIN_S = 2.0


@dataclass
class Verdict:
    verdict: str
    why: str


def judged(is_safe: bool, why: str) -> Verdict:
    return Verdict(SAFE if is_safe else UNSAFE, why)


class Target:
    def __init__(self, peer: Peer, record: Path) -> None:
        self.peer, self.record, self.position = peer, record, 0

    def client(self, caller: str = "ann") -> Client:
        return self.peer.client(caller).open()

    def forget(self) -> None:
        """Only what the server gets from now on counts."""
        time.sleep(SETTLE_S)
        self.position = self.record.stat().st_size if self.record.exists() else 0

    def arrived(self, mark: bytes) -> list[bytes]:
        """The messages with these bytes that the server got."""
        time.sleep(SETTLE_S)
        if not self.record.exists():
            return []
        with open(self.record, "rb") as file:
            file.seek(self.position)
            lines = file.read().splitlines()
        messages = [json.loads(line).encode("latin-1") for line in lines]
        return [message for message in messages if mark in message]

    def serves(self) -> bool:
        for _ in range(2):
            try:
                return not self.client().call("echo", {"text": "alive"}).is_refusal()
            except (Unanswered, OSError):
                continue
        return False

    def others_are_served(self, other: Client) -> tuple[bool, str]:
        begun = time.monotonic()
        try:
            response = other.call("echo", {"text": "other"}, 15)
        except (Unanswered, OSError) as error:
            return False, f"another client's call: {error}"
        took = time.monotonic() - begun
        return "other" in response.text() and took < OTHERS_WITHIN_S, f"another client's call: {response.shown()} after {took * 1000:.0f} ms"

    def refused_or(self, response: Response, mark: bytes, is_harmless, harmless: str) -> Verdict:
        """Safe if the request was refused, or if everything that the server got is harmless."""
        got = self.arrived(mark)
        if not got:
            return judged(response.is_refusal(), f"{response.shown()}; the server got nothing")
        is_safe = all(is_harmless(message) for message in got)
        return judged(is_safe, f"{response.shown()}; the server got {harmless if is_safe else got[0][:160].decode('latin-1')!r}")
