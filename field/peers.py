"""Peers as peers.yaml lists them, and servers to put behind them."""

import grp
import importlib.metadata
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from processes import LOAD_CORE, PEER_CORE, ROOT, Program, Usage, free_port, is_listening, wait_until
from setups import CALLERS, SETUPS
from wire import Client

if TYPE_CHECKING:
    from issuer import Issuer

FIELD = ROOT / "field"
CACHE = Path(os.environ.get("MCP_BROKER_CACHE") or Path.home() / ".cache/mcp-broker")
NODE = CACHE / "peers/node/node_modules/.bin/node"
PLACE = r"\{([a-z_]+)\}"
KEYS = {"title", "made_for", "version", "backend", "start", "environment", "open", "setup", "url", "tool", "callers", "headers", "note", "files", "resource_roots"}


# What {…} in an entry can name; peers.yaml describes each.
PLACES = {"port", "admin", "folder", "backend", "backend_address", "command", "field", "cache", "node", "broker", "issuer", "keys", "user"}


class Unusable(Exception):
    """An entry of peers.yaml, or a peer, that cannot be used."""


@dataclass
class Tools:
    """Programs of this repository, and the folder of this run."""

    broker: Path
    loadtest: Path
    folder: Path
    issuer: "Issuer | None" = None

    @cached_property
    def record(self) -> Path:
        """The recorder's file, in a folder that holds nothing else: a child in a sandbox may write there."""
        (self.folder / "records").mkdir()
        return self.folder / "records/messages.jsonl"

    @cached_property
    def python(self) -> Path:
        return CACHE / "peers/python2/bin/python"


def servers(tools: Tools) -> dict[str, dict[str, Any]]:
    """The servers behind the peers: the command for stdio, and with `{port}` for HTTP."""
    fixture = {"PYTHONPATH": str(CACHE / "peers/fixture/examples/servers/everything-server")}
    everything = str(CACHE / "peers/node/node_modules/.bin/mcp-server-everything")
    node = {"NODE_OPTIONS": f"--require {ROOT}/peers/loopback.cjs"}
    recorder = str(FIELD / "servers/recorder.py")
    return {
        "load": {"stdio": [str(tools.loadtest), "backend", "--stdio"], "http": [str(tools.loadtest), "backend", "--http", "127.0.0.1:{port}"], "environment": {}},
        "recorder": {"stdio": [sys.executable, recorder, "--stdio"], "http": [sys.executable, recorder, "--port", "{port}"], "environment": {"RECORD": str(tools.record)}},
        "conformance": {"stdio": [str(tools.python), str(FIELD / "servers/conformance_stdio.py")], "http": [str(tools.python), "-m", "mcp_everything_server", "--port", "{port}"], "environment": fixture},
        "everything": {"stdio": [str(NODE), everything, "stdio"], "http": [str(NODE), everything, "streamableHttp"], "environment": node},
    }


class Server:
    """A server over HTTP on the processor of the load, or the command line of one that the peer starts."""

    def __init__(self, tools: Tools, kind: str) -> None:
        self.spec, self.kind = servers(tools)[kind], kind
        self.words, self.port, self.program = self.spec["stdio"], 0, None
        self.tools, self.url = tools, ""

    def start_http(self) -> "Server":
        self.port = free_port()
        words = [word.format(port=self.port) for word in self.spec["http"]]
        self.program = Program(f"server-{self.kind}", words, {**self.spec["environment"], "PORT": str(self.port)}, self.tools.folder, LOAD_CORE)
        wait_until(f"the server {self.kind}", lambda: is_listening(self.port), self.program)
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        return self

    def stop(self) -> None:
        if self.program:
            self.program.stop()

    def is_of_peer(self, command: list[str]) -> bool:
        """Whether a command line is that of this server as a child of a peer, below a shell or not."""
        is_shell = command[1:2] == ["-c"] and command[2:3] == [shlex.join(self.words)]
        return is_shell or command[: len(self.words)] == self.words


class Peer:
    """One entry, running or not."""

    def __init__(self, name: str, spec: dict[str, Any], tools: Tools) -> None:
        self.name, self.spec, self.tools = name, spec, tools
        if wrong := set(spec) - KEYS:
            raise Unusable(f"{name}: unknown keys {sorted(wrong)}; allowed are {sorted(KEYS)}")
        for key in ("title", "made_for", "backend", "url"):
            if not isinstance(spec.get(key), str):
                raise Unusable(f"{name}.{key}: missing")
        if spec["backend"] not in ("http", "stdio"):
            raise Unusable(f"{name}.backend: {spec['backend']!r} is neither http nor stdio")
        if spec.get("setup") not in (None, *SETUPS):
            raise Unusable(f"{name}.setup: {spec['setup']!r} is none of {sorted(SETUPS)}")
        if spec.get("callers") not in (None, "jwt"):
            raise Unusable(f"{name}.callers: {spec['callers']!r} is not jwt")
        self.program: Program | None = None
        self.server: Server | None = None
        self.is_open = False
        self.places: dict[str, str] = {}

    def check(self) -> None:
        """Reads what start() would read, without starting anything."""
        texts = [self.spec["url"], *map(str, self.spec.get("start") or []), *map(str, (self.spec.get("environment") or {}).values()), *map(str, (self.spec.get("open") or {}).values())]
        for source in (self.spec.get("files") or {}).values():
            text = (FIELD / "peers" / source).read_text()
            texts.append(text)
            if source.endswith(".yaml"):
                yaml.safe_load(text)
        if unknown := {place for text in texts for place in re.findall(PLACE, text)} - PLACES:
            raise Unusable(f"{self.name}: nothing fills {sorted(unknown)}; there are {sorted(PLACES)}")
        if self.tool().format("echo") == self.tool():
            raise Unusable(f"{self.name}.tool: {self.tool()!r} has no {{}}")

    @property
    def title(self) -> str:
        return self.spec["title"]

    def is_started(self) -> bool:
        """Whether this run starts the peer, and so can kill it and see what its server gets."""
        return "start" in self.spec

    @property
    def has_callers(self) -> bool:
        return self.spec.get("callers") is not None and not self.is_open

    def start(self, kind: str, is_open: bool = False) -> "Peer":
        """Starts a server of this kind, and the peer in front of it, with an empty state."""
        self.is_open = is_open
        self.server = Server(self.tools, kind)
        if self.spec["backend"] == "http":
            self.server.start_http()
        folder = self.tools.folder / f"{self.name}-{kind}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        address = f"127.0.0.1:{self.server.port}"
        self.places = {
            "port": str(free_port()), "admin": str(free_port()), "folder": str(folder), "backend": self.server.url, "backend_address": address,
            "field": str(FIELD), "cache": str(CACHE / "field"), "node": str(NODE), "broker": str(self.tools.broker), "issuer": self.tools.issuer.url,
            "keys": str(self.tools.issuer.folder), "command": shlex.join(self.server.words), "user": f"{pwd.getpwuid(os.getuid()).pw_name} {grp.getgrgid(os.getgid()).gr_name}",
        }
        for name, source in (self.spec.get("files") or {}).items():
            (folder / name).write_text(self.filled((FIELD / "peers" / source).read_text()))
        self.restart()
        return self

    def filled(self, text: str) -> str:
        return re.sub(PLACE, lambda place: self.places.get(place[1], place[0]), text)

    def command(self) -> list[str]:
        words: list[str] = []
        for word in self.spec["start"]:
            words += self.server.words if word == "{command...}" else [self.filled(str(word))]
        return words

    def environment(self) -> dict[str, str]:
        chosen = {**(self.spec.get("environment") or {}), **((self.spec.get("open") or {}) if self.is_open else {})}
        own = {name: self.filled(str(value)) for name, value in chosen.items()}
        # A peer that starts the server itself hands its variables on.
        return {**(self.server.spec["environment"] if self.spec["backend"] == "stdio" else {}), **own}

    def restart(self) -> None:
        """Starts the program again on the same addresses and the same state."""
        if "start" in self.spec:
            self.program = Program(self.name, self.command(), self.environment(), Path(self.places["folder"]), PEER_CORE)
            port = int(self.places["port"])
            wait_until(f"{self.title} to listen", lambda: is_listening(port), self.program, 90)
        if setup := SETUPS.get(self.spec.get("setup") or ""):
            behind = {"url": self.server.url, "roots": self.roots()} if self.server.url else {"words": self.server.words, "environment": self.server.spec["environment"], "roots": self.roots(), "sandbox": {"read": [str(ROOT), str(CACHE)], "write": [str(self.tools.record.parent)]}}
            wait_until(f"{self.title} to take its server", lambda: setup(self.places, behind, self.tools.issuer) or True, self.program, 20)
        wait_until(f"{self.title} to serve", self.serves, self.program, 90)

    def serves(self) -> bool:
        """Whether a client can use the server behind the peer; only then is anything measured."""
        client = self.client().open()
        if self.server.kind not in ("load", "recorder"):
            return True
        response = client.call("echo", {"text": "ready"})
        if "ready" not in response.text():
            raise Unusable(f"a call: {response.shown()}")
        return True

    def roots(self) -> list[str]:
        """What the recorder's clients may read, where an operator can say that."""
        return ["record://", "file:///srv/public"] if self.spec.get("resource_roots") and self.server.kind == "recorder" else []

    def client(self, caller: str = "ann", token: str | None = None) -> Client:
        headers = dict(self.spec.get("headers") or {})
        if self.has_callers:
            subject = f"{caller}@example.com"
            headers["Authorization"] = f"Bearer {token or self.tools.issuer.token(subject, **CALLERS[caller])}"
        return Client(self.url(), headers, self.tool())

    def url(self) -> str:
        return self.filled(self.spec["url"])

    def tool(self) -> str:
        return self.spec.get("tool", "{}")

    def usage(self) -> Usage:
        return self.program.usage(self.server.is_of_peer) if self.program else Usage()

    def own_pids(self) -> list[int]:
        return self.program.pids_without(self.server.is_of_peer) if self.program else []

    def stop(self) -> None:
        if self.program:
            self.program.stop()
        if self.server:
            self.server.stop()
        self.program = self.server = None

    def version(self) -> str:
        how = self.spec.get("version")
        if how is None:
            return ""
        if isinstance(how, list):
            self.places |= {"broker": str(self.tools.broker)}
            ran = subprocess.run([self.filled(word) for word in how], capture_output=True, text=True, check=False)
            found = re.search(r"\d+\.\d+(\.\d+)?\S*", ran.stdout + ran.stderr)
            return found[0] if found else ""
        kind, _, package = how.partition(":")
        if kind == "npm":
            return json.loads((CACHE / "field/node/node_modules" / package / "package.json").read_text())["version"]
        part, _, package = package.partition("/")
        places = [str(path) for path in (CACHE / "field" / part / "lib").glob("python*/site-packages")]
        return next(found.version for found in importlib.metadata.distributions(name=package, path=places))


def load(tools: Tools, path: Path = FIELD / "peers.yaml") -> dict[str, Peer]:
    entries = yaml.safe_load(path.read_text())
    if not isinstance(entries, dict):
        raise Unusable(f"{path.name} is not a map from names to peers")
    return {name: Peer(name, spec, tools) for name, spec in entries.items()}
