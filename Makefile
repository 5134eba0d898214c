# The commands people need; `cargo xtask` holds whatever takes more than a line.

.DEFAULT_GOAL := help
.PHONY: help up test lint deny endurance bench conformance cluster peers clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

up: ## build weft and start the playground: a cluster network on this machine (ARGS="--once" to see and leave)
	@ARGS="$(ARGS)" cargo xtask up

test: ## set up, then check format, clippy, documentation, tests and that benchmarks run
	@cargo xtask test

lint: ## check the format and run clippy
	@cargo xtask lint

deny: ## check licences, sources and bans of dependencies with cargo-deny; advisories if WEFT_ADVISORY_DB names a database
	@cargo xtask deny

endurance: ## the long end-to-end runs: half a minute without API server, everything rootless, 90 s of changes and crashes
	@cargo xtask endurance

bench: ## run the benchmarks; PART=runtime or PART=proxy for some, QUICK=1 to see only that they run
	@PART=$(PART) QUICK=$(QUICK) cargo xtask bench

conformance: ## compare with the real kube-apiserver, kube-proxy and others (needs Go, root); PART=proxy for one, QUICK=1 for what CI does, CCM=path for a real Hetzner CCM
	@PART=$(PART) QUICK=$(QUICK) CCM=$(CCM) cargo xtask conformance

cluster: ## start a real Kubernetes cluster on this machine with Weft as its network (needs Go, root); ARGS="--nodes 3 --once", ARGS=--help
	@ARGS="$(ARGS)" cargo xtask cluster

peers: ## build the pinned Kubernetes and etcd into a cache directory (needs Go)
	@cargo xtask peers

clean: ## stop what was started and remove what was built
	@cargo xtask clean
