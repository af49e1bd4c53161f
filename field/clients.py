"""Other people's programs in front of each peer: the official conformance suite, and clients made with the SDKs."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from peers import CACHE, NODE, Peer
from processes import LOAD_CORE, ROOT

Json = dict[str, Any]
REVISIONS = ("2025-11-25", "2026-07-28")
SUITE_S, CLIENT_S = 150, 120
SUITE = CACHE / "peers/node/node_modules/.bin/conformance"
SDK_CLIENTS = {
    "TypeScript SDK": [str(NODE), str(ROOT / "peers/clients/typescript.mjs")],
    "Python SDK": [str(CACHE / "peers/python2/bin/python"), "-B", str(ROOT / "peers/clients/python_2.py")],
}


def environment() -> dict[str, str]:
    path = f"{NODE.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NODE_OPTIONS": f"--require {ROOT}/peers/loopback.cjs"}


def run(command: list[str], within: float) -> str:
    def pinned() -> None:
        if LOAD_CORE in os.sched_getaffinity(0):
            os.sched_setaffinity(0, {LOAD_CORE})

    try:
        return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=within, preexec_fn=pinned, check=False).stdout
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode(errors="replace") if isinstance(late.stdout, bytes | None) else late.stdout


def scenarios(folder: Path) -> dict[str, list[Json]]:
    """The checks of each scenario, from the suite's result files: one folder `{role}-{scenario}-{time}` for each."""
    found = {}
    for checks in folder.rglob("checks.json"):
        name = str(checks.parent.relative_to(folder)).removeprefix("server-").split("-20")[0]
        found[name] = json.loads(checks.read_text())
    return found


def conformance(peer: Peer) -> Json:
    """The scored scenarios of each revision through the peer, without credentials, because the suite has none."""
    peer.start("conformance", is_open=True)
    result: Json = {}
    for revision in REVISIONS:
        folder = Path(tempfile.mkdtemp(dir=peer.tools.folder))
        run([str(SUITE), "server", "--url", peer.url(), "--requirements", revision, "-o", str(folder)], SUITE_S)
        found = scenarios(folder)
        failed = {name: [check["id"] for check in checks if check["status"] == "FAILURE"] for name, checks in found.items()}
        failed = {name: ids for name, ids in failed.items() if ids}
        shutil.rmtree(folder)
        result[revision] = {"scenarios": len(found), "passed": len(found) - len(failed), "failed": failed}
    return result


def sdk_clients(peer: Peer) -> Json:
    """The checks of the repository's SDK clients. The server behind the peer is `server-everything`."""
    peer.start("everything", is_open=True)
    result: Json = {}
    for name, command in SDK_CLIENTS.items():
        # The pattern of a tool's name, for peers that rename tools and leave URIs alone.
        pattern = [peer.tool()] if peer.tool() != "{}" else []
        lines = run([*command, peer.url(), *pattern], CLIENT_S).splitlines()
        failed = [line.removeprefix("FAIL ")[:160] for line in lines if line.startswith("FAIL ")]
        passed = [line.removeprefix("ok ") for line in lines if line.startswith("ok ")]
        result[name] = {"passed": len(passed), "failed": failed, "checks": passed}
    return result
