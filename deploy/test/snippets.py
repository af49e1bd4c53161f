#!/usr/bin/env python3
"""Runs the code of README.md and docs as it stands there: `snippets.py BROKER PEERS [PAGE…]`; PEERS is the
folder of scripts/install-peers.sh. Called by `make test-deploy`.

Each page is gone through from its top in a folder and a shell of its own, which has what a reader would have: the clone, the
program, the shell's variables of the blocks before. Addresses, paths outside of the folder, the weather server and `mcpb_…` are
replaced, the last by the key that the page's commands printed. A command that serves runs until it is ready, and goes on
until the page starts another. What no machine here can run meets a stand-in that looks at its command line (stand_ins.py).
A block that is neither run nor named in SYNTAX_ONLY fails, and so does a name there that no block has.
"""

import configparser
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import yaml
from compose import Compose, held_port
from processes import Processes, wait_for

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PAGES = [str(page.relative_to(ROOT)) for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "helm/mcp-broker/README.md", ROOT / "peers/README.md"]]
# A page and words of its block: why it is not run.
SYNTAX_ONLY = {
    ("docs/clients.md", "mcp-remote@"): "mcp-remote is on npm, and not among the pinned peers",
    ("peers/README.md", "scripts/install-peers.sh"): "broker/tests/it/peers runs the same programs against direct servers and the broker",
}
# What answers look like, as pages show them, and the request that is answered with it; None: shown by the block before.
ANSWERS = {
    ("README.md", '"id":3'): None,
    ("docs/operations.md", "urn:mcp-broker:problem"): ("admin", "PUT", "/admin/v1/tenants/acme", '{"limits": {"requests_per_second": -1}}'),
    ("docs/errors.md", "tool_not_found"): ("http", "POST", "/mcp", '{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"nope"}}'),
    ("docs/limits.md", "requests_per_second"): ("limits", "PUT", "/admin/v1/tenants/default/backends/limited?wait=false", '{"transport": {"type": "http", "url": "http://127.0.0.1:9/"}, "limits": %s}'),
}
SERVES = re.compile(r"^(?:\S+=\S+ )*(?:mcp-broker (?:serve|demo)|make run)\b", re.M)
KEY = re.compile(r"mcpb_\w+")
HTTP_CLIENT = """
import asyncio, json, sys, httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
async def main(server):
    async with (httpx.AsyncClient(headers=server["headers"]) as http, streamable_http_client(server["url"], http_client=http) as (read, write, _), ClientSession(read, write) as session):
        await session.initialize()
        print(await session.call_tool("demo__echo" if not server.get("weather") else "echo", {"message": "hello"}))
asyncio.run(main(json.loads(sys.argv[1])))
"""
STDIO_CLIENT = """
import asyncio, json, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
async def main(server):
    async with stdio_client(StdioServerParameters(**server)) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        print(await session.call_tool("echo", {"message": "hello"}))
asyncio.run(main(json.loads(sys.argv[1])))
"""
INITIALIZE = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"page","version":"1"}}}'


def blocks(page: str) -> list[tuple[int, str, str]]:
    """Line, language and text of each."""
    text = (ROOT / page).read_text()
    return [(text[: match.start()].count("\n") + 1, match[1], match[2]) for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)]


def ask(url: str, method: str, body: str | None = None, headers: dict[str, str] | None = None) -> tuple[str, dict]:
    asked = {"content-type": "application/json", "accept": "application/json, text/event-stream", **(headers or {})}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, data=body and body.encode(), headers=asked), timeout=30) as answer:
            return answer.read().decode(), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as refused:
        return refused.read().decode(), {name.lower(): value for name, value in refused.headers.items()}


class Weather:
    """A server somewhere else that wants a token."""

    def __init__(self, program: Path, here: Path) -> None:
        here.mkdir()
        addresses = {"MCP_BROKER__LISTEN__HTTP": "127.0.0.1:0", "MCP_BROKER__LISTEN__ADMIN": "127.0.0.1:0"}
        self.process = subprocess.Popen([program, "demo"], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, **addresses})
        listeners = dict(pair.split("=") for pair in self.process.stdout.readline().split()[1:])
        self.url = f"http://{listeners['http']}/mcp/demo"
        self.token = json.loads(ask(f"http://{listeners['admin']}/admin/v1/tenants/default/keys", "POST", "{}")[0])["key"]


class Page:
    """One page, and the reader's machine while it is gone through."""

    def __init__(self, name: str, here: Path, program: Path, peers: Path, weather: Weather, tools: Path) -> None:
        self.name, self.here, self.program, self.peers, self.weather = name, here, program, peers, weather
        (http, http_port), (admin, admin_port) = held_port(), held_port()
        self.http, self.admin = f"127.0.0.1:{http_port}", f"127.0.0.1:{admin_port}"
        http.close()
        admin.close()
        self.key: str | None = None
        self.said, self.served, self.scripts = "", "", 0
        self.process: subprocess.Popen | None = None
        self.stand_ins = here.parent / f"{here.name}-stand-ins"
        self.furnish(tools)
        self.environment = {
            "PATH": f"{self.stand_ins}:{program.parent}:{os.environ['PATH']}", "HOME": str(here / "home"), "LC_ALL": "C.UTF-8",
            # What stands in for npx is a script of this clone and a program of the cache, which a sandbox rightly keeps closed.
            "MCP_BROKER__STDIO__SANDBOX": "off",
            "MCP_BROKER_ADMIN_URL": f"http://{self.admin}", "MCP_BROKER__LISTEN__HTTP": self.http, "MCP_BROKER__LISTEN__ADMIN": self.admin,
        }

    def furnish(self, tools: Path) -> None:
        """The clone, the folders and the files that the page takes for granted."""
        here = self.here
        for folder in ["home/Documents", "srv/files", "srv/acme", "etc/mcp-broker", "backup", "target/release"]:
            (here / folder).mkdir(parents=True)
        for folder in ["deploy", "helm"]:
            shutil.copytree(ROOT / folder, here / folder, ignore=shutil.ignore_patterns("secrets", "__pycache__"))
        for file in ["docker-compose.yml", "Dockerfile"]:
            shutil.copy(ROOT / file, here)
        (here / "target/release/mcp-broker").symlink_to(self.program)
        (here / "node_modules").symlink_to(self.peers / "node/node_modules")
        (here / "weather-token").write_text(self.weather.token)
        demo = {"demo": {"transport": {"type": "stdio", "command": str(self.program), "args": ["demo-backend"]}}}
        (here / "etc/mcp-broker.yaml").write_text(yaml.safe_dump({"backends": demo}))
        (here / "keys.yaml").write_text(yaml.safe_dump({"backends": demo, "auth": {"required": True}}))
        for secret in ["secret", "admin-token", "scraper-token", "acme-sre-token", "entra-secret"]:
            (here / "etc/mcp-broker" / secret).write_text(f"0123456789abcdef-{secret}\n")
        (here / "etc/mcp-broker/node-secret").symlink_to("secret")
        (here / "etc/mcp-broker/database-url").write_text("postgres://u:p@database/broker\n")
        (here / "etc/mcp-broker/redis-url").write_text("redis://:p@redis:6379\n")
        self.stand_ins.mkdir()
        # Children of a broker have little of its environment.
        told = f"STAND_INS={self.stand_ins} BROKER={self.program} ROOT={ROOT} NODE_BIN={self.peers}/node/node_modules/.bin"
        for name in ["docker", "helm", "make", "npx"]:
            self.wrapper(name, f'{told} exec {tools} {HERE}/stand_ins.py {name} "$@"')
        # An answer that is a refusal is not what a page promises.
        self.wrapper("curl", f'exec {shutil.which("curl")} --fail-with-body "$@"')

    def wrapper(self, name: str, line: str) -> None:
        (self.stand_ins / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.stand_ins / name).chmod(0o755)

    def local(self, code: str) -> str:
        """`code` with what differs here from the page's machine."""
        places = {"127.0.0.1:8080": self.http, "127.0.0.1:9090": self.admin, "https://weather.example.com/mcp": self.weather.url, "a-token": self.weather.token}
        for there, local in places.items():
            code = code.replace(there, local)
        code = code.replace("/run/secrets/mcp-broker/", "/etc/mcp-broker/")
        code = re.sub(r"(?<![\w.])/(srv|etc|backup)/", rf"{self.here}/\1/", code)
        return code.replace("mcpb_…", self.key) if self.key else code

    # What a page does.

    def shell(self, code: str) -> str:
        """The block, with the variables and functions of those before it."""
        state = self.stand_ins / "state"
        known = f". {state}\n" if state.exists() else ""
        keeps = f'{{ for v in PATH $(comm -13 <(printf %s "$_before" | sort) <(compgen -v | grep -v "^BASH\\|^_" | sort)); do declare -p "$v"; done; declare -f; }} >{state}.new; cat {state}.new >>{state}'
        # Shells read on while they run: each has a file to itself.
        self.scripts += 1
        script = self.stand_ins / f"block-{self.scripts}.sh"
        script.write_text(f'{known}_before=$(compgen -v)\ntrap : TERM\nset -e -o pipefail\n{self.local(code)}\n{keeps}\n')
        environment = {**self.environment, **({"KEY": self.key} if self.key else {})}
        if SERVES.search(code):
            return self.serve(["bash", str(script)], environment)
        done = subprocess.run(["bash", script], cwd=self.here, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
        composed = self.stand_ins / "composed"
        if composed.exists():
            self.stop()
            self.composed = int(composed.read_text())
            composed.unlink()
        return done.stdout

    def serve(self, command: list[str], environment: dict[str, str]) -> str:
        self.stop()
        out = self.stand_ins / "out"
        with open(out, "w") as written, open(self.stand_ins / "log", "w") as log:
            self.process = subprocess.Popen(command, cwd=self.here, env=environment, stdout=written, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

        def ready() -> str | None:
            assert self.process.poll() is None, f"ended with {self.process.returncode}\n{out.read_text()}{(self.stand_ins / 'log').read_text()[-1500:]}"
            # It is being written: what has no end of line yet is not all there.
            whole, _, _begun = out.read_text().rpartition("\n")
            return next((line for line in whole.splitlines() if line.startswith("ready ")), None)

        self.served = wait_for("the broker to be ready", ready)
        return out.read_text()

    def stop(self) -> None:
        """What serves ends as it would by Ctrl-C, and with success."""
        if composed := getattr(self, "composed", None):
            del self.composed
            os.kill(composed, signal.SIGTERM)
            wait_for("the broker to end", lambda: not Path(f"/proc/{composed}").exists() or "\nState:\tZ" in Path(f"/proc/{composed}/status").read_text())
        if process := self.process:
            self.process = None
            os.killpg(process.pid, signal.SIGTERM)
            code = process.wait(40)
            assert code == 0, f"what served ended with {code}\n{(self.stand_ins / 'log').read_text()[-1500:]}"

    def bash(self, code: str) -> None:
        if "docker compose up" in code:
            self.stop()  # it wants the same addresses
        self.said = self.shell(code)
        assert '"state":"failed"' not in self.said, self.said
        if found := KEY.findall(self.said):
            self.key = found[-1]
        if "backend list" in code:
            self.shell("for i in $(seq 100); do mcp-broker backend list | grep -q ' connecting ' || break; sleep 0.1; done")
            listed = self.shell("mcp-broker backend list")
            assert not re.search(r" (failed|degraded|connecting) ", listed), listed

    def console(self, code: str) -> None:
        """A command and what it prints; numbers may be others."""
        command, *expected = code.splitlines()
        shape = [re.sub(r"\d+(?![-.\w])", "N", " ".join(line.split())) for line in expected]
        said = [re.sub(r"\d+(?![-.\w])", "N", " ".join(line.split())) for line in self.shell(command.removeprefix("$ ")).splitlines()]
        assert said == shape, f"printed {said}, and the page shows {shape}"

    def need_broker(self) -> None:
        """Pages that do not begin with starting one are for people who have one, which wants keys where the page shows some."""
        if self.process or hasattr(self, "composed"):
            return
        wants_keys = "mcpb_…" in (ROOT / self.name).read_text()
        self.serve(["mcp-broker", "serve", "--config", "keys.yaml" if wants_keys else "etc/mcp-broker.yaml"], self.environment)
        self.shell("for i in $(seq 200); do mcp-broker backend list | grep -q ' ready ' && break; sleep 0.1; done")

    def need_key(self) -> None:
        self.key = self.key or json.loads(ask(f"http://{self.admin}/admin/v1/tenants/default/keys", "POST", "{}")[0])["key"]

    def program_of(self, language: str, code: str) -> None:
        self.need_broker()
        if "mcpb_…" in code:
            self.need_key()
        file = self.here / f"snippet.{'mjs' if language == 'ts' else 'py'}"
        file.write_text(self.local(code))
        python = self.peers / ("python2" if "httpx2" in code else "python1") / "bin/python"
        self.greets([self.peers / "node/node_modules/.bin/node", file] if language == "ts" else [python, file])

    def greets(self, command: list) -> None:
        done = subprocess.run(command, cwd=self.here, env=self.environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "hello" in done.stdout, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"

    def json(self, code: str) -> None:
        if servers := json.loads(code).get("mcpServers"):
            self.need_broker()
            self.need_key()
            for server in json.loads(self.local(code))["mcpServers"].values():
                client, more = (HTTP_CLIENT, {"weather": server["url"] == self.weather.url}) if "url" in server else (STDIO_CLIENT, {"env": {**self.environment, **server.get("env", {})}})
                self.greets([self.peers / "python1/bin/python", "-c", client, json.dumps({**server, **more})])
            assert servers
            return
        request = next((asked for (page, words), asked in ANSWERS.items() if page == self.name and words in code), "")
        assert request != "", "JSON that is neither a client's configuration nor a known answer"
        if request is None:
            assert code.strip() in self.said, f"the block before printed {self.said}"
            return
        self.need_broker()
        where, method, path, body = request
        if where == "limits":
            answer = json.loads(ask(f"http://{self.admin}{path}", method, body % code)[0])
            assert answer["settings"]["limits"] == json.loads(code), answer
            return
        headers = {}
        if where == "http":
            headers = {"mcp-session-id": ask(f"http://{self.http}{path}", "POST", INITIALIZE)[1]["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
            ask(f"http://{self.http}{path}", "POST", '{"jsonrpc":"2.0","method":"notifications/initialized"}', headers)
        answer = ask(f"http://{getattr(self, where)}{path}", method, body, headers)[0]
        told = [re.sub(r'"requestId":"\w+"', '"requestId":""', text.strip()) for text in (answer, code)]
        assert json.loads(told[0]) == json.loads(told[1]), f"answered {answer}"

    def yaml(self, code: str) -> None:
        (self.here / "page.yaml").write_text(self.local(code))
        plain = {name: value for name, value in self.environment.items() if not name.startswith("MCP_BROKER__")}
        done = subprocess.run([self.program, "check-config", "page.yaml"], cwd=self.here, env=plain, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    def shown(self, code: str) -> None:
        """A block without a language: the line of a broker that is ready, or a drawing."""
        if code.startswith("ready "):
            assert self.served == self.local(code).strip(), f"it said {self.served}"
        assert not re.search(r"^(mcp-broker|curl|docker|helm|kubectl|make) ", code, re.M), "commands without a language are not run"

    def unit(self, code: str) -> None:
        """A unit of systemd: its sections and what it names are there, and its command is one of the program."""
        named = re.match(r"# /etc/systemd/system/([\w-]+\.(socket|service))\b", code)
        assert named, "a unit begins with the path it has"
        self.units = {*getattr(self, "units", ()), named[1]}
        reader = configparser.ConfigParser(strict=True, interpolation=None)
        reader.optionxform = str
        reader.read_string(code)
        kind = named[2].capitalize()
        assert kind in reader.sections() and {*reader.sections()} <= {"Unit", "Install", kind}, reader.sections()
        if kind == "Socket":
            assert reader["Socket"]["FileDescriptorName"] in ("http", "admin", "tcp")
            return
        wanted = {*reader["Unit"]["Requires"].split(), *reader["Service"]["Sockets"].split()}
        assert wanted <= self.units, f"not on this page: {wanted - self.units}"
        _, *arguments = reader["Service"]["ExecStart"].split()
        asked = subprocess.run([self.program, *arguments, "--help"], capture_output=True, text=True)
        assert asked.returncode == 0, asked.stderr

    def run(self, line: int, language: str, code: str) -> bool:
        """Whether it was run, and not only looked at."""
        try:
            if any(page == self.name and words in code for page, words in SYNTAX_ONLY):
                if language == "bash":
                    subprocess.run(["bash", "-n"], input=code, check=True, text=True)
                else:
                    json.loads(code)
                return False
            match language:
                case "bash" | "sh":
                    if not SERVES.search(code) and re.search(r"mcp-broker (?!config-example|check-config|migrate|after-restore)|curl ", code) and "docker compose" not in code:
                        self.need_broker()
                    self.bash(code)
                case "console":
                    self.need_broker()
                    self.console(code)
                case "ts" | "python":
                    self.program_of(language, code)
                case "json" | "yaml":
                    getattr(self, language)(code)
                case "ini":
                    self.unit(code)
                    return False
                case "":
                    self.shown(code)
                    return False
                case _:
                    raise AssertionError(f"no runner for {language}")
        except (AssertionError, KeyError, ValueError, OSError, subprocess.SubprocessError) as fault:
            raise AssertionError(f"{self.name}, line {line}: {fault or repr(fault)}") from fault
        return True


class Operations(Page):
    """docs/operations.md has commands for PostgreSQL, too."""

    def start_postgres(self) -> None:
        self.compose = Compose(self.here.parent / "postgres")
        self.compose.here.mkdir(mode=0o755)
        self.compose.here.parent.chmod(0o755)
        (self.compose.here / "home").mkdir(mode=0o777)
        subprocess.run([ROOT / "deploy/make-secrets.sh", self.compose.here / "secrets"], check=True, stdout=subprocess.DEVNULL)
        (self.compose.here / "secrets").chmod(0o755)
        self.compose.address("postgres", 5432)
        self.compose.release_ports()
        self.postgres = Processes(self.compose, self.program)
        self.postgres.postgres()
        self.url = self.compose.local("broker-1", (self.compose.here / "secrets/database_url").read_text()).strip()
        (self.here / "etc/mcp-broker/database-url").write_text(self.url + "\n")

    def bash(self, code: str) -> None:
        if re.search(r"migrate|pg_\w+", code) and not hasattr(self, "postgres"):
            self.start_postgres()
        if "pg_dump" in code:
            self.environment["DATABASE_URL"] = self.url
        if "pg_restore" in code:
            self.postgres.sql("create database restored")
            self.environment["DATABASE_URL"] = self.url.rsplit("/", 1)[0] + "/restored"
        super().bash(code)
        if "pg_restore" in code:
            found = subprocess.run(["psql", self.environment["DATABASE_URL"], "-Atc", "select count(*) from config_version"], capture_output=True, text=True)
            assert found.stdout.strip() == "1", f"nothing was restored: {found.stdout}{found.stderr}"

    def end(self) -> None:
        self.stop()
        if hasattr(self, "postgres"):
            self.postgres.end()


def main() -> int:
    # Ends what it started, as after a fault.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    program, peers = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    ran: dict[str, int] = {}
    used: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory(prefix="mcp-broker-snippets-") as folder:
        weather = Weather(program, Path(folder) / "weather")
        try:
            for number, name in enumerate(PAGES):
                found = blocks(name) if name in (sys.argv[3:] or PAGES) else []
                if not found:
                    continue
                page = (Operations if name == "docs/operations.md" else Page)(name, Path(folder) / str(number), program, peers, weather, Path(sys.executable))
                try:
                    for line, language, code in found:
                        used |= {(name, words) for page_of, words in SYNTAX_ONLY if page_of == name and words in code}
                        if page.run(line, language, code):
                            ran[language] = ran.get(language, 0) + 1
                finally:
                    (page.end if isinstance(page, Operations) else page.stop)()
            assert sys.argv[3:] or used == SYNTAX_ONLY.keys(), f"no block is what {SYNTAX_ONLY.keys() - used} names"
        except AssertionError as error:
            print(f"snippets: FAILED: {error}", file=sys.stderr)
            return 1
        finally:
            weather.process.terminate()
            weather.process.wait(30)
    counted = ", ".join(f"{count} of {language}" for language, count in sorted(ran.items()))
    print(f"snippets: {counted} ran as they stand in the documentation; {len(SYNTAX_ONLY)} were only parsed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
