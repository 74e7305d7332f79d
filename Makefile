# Everything here is one line over scripts/setup.py, which also works without make: python3 scripts/setup.py demo
PYTHON ?= python3
SETUP = $(PYTHON) scripts/setup.py
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-lite demo-full demo-stream demo-shops demo-checkout demo-ledger demo-together test test-all test-pythons bench bench-all bench-spark proofs chaos simulate mutants fuzz docs check format lock clean

help:       ## list these targets
	@sed -n 's/^\([a-z-]*\): *## /  make \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo:       ## a sample of a year of real flights from Spark through worker processes and back, checked (ARGS="…" is passed on)
	@$(SETUP) demo $(ARGS)

demo-lite:  ## the same in plain Python: half a gigabyte less to install, and no Java
	@$(SETUP) demo-lite $(ARGS)

demo-full:  ## the whole year
	@$(SETUP) demo-full $(ARGS)

demo-stream: ## a stream of real purchases, with invalid rows, a query that is stopped, and dead letters that are repaired
	@$(SETUP) demo-stream $(ARGS)

demo-shops: ## shops under a partner's rate limit, books closed at night, a debounced index, refunds; workers are killed all the while
	@$(SETUP) demo-shops $(ARGS)

demo-checkout: ## orders over three services: a payment provider that fails, a person who approves; a worker is killed each second
	@$(SETUP) demo-checkout $(ARGS)
demo-ledger: ## transfers in PostgreSQL through outbox, bus and inbox; tellers, relays, workers are killed, connections cut
	@$(SETUP) demo-ledger $(ARGS)

demo-together: ## an event with three subscriptions, one of them parked, transfers between accounts, and a chord of pictures; a worker is killed each second
	@$(SETUP) demo-together $(ARGS)

test:       ## the tests but the slow ones, those of Spark where there is a Java 17 (ARGS="-k word -x" is passed on to pytest)
	@$(SETUP) test $(ARGS)

test-all:   ## all tests, those of conformance on every server: about an hour
	@$(SETUP) test-all $(ARGS)

test-pythons: ## the unit tests on the other Pythons at hand, of 3.11 to 3.13, and the conformance tests on the newest
	@$(SETUP) test-pythons $(ARGS)

bench:      ## a quick measurement: the bus beside the floor and the peers that matter (ARGS="drain call --runs 3 --json FILE")
	@$(SETUP) bench $(ARGS)

bench-all:  ## everything, with all peers: about half an hour (ARGS="--server embedded --json FILE")
	@$(SETUP) bench-all $(ARGS)

bench-spark: ## what Spark's way into the bus costs, beside bare pipelines (ARGS="--rows 100000")
	@$(SETUP) bench-spark $(ARGS)

proofs:     ## Spark on clusters: a million rows, speculation, a lost executor, joins and skew, empty batches, a restored checkpoint, ways of shipping, Connect (ARGS="million --rows 100000")
	@$(SETUP) proofs $(ARGS)

fuzz:       ## the decoders on random bytes, led by coverage where atheris can be had (ARGS="--seconds 600")
	@$(SETUP) fuzz $(ARGS)

chaos:      ## ten minutes of faults on a real bus, and a verdict on what was recorded (ARGS="--seed 7 --seconds 60 --server redis --durability always")
	@$(SETUP) chaos $(ARGS)

simulate:   ## seeds of the deterministic simulator: faults, and every promise checked (ARGS="--seeds 20000", "--seed 4711 --seeds 1")
	@$(SETUP) simulate $(ARGS)

mutants:    ## break the code on purpose, one bug at a time: the tests must find each of the list, and mutmut's survivors are named (ARGS="--pure")
	@$(SETUP) mutants $(ARGS)

docs:       ## build the documentation site in build/site, warnings as errors
	@$(SETUP) docs

check:      ## ruff, mypy, pyright and the architecture tests
	@$(SETUP) check $(ARGS)

format:     ## let ruff sort imports and lay out the code
	@$(SETUP) format $(ARGS)

setup:      ## only make .venv
	@$(SETUP) setup

lock:       ## pin every package again in constraints.txt and constraints-spark.txt (needs uv; ARGS="--upgrade")
	@$(SETUP) lock $(ARGS)

clean:      ## remove the environments, caches and builds
	@$(SETUP) clean
