"""What a peer costs: calls a second and processor time in a closed loop, latency in an open one, memory at rest and per session."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from peers import Peer
from processes import LOAD_CORE, Usage
from wire import Unanswered

Json = dict[str, Any]
SESSIONS = 16
# Calls per second of the open loop that all peers get; those that cannot keep it up show that in their latency.
COMMON_RATE = 10
# The second open loop has this share of what the peer managed in the closed one.
SHARE = 0.5
IDLE_SESSIONS = 50


def profile(folder: Path, name: str, seconds: float, tool: str, size: str, rate: float | None) -> Path:
    kind = "loop: closed" if rate is None else "loop: open"
    phase = f"{{ for: {int(seconds * 1000)}ms" + ("" if rate is None else f", rate: {rate}") + " }"
    path = folder / f"{name}.yaml"
    path.write_text(
        f"{kind}\nsessions: {SESSIONS}\nin_flight: 1\nwarm_up: {int(seconds * 200)}ms\ntimeout: 30s\nrefused_max: 1\nphases: [{phase}]\n"
        f"mix: [{{ method: tools/call, tool: {json.dumps(tool)}, bytes: {size}, expect: echo }}]\n"
    )
    return path


def run(peer: Peer, name: str, seconds: float, size: str, rate: float | None, raw: Path) -> Json:
    """One load by the load tester. Its report, with the peer's processor time around the run added."""
    client = peer.client()
    where = profile(peer.tools.folder, f"{peer.name}-{name}", seconds, client.named("echo"), size, rate)
    result = raw / f"{peer.name}-{name}.json"
    key = client.headers.get("Authorization", "").removeprefix("Bearer ")
    command = [str(peer.tools.loadtest), "run", peer.url(), "--profile", str(where), "--json", str(result), "--name", peer.title]
    command += ["--key", key] if key else []
    command += [word for pid in peer.own_pids() for word in ("--pid", str(pid))]
    before = peer.usage()
    ran = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 150, preexec_fn=lambda: os.sched_setaffinity(0, load_cores()), check=False)
    after = peer.usage()
    if not result.exists():
        return {"failed": (ran.stderr or ran.stdout)[-300:]}
    report = json.loads(result.read_text())
    answered = sum(figures["calls"] for figures in report["operations"].values())
    # The load tester leaves its warm-up out of its calls, and the processor time has it.
    calls = answered * (report["measured_s"] + seconds * 0.2) / max(report["measured_s"], 0.001)
    cpu = (after.cpu_s - before.cpu_s) * 1e6 / calls if calls and peer.program else None
    return {
        "calls_per_second": report["rate"], "latency_ms": report["latency"], "cpu_us_per_call": cpu, "refused": report["refused"],
        "faults": report["faults"], "report": result.name,
    }


def load_cores() -> set[int]:
    cores = os.sched_getaffinity(0)
    return {LOAD_CORE} if len(cores) > 1 and LOAD_CORE in cores else cores


def shown(usage: Usage) -> Json:
    return {"own_bytes": usage.own_bytes, "server_bytes": usage.backend_bytes, "processes": usage.processes}


def memory(peer: Peer) -> Json:
    """After the start, with one session; and what each further idle session adds, with the process it may have."""
    if not peer.program:
        return {}
    time.sleep(1)
    rest = peer.usage()
    clients, failed = [], ""
    for _ in range(IDLE_SESSIONS):
        try:
            clients.append(peer.client().open())
        except (Unanswered, OSError) as error:
            failed = str(error)
            break
    time.sleep(1)
    full = peer.usage()
    count = max(len(clients), 1)
    result = {
        "rest": shown(rest), "sessions": len(clients), "per_session_bytes": (full.own_bytes - rest.own_bytes) / count,
        "per_session_server_bytes": (full.backend_bytes - rest.backend_bytes) / count, "processes_per_session": (full.processes - rest.processes) / count,
    }
    return result | ({"failed": failed} if failed else {})


def measure(peers: list[Peer], seconds: float, rounds: int, raw: Path, told) -> dict[str, Json]:
    """All peers in turns, so that other work on the machine meets each of them. The middle round counts."""
    found: dict[str, Json] = {peer.name: {"closed": [], "closed_4kb": [], "open_common": [], "open_half": []} for peer in peers}
    for number in range(rounds):
        for peer in peers:
            told(f"load, round {number + 1} of {rounds}: {peer.title}")
            try:
                peer.start("load")
                if number == 0:
                    found[peer.name]["memory"] = memory(peer)
                    peer.stop()
                    peer.start("load")
                runs = found[peer.name]
                runs["closed"].append(run(peer, f"closed-{number}", seconds, "256", None, raw))
                runs["closed_4kb"].append(run(peer, f"closed-4kb-{number}", seconds, "4KB", None, raw))
                runs["open_common"].append(run(peer, f"open-{number}", seconds, "256", COMMON_RATE, raw))
                half = max(1.0, SHARE * runs["closed"][-1].get("calls_per_second", 2.0))
                runs["open_half"].append(run(peer, f"half-{number}", seconds, "256", round(half, 1), raw))
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                found[peer.name].setdefault("failed", str(error)[-600:])
            finally:
                peer.stop()
    return {name: {kind: middle(runs) if isinstance(runs, list) else runs for kind, runs in kinds.items()} for name, kinds in found.items()}


def middle(runs: list[Json]) -> Json:
    """The run with the median rate, with all runs' figures in it."""
    good = sorted((run for run in runs if "failed" not in run), key=lambda run: run["calls_per_second"])
    if not good:
        return runs[0] if runs else {}
    cpu = sorted(run["cpu_us_per_call"] for run in good if run["cpu_us_per_call"] is not None)
    return good[(len(good) - 1) // 2] | ({"cpu_us_per_call": cpu[(len(cpu) - 1) // 2]} if cpu else {}) | {"rounds": [[run["calls_per_second"], run["cpu_us_per_call"]] for run in good]}
