"""Attacks on HTTP: framing, headers and connections."""

import time

from attack_field import NONE, Target, Verdict, judged
from wire import Client, Connection, Response, Unanswered

HALF_OPEN = 300
ANSWERS, ANSWER_BYTES = 20, 4 * 1024 * 1024
# What the answers take together; a peer that keeps no more than that keeps each of them once.
GROWTH_MAX = ANSWERS * ANSWER_BYTES


def sent(target: Target, client: Client, data: bytes) -> tuple[Response | None, Connection]:
    connection = client.connect(5)
    try:
        connection.send(data)
        return connection.response(), connection
    except (Unanswered, OSError):
        return None, connection


def refused(response: Response | None, what: str = "") -> Verdict:
    if response is None:
        return judged(True, "the connection was closed")
    return judged(response.status >= 400, f"HTTP {response.status}{what}")


def length_and_chunks(target: Target) -> Verdict:
    """The body ends for a reader of chunks before it ends for a reader of lengths; what follows is another request."""
    client = target.client()
    first = client.message("tools/call", {"name": client.named("echo"), "arguments": {"text": "first"}})
    second = client.message("tools/call", {"name": client.named("echo"), "arguments": {"text": "smuggled"}})
    smuggled = client.head(length=len(second)) + second
    body = f"{len(first):x}\r\n".encode() + first + b"\r\n0\r\n\r\n" + smuggled
    response, connection = sent(target, client, client.head(length=len(body), Transfer_Encoding="chunked") + body)
    if response is None or response.status >= 400:
        connection.close()
        return refused(response)
    try:
        again = connection.response()
        return judged(False, f"HTTP {response.status}, and the hidden request was answered with HTTP {again.status}")
    except (Unanswered, OSError, ValueError):
        return judged(not target.arrived(b"smuggled"), f"HTTP {response.status}, then the connection was closed")
    finally:
        connection.close()


def space_before_colon(target: Target) -> Verdict:
    client = target.client()
    body = client.message("tools/call", {"name": client.named("echo"), "arguments": {"text": "space"}})
    chunked = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    head = client.head(length=len(chunked)).replace(b"Content-Length", b"Transfer-Encoding : chunked\r\nContent-Length")
    response, connection = sent(target, client, head + chunked)
    connection.close()
    return refused(response)


def two_hosts(target: Target) -> Verdict:
    client = target.client()
    body = client.message("ping")
    response, connection = sent(target, client, client.head(length=len(body)).replace(b"Accept:", b"Host: evil.example\r\nAccept:") + body)
    connection.close()
    return refused(response)


def foreign_host(target: Target) -> Verdict:
    client = target.client()
    return refused(client.post(client.message("ping"), Host="evil.example"))


def foreign_origin(target: Target) -> Verdict:
    client = target.client()
    return refused(client.post(client.message("ping"), Origin="https://evil.example"))


def half_open(target: Target) -> Verdict:
    other = target.client("bob")
    connections = []
    try:
        for _ in range(HALF_OPEN):
            connection = other.connect(5)
            connection.send(b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
            connections.append(connection)
        served, why = target.others_are_served(other)
    finally:
        for connection in connections:
            connection.close()
    return judged(served, why)


def slow_reader(target: Target) -> Verdict:
    if target.peer.program is None:
        return Verdict(NONE, "the peer is not a program of this run")
    client, other = target.client(), target.client("bob")
    before = target.peer.usage().own_bytes
    connections = []
    try:
        for _ in range(ANSWERS):
            body = client.message("tools/call", {"name": client.named("big"), "arguments": {"bytes": ANSWER_BYTES}})
            connection = client.connect()
            connection.send(client.head(length=len(body)) + body)
            connections.append(connection)
        time.sleep(4)
        grown = target.peer.usage().own_bytes - before
        served, why = target.others_are_served(other)
    finally:
        for connection in connections:
            connection.close()
    return judged(served and grown < GROWTH_MAX, f"the peer grew by {grown / 1048576:.0f} MiB; {why}")
