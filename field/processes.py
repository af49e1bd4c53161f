"""Processes of the benchmark: start, end, and what a tree of them uses, from /proc."""

import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
ROOT = Path(__file__).resolve().parents[1]
# Peers and what they start run on the first processor; the load tester and HTTP backends on the second.
PEER_CORE, LOAD_CORE = 0, 1


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def is_listening(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.settimeout(0.5)
        return attempt.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Usage:
    """`own` is the peer, `backends` what it started as its stdio servers."""

    cpu_s: float = 0.0
    own_bytes: int = 0
    backend_bytes: int = 0
    processes: int = 0


class Program:
    """A process and everything that it starts."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], folder: Path, core: int) -> None:
        self.name, self.folder = name, folder
        cores = os.sched_getaffinity(0)
        self.core = {core} if len(cores) > 1 and core in cores else cores
        self.log = folder / f"{name}.log"
        base = {"PATH": os.environ["PATH"], "HOME": str(folder), "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, env=base | environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, self.core),
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the process and all that it started, as the out-of-memory killer of a container does."""
        for pid in [*tree(self.pid), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(10)

    def stop(self) -> None:
        pids = tree(self.pid)
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            pass
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(10)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-800:]

    def pids_without(self, is_backend) -> list[int]:
        return [pid for pid in tree(self.pid) if not is_backend(command_of(pid))]

    def usage(self, is_backend) -> Usage:
        total = Usage()
        for pid in tree(self.pid):
            try:
                command = command_of(pid)
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
                memory = proportional(pid)
            except (OSError, IndexError):
                continue
            total.processes += 1
            if is_backend(command):
                total.backend_bytes += memory
            else:
                total.own_bytes += memory
                total.cpu_s += (int(fields[11]) + int(fields[12])) / TICKS
        return total


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def tree(root: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def proportional(pid: int) -> int:
    """Resident memory, where pages that several processes share count in parts (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def wait_until(what: str, holds, program: Program | None = None, within: float = 60) -> None:
    end, last = time.monotonic() + within, ""
    while time.monotonic() < end:
        try:
            if holds():
                return
        except Exception as error:  # a server that is not ready yet may answer in any way
            last = f": {type(error).__name__} {error}"
        if program and not program.is_alive():
            break
        time.sleep(0.1)
    raise RuntimeError(f"waited for {what}{last}" + (f"\n{program.tail()}" if program else ""))


def machine() -> dict[str, str]:
    info = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":", 1)[1].strip() for line in info.splitlines() if line.startswith("model name")), os.uname().machine)
    memory = next(line.split()[1] for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    system = next((line.split("=", 1)[1].strip('"') for line in Path("/etc/os-release").read_text().splitlines() if line.startswith("PRETTY_NAME")), "")
    return {
        "processor": model, "processors": str(os.cpu_count()), "memory": f"{int(memory) / 1048576:.1f} GiB",
        "kernel": os.uname().release, "system": system, "load before the run": " ".join(f"{load:.2f}" for load in os.getloadavg()),
    }
