"""Attacks of one caller on another, and on what an operator decided."""

import json
import threading

from attack_field import NONE, Target, Verdict, judged
from wire import Client, Response, Unanswered


def is_unauthorized(response: Response) -> Verdict:
    return judged(response.status in (401, 403), response.shown())


def foreign_session(target: Target) -> Verdict:
    if not target.peer.has_callers:
        return Verdict(NONE, "the peer does not tell callers apart")
    ann, bob = target.client("ann"), target.client("bob")
    if not ann.session:
        return Verdict(NONE, "the peer gives no session ids")
    bob.session = ann.session
    response = bob.call("echo", {"text": "hijacked"})
    return judged(response.is_refusal(), response.shown())


def running(client: Client, tool: str, text: str, identity: int, seconds: float = 1.5, **more) -> tuple[threading.Thread, dict[str, str]]:
    seen: dict[str, str] = {}

    def call() -> None:
        try:
            response = client.call(tool, {"text": text, "seconds": seconds}, 30, identity=identity, **more)
            seen["text"] = response.shown() if response.is_refusal() else response.text()
        except (Unanswered, OSError) as error:
            seen["text"] = f"no answer ({error})"

    thread = threading.Thread(target=call)
    thread.start()
    return thread, seen


def foreign_cancel(target: Target) -> Verdict:
    ann, bob = target.client("ann"), target.client("bob")
    thread, seen = running(ann, "wait", "ann's", 5001)
    thread.join(0.5)
    # Ids that peers may use towards the server, as well as the one of the other client.
    for identity in (5001, *range(1, 12)):
        bob.tell("notifications/cancelled", {"requestId": identity})
    thread.join()
    return judged(seen["text"] == "ann's", f"the other call: {seen['text']}")


def foreign_answer(target: Target) -> Verdict:
    ann, bob = target.peer.client("ann").open({"sampling": {}}), target.peer.client("bob").open({"sampling": {}})
    body = ann.message("tools/call", {"name": ann.named("ask"), "arguments": {"text": "secret"}}, 6001)
    try:
        reader = ann.stream(body)
    except Unanswered as error:
        return Verdict(NONE, f"the peer relays no questions in an answer: {error}")
    if not reader.wait(lambda message: message.get("method") == "sampling/createMessage", 5):
        reader.close()
        return Verdict(NONE, "the peer relays no sampling requests")
    question = next(message for _, message in reader.seen if message.get("method") == "sampling/createMessage")
    answer = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "BOB"}}
    said = bob.post(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": answer}).encode())
    mine = answer | {"content": {"type": "text", "text": "ANN"}}
    ann.post(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": mine}).encode())
    reader.wait(lambda message: "result" in message or "error" in message)
    seen = str([message.get("result") or message.get("error") for _, message in reader.seen if message.get("id") == 6001])
    reader.close()
    return judged("BOB" not in seen, f"the stranger's answer got {said.shown()}; the call got {'the right answer' if 'ANN' in seen else seen[:120]}")


def shared_progress_token(target: Target) -> Verdict:
    clients = {name: target.client(name) for name in ("ann", "bob")}
    readers = {}
    for name, client in clients.items():
        params = {"name": client.named("wait"), "arguments": {"text": f"of {name}", "seconds": 1}, "_meta": {"progressToken": "same"}}
        try:
            readers[name] = client.stream(client.message("tools/call", params, 5100))
        except Unanswered as error:
            return Verdict(NONE, f"the peer streams no progress: {error}")
    foreign, total = 0, 0
    for name, reader in readers.items():
        reader.wait(lambda message: "result" in message or "error" in message)
        progress = [message["params"].get("message", "") for _, message in reader.seen if message.get("method") == "notifications/progress"]
        total += len(progress)
        foreign += sum(text != f"of {name}" for text in progress)
        reader.close()
    if total == 0:
        return Verdict(NONE, "the peer streams no progress")
    return judged(foreign == 0, f"{foreign} of {total} messages were of the other client")


def other_audience(target: Target) -> Verdict:
    if not target.peer.has_callers:
        return Verdict(NONE, "the peer has no tokens")
    token = target.peer.tools.issuer.token("ann@example.com", audience="https://another.example/mcp", tenant="default")
    client = target.peer.client("ann", token)
    return is_unauthorized(client.post(client.message("ping")))


def token_in_url(target: Target) -> Verdict:
    if not target.peer.has_callers:
        return Verdict(NONE, "the peer has no tokens")
    client = target.peer.client("ann")
    token = client.headers.pop("Authorization").removeprefix("Bearer ")
    verdicts = []
    for name in ("access_token", "token"):
        client.path = f"{client.path.split('?')[0]}?{name}={token}"
        verdicts.append(client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}))
    worst = min(verdicts, key=lambda response: response.status)
    return judged(worst.status >= 400, worst.shown())


def path_traversal(target: Target) -> Verdict:
    if not target.peer.spec.get("resource_roots"):
        return Verdict(NONE, "an operator cannot set roots for resources")
    client = target.client()
    response = client.ask("resources/read", {"uri": "file:///srv/public/../secret"})
    return target.refused_or(response, b"secret", lambda _: False, "")
