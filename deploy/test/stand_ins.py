#!/usr/bin/env python3
"""Programs of the documentation's commands that no test can run: `stand_ins.py docker|helm|make|npx ARGUMENTS`.

snippets.py puts each on PATH under its name. A stand-in holds its command line, and the files that are named there, to what
the real program would ask for, and fails otherwise. It does as much of the rest as can be done here: Helm's own library renders the
chart; `compose up` starts one broker with the configuration, secrets and addresses of docker-compose.yml; `make run` starts
what the Makefile says; npx starts a real server.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml
from processes import wait_for

ENV = os.environ
# Where the stand-ins of one page remember what was done before.
BUILT = Path(ENV["STAND_INS"]) / "built"


def need(holds: object, sentence: str) -> None:
    if not holds:
        sys.exit(f"{' '.join(sys.argv[1:])}: {sentence}")


def docker(*arguments: str) -> None:
    match arguments:
        case ("build", "-t", tag, "."):
            need(Path("Dockerfile").is_file(), "this folder has no Dockerfile")
            BUILT.open("a").write(f"{tag}\n")
        case ("push", tag):
            need(BUILT.exists() and tag in BUILT.read_text().split(), "no command before this one built it")
        case ("compose", "up", *options):
            need(set(options) <= {"--build", "--wait", "--detach", "-d"}, "an option that compose does not have")
            compose_up(yaml.safe_load(Path("docker-compose.yml").read_text()))
        case ("compose", "exec", "-e", "MCP_BROKER_ADMIN_TOKEN", service, "mcp-broker", *command):
            need(service in yaml.safe_load(Path("docker-compose.yml").read_text())["services"], f"no service is called {service}")
            os.execvp("mcp-broker", ["mcp-broker", *command])
        case _:
            need(False, "not a command of Docker that this documentation may use")


def compose_up(file: dict) -> None:
    services = file["services"]
    for name, service in services.items():
        need("image" in service, f"{name} has no image")
        need("build" not in service or Path(service["build"], "Dockerfile").is_file(), f"{name}: its build has no Dockerfile")
        sources = [volume.split(":")[0] for volume in service.get("volumes", [])]
        need(all(Path(source).exists() if source.startswith(".") else source in file["volumes"] for source in sources), f"{name}: {sources} are not all there")
        secrets = [Path(file["secrets"][secret]["file"]) for secret in service.get("secrets", [])]
        need(all(secret.is_file() for secret in secrets), f"{name}: {secrets} are not all there; deploy/make-secrets.sh comes first")
        need(set(service.get("depends_on", [])) <= services.keys(), f"{name} depends on what is not there")
    # One broker in place of all of it, on SQLite: topology.py starts the whole.
    [mount] = [volume for volume in services["broker-1"]["volumes"] if volume.startswith(".")]
    config = yaml.safe_load(Path(mount.split(":")[0]).read_text().replace("/run/secrets/", f"{Path.cwd()}/deploy/secrets/").replace("/usr/local/bin/mcp-broker", ENV["BROKER"]))
    config["storage"] = {"url": "sqlite:./compose.db"}
    Path("compose.yaml").write_text(yaml.safe_dump(config))
    with open("compose.out", "w") as out, open("compose.log", "w") as log:
        started = subprocess.Popen([ENV["BROKER"], "serve", "--config", "compose.yaml"], stdout=out, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (Path(ENV["STAND_INS"]) / "composed").write_text(str(started.pid))
    wait_for("the broker to be ready", lambda: Path("compose.out").read_text().startswith("ready "))


def helm(*arguments: str) -> None:
    import helm_python

    match arguments:
        case ("install", name, chart, *options):
            values: dict = {}
            while options:
                option = options.pop(0)
                need(option in {"--namespace", "--create-namespace", "--set", "--values"}, f"{option} is not an option of these pages")
                if option == "--set":
                    path, value = options.pop(0).split("=", 1)
                    place = values
                    *groups, last = path.split(".")
                    for group in groups:
                        place = place.setdefault(group, {})
                    place[last] = yaml.safe_load(value)
                elif option == "--values":
                    values |= yaml.safe_load(Path(options.pop(0)).read_text())
                elif option == "--namespace":
                    options.pop(0)
            try:
                texts = helm_python.Chart.load(Path(chart)).render(values, name=name, namespace="mcp")
            except helm_python.HelmError as error:
                need(False, str(error))
            kinds = [document["kind"] for path, text in texts.items() if not path.endswith("NOTES.txt") for document in yaml.safe_load_all(text) if document]
            need("Deployment" in kinds, "nothing would be deployed")
            print(next(text for path, text in texts.items() if path.endswith("NOTES.txt")))
        case _:
            need(False, "not a command of Helm that this documentation may use")


def make(*targets: str) -> None:
    makefile = Path(ENV["ROOT"], "Makefile").read_text()
    for target in targets:
        need(re.search(rf"^{re.escape(target)}:", makefile, re.M), f"the Makefile has no {target}")
    if targets == ("run",):
        started = re.search(r'^run:\n(?:\t.*\n)*\t@exec ".*/quick/mcp-broker" (.*)$', makefile, re.M)
        need(started, "`make run` does not start the broker any more")
        os.execv(ENV["BROKER"], [ENV["BROKER"], *started[1].split()])


def npx(*arguments: str) -> None:
    need(arguments[:1] == ("-y",), "npx would ask before it installs")
    package, *rest = arguments[1:]
    folders = [Path(folder) for folder in rest]
    match package:
        case "@modelcontextprotocol/server-filesystem":
            need(folders and all(folder.is_dir() for folder in folders), f"{rest} are not all folders")
        case "@modelcontextprotocol/server-everything":
            need(not rest, "it takes no arguments")
        case _:
            need(False, "not a package that this documentation may use")
    # The one of the two that the tests have.
    os.execv(f"{ENV['NODE_BIN']}/node", ["node", f"{ENV['NODE_BIN']}/mcp-server-everything", "stdio"])


if __name__ == "__main__":
    stand_in = {"docker": docker, "helm": helm, "make": make, "npx": npx}[sys.argv[1]]
    with (Path(ENV["STAND_INS"]) / "record").open("a") as record:
        record.write(json.dumps(sys.argv[1:]) + "\n")
    stand_in(*sys.argv[2:])
