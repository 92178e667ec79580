# What people and CI call. `make help` lists it.

NATS_SERVER := nats/.bin/nats-server
FEATURES    := --workspace --features taskparty/failpoints
# `taskparty bench` says what it was built from.
RELEASE     := TASKPARTY_COMMIT=$$(git describe --always --dirty 2>/dev/null) cargo build --release

.DEFAULT_GOAL := help
.PHONY: help bench-smoke chaos soak demo build test test-all test-disk check fmt lint docs test-cli test-langs nats-server nats-cli clean-data

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST) | expand -t 22

demo: nats-server ## Watch jobs fire, retry, fail and settle bills, on a real nats-server
	$(RELEASE) -p taskparty
	target/release/taskparty dev --demo

build: ## Build the binary, target/release/taskparty
	$(RELEASE) -p taskparty

nats-server: ## Find a nats-server, or install the pinned one into nats/.bin
	@nats/install.sh >/dev/null

nats-cli: ## Install the nats command line of the version that the tests use, into nats/.bin
	@nats/install-cli.sh >/dev/null

test: nats-server ## All tests that need Rust and Python only
	cargo test $(FEATURES)

test-all: test check test-cli test-langs ## Those, and what needs more of a machine: lints, docs, the nats command line, Node, Go

test-disk: nats-server ## A disk that is really full: needs the right to mount a file system of its own
	cargo test $(FEATURES) --test faults --no-run
	d=$$(mktemp -d) && unshare --map-root-user --mount sh -c "mount -t tmpfs -o size=48m none $$d && \
	TASKPARTY_TEST_SMALL_DISK=$$d cargo test $(FEATURES) --test faults -- --ignored when_the_disk_is_full"; \
	code=$$?; rmdir $$d; exit $$code

test-cli: nats-server nats-cli
	cargo test $(FEATURES) --test e2e -- --ignored

test-langs: nats-server ## The executors in Python, TypeScript and Go, through the cases that Rust's passes
	examples/install.sh
	cargo test $(FEATURES) --test conformance -- --ignored --test-threads 4 python:: typescript:: go::

chaos: nats-server ## Ten minutes of kills, freezes and cuts while jobs run, then an audit (SEED=, MINUTES=, RATE=)
	$(RELEASE) -p taskparty -p taskparty-chaos
	target/release/taskparty-chaos run $(if $(SEED),--seed $(SEED)) --minutes $(or $(MINUTES),10) --rate $(or $(RATE),200)

soak: nats-server ## Many runs that do nothing: none may be missing, no process may grow (RUNS=, RATE=)
	$(RELEASE) -p taskparty -p taskparty-chaos
	target/release/taskparty-chaos soak --runs $(or $(RUNS),200000) --rate $(or $(RATE),1000)

bench-smoke: nats-server ## Each measurement of `taskparty bench`, briefly, so that they keep working
	cargo test $(FEATURES) --test bench

check: fmt lint docs ## Formatting, lints, documentation: no warning is left

fmt:
	cargo fmt --all --check

lint:
	cargo clippy $(FEATURES) --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

clean-data: ## Remove what nats/install.sh and nats/install-cli.sh installed
	rm -rf nats/.bin
