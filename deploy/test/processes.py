"""Starts the services of docker-compose.yml as processes of this machine, from the distribution's packages. Used by
topology.py, which ends all of them in any case."""

import glob
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from compose import ROOT, Compose

WAIT_S = 30
# On a busy machine a server takes its time to begin; nothing here waits that long when all is well.
POLL_S = 0.05


def wait_for(what: str, holds: Callable[[], object], within: float = WAIT_S):
    """The first true value of `holds`. Errors of a server that does not run yet do not count."""
    end, last = time.monotonic() + within, None
    while time.monotonic() < end:
        try:
            if value := holds():
                return value
        except OSError as error:
            last = error
        time.sleep(POLL_S)
    raise AssertionError(f"waited {within:.0f} s for {what}" + (f": {last}" if last else ""))


def program(name: str, *places: str) -> str:
    found = shutil.which(name) or next((path for pattern in places for path in sorted(glob.glob(pattern), reverse=True)), None)
    assert found, f"{name} is missing: see scripts/install-deploy.sh"
    return found


class Processes:
    def __init__(self, compose: Compose, broker: Path) -> None:
        self.compose, self.broker, self.here = compose, broker, compose.here
        self.running: dict[str, subprocess.Popen] = {}
        self.more = {"/usr/local/bin/mcp-broker": str(broker)}

    def start(self, service: str, command: list[str], environment: dict[str, str] | None = None, user: str | None = None) -> subprocess.Popen:
        log = open(self.here / f"{service}.log", "a")
        who = {}
        if user:
            entry = pwd.getpwnam(user)
            who = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        # Nothing of this shell's environment: the compose file's is all a service has.
        base = {"PATH": os.environ["PATH"], "HOME": str(self.here / "home"), "LC_ALL": "C.UTF-8"}
        started = subprocess.Popen(command, env={**base, **(environment or {})}, cwd=self.here / "home", stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True, **who)
        self.running[service] = started
        return started

    def log(self, service: str) -> str:
        return (self.here / f"{service}.log").read_text(errors="replace")

    def postgres(self) -> None:
        environment = self.compose.environment("postgres")
        bin_folder = Path(program("initdb", "/usr/lib/postgresql/*/bin/initdb")).resolve().parent
        user = "postgres" if os.geteuid() == 0 else None
        data = self.here / "postgres-data"
        data.mkdir()
        if user:
            os.chown(data, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        made = self.start("postgres-init", [
            str(bin_folder / "initdb"), "-D", str(data), "-N", "-E", "UTF8", "-A", "scram-sha-256",
            "-U", environment["POSTGRES_USER"], "--pwfile", environment["POSTGRES_PASSWORD_FILE"],
        ], user=user)
        assert made.wait(WAIT_S) == 0, self.log("postgres-init")[-1500:]
        host, port = self.compose.address("postgres", 5432).split(":")
        options = ["-c", f"listen_addresses={host}", "-c", f"port={port}", "-c", "unix_socket_directories="]
        self.start_postgres = lambda: self.start("postgres", [str(bin_folder / "postgres"), "-D", str(data), *options], user=user)
        self.start_postgres()
        asks = [str(bin_folder / "psql"), "-h", host, "-p", port, "-U", environment["POSTGRES_USER"]]
        password = Path(environment["POSTGRES_PASSWORD_FILE"]).read_text().strip()

        def sql(text: str, database: str) -> subprocess.CompletedProcess:
            return subprocess.run([*asks, "-d", database, "-Atc", text], env={"PGPASSWORD": password, "PATH": os.environ["PATH"]}, capture_output=True, text=True)

        self.sql = lambda text: sql(text, environment["POSTGRES_DB"])
        # What the image's entry point does with POSTGRES_DB.
        wait_for("PostgreSQL", lambda: sql(f"create database {environment['POSTGRES_DB']}", "postgres").returncode == 0)

    def redis(self) -> None:
        self.compose.write_files("redis", {"bind * -::*": "bind 127.0.0.1"})
        command = self.compose.command("redis")
        port = self.compose.address("redis", 6379).split(":")[1]
        self.start("redis", [program(command[0]), *command[1:], "--port", port, "--dir", str(self.here / "home")])
        password = (self.here / "secrets/redis_password").read_text().strip()

        def ping(**environment: str) -> str:
            return subprocess.run(["redis-cli", "-p", port, "ping"], env={"PATH": os.environ["PATH"], **environment}, capture_output=True, text=True).stdout

        wait_for("Redis", lambda: ping(REDISCLI_AUTH=password).strip() == "PONG")
        assert "NOAUTH" in ping(), "Redis asks for no password"

    def start_brokers(self, *services: str) -> None:
        """All at once, as orchestrators do."""
        for ready, service in [(self.begin_broker(service), service) for service in services]:
            wait_for(f"{service} to be ready", ready)

    def begin_broker(self, service: str) -> Callable[[], bool]:
        self.compose.write_files(service, self.more)
        log = self.here / f"{service}.log"
        begun = log.stat().st_size if log.exists() else 0
        started = self.start(service, [str(self.broker), *self.compose.command(service, self.more)], self.compose.environment(service, self.more))

        def ready() -> bool:
            assert started.poll() is None, f"{service} ended with {started.returncode}: {self.log(service)[-1500:]}"
            return "\nready http=" in "\n" + log.read_text(errors="replace")[begun:]

        return ready

    def balancer(self) -> None:
        self.compose.write_files("balancer")
        [(source, _)] = self.compose.mounts("balancer")
        self.start("balancer", [program("haproxy", "/usr/sbin/haproxy"), "-db", "-f", str(self.compose.copied("balancer", source))])

    def collector(self) -> None:
        """No collector is among the distribution's packages: the stand-in of the tests takes its place, at its address."""
        stand_in = self.broker.with_name("otlp-collector")
        assert stand_in.exists(), f"{stand_in} is missing: cargo build -p testkit --bins"
        self.compose.write_files("otel-collector")
        self.spans = self.here / "spans.jsonl"
        self.start("otel-collector", [str(stand_in), self.compose.address("otel-collector", 4318), str(self.spans)])
        wait_for("the collector", self.spans.exists)

    def prometheus(self) -> None:
        # A test cannot wait for a scrape every 15 s; everything else is as it is in the file.
        self.compose.write_files("prometheus", {"interval: 15s": "interval: 1s"})
        command = self.compose.command("prometheus", {"=/prometheus": f"={self.here}/prometheus-data"})
        self.start("prometheus", [program("prometheus"), *command, f"--web.listen-address={self.compose.address('prometheus', 9090)}"])

    def stop(self, service: str, how: signal.Signals = signal.SIGTERM) -> int:
        process = self.running.pop(service)
        process.send_signal(how)
        return process.wait(WAIT_S)

    def end(self) -> None:
        for service, process in self.running.items():
            if process.poll() is not None:
                continue
            if service == "postgres":
                # At once, and by itself: killed, it would leave a segment of shared memory behind, of which a machine has few.
                process.send_signal(signal.SIGINT)
            else:
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
