#!/usr/bin/env python3
"""What can be said of docker-compose.yml without a container engine. Called by deploy/check.sh."""

import re
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import yaml
from compose import ROOT, Compose

# Secrets are files: everyone who can inspect the container sees its environment.
SECRET_NAME = re.compile(r"(PASSWORD|TOKEN|SECRET)(?!.*(_FILE))", re.I)

# A URL of a store belongs into a secret, as its password does.
OPEN_STORE = re.compile(r"^\s*(redis_)?url:\s*(rediss?|postgres)", re.M)
# What each store's URL must say, as make-secrets.sh writes it.
STORE_URLS = {"database_url": r"postgres://\w+:\$\(.*\)@postgres:5432/\w+\?sslmode=\w", "redis_url": r"redis://:\$\(.*\)@redis:6379"}

# The default of shutdown.grace, and what the steps after it may take (docs/operations.md, "Stopping").
GRACE_S, CLOSING_S = 25, 40


def faults_of_stores(compose: Compose, made: str) -> list[str]:
    faults = [f"{name} lacks a password or sslmode" for name, wanted in STORE_URLS.items() if not re.search(rf'^make {name} "{wanted}', made, re.M)]
    [(conf, _)] = compose.mounts("redis")
    if not re.search(r"^include /run/secrets/redis_auth$", conf.read_text(), re.M) or "redis_auth" not in compose.services["redis"]["secrets"]:
        faults.append("redis takes no password")
    return faults


def faults_of_the_balancer(compose: Compose) -> list[str]:
    """Limits per address and the audit log need the addresses of clients, which only the balancer may name."""
    faults = []
    [address] = compose.fixed_addresses()
    if address not in str(compose.services["balancer"]["networks"]):
        faults.append("the fixed address is not the balancer's")
    [pool] = compose.file["networks"]["default"]["ipam"]["config"]
    if ip_address(address) not in ip_network(pool["subnet"]) or ip_address(address) in ip_network(pool["ip_range"]):
        faults.append(f"balancer: {address} is not in its network, or another container can get it")
    for name in ("broker-1", "broker-2"):
        config = next(source for source, target in compose.mounts(name) if target.endswith("mcp-broker.yaml"))
        listen = yaml.safe_load(config.read_text()).get("listen", {})
        for key in ("trusted_proxies", "admin_trusted_proxies"):
            if listen.get(key) != [f"{address}/32"]:
                faults.append(f"{name}: listen.{key} is {listen.get(key)}, and not the balancer alone")
    [(balancer, _)] = compose.mounts("balancer")
    for frontend in re.findall(r"^frontend (?:.+\n)+", balancer.read_text(), re.M):
        if "    http-request set-header x-forwarded-for %[src]\n" not in frontend:
            faults.append(f"balancer: {frontend.splitlines()[0]} does not name its clients")
    return faults


def faults_of(compose: Compose) -> list[str]:
    faults = []
    made = (ROOT / "deploy/make-secrets.sh").read_text()
    faults += faults_of_stores(compose, made)
    faults += faults_of_the_balancer(compose)
    for name, secret in compose.file["secrets"].items():
        if not re.search(rf"^make {name} ", made, re.M) or secret["file"] != f"./deploy/secrets/{name}":
            faults.append(f"secret {name} is not made by deploy/make-secrets.sh")
    for name, service in compose.services.items():
        faults += [f"{name}: {source} does not exist" for source, _ in compose.mounts(name) if not source.exists()]
        faults += [f"{name}: no secret is called {secret}" for secret, _ in compose.secrets(name) if secret not in compose.file["secrets"]]
        faults += [f"{name}: depends on {other}, which is not there" for other in service.get("depends_on", []) if other not in compose.services]
        volumes = [volume.split(":")[0] for volume in service.get("volumes", []) if not volume.startswith(".")]
        faults += [f"{name}: no volume is called {volume}" for volume in volumes if volume not in compose.file["volumes"]]
        faults += [f"{name}: {port} is open to other machines" for port in service.get("ports", []) if not port.startswith("127.0.0.1:")]
        faults += [f"{name}: {key} is a secret in the environment" for key in service.get("environment", {}) if SECRET_NAME.search(key)]
        sources = [source for source, _ in compose.mounts(name) if source.is_file()]
        faults += [f"{name}: {source.name} names a store without its password" for source in sources if OPEN_STORE.search(source.read_text())]
        image = service["image"]
        if not re.search(r":(?!latest$)[^/:]+$", image):
            faults.append(f"{name}: {image} names no version")
        if image == "mcp-broker:local":
            if not service.get("read_only") or service.get("cap_drop") != ["ALL"]:
                faults.append(f"{name}: the broker's file system is not read-only, or it has capabilities")
            if f"test: {service['healthcheck']['test']}".count("/usr/local/bin/mcp-broker-health") != 1:
                faults.append(f"{name}: its health is not checked by the image's program")
            # Programs that npx and uvx start are in the home: a tmpfs of Docker would forbid to execute them.
            if not any(volume.endswith(":/var/lib/mcp-broker") and not volume.startswith(".") for volume in service["volumes"]):
                faults.append(f"{name}: its home is not a volume")
            if int(service["stop_grace_period"].removesuffix("s")) < GRACE_S + CLOSING_S:
                faults.append(f"{name}: is killed before its drain is over")
    return faults


def main() -> int:
    faults = faults_of(Compose(Path("/nonexistent")))
    for fault in faults:
        print(f"check_compose: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
