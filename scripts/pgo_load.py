#!/usr/bin/env python3
"""Sends a broker the calls that its profile is recorded from: all wires, both eras, small and large messages. Used by pgo.sh.

    scripts/pgo_load.py --broker PROGRAM --loadtest PROGRAM

The broker has its defaults (SQLite) and limits that are checked and never reached. It ends by SIGTERM, and writes its counts
then. A run with a wrong answer ends this program with 1.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True
from instructions import free_port  # noqa: E402

LIMITS = {
    "requests_per_second": 1_000_000, "burst": 1_000_000, "connections": 100_000, "connections_per_address": 100_000,
    "connections_per_second_per_address": 0, "sessions_per_tenant": 100_000, "sessions_per_principal": 100_000,
}  # fmt: skip
CALL = "{ method: tools/call, bytes: [256] }"
SIZES = "{ method: tools/call, weight: 6, bytes: [256, 256, 4KB] }, { method: tools/call, bytes: [64KB] }"
ALL = "{ method: tools/call, weight: 4, bytes: [256] }, { method: tools/list }, { method: resources/read, uri: load://text/1 }, { method: ping }"
# Wire of the client, backend, sessions, calls in flight in each, seconds, the mix, and more of the profile.
LOADS = [
    ("http", "http", 16, 1, 8, CALL, ""),
    ("http", "http", 64, 1, 5, SIZES, ""),
    ("http", "http", 1, 1, 3, CALL, ""),
    ("http", "http", 16, 1, 6, SIZES, "era: 2026-07-28"),
    ("http", "tcp", 8, 2, 3, ALL, "listen: true"),
    ("http", "http", 8, 2, 3, ALL, ""),
    ("ws", "http", 8, 8, 4, ALL, ""),
    ("tcp", "tcp", 4, 64, 5, CALL, ""),
]


def ask(url: str, method: str, body: dict | None = None) -> dict:
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def wait(what: str, holds) -> None:
    deadline = time.monotonic() + 120
    while not holds():
        if time.monotonic() > deadline:
            sys.exit(f"pgo_load: after two minutes: {what}")
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", type=Path, required=True)
    parser.add_argument("--loadtest", type=Path, required=True)
    args = parser.parse_args()
    http, tcp, admin = free_port(), free_port(), free_port()
    backends = {"http": free_port(), "tcp": free_port()}
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), []
        addresses = [word for wire, port in backends.items() for word in (f"--{wire}", f"127.0.0.1:{port}")]
        config = {
            "listen": {"http": f"127.0.0.1:{http}", "tcp": f"127.0.0.1:{tcp}", "admin": f"127.0.0.1:{admin}"},
            "egress": {"allow": ["127.0.0.0/8"]},
            "limits": LIMITS,
        }
        (folder / "broker.yaml").write_text(json.dumps(config))
        log = folder / "log"
        try:
            with log.open("w") as out:
                started.append(subprocess.Popen([args.loadtest, "backend", *addresses], stdout=subprocess.DEVNULL))
                broker = subprocess.Popen([args.broker, "serve", "--config", "broker.yaml"], cwd=folder, stdout=out, stderr=out)
                started.append(broker)
            wait("the broker is not ready", lambda: "ready" in log.read_text())
            tenant = f"http://127.0.0.1:{admin}/admin/v1/tenants/default"
            ask(f"{tenant}/backends/http", "PUT", {"transport": {"type": "http", "url": f"http://127.0.0.1:{backends['http']}/mcp"}})
            ask(f"{tenant}/backends/tcp", "PUT", {"transport": {"type": "tcp", "address": f"127.0.0.1:{backends['tcp']}"}})
            for backend in backends:
                wait(f"the backend {backend} is not ready", lambda: "ready" in json.dumps(ask(f"{tenant}/backends/{backend}", "GET")))
            key = ask(f"{tenant}/keys", "POST", {})["key"]
            for wire, backend, sessions, in_flight, seconds, mix, more in LOADS:
                url = {"http": f"http://127.0.0.1:{http}/mcp", "ws": f"ws://127.0.0.1:{http}/ws", "tcp": f"tcp://127.0.0.1:{tcp}"}[wire]
                profile = folder / "profile.yaml"
                profile.write_text(
                    f"loop: closed\nsessions: {sessions}\nin_flight: {in_flight}\nwarm_up: 1s\nphases: [{{ for: {seconds}s }}]\nmix: [{mix}]\n{more}\n"
                )
                subprocess.run([args.loadtest, "run", f"{url}/{backend}", "-p", profile, "--key", key], check=True, stdout=subprocess.DEVNULL)
            broker.send_signal(signal.SIGTERM)
            if code := broker.wait(60):
                sys.exit(f"pgo_load: the broker ended with {code}: {log.read_text()[-2000:]}")
        finally:
            for process in started:
                process.terminate()
                process.wait(60)


if __name__ == "__main__":
    main()
