# The commands of this project. A newcomer needs only `make run` and `make test`; CI runs `.ci/run`.
.DEFAULT_GOAL := help
.PHONY: help run test test-grounds test-deploy test-containers chaos soak simulate mutants bench bench-report bench-check field loadtest autobahn check check-advisories check-deploy fuzz dist reproducible pgo

CARGO_OUTPUT := $${CARGO_TARGET_DIR:-target}

help:
	@echo "make run    build the broker and start it with a demo backend"
	@echo "make test   install what the tests need, then run all of them against the real binary"
	@echo "make test-grounds  the broker's tests on PostgreSQL with Redis, and over two replicas behind a balancer; SDKs and the conformance suite also on one process"
	@echo "make test-deploy  run the image's steps and the topology of docker-compose.yml without containers, and use it (part of make test)"
	@echo "make test-containers  build the image and start docker-compose.yml on a container engine of the distribution, and use it (part of make test; skipped without root)"
	@echo "make chaos  kill brokers under load for half an hour; SEED=N repeats the choices of a run, WHAT=tasks|points|rolling|expiry|limits selects a part"
	@echo "make soak   mixed load on two replicas for an hour: every answer right, and memory, descriptors and rows flat; TIME=10m, RATE=operations a second, OUT=folder for soak.svg"
	@echo "make simulate  run replicas, clients, stores and networks in one process in virtual time, with faults from a seed; SEED=N is the first seed, COUNT=N the number of seeds, LOG=debug prints the broker's log"
	@echo "make bench  measure what stores, event logs, wires, readers of JSON and idle connections cost, in a release build; takes some minutes (WHAT=persister|events|access|pins|toolsets|wires|envelope|documents|websocket|logs|rates|eras|idle|protection|placement|cluster selects one)"
	@echo "make bench-report  compare the broker with nginx and with a direct connection, and measure idle connections; writes the tables of docs/performance.md"
	@echo "make bench-check  compare the instructions of decoding, of a call's request and of its answer with the committed figures; fails beyond +5 % (ACCEPT=yes writes new figures)"
	@echo "make field  install other gateways, proxies and bridges of PyPI and npm, measure them together with the broker, and write docs/field.md; takes about an hour (PARTS='load attacks' and ONLY='broker nginx' select)"
	@echo "make loadtest  build the load tester, and print its usage"
	@echo "make autobahn  run the public WebSocket test suite against the broker's WebSocket layer; takes some minutes"
	@echo "make fuzz   try new inputs on everything that reads hostile bytes; TIME=60s|10m|1h for each target, WHAT=target selects one, SEED=N repeats a run"
	@echo "make mutants  change each expression of the code that keeps tenants and principals apart; a test must fail for each change (WHAT=FILE selects a file)"
	@echo "make dist   build the program, its bill of materials (CycloneDX) and their checksums into dist/"
	@echo "make pgo    record the calls that published programs are optimised for, into broker/pgo; takes some ten minutes"
	@echo "make reproducible  build the program in two folders and compare the bytes (PROFILE=dist; takes twice the time of a build)"
	@echo "make check  check formatting, lints, documentation, licences and versions of the dependencies, the syntax of the scripts, and the deployment files"
	@echo "make check-advisories  compare the dependencies with the RustSec database; it fetches the database from GitHub, so it is not part of make check"
	@echo "make check-deploy  the part of make check for the deployment files: image, compose file, chart, alerts and dashboards"

run:
	@scripts/need-toolchain.sh
	@echo "make run: building the broker in $(CARGO_OUTPUT)/quick. The first time takes about 5 minutes on two processors and less on more; after a change it takes 15 to 30 seconds. For measurements use make dist." >&2
	@cargo build --profile quick --locked -p mcp-broker
	@exec "$(CARGO_OUTPUT)/quick/mcp-broker" demo

test:
	@scripts/need-toolchain.sh
	@scripts/test.sh

test-grounds:
	@scripts/need-toolchain.sh
	@scripts/test.sh grounds

# BINARY=target/debug/mcp-broker names a program that is built already.
test-deploy:
	@scripts/need-toolchain.sh
	@scripts/test-deploy.sh $(if $(BINARY),--binary "$(BINARY)")

# BINARY=target/debug/mcp-broker names a program that is built already.
test-containers:
	@scripts/need-toolchain.sh
	@scripts/test-containers.sh $(if $(BINARY),--binary "$(BINARY)")

chaos:
	@scripts/need-toolchain.sh
	@scripts/chaos.sh $(if $(SEED),--seed $(SEED)) $(WHAT)

# BROKER=PATH names a program that is built already.
soak:
	@scripts/need-toolchain.sh
	@scripts/install-servers.sh >/dev/null
	@cargo build --release --locked -p mcp-broker
	@cargo build --locked -p testkit --bins
	@"$(CARGO_OUTPUT)/debug/soak" --broker "$(or $(BROKER),$(CARGO_OUTPUT)/release/mcp-broker)" --time $(or $(TIME),1h) $(if $(RATE),--rate $(RATE)) --out $(or $(OUT),"$(CARGO_OUTPUT)/soak")

simulate:
	@scripts/need-toolchain.sh
	@scripts/simulate.sh --seed $(or $(SEED),1) --count $(or $(COUNT),1) $(if $(LOG),--log $(LOG))

bench:
	@scripts/need-toolchain.sh
	@for bench in $(or $(WHAT),persister events access pins toolsets wires envelope documents websocket logs rates eras idle protection placement cluster); do \
		case $$bench in \
			access|pins|toolsets|envelope|documents|websocket|logs|rates) ;; \
			*) scripts/install-servers.sh && cargo build --release --locked -p mcp-broker || exit 1 ;; \
		esac; \
		case $$bench in persister|events|access|toolsets) features= ;; *) features=--no-default-features ;; esac; \
		case $$bench in eras) part="--bench report -- --only=eras" ;; *) part="--bench $$bench" ;; esac; \
		cargo bench --locked -p benches $$features $$part || exit 1; \
	done

bench-report:
	@scripts/need-toolchain.sh
	@scripts/install-servers.sh
	@scripts/build-program.sh "$(CARGO_OUTPUT)/published/mcp-broker"
	@MCP_BROKER_BINARY="$$(realpath "$(CARGO_OUTPUT)/published/mcp-broker")" cargo bench --locked -p benches --no-default-features --bench report -- --write

fuzz:
	@scripts/need-toolchain.sh
	@scripts/fuzz.sh --time $(or $(TIME),60s) $(if $(SEED),--seed $(SEED)) $(if $(ENGINE),--engine $(ENGINE)) $(WHAT)

# The list of files is in .cargo/mutants.toml.
mutants:
	@scripts/need-toolchain.sh
	@command -v cargo-mutants >/dev/null || { echo "make mutants: cargo install cargo-mutants --locked" >&2; exit 2; }
	@cargo mutants --jobs 1 --package rules --output "$(CARGO_OUTPUT)" $(if $(WHAT),--no-config --file "$(WHAT)")

dist:
	@scripts/need-toolchain.sh
	@scripts/dist.sh

pgo:
	@scripts/need-toolchain.sh
	@scripts/pgo.sh

reproducible:
	@scripts/need-toolchain.sh
	@scripts/reproducible.sh $(if $(PROFILE),--profile $(PROFILE))

bench-check:
	@scripts/need-toolchain.sh
	@scripts/install-servers.sh valgrind
	@cargo run --release --locked --quiet -p instructions -- $(if $(ACCEPT),--accept,--check)

field:
	@scripts/need-toolchain.sh
	@scripts/install-servers.sh
	@scripts/install-peers.sh >/dev/null
	@cargo build --release --locked -p mcp-broker -p loadtest
	@"$$(scripts/install-field.sh)/tools/bin/python" -B field/run.py --broker "$(CARGO_OUTPUT)/release/mcp-broker" --loadtest "$(CARGO_OUTPUT)/release/mcp-loadtest" $(if $(ONLY),--only $(ONLY)) $(if $(PARTS),--parts $(PARTS))

loadtest:
	@scripts/need-toolchain.sh
	@cargo build --release --locked -p loadtest
	@"$(CARGO_OUTPUT)/release/mcp-loadtest" --help

autobahn:
	@scripts/need-toolchain.sh
	@scripts/autobahn.sh

check:
	@scripts/need-toolchain.sh
	@scripts/check.sh

check-advisories:
	@scripts/need-toolchain.sh
	@scripts/dependencies.sh advisories

check-deploy:
	@scripts/check-deploy.sh
