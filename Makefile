# The commands people need; `cargo xtask` holds whatever takes more than a line.

.DEFAULT_GOAL := help
.PHONY: help up test lint bench conformance peers clean

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

up: ## build weft and start the playground: a cluster network on this machine (ARGS="--once" to see and leave)
	@ARGS="$(ARGS)" cargo xtask up

test: ## set up, then check everything that CI checks
	@cargo xtask test

lint: ## check the format and run clippy
	@cargo xtask lint

bench: ## run the benchmarks; PART=runtime for one crate, QUICK=1 to see only that they run
	@PART=$(PART) QUICK=$(QUICK) cargo xtask bench

conformance: ## run the tests that can against a real kube-apiserver (after make peers)
	@cargo xtask conformance

peers: ## build the pinned Kubernetes and etcd into a cache directory (needs Go)
	@cargo xtask peers

clean: ## stop what was started and remove what was built
	@cargo xtask clean
