#!/usr/bin/env python3
"""Measures peers side by side and writes docs/field.md: `run.py --broker PROGRAM --loadtest PROGRAM [--only NAME…] [--parts …]`.

Called by `make field`. `--check` only reads the configurations. Everything listens on 127.0.0.1.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import attacks  # noqa: E402
import clients  # noqa: E402
import load  # noqa: E402
import page  # noqa: E402
import peers as catalog  # noqa: E402
import survival  # noqa: E402
from processes import ROOT, machine  # noqa: E402

RESULTS = ROOT / "field/results"
PARTS = ("load", "conformance", "clients", "survival", "attacks")


def told(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def each(peers: list[catalog.Peer], what: str, measure) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for peer in peers:
        told(f"{what}: {peer.title}")
        try:
            found[peer.name] = measure(peer)
        except Exception as error:  # a peer that cannot be measured is a result, and must not end the run
            found[peer.name] = {"failed": f"{type(error).__name__}: {error}"[-400:]}
            told(f"{what}: {peer.title}: {found[peer.name]['failed']}")
        finally:
            peer.stop()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--broker", type=Path, default=ROOT / "target/release/mcp-broker")
    parser.add_argument("--loadtest", type=Path, default=ROOT / "target/release/mcp-loadtest")
    parser.add_argument("--peers", type=Path, default=catalog.FIELD / "peers.yaml", help="another list of peers")
    parser.add_argument("--only", nargs="*", default=[], help="names of peers")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seconds", type=float, default=5, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the raw data")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/field.md")
    parser.add_argument("--check", action="store_true", help="only read the configurations")
    options = parser.parse_args()
    # The end of this program is the end of everything that it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    with tempfile.TemporaryDirectory(prefix="mcp-field-") as name:
        folder = Path(name)
        tools = catalog.Tools(options.broker.resolve(), options.loadtest.resolve(), folder)
        try:
            every = catalog.load(tools, options.peers)
            for peer in every.values():
                peer.check()
        except (catalog.Unusable, OSError, ValueError) as fault:
            print(f"run.py: {options.peers}: {fault}", file=sys.stderr)
            return 64
        if unknown := set(options.only) - set(every):
            print(f"run.py: no peer is called {', '.join(sorted(unknown))}; there are {', '.join(every)}", file=sys.stderr)
            return 64
        chosen = [peer for peer in every.values() if not options.only or peer.name in options.only]
        if options.check:
            print(f"{len(chosen)} configurations read: {', '.join(peer.name for peer in chosen)}")
            return 0
        from issuer import Issuer  # what it needs is installed with the peers, and --check does without

        tools.issuer = Issuer(folder)
        options.results.mkdir(parents=True, exist_ok=True)
        file = options.results / "field.json"
        about = {
            peer.name: {"title": peer.title, "made_for": peer.spec["made_for"], "note": peer.spec.get("note", ""), "version": peer.version(), "behind": peer.spec["backend"], "callers": peer.spec.get("callers")}
            for peer in chosen
        }
        here = machine()
        measures = {
            "conformance": clients.conformance, "clients": clients.sdk_clients, "survival": survival.survives, "attacks": attacks.attack,
        }
        for part in options.parts:
            if part == "load":
                found: dict[str, Any] = load.measure(chosen, options.seconds, options.rounds, folder, told)
                page.picture(tools, folder, chosen, found, ROOT / "docs/images" if options.results == RESULTS else options.results)
            else:
                found = each(chosen, part, measures[part])
            # Parts can run at the same time, each in a process of its own.
            results = json.loads(file.read_text()) if file.exists() else {}
            results["peers"] = {name: (results.get("peers", {}) | about).get(name) for name in every if name in results.get("peers", {}) | about}
            results["date"] = time.strftime("%Y-%m-%d", time.gmtime())
            if part == "load":
                results["rounds"], results["seconds"] = options.rounds, options.seconds
            results["machine"] = here if part == "load" or "machine" not in results else results["machine"]
            results[part] = results.get(part, {}) | found
            file.write_text(json.dumps(results, indent=1) + "\n")
    if options.page.exists():
        page.write(options.page, results)
    tools.issuer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
