"""Attacks by the content of messages."""

import json
import threading

from attack_field import Target, Verdict, judged
from wire import Client, Response, Unanswered

DEPTH = 100_000
OVERSIZED_BYTES = 64 * 1024 * 1024
BATCH = 1000
FLOOD = 5000


def raw_call(client: Client, params: str, identity: str = "7001") -> bytes:
    return f'{{"jsonrpc":"2.0","id":{identity},"method":"tools/call","params":{params}}}'.encode()


def members(message: bytes) -> list[list[str]]:
    """The names of the members of each object, as they are written."""
    found: list[list[str]] = []

    def note(pairs):
        found.append([name for name, _ in pairs])
        return dict(pairs)

    json.loads(message.decode("utf-8", "replace"), object_pairs_hook=note)
    return found


def duplicate_members(target: Target) -> Verdict:
    client = target.client()
    params = f'{{"name":"{client.named("wait")}","name":"{client.named("echo")}","arguments":{{"text":"twice","seconds":0}}}}'
    response = client.post(raw_call(client, params))
    return target.refused_or(response, b"twice", lambda message: all(len(set(names)) == len(names) for names in members(message)), "one name")


def folded_members(target: Target) -> Verdict:
    client = target.client()
    params = f'{{"name":"{client.named("echo")}","Name":"{client.named("wait")}","arguments":{{"text":"folded","seconds":0}}}}'
    response = client.post(raw_call(client, params))

    def is_harmless(message: bytes) -> bool:
        return all(len({name.casefold() for name in names}) == len(names) for names in members(message))

    return target.refused_or(response, b"folded", is_harmless, "no `Name`")


def invalid_utf8(target: Target) -> Verdict:
    client = target.client()
    body = raw_call(client, f'{{"name":"{client.named("echo")}","arguments":{{"text":"utf8 MARK"}}}}').replace(b"MARK", b"\xc3\x28")

    def is_valid(message: bytes) -> bool:
        try:
            message.decode()
        except UnicodeDecodeError:
            return False
        return True

    return target.refused_or(client.post(body), b"utf8 ", is_valid, "valid UTF-8")


def deep_nesting(target: Target) -> Verdict:
    client = target.client()
    text = '{"text":"deep","x":' + "[" * DEPTH + "]" * DEPTH + "}"
    response = client.post(raw_call(client, f'{{"name":"{client.named("echo")}","arguments":{text}}}'))
    return target.refused_or(response, b"deep", lambda _: False, "")


def oversized(target: Target) -> Verdict:
    client = target.client()
    body = raw_call(client, f'{{"name":"{client.named("echo")}","arguments":{{"text":"{"big " * (OVERSIZED_BYTES // 4)}"}}}}')
    try:
        response = client.post(body, 30)
    except Unanswered as closed:
        # The peer closed the connection while it was sent too much.
        response = Response(499, {}, str(closed).encode())
    return target.refused_or(response, b"big big", lambda _: False, "")


def huge_batch(target: Target) -> Verdict:
    client = target.client()
    calls = [{"jsonrpc": "2.0", "id": 8000 + number, "method": "tools/call", "params": {"name": client.named("echo"), "arguments": {"text": "batched"}}} for number in range(BATCH)]
    response = client.post(json.dumps(calls).encode(), 20)
    got = len(target.arrived(b"batched"))
    refused = response.is_refusal() or not response.messages
    return judged(refused and got == 0, f"{response.shown()}; the server got {got} messages")


def id_reuse(target: Target) -> Verdict:
    client = target.client()
    seen: dict[str, str] = {}

    def call(text: str) -> None:
        try:
            response = client.call("wait", {"text": text, "seconds": 0.7}, identity=9001)
            seen[text] = "refused" if response.is_refusal() else response.text()
        except (Unanswered, OSError) as error:
            seen[text] = f"no answer ({error})"

    threads = [threading.Thread(target=call, args=(text,)) for text in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return judged(all(answer in (text, "refused") for text, answer in seen.items()), "; ".join(f"{text}: {answer}" for text, answer in sorted(seen.items())))


def notification_flood(target: Target) -> Verdict:
    attacker, other = target.client(), target.client("bob")
    body = json.dumps({"jsonrpc": "2.0", "method": "notifications/flood", "params": {"text": "flooding"}}).encode()
    stopped = threading.Event()

    def flood() -> None:
        for _ in range(FLOOD // 10):
            if stopped.is_set():
                return
            try:
                attacker.post(body)
            except (Unanswered, OSError):
                continue

    threads = [threading.Thread(target=flood, daemon=True) for _ in range(10)]
    for thread in threads:
        thread.start()
    threads[0].join(1)
    served, why = target.others_are_served(other)
    threads[0].join(12)
    stopped.set()
    for thread in threads:
        thread.join(12)
    got = len(target.arrived(b"flooding"))
    return judged(served and got < FLOOD, f"{why}; the server got {got} notifications")
