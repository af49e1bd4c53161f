#!/usr/bin/env python3
"""Entry point of the images that stand in for the services of docker-compose.yml: `stand_in.py SERVICE ARGUMENTS`.

The distribution's programs run as the images of Docker Hub would run them. Grafana and the collector are none of its
packages: HAProxy takes their places and accepts every request.
"""

import os
import subprocess
import sys
from glob import glob
from pathlib import Path


def postgres() -> None:
    tools = Path(sorted(glob("/usr/lib/postgresql/*/bin"))[-1])
    data = Path("/var/lib/postgresql/data")
    as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    Path("/var/run/postgresql").mkdir(exist_ok=True)
    for path in ("/var/run/postgresql", data):
        subprocess.run(["chown", "postgres:postgres", path], check=True)
    if not (data / "PG_VERSION").exists():
        user, database = os.environ["POSTGRES_USER"], os.environ["POSTGRES_DB"]
        password = os.environ["POSTGRES_PASSWORD_FILE"]
        subprocess.run([*as_user, tools / "initdb", "-D", data, "-E", "UTF8", "-A", "scram-sha-256", "-U", user, "--pwfile", password], check=True)
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all all scram-sha-256\n")
        single = [*as_user, tools / "postgres", "--single", "-D", data, "postgres"]
        subprocess.run(single, input=f'create database "{database}"\n', text=True, check=True)
    os.execvp(as_user[0], [*as_user, str(tools / "postgres"), "-D", str(data), "-c", "listen_addresses=*"])


def main() -> None:
    service, *arguments = sys.argv[1:]
    match service:
        case "postgres":
            postgres()
        case "redis":
            os.execvp(arguments[0], arguments)
        case "balancer":
            os.execvp("haproxy", ["haproxy", "-W", "-db", "-f", "/usr/local/etc/haproxy/haproxy.cfg"])
        case "prometheus":
            os.execvp("prometheus", ["prometheus", *arguments])
        case _:
            os.execvp("haproxy", ["haproxy", "-db", "-f", "/accepts.cfg"])


if __name__ == "__main__":
    main()
