"""The broker as the client of the conformance suite: `conformance client --command "python conformance-client.py"`.

The suite starts a server, appends its URL and watches what arrives. This starts a broker with that server as its only
backend, runs the SDK's own conformance client against the broker's `/mcp/{backend}`, stops the broker and exits with the
client's status. Several run at once, so every port is chosen by the kernel.

Environment: MCP_BROKER_BIN (the binary under test), MCP_BROKER_CACHE (where scripts/install-peers.sh put the peers).
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

READY_SECONDS = 20
CLIENT_SECONDS = 40
STOP_SECONDS = 10
BACKEND = "suite"


def peers() -> Path:
    cache = os.environ.get("MCP_BROKER_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "mcp-broker") / "peers"


def start_broker(folder: Path) -> tuple[subprocess.Popen, dict[str, str]]:
    """The process, and its addresses from the `ready` line."""
    config = {
        "listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"},
        "storage": {"url": f"sqlite:{folder / 'broker.db'}"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    command = [os.environ["MCP_BROKER_BIN"], "serve", "--config", str(folder / "config.yaml")]
    broker = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    watchdog = threading.Timer(READY_SECONDS, broker.kill)
    watchdog.start()
    first_line = broker.stdout.readline().split()
    watchdog.cancel()
    if first_line[:1] != ["ready"]:
        broker.kill()
        raise SystemExit(f"the broker did not become ready: {first_line}")
    return broker, dict(pair.split("=", 1) for pair in first_line[1:])


def register(admin: str, url: str) -> None:
    body = json.dumps({"transport": {"type": "http", "url": url}}).encode()
    target = f"http://{admin}/admin/v1/tenants/default/backends/{BACKEND}"
    request = urllib.request.Request(target, data=body, method="PUT", headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=READY_SECONDS) as answer:
            status = json.load(answer)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"registering {url}: {error.code} {error.read().decode()}") from error
    print(f"registered: {json.dumps(status)}", file=sys.stderr)
    if status.get("state") != "ready":
        raise SystemExit(f"the suite's server is not ready: {status}")


def stop(broker: subprocess.Popen) -> None:
    broker.send_signal(signal.SIGTERM)
    try:
        code = broker.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        broker.kill()
        raise SystemExit(f"the broker did not stop within {STOP_SECONDS} s") from None
    if code != 0:
        raise SystemExit(f"the broker ended with {code}")


def main() -> int:
    url = sys.argv[-1]
    client = [str(peers() / "python2" / "bin" / "python"), str(peers() / "fixture" / ".github" / "actions" / "conformance" / "client.py")]
    with tempfile.TemporaryDirectory(prefix="mcp-broker-conformance-") as name:
        broker, addresses = start_broker(Path(name))
        try:
            register(addresses["admin"], url)
            return subprocess.run([*client, f"http://{addresses['http']}/mcp/{BACKEND}"], timeout=CLIENT_SECONDS).returncode
        finally:
            stop(broker)


if __name__ == "__main__":
    sys.exit(main())
