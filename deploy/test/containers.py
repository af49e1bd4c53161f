#!/usr/bin/env python3
"""Starts docker-compose.yml as it is, on the engine of containers.sh, and uses it as README.md says. Called by containers.sh,
which has made the image of the broker; the images of the services are made here."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = Path(os.environ["CONTAINERS_WORK"])
PROJECT = WORK / "mcp-broker"
DOCKER = "/usr/bin/docker"
MCP, ADMIN, PROMETHEUS = "http://127.0.0.1:8080/mcp", "http://127.0.0.1:9090", "http://127.0.0.1:9091"
# A busy machine takes its time; nothing here waits that long when all is well.
WAIT_S = 240
# An open event stream must not hold `down` for as long as the engine waits before it kills (10 s for each service).
DOWN_S = 60
REPLICAS = ("broker-1", "broker-2")
WORKERS = 4
# What each server started by npx or uvx does: it writes a program to its home and executes it.
FROM_HOME = """
    [ -x "$HOME/server" ] || { cp /usr/local/bin/mcp-broker "$HOME/new-$$" && mv "$HOME/new-$$" "$HOME/server"; }
    exec "$HOME/server" demo-backend
"""

# In the places of Grafana and of the collector, which are none of the distribution's packages.
ACCEPTS = """defaults
    mode http
    timeout client 60s
frontend any
    bind :3000
    bind :4318
    http-request return status 200
"""


def need(holds: object, sentence: str) -> None:
    if not holds:
        raise AssertionError(sentence)


def run(*command: str | Path, within: float = WAIT_S, fails: bool = False, **more) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=within, cwd=PROJECT, **more)
    need((done.returncode != 0) == fails, f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def compose(*arguments: str, **more) -> str:
    return run(os.environ["CONTAINERS_COMPOSE"], "--ansi", "never", *arguments, **more)


def inside(service: str, *command: str, **more) -> str:
    return compose("exec", "-T", service, *command, **more)


def wait_for(what: str, holds: Callable[[], object], within: float = WAIT_S):
    end, last = time.monotonic() + within, None
    while time.monotonic() < end:
        try:
            if value := holds():
                return value
        except (OSError, ValueError, KeyError) as error:
            last = error
        time.sleep(0.2)
    raise AssertionError(f"waited {within:.0f} s for {what}: {last}")


def http(method: str, url: str, body: object = None, bearer: str = "", headers: dict[str, str] | None = None, timeout: float = 60):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"content-type": "application/json", **(headers or {})})
    if bearer:
        request.add_header("authorization", f"Bearer {bearer}")
    return urllib.request.urlopen(request, timeout=timeout)


def read(method: str, url: str, body: object = None, bearer: str = ""):
    with http(method, url, body, bearer) as answer:
        return json.load(answer)


class Session:
    """An MCP client of a few lines, which talks to the balancer."""

    def __init__(self, key: str) -> None:
        self.key, self.headers = key, {"accept": "application/json, text/event-stream"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "containers", "version": "1"}}
        with self.post({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}) as answer:
            answer.read()
            self.headers |= {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}).close()

    def post(self, message: dict):
        return http("POST", MCP, message, self.key, self.headers)

    def stream(self):
        return http("GET", MCP, bearer=self.key, headers=self.headers)

    def call(self, tool: str, arguments: dict, number: int = 1) -> str:
        """The text of the answer, and the replica that gave it."""
        with self.post({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}) as answer:
            text = answer.read().decode()
            self.replica = answer.headers["x-replica"]
        # JSON, or an event stream whose last data line is the answer.
        lines = [line.removeprefix("data:").strip() for line in text.splitlines() if line.startswith("data:")]
        message = json.loads(lines[-1] if lines else text)
        need("result" in message and not message["result"].get("isError"), f"{tool}: {text}")
        return message["result"]["content"][0]["text"]


class Load:
    """Calls from several sessions until the end of the block. No call is sent twice."""

    def __init__(self, key: str) -> None:
        self.key, self.answered, self.failed, self.stopping = key, 0, [], threading.Event()
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(WORKERS)]

    def work(self) -> None:
        session = Session(self.key)
        number = 0
        while not self.stopping.is_set():
            number += 1
            try:
                said = session.call("demo__echo", {"message": f"m{number}"}, number)
                need(said == f"m{number}", f"another answer: {said}")
                self.answered += 1
            except (OSError, ValueError, AssertionError) as error:
                detail = error.read().decode(errors="replace")[:300] if isinstance(error, urllib.error.HTTPError) else ""
                self.failed.append(f"{error!r} {detail}")

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        wait_for("calls", lambda: self.answered > 20)
        return self

    def __exit__(self, *_) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(90)


def prepare() -> None:
    PROJECT.mkdir()
    for name in ("docker-compose.yml", "Dockerfile", "deploy", "helm"):
        source = ROOT / name
        shutil.copytree(source, PROJECT / name, ignore=shutil.ignore_patterns("secrets", "__pycache__")) if source.is_dir() else shutil.copy(source, PROJECT / name)
    run("deploy/make-secrets.sh")
    services = json.loads(compose("config", "--format", "json"))["services"]
    for service, described in services.items():
        if service in REPLICAS:
            continue
        folder = WORK / "images" / service
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "deploy/test/stand_in.py", folder)
        (folder / "accepts.cfg").write_text(ACCEPTS)
        stop = {"balancer": "STOPSIGNAL SIGUSR1\n", "postgres": "STOPSIGNAL SIGINT\n"}.get(service, "")
        (folder / "Dockerfile").write_text(f'FROM services:local\nCOPY stand_in.py accepts.cfg /\n{stop}ENTRYPOINT ["python3", "/stand_in.py", "{service}"]\n')
        run(DOCKER, "build", "--quiet", "-t", described["image"].removeprefix("docker.io/"), folder, env={**os.environ, "DOCKER_BUILDKIT": "0"})


def up() -> None:
    compose("up", "--detach", "--wait", "--no-build")
    # Docker accepts connections for the balancer, which has no health check, before it listens.
    wait_for("the balancer", lambda: http("GET", f"{ADMIN}/readyz").close() or True)


def healthy(service: str) -> bool:
    return '"Health":"healthy"' in compose("ps", "--format", "json", service).replace(": ", ":")


def containers_are_confined() -> None:
    for service in REPLICAS:
        need("\nUid:\t10001\t10001" in inside(service, "cat", "/proc/1/status"), f"{service} does not run as 10001")
        inside(service, "sh", "-c", "touch /usr/local/bin/x", fails=True)


def servers_run_from_their_home(key: str, token: str) -> None:
    backend = {"transport": {"type": "stdio", "command": "sh", "args": ["-c", FROM_HOME]}}
    view = read("PUT", f"{ADMIN}/admin/v1/tenants/default/backends/home", backend, token)
    need(view["state"] == "ready", f"a program in its home does not run: {view}")
    seen = set()
    for _ in range(40):
        session = Session(key)
        wait_for("the backend at this replica", lambda: session.call("home__echo", {"message": "x"}) == "x")
        seen.add(session.replica)
    need(seen == set(REPLICAS), f"only {seen} answered")


def a_replica_is_killed(key: str) -> str:
    with Load(key) as load:
        run(DOCKER, "kill", f"mcp-broker-{REPLICAS[0]}-1")
        begun = load.answered
        wait_for("calls at the other replica", lambda: load.answered > begun + 50)
        compose("start", REPLICAS[0])
        wait_for("the killed replica", lambda: healthy(REPLICAS[0]))
    # The kill may cut the call that a worker has in flight. Nothing sends it again: it may have had its effect. A killed process
    # closes its sockets one after the other, so the next call may come to its listener for replicas and be cut there.
    need(len(load.failed) <= 2 * WORKERS, f"{load.failed}")
    return f"{load.answered} calls, {len(load.failed)} cut by the kill"


def replicas_restart_in_turn(key: str) -> str:
    with Load(key) as load:
        for service in REPLICAS:
            begun = time.monotonic()
            compose("up", "--detach", "--wait", "--no-build", "--no-deps", "--force-recreate", service)
            need(time.monotonic() - begun < WAIT_S / 2, f"{service} did not stop within its grace")
        answered = load.answered
        wait_for("calls after the restart", lambda: load.answered > answered + 50)
    need(not load.failed, f"{len(load.failed)} of {load.answered} calls failed: {load.failed[:3]}")
    return f"{load.answered} calls, none failed"


def all_is_there_after_down_and_up(key: str, token: str) -> float:
    session = Session(key)
    stream = session.stream()
    compose("stop", REPLICAS[0])
    code = run(DOCKER, "inspect", "--format", "{{.State.ExitCode}}", f"mcp-broker-{REPLICAS[0]}-1").strip()
    need(code == "0", f"the stopped broker ended with {code}")
    begun = time.monotonic()
    compose("down")
    took = time.monotonic() - begun
    stream.close()
    need(took < DOWN_S, f"down took {took:.1f} s")
    up()
    need(session.call("demo__echo", {"message": "still here"}) == "still here", "the open session is gone")
    # An unknown backend would be 404.
    read("GET", f"{ADMIN}/admin/v1/tenants/default/backends/home", bearer=token)
    volumes = run(DOCKER, "volume", "ls", "--quiet").split()
    need(all(name.startswith("mcp-broker_") for name in volumes), f"anonymous volumes are left: {volumes}")
    return took


def main() -> int:
    begun = time.monotonic()

    def said(words: str) -> None:
        print(f"containers: {time.monotonic() - begun:5.1f} s  {words}", flush=True)

    try:
        prepare()
        said("the images of the services are made")
        up()
        said("docker compose up --wait: all is healthy")
        token = (PROJECT / "deploy/secrets/admin_token").read_text().strip()
        made = compose("exec", "-T", "-e", "MCP_BROKER_ADMIN_TOKEN", REPLICAS[0], "mcp-broker", "key", "create", "--tenant", "default", "--name", "me", env={**os.environ, "MCP_BROKER_ADMIN_TOKEN": token})
        key = next(word for word in made.split() if word.startswith("mcpb_"))
        need(Session(key).call("demo__echo", {"message": "hello"}) == "hello", "no echo")
        containers_are_confined()
        said("a key, a session and a call through the balancer; user 10001 on a read-only root")
        servers_run_from_their_home(key, token)
        said("a stdio server runs a program of its home, at both replicas")
        query = f"{PROMETHEUS}/api/v1/query?query=up%7Bjob%3D%22mcp-broker%22%7D%3D%3D1"
        wait_for("Prometheus' targets", lambda: len(read("GET", query)["data"]["result"]) == len(REPLICAS))
        said("Prometheus has both replicas")
        said(f"a replica killed: {a_replica_is_killed(key)}")
        said(f"a rolling restart: {replicas_restart_in_turn(key)}")
        took = all_is_there_after_down_and_up(key, token)
        said(f"down took {took:.1f} s with an open event stream; session and backend are there after up")
    except (AssertionError, OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        print(f"containers: FAILED: {error}", file=sys.stderr)
        logs = subprocess.run([os.environ["CONTAINERS_COMPOSE"], "logs", "--no-color", "--tail", "25"], capture_output=True, text=True, cwd=PROJECT)
        print(logs.stdout[-8000:], file=sys.stderr)
        return 1
    finally:
        subprocess.run([os.environ["CONTAINERS_COMPOSE"], "down", "--volumes", "--timeout", "5"], capture_output=True, cwd=PROJECT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
