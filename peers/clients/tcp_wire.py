"""A minimal client over TCP: python tcp_wire.py HOST PORT [CA]. With a CA it uses TLS."""

import json
import socket
import ssl
import sys

host, port, *ca = sys.argv[1:]
connection = socket.create_connection((host, int(port)), timeout=20)
if ca:
    connection = ssl.create_default_context(cafile=ca[0]).wrap_socket(connection, server_hostname=host)
lines = connection.makefile("rwb")
about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "lines", "version": "1"}}
requests = [("initialize", about), ("tools/list", {}), ("tools/call", {"name": "b__echo", "arguments": {"from": "a script"}})]
for number, (method, params) in enumerate(requests):
    lines.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n")
    lines.flush()
    answer = json.loads(lines.readline())
    assert answer["id"] == number, answer
    print("ok", method, json.dumps(answer["result"]))
    if method == "initialize":
        lines.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
