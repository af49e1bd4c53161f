"""Reads docker-compose.yml as what to start on this machine: the same commands, environment and files, in which names of
services, ports and paths inside containers are replaced by what they are here. Used by topology.py and check_compose.py."""

import random
import re
import socket
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
# Below the ports that the kernel assigns: a port stays reserved while its server restarts.
PORTS = range(15_000, 32_000)


def held_port() -> tuple[socket.socket, int]:
    """A free port, and the socket that reserves it until it is closed."""
    while True:
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", port := random.choice(PORTS)))
        except OSError:
            held.close()
            continue
        return held, port


class Compose:
    """`here` is a folder for the copies of configuration files."""

    def __init__(self, here: Path) -> None:
        self.here = here
        self.file = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        self.services: dict[str, dict] = self.file["services"]
        self.ports: dict[tuple[str, int], int] = {}
        self.held: list[socket.socket] = []

    def address(self, service: str, port: int) -> str:
        """Where `service:port` of the compose file is here."""
        if (service, port) not in self.ports:
            # Held until all are chosen, so that none is given out twice.
            held, self.ports[service, port] = held_port()
            self.held.append(held)
        return f"127.0.0.1:{self.ports[service, port]}"

    def release_ports(self) -> None:
        while self.held:
            self.held.pop().close()

    def mounts(self, service: str) -> list[tuple[Path, str]]:
        """Files of the repository and where the service sees them; volumes with a name are none."""
        described = self.services[service]
        found = []
        for volume in described.get("volumes", []):
            source, target = volume.split(":")[:2]
            if source.startswith("."):
                found.append((ROOT / source, target))
        return found

    def fixed_addresses(self) -> list[str]:
        """Addresses that the file gives to services; all services of this machine have 127.0.0.1."""
        networks = [service.get("networks", {}).get("default", {}) for service in self.services.values()]
        return [network["ipv4_address"] for network in networks if "ipv4_address" in network]

    def secrets(self, service: str) -> list[tuple[str, str]]:
        return [(name, f"/run/secrets/{name}") for name in self.services[service].get("secrets", [])]

    def local(self, service: str, text: str, more: dict[str, str] | None = None) -> str:
        """`text` as it has to be for a process of `service` on this machine."""
        for path, replacement in (more or {}).items():
            text = text.replace(path, replacement)
        for address in self.fixed_addresses():
            text = text.replace(address, "127.0.0.1")
        for name, target in self.secrets(service):
            text = text.replace(target, str(self.here / "secrets" / name))
        for source, target in sorted(self.mounts(service), key=lambda mount: -len(mount[1])):
            text = text.replace(target, str(self.copied(service, source)))
        names = "|".join(re.escape(name) for name in self.services)
        text = re.sub(rf"\b({names}):(\d+)\b", lambda found: self.address(found[1], int(found[2])), text)
        # HAProxy names the port of its health checks apart.
        text = re.sub(rf"(\bserver ({names}) .* port )(\d+)", lambda found: found[1] + self.address(found[2], int(found[3])).split(":")[1], text)
        return re.sub(r"(?:(?<=\s)|(?<=^)|0\.0\.0\.0):(\d{4})\b", lambda found: self.address(service, int(found[1])), text)

    def copied(self, service: str, source: Path) -> Path:
        return self.here / service / source.name

    def write_files(self, service: str, more: dict[str, str] | None = None) -> None:
        """The service's files, as they have to be here. Nothing in them may lead out of this machine afterwards."""
        for source, _ in self.mounts(service):
            if source.is_dir():
                continue
            text = self.local(service, source.read_text(), more)
            left = [name for name in self.services if re.search(rf"\b{re.escape(name)}:\d", text)]
            if left:
                raise ValueError(f"{source}: {left} are still in it")
            target = self.copied(service, source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)

    def command(self, service: str, more: dict[str, str] | None = None) -> list[str]:
        return [self.local(service, part, more) for part in self.services[service].get("command", [])]

    def environment(self, service: str, more: dict[str, str] | None = None) -> dict[str, str]:
        return {name: self.local(service, str(value), more) for name, value in self.services[service].get("environment", {}).items()}
