#!/usr/bin/env python3
"""Does what the Dockerfile says without a container engine, in clean folders, and runs the result as the image would.

    scripts/image_steps.py                    compiles, as the image does
    scripts/image_steps.py --binary PATH      takes a program that is built already; its list of sources stands in for the compiler

Checked: the build context (.dockerignore) holds all that the compiler reads; the program needs no library that the base
image lacks; it runs as the image's user on a root file system that is read-only; the health check says yes, and no once the
program is gone; SIGTERM ends it with 0; nothing secret is set. Called by `make test-deploy`.
Not done here: the packages of the base image are not installed, and no image is made of it.
"""

import argparse
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What debian:bookworm-slim has (packages libc6, libgcc-s1).
BASE_LIBRARIES = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libdl.so.2", "libpthread.so.0"}
START_WAIT_S = 20


class Fault(Exception):
    pass


def need(holds: bool, sentence: str) -> None:
    if not holds:
        raise Fault(sentence)


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(word.upper(), rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = []
    for step in instructions():
        if step[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(step)
    return found


def one(stage: list[tuple[str, str]], word: str) -> str:
    values = [rest for name, rest in stage if name == word]
    need(len(values) == 1, f"the last stage has {len(values)} {word}, one is expected")
    return values[0]


def ignored(path: str, patterns: list[str]) -> bool:
    out = False
    for pattern in patterns:
        plain = pattern.removeprefix("!").rstrip("/")
        if fnmatch.fnmatch(path, plain) or path.startswith(plain + "/") or plain == "*":
            out = not pattern.startswith("!")
    return out


def make_context(target: Path) -> None:
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in {".git", "target", "node_modules", "__pycache__"}]
        for name in files:
            path = (Path(folder) / name).relative_to(ROOT)
            if not ignored(str(path), patterns):
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, target / path)


def check_sources(binary: Path, context: Path) -> None:
    """The compiler's own list of what it read, against the context."""
    listed = binary.with_suffix(".d") if binary.suffix else Path(f"{binary}.d")
    need(listed.exists(), f"{listed} is missing: --binary takes a program where cargo built it")
    sources = shlex.split(listed.read_text().partition(": ")[2])
    root = os.path.commonpath(sources)
    inside = [os.path.relpath(path, root) for path in sources]
    need(len(inside) > 100, f"{listed} names only {len(inside)} files")
    missing = [path for path in inside if (ROOT / path).exists() and not (context / path).exists()]
    need(not missing, f"the build context lacks {', '.join(missing[:5])}: see .dockerignore")


def build(context: Path, binary: Path | None) -> Path:
    step = next(rest for word, rest in stages()[0] if word == "RUN")
    command = re.sub(r"--mount=\S+", "", step)
    program, out = command.split()
    need(program == "scripts/build-program.sh", f"the build stage does not call scripts/build-program.sh: {command}")
    subprocess.run(["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"], cwd=context, check=True, stdout=subprocess.DEVNULL)
    if binary:
        check_sources(binary, context)
        return binary
    built = context / out.lstrip("/")
    subprocess.run([f"./{program}", built], cwd=context, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(context / "target")})
    return built


def make_root(rootfs: Path, context: Path, built: Path) -> list[tuple[str, str]]:
    """The files that the last stage adds to its base."""
    stage = stages()[-1]
    for word, rest in stage:
        need(word != "ADD", "ADD does more than it says: use COPY")
        if word != "COPY":
            continue
        options = [part for part in rest.split() if part.startswith("--")]
        source, target = (part for part in rest.split() if not part.startswith("--"))
        origin = built if "--from=build" in options else context / source
        need(origin.exists(), f"COPY {source}: not in the build context")
        place = rootfs / target.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(origin, place)
        mode = next((part.partition("=")[2] for part in options if part.startswith("--chmod")), "0644")
        place.chmod(int(mode, 8))
    return stage


def check_words(stage: list[tuple[str, str]], rootfs: Path) -> None:
    user = one(stage, "USER")
    need(re.fullmatch(r"[1-9]\d*:[1-9]\d*", user) is not None, f"USER {user}: orchestrators want numbers, and not root")
    for value in (rest for word, rest in stage if word in {"ENV", "ARG"}):
        need(not re.search(r"secret|token|password|_key", value, re.I), f"ENV {value}: no secret belongs in an image")
        need("MCP_BROKER__" not in value, f"ENV {value}: it would win over everybody's configuration file")
    program = json.loads(one(stage, "ENTRYPOINT"))[-1]
    health = json.loads(one(stage, "HEALTHCHECK").partition("CMD ")[2])[0]
    for path in (program, health):
        need((rootfs / path.lstrip("/")).exists(), f"{path} is not in the image")
    libraries = subprocess.run(["ldd", rootfs / program.lstrip("/")], check=True, capture_output=True, text=True).stdout
    names = {Path(line.split()[0]).name for line in libraries.splitlines()}
    extra = {name for name in names if not name.startswith("ld-linux")} - BASE_LIBRARIES
    need(not extra, f"the program needs {', '.join(sorted(extra))}, which the base image does not have")
    toolchain = re.search(r'channel = "([\d.]+)"', (ROOT / "rust-toolchain.toml").read_text())[1]
    need(f"rust:{toolchain}-slim" in (ROOT / "Dockerfile").read_text(), f"the Dockerfile does not build with Rust {toolchain}")


def contained(rootfs: Path, home: Path, user: str) -> list[str]:
    """A prefix that runs a command as `user` where nothing but `home` can be written; empty where the system forbids that."""
    number, _, group = user.partition(":")
    within = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    script = f"mount --make-rprivate / && mount --bind {shlex.quote(str(home))} {shlex.quote(str(home))} && mount -o remount,bind,ro / "
    # Temporary folders are often file systems of their own, and writable ones.
    script += f"&& mount -o remount,bind,rw {shlex.quote(str(home))} && cd {shlex.quote(str(home))} && "
    script += f'exec setpriv --reuid={number} --regid={group} --clear-groups --no-new-privs "$@"' if os.geteuid() == 0 else 'exec "$@"'
    prefix = [*within, "sh", "-ec", script, "sh"]
    tried = subprocess.run([*prefix, "true"], capture_output=True, text=True)
    return prefix if tried.returncode == 0 else []


def run(rootfs: Path, stage: list[tuple[str, str]], home: Path) -> str:
    user = one(stage, "USER")
    if os.geteuid() == 0:
        os.chown(home, *map(int, user.split(":")))
    prefix = contained(rootfs, home, user)
    program = [str(rootfs / json.loads(one(stage, "ENTRYPOINT"))[-1].lstrip("/")), *json.loads(one(stage, "CMD"))]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "MCP_BROKER__LISTEN__HTTP": "127.0.0.1:0", "MCP_BROKER__LISTEN__ADMIN": "127.0.0.1:0"}
    log = open(home.parent / "log", "w+")
    broker = subprocess.Popen([*prefix, *program], env=environment, cwd=home, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        signal.alarm(START_WAIT_S)
        ready = broker.stdout.readline()
        signal.alarm(0)
        if not ready.startswith("ready "):
            log.seek(0)
            raise Fault(f"the broker did not start: {log.read()[-800:]}")
        admin = dict(pair.split("=") for pair in ready.split()[1:])["admin"]
        health = [str(rootfs / json.loads(one(stage, "HEALTHCHECK").partition("CMD ")[2])[0].lstrip("/"))]
        asks = {**environment, "MCP_BROKER_HEALTH_ADDRESS": admin}
        for arguments in ([], ["ready"]):
            need(subprocess.run([*prefix, *health, *arguments], env=asks).returncode == 0, f"the health check {arguments} fails while the broker runs")
        status = Path(f"/proc/{broker.pid}/status").read_text()
        if prefix and os.geteuid() == 0:
            need(f"Uid:\t{user.split(':')[0]}\t" in status, "the broker does not run as the image's user")
            need(subprocess.run([*prefix, "touch", str(rootfs / "x")], capture_output=True).returncode != 0, "the root file system is not read-only")
        broker.send_signal(signal.SIGTERM)
        need(broker.wait(START_WAIT_S) == 0, f"SIGTERM ended the broker with {broker.returncode}")
        need(subprocess.run(health, env=asks, capture_output=True).returncode != 0, "the health check succeeds without a broker")
    finally:
        broker.kill()
        broker.wait()
    return f"as {user} on a read-only root" if prefix else "NOT as another user on a read-only root, which this system does not allow here"


def main() -> int:
    asked = argparse.ArgumentParser()
    asked.add_argument("--binary", type=Path)
    binary = asked.parse_args().binary
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(Fault("the broker was not ready in time")))
    # The image's user has to get through to it.
    with tempfile.TemporaryDirectory(prefix="mcp-broker-image-") as folder:
        work = Path(folder)
        work.chmod(0o755)
        context, rootfs, home = (work / name for name in ("context", "rootfs", "home"))
        for made in (context, rootfs, home):
            made.mkdir()
        try:
            make_context(context)
            built = build(context, binary and binary.resolve())
            stage = make_root(rootfs, context, built)
            check_words(stage, rootfs)
            how = run(rootfs, stage, home)
        except (Fault, subprocess.CalledProcessError) as fault:
            print(f"image-steps: {fault}", file=sys.stderr)
            return 1
        files = sum(1 for path in context.rglob("*") if path.is_file())
        print(f"image-steps: {files} files of context, program of {built.stat().st_size >> 20} MiB, ran {how}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
