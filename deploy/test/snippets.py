#!/usr/bin/env python3
"""Runs the code of README.md and docs/clients.md as it stands there: `snippets.py BROKER PEERS`.

A broker that requires keys serves its demo backend; in each block the URL and the key are put in place of the examples.
JSON that describes a server over HTTP is connected to; configurations of the broker go through its check. PEERS is the folder
of scripts/install-peers.sh. Called by `make test-deploy`.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml
from processes import wait_for

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/clients.md", "docs/migration.md", "docs/operations.md", "docs/getting-started.md"]
JSON_CLIENT = """
import asyncio, json, sys, httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
async def main(server):
    async with (httpx.AsyncClient(headers=server["headers"]) as http, streamable_http_client(server["url"], http_client=http) as (read, write, _), ClientSession(read, write) as session):
        await session.initialize()
        print(await session.call_tool("demo__echo", {"message": "hello"}))
asyncio.run(main(json.loads(sys.argv[1])))
"""


def blocks(page: str) -> list[tuple[str, str, str]]:
    text = (ROOT / page).read_text()
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    return [(f"{page}, line {text[: match.start()].count(chr(10)) + 1}", match[1], match[2]) for match in found]


class Broker:
    def __init__(self, program: Path, here: Path) -> None:
        config = {
            "listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"},
            "auth": {"required": True},
            "backends": {"demo": {"transport": {"type": "stdio", "command": str(program), "args": ["demo-backend"]}}},
        }
        (here / "config.yaml").write_text(yaml.safe_dump(config))
        self.log = open(here / "log", "w+")
        self.process = subprocess.Popen([program, "serve", "--config", "config.yaml"], cwd=here, stdout=subprocess.PIPE, stderr=self.log, text=True)
        listeners = dict(pair.split("=") for pair in self.process.stdout.readline().split()[1:])
        self.url, self.environment = f"http://{listeners['http']}", {**os.environ, "MCP_BROKER_ADMIN_URL": f"http://{listeners['admin']}"}
        self.command(program, "tenant", "add", "acme")
        made = self.command(program, "key", "create", "--tenant", "default", "--name", "me", "--json")
        self.key = json.loads(made)["key"]
        wait_for("the demo backend", lambda: " ready " in self.command(program, "backend", "list"))

    def command(self, program: Path, *arguments: str) -> str:
        return subprocess.run([program, *arguments], env=self.environment, check=True, capture_output=True, text=True).stdout

    def here(self, text: str) -> str:
        return text.replace("http://127.0.0.1:8080", self.url).replace("mcpb_…", self.key)


# What asks the admin API and starts nothing; what it names is there, or is not needed.
OPERATORS = re.compile(r"mcp-broker (audit|node) |\w+=\$\(curl .*\$A/|curl .*\$A/")


def is_operators_own(code: str) -> bool:
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    return all(OPERATORS.match(line) for line in lines)


def run(where: str, command: list, expected: str = "hello", environment: dict[str, str] | None = None, folder: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=folder)
    assert done.returncode == 0 and expected in done.stdout, f"{where}: {done.returncode}\n{done.stdout}{done.stderr}"


def main() -> int:
    program, peers = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    ran: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="mcp-broker-snippets-") as folder:
        here = Path(folder)
        (here / "node_modules").symlink_to(peers / "node/node_modules")
        broker = Broker(program, here)
        (here / "demo").mkdir()
        open_one = subprocess.Popen([program, "demo"], cwd=here / "demo", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={
            **os.environ, "MCP_BROKER__LISTEN__HTTP": "127.0.0.1:0", "MCP_BROKER__LISTEN__ADMIN": "127.0.0.1:0"})
        try:
            open_url = "http://" + dict(pair.split("=") for pair in open_one.stdout.readline().split()[1:])["http"]
            for page in PAGES:
                for where, language, code in blocks(page):
                    # What shows no key is for the broker that wants none.
                    code = broker.here(code) if "mcpb_…" in code else code.replace("http://127.0.0.1:8080", open_url)
                    if language in {"ts", "python"}:
                        file = here / f"snippet.{'mjs' if language == 'ts' else 'py'}"
                        file.write_text(code)
                        line = "python2" if "httpx2" in code else "python1"
                        run(where, [peers / "node/node_modules/.bin/node", file] if language == "ts" else [peers / line / "bin/python", file])
                    elif language == "json":
                        servers = json.loads(code).get("mcpServers", {}).values()
                        servers = [server for server in servers if "url" in server and broker.url in server["url"]]
                        for server in servers:
                            run(where, [peers / "python1/bin/python", "-c", JSON_CLIENT, json.dumps(server)])
                    elif language == "yaml":
                        check_yaml(where, code, program, here)
                    elif language == "bash" and "mcp() {" in code:
                        file = here / "snippet.sh"
                        file.write_text(code)
                        run(where, ["bash", "-e", file])
                    elif language == "bash" and is_operators_own(code):
                        file = here / "snippet.sh"
                        file.write_text(f"A={broker.environment['MCP_BROKER_ADMIN_URL']}/admin/v1\n{code}\necho; echo hello\n")
                        environment = {**broker.environment, "PATH": f"{program.parent}:{os.environ['PATH']}"}
                        run(where, ["bash", "-e", "-o", "pipefail", file], environment=environment, folder=here)
                    else:
                        continue
                    ran[language] = ran.get(language, 0) + 1
        except AssertionError as error:
            print(f"snippets: FAILED: {error}", file=sys.stderr)
            return 1
        finally:
            for process in (broker.process, open_one):
                process.terminate()
                process.wait(30)
    assert {"ts", "python", "json", "yaml", "bash"} <= ran.keys(), ran
    print(f"snippets: {', '.join(f'{count} of {language}' for language, count in sorted(ran.items()))} ran as they stand in the documentation")
    return 0


def check_yaml(where: str, code: str, program: Path, here: Path) -> None:
    """Files that a configuration names are made; their contents are not the page's business."""
    for path in set(re.findall(r"/etc/mcp-broker/[\w.-]+", code)):
        file = here / Path(path).name
        file.write_text("postgres://u:p@database/broker\n" if "url" in path else "0123456789abcdef0123456789abcdef\n")
        code = code.replace(path, str(file))
    (here / "page.yaml").write_text(code)
    done = subprocess.run([program, "check-config", here / "page.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"


if __name__ == "__main__":
    sys.exit(main())
