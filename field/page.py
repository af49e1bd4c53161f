"""Writes the measured part of docs/field.md, and the picture of the load."""

import subprocess
from pathlib import Path
from typing import Any

from attacks import ATTACKS, NONE, SAFE
from peers import Peer, Tools
from survival import LOST, SURVIVES

Json = dict[str, Any]
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
OURS = ("broker", "broker-stdio")
# Entries that are not a product.
FLOORS = ("direct",)


def picture(tools: Tools, raw: Path, peers: list[Peer], found: Json, folder: Path) -> None:
    """The open loop that all peers got, as the load tester draws it: the peers laid over each other."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = [found[peer.name].get("open_common", {}) for peer in peers]
    results = [str(raw / run["report"]) for run in runs if "report" in run]
    if results:
        subprocess.run([str(tools.loadtest), "report", *results, "--svg", str(folder / "field-open.svg")], check=True, stdout=subprocess.DEVNULL)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.0f} µs" if value < 1 else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms" if value < 10_000 else f"{value / 1000:.0f} s"


def mib(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1024:.0f} KiB" if abs(value) < 1048576 else f"{value / 1048576:.1f} MiB"


def grown(value: float) -> str:
    """Memory that a session added; little of it is noise of the allocator."""
    return "< 1 KiB" if value < 1024 else mib(value)


def micros(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} µs" if value >= 100 else f"{value:.1f} µs"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def names(results: Json) -> dict[str, str]:
    return {name: peer["title"] for name, peer in results["peers"].items()}


def what_was_measured(results: Json) -> str:
    rows = [[peer["title"], peer["version"] or "-", "a child process (stdio)" if peer["behind"] == "stdio" else "Streamable HTTP", f"{peer['made_for']}{'. Here: ' + peer['note'] if peer['note'] else ''}"] for peer in results["peers"].values()]
    machine = ", ".join(f"{name} {value}" if name.startswith("load") or name.startswith("memory") or name == "kernel" else value + (" processors" if name == "processors" else "") for name, value in results["machine"].items())
    rounds = f"Each load ran for {results.get('seconds', 0):g} s, rounds: {results.get('rounds', 0)}." if results.get("rounds") else ""
    return f"Measured on {results['date']}: {machine}. {rounds}\n\n" + table(["peer", "version", "the server behind it", "made for"], rows)


def cost(results: Json) -> str:
    head = ["peer", "calls/s, 256 B", "calls/s, 4 KB", "processor time a call", "p50, p99 at 10 calls/s", "p50, p99 at half its calls/s"]
    rows = []
    for name, title in names(results).items():
        load = results.get("load", {}).get(name, {})
        closed, large, common, half = (load.get(kind, {}) for kind in ("closed", "closed_4kb", "open_common", "open_half"))
        latency = [f"{ms(run.get('latency_ms', {}).get('p50'))}, {ms(run.get('latency_ms', {}).get('p99'))}" for run in (common, half)]
        rows.append([title, number(closed.get("calls_per_second")), number(large.get("calls_per_second")), micros(closed.get("cpu_us_per_call")), *latency])
    failures = [f"- {names(results)[name]}: {load[kind]['faults'][0]}" for name, load in results.get("load", {}).items() for kind in ("closed", "closed_4kb", "open_common", "open_half") if load.get(kind, {}).get("faults")]
    return table(head, rows) + ("\n\nAnswers that the load tester did not accept:\n\n" + "\n".join(failures) if failures else "")


def memory(results: Json) -> str:
    head = ["peer", "at rest", "a further idle session", "of the servers it starts, a session", "processes a session"]
    rows = []
    for name, title in names(results).items():
        found = results.get("load", {}).get(name, {}).get("memory") or {}
        if found:
            rows.append([title, mib(found["rest"]["own_bytes"]), grown(found["per_session_bytes"]), grown(found["per_session_server_bytes"]), f"{found['processes_per_session']:.1f}"])
    return table(head, rows)


def passed(found: Json) -> str:
    return f"{found['passed']} of {found['scenarios']}" if "scenarios" in found else "-"


def others(results: Json) -> str:
    rows = []
    for name, title in names(results).items():
        suite, clients = results.get("conformance", {}).get(name, {}), results.get("clients", {}).get(name, {})
        checks = [f"{one['passed']} of {one['passed'] + len(one['failed'])}" if one else "-" for one in (clients.get("TypeScript SDK"), clients.get("Python SDK"))]
        rows.append([title, passed(suite.get("2025-11-25", {})), passed(suite.get("2026-07-28", {})), *checks])
    return table(["peer", "suite, 2025-11-25", "suite, 2026-07-28", "TypeScript SDK", "Python SDK"], rows)


def survival(results: Json) -> str:
    parts = ("session", "stream", "task", "subscription")
    shown = {SURVIVES: "survives", LOST: "lost"}
    rows = [[title, *(shown.get(results.get("survival", {}).get(name, {}).get(part, {}).get("verdict", ""), "n/a") for part in parts)] for name, title in names(results).items() if name not in FLOORS]
    return table(["peer", *parts], rows)


def attacks(results: Json) -> str:
    shown = {SAFE: "safe", NONE: "n/a", "not safe": "**no**"}
    columns = [name for name in names(results) if results.get("attacks", {}).get(name)]
    rows = [[one.name, *(shown.get(results["attacks"][name].get(one.name, {}).get("verdict", ""), "-") for name in columns)] for one in ATTACKS]
    counted = [[results["attacks"][name].get(one.name, {}).get("verdict") for one in ATTACKS] for name in columns]
    rows.append(["safe, of those that apply", *(f"{verdicts.count(SAFE)} of {len(verdicts) - verdicts.count(NONE) - verdicts.count(None)}" for verdicts in counted)])
    meaning = table(["attack", "what is sent", "what counts as safe"], [[one.name, one.what, one.safe] for one in ATTACKS])
    return table(["attack", *(names(results)[name] for name in columns)], rows) + "\n\n" + meaning


def losses(results: Json) -> str:
    """Every figure and verdict in which another peer is better than the broker, and every attack that is not safe for it."""
    lines = []
    load, titles = results.get("load", {}), names(results)

    def compare(what: str, read, better, shown) -> None:
        mine = read(load.get("broker", {}))
        for name in titles:
            theirs = read(load.get(name, {}))
            if name not in (*OURS, *FLOORS) and mine is not None and theirs is not None and better(theirs, mine):
                lines.append(f"- {what}: {titles[name]} {shown(theirs)}, the broker {shown(mine)}.")

    compare("Calls a second, 256 B", lambda one: one.get("closed", {}).get("calls_per_second"), float.__gt__, number)
    compare("Calls a second, 4 KB", lambda one: one.get("closed_4kb", {}).get("calls_per_second"), float.__gt__, number)
    compare("Processor time a call", lambda one: one.get("closed", {}).get("cpu_us_per_call"), float.__lt__, micros)
    compare("p50 at 10 calls a second", lambda one: one.get("open_common", {}).get("latency_ms", {}).get("p50"), float.__lt__, ms)
    compare("Memory at rest", lambda one: (one.get("memory") or {}).get("rest", {}).get("own_bytes"), int.__lt__, mib)
    compare("Memory a session", lambda one: (one.get("memory") or {}).get("per_session_bytes"), float.__lt__, mib)
    for name in OURS:
        for revision, suite in results.get("conformance", {}).get(name, {}).items():
            direct = results["conformance"].get("direct", {}).get(revision, {}).get("failed", {})
            more = sorted(set(suite["failed"]) - set(direct)) if isinstance(suite, dict) else []
            if more:
                lines.append(f"- {titles[name]}, scenarios of {revision} that fail and do not fail directly: {', '.join(more)}.")
        for client, found in results.get("clients", {}).get(name, {}).items():
            if isinstance(found, dict) and found["failed"]:
                lines.append(f"- {titles[name]}, {client}: {len(found['failed'])} checks fail: {'; '.join(line.split(':')[0] for line in found['failed'])}.")
        for part, found in results.get("survival", {}).get(name, {}).items():
            if found["verdict"] == LOST:
                lines.append(f"- {titles[name]}, `kill -9`: the {part} is lost ({found['why']}).")
        for attack, found in results.get("attacks", {}).get(name, {}).items():
            if found["verdict"] == "not safe":
                lines.append(f"- {titles[name]}, {attack}: {found['why']}.")
    return "\n".join(lines) or "None in this run."


SECTIONS = [
    ("What was measured", what_was_measured), ("Cost", cost), ("Memory", memory), ("Conformance and real clients", others), ("After `kill -9`", survival),
    ("Attacks", attacks), ("What the broker loses", losses),
]


def write(path: Path, results: Json) -> None:
    text = path.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    measured = "\n\n".join(f"### {title}\n\n{section(results)}" for title, section in SECTIONS)
    path.write_text(f"{before}{BEGIN}\n{measured}\n{END}{after}")
