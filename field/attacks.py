"""Attacks, each judged in the same way for every peer.

An attack returns whether the outcome is safe, with what was seen; NONE where a peer lacks the notion that is attacked. What the
server behind the peer got is read from the recorder's file. A peer that no longer serves after an attack is not safe, and is
started again.
"""

from dataclasses import dataclass
from typing import Any, Callable

import attacks_callers as callers
import attacks_messages as messages
import attacks_wire as wires
from attack_field import NONE, SAFE, UNSAFE, Target, Verdict
from peers import Peer
from wire import Unanswered


@dataclass
class Attack:
    name: str
    what: str
    # What counts as safe, for every peer.
    safe: str
    run: Callable[[Target], Verdict]


ATTACKS = [
    Attack("duplicate members", "`params` names the tool twice: `wait`, then `echo`", "an error, or the server gets one name only", messages.duplicate_members),
    Attack("case-folded members", "`Name` next to `name`; a reader that ignores case runs the other tool", "an error, or the server does not get `Name`", messages.folded_members),
    Attack("invalid UTF-8", "a string with the bytes C3 28", "an error, or the server gets valid UTF-8", messages.invalid_utf8),
    Attack("deep nesting", "arguments of 100,000 nested arrays", "an error, and the server does not get them", messages.deep_nesting),
    Attack("oversized message", "a call with 64 MiB of text", "an error, and the server does not get it", messages.oversized),
    Attack("huge batch", "an array of 1,000 calls; 2025-11-25 has no batches", "an error, and the server gets none", messages.huge_batch),
    Attack("id reuse", "two calls with one id at once in one session", "each call gets its own answer or an error", messages.id_reuse),
    Attack("notification flood", "5,000 notifications by one client", "another client's call is answered within 2 s, and not all of them reach the server", messages.notification_flood),
    Attack("length and chunks", "`Content-Length` with `Transfer-Encoding`, with a second request in the body", "an error, or the connection is closed after one answer", wires.length_and_chunks),
    Attack("space before a colon", "`Transfer-Encoding : chunked`, which RFC 9112 requires to be refused", "an error or a closed connection", wires.space_before_colon),
    Attack("two Host headers", "RFC 9112 requires 400", "an error or a closed connection", wires.two_hosts),
    Attack("DNS rebinding: Host", "`Host: evil.example` to a loopback address", "an error", wires.foreign_host),
    Attack("DNS rebinding: Origin", "`Origin: https://evil.example`, which MCP requires to be refused", "an error", wires.foreign_origin),
    Attack("half-open requests", "300 connections that never finish their head", "another client's call is answered within 2 s", wires.half_open),
    Attack("client that does not read", "20 answers of 4 MiB each that no client reads", "another client's call is answered within 2 s, and the peer grows by less than the answers take together", wires.slow_reader),
    Attack("session of another caller", "a caller uses another caller's session id", "an error", callers.foreign_session),
    Attack("cancelling another's call", "a client cancels the request id of another client's call", "the other call ends with its own result", callers.foreign_cancel),
    Attack("answering another's question", "a client answers the sampling request that another client got", "the other call does not see that answer", callers.foreign_answer),
    Attack("another's progress", "two clients use one progress token", "each sees its own progress only", callers.shared_progress_token),
    Attack("token of another audience", "a valid token that names another server as its audience", "401 or 403", callers.other_audience),
    Attack("token in the URL", "a valid token as a query parameter", "401 or 403", callers.token_in_url),
    Attack("path traversal", "`resources/read` of `file:///srv/public/../secret`, outside the roots that an operator set", "an error, and the server does not get it", callers.path_traversal),
]


def attack(peer: Peer) -> dict[str, Any]:
    if not peer.is_started():
        return {}
    found: dict[str, Any] = {}
    record = peer.tools.record

    def restarted() -> Target:
        peer.stop()
        peer.start("recorder")
        return Target(peer, record)

    target = restarted()
    for one in ATTACKS:
        target.forget()
        try:
            verdict = one.run(target)
        except (Unanswered, OSError) as error:
            verdict = Verdict(UNSAFE, f"no answer where one was due: {error}"[:200])
        if verdict.verdict != NONE and not target.serves():
            verdict = Verdict(UNSAFE, f"the peer does not serve afterwards; before that: {verdict.why}")
            target = restarted()
        found[one.name] = {"verdict": verdict.verdict, "why": verdict.why}
    return found


def counts(found: dict[str, Any]) -> str:
    verdicts = [one.get("verdict") for one in found.values() if isinstance(one, dict)]
    return f"{verdicts.count(SAFE)} of {verdicts.count(SAFE) + verdicts.count(UNSAFE)}"


