"""What survives `kill -9` of a peer: its process and all that it started are killed, and it starts again on the same state.

The server behind it lives on where the peer reaches it over HTTP. Where the peer starts the server, the server dies too, as it
does in use.
"""

import time
from typing import Any

from peers import Peer
from wire import Client, Unanswered, until

Json = dict[str, Any]
SURVIVES, LOST, NONE = "survives", "lost", "not applicable"
TASK_S = 2.0


def verdict(survives: bool, why: str) -> Json:
    return {"verdict": SURVIVES if survives else LOST, "why": why}


def crash(peer: Peer) -> None:
    peer.program.kill()
    peer.restart()


def session(peer: Peer) -> Json:
    client = peer.client().open()
    if not client.session:
        return {"verdict": NONE, "why": "the peer gives no session id"}
    crash(peer)
    response = client.call("echo", {"text": "still here"})
    return verdict("still here" in response.text(), f"a call in the session: {response.shown()}")


def stream(peer: Peer) -> Json:
    """A client reads a call's progress, loses the peer, and asks for the rest by the id of the last event."""
    client = peer.client().open()
    params = {"name": client.named("wait"), "arguments": {"text": "done", "seconds": 1.5}, "_meta": {"progressToken": "p"}}
    try:
        reader = client.stream(client.message("tools/call", params))
    except Unanswered as error:
        return {"verdict": NONE, "why": f"the peer streams no progress: {error}"}
    if not reader.wait(lambda message: message.get("method") == "notifications/progress"):
        return {"verdict": NONE, "why": "the peer streams no progress"}
    last = reader.last_id()
    if not last:
        return {"verdict": NONE, "why": "events have no ids, so no client can resume"}
    crash(peer)
    reader.close()
    try:
        resumed = client.stream(Last_Event_ID=last)
    except Unanswered as error:
        return verdict(False, f"resuming by Last-Event-ID: {error}")
    came = resumed.wait(lambda message: "result" in message or "error" in message or message.get("method") == "notifications/progress", 8)
    answers = [message for _, message in resumed.seen if "result" in message or "error" in message]
    kind = "none" if not answers else "its result" if "result" in answers[0] else f"error {answers[0]['error'].get('code')}"
    return verdict(came, f"after resuming: {len(resumed.seen)} messages, answer of the call: {kind}")


def task(peer: Peer) -> Json:
    client = peer.client().open()
    made = client.call("wait", {"text": "task done", "seconds": TASK_S}, task={"ttl": 600_000})
    identity = ((made.answer().get("result") or {}).get("task") or {}).get("taskId")
    if not identity:
        return {"verdict": NONE, "why": f"the peer makes no task of a call: {made.shown()}"}
    time.sleep(TASK_S / 4)  # the call is on its way to the server
    crash(peer)
    time.sleep(TASK_S)
    response = client.ask("tasks/result", {"taskId": identity}, 20)
    if not response.is_refusal():
        return verdict("task done" in response.text(), "the result of the task came")
    # The task may be known, with an honest end: its call went out and its answer is lost.
    state = client.ask("tasks/get", {"taskId": identity}).answer().get("result") or {}
    return verdict(False, f"tasks/result: {response.shown()}, state: {state.get('status', 'unknown')}")


def subscription(peer: Peer) -> Json:
    client = peer.client().open()
    listed = (client.ask("resources/list").answer().get("result") or {}).get("resources") or [{}]
    uri = listed[0].get("uri")
    if uri is None:
        return {"verdict": NONE, "why": "the peer shows no resources"}
    subscribed = client.ask("resources/subscribe", {"uri": uri})
    if subscribed.is_refusal():
        return {"verdict": NONE, "why": f"resources/subscribe: {subscribed.shown()}"}
    if not update_arrives(client):
        return {"verdict": NONE, "why": "updates do not arrive before a crash either"}
    crash(peer)
    try:
        return verdict(update_arrives(client), "an update after the crash, on a new GET stream of the session")
    except Unanswered as error:
        return verdict(False, f"the session's GET stream: {error}")


def update_arrives(client: Client) -> bool:
    reader = client.stream()
    try:
        def came() -> bool:
            client.call("touch", {})
            return reader.wait(lambda message: message.get("method") == "notifications/resources/updated", 0.5)

        return until(came, 6)
    finally:
        reader.close()


def survives(peer: Peer) -> Json:
    if not peer.is_started():
        return {}
    found: Json = {}
    for part in (session, stream, task, subscription):
        try:
            peer.start("recorder")
            found[part.__name__] = part(peer)
        except (Unanswered, OSError, RuntimeError) as error:
            found[part.__name__] = verdict(False, f"{type(error).__name__}: {error}"[:300])
        finally:
            peer.stop()
    return found
