# The two commands of the first screen are `make demo` and `make test`; `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help
export PATH := $(PATH):$(HOME)/.cargo/bin

# Arguments of the demo, such as ARGS=--json (one object as the last line of standard output).
ARGS ?=
# Where cargo puts what it builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Runs a command where it may make network namespaces, as root or not.
INSIDE := tests/lab/inside

.PHONY: help demo test fmt lint bench deps unit
help: ## What can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: deps ## Three nodes in network namespaces, real DNS, rollout, kill -9: what a client sees
	@cargo build --release --quiet --package nodeward --package nodeward-loadgen --package nodeward-lab --bins
	$(INSIDE) $(TARGET)/release/demo $(ARGS)

test: deps lint unit ## Everything: formatting, lints, documentation, licences, unit, integration and laboratory tests

unit: deps
	@echo "== building the tests" >&2
	cargo test --workspace --no-run
	echo "== tests" >&2
	# The test network may have no way out; everything was fetched and built above.
	CARGO_NET_OFFLINE=true $(INSIDE) cargo test --workspace

fmt: ## Format the code
	@cargo fmt --all

lint: deps ## Formatting, clippy, documentation, licences
	@echo "== formatting" >&2
	if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
	    rustup component add rustfmt clippy
	fi
	cargo fmt --all --check
	echo "== clippy" >&2
	cargo clippy --workspace --all-targets -- -D warnings
	# The library that other programs use: no dataplane, no Kubernetes.
	cargo clippy --package nodeward --lib --no-default-features -- -D warnings
	echo "== documentation" >&2
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	echo "== licences and sources" >&2
	if ! cargo deny --version >/dev/null 2>&1 && ! cargo install cargo-deny --locked; then
	    echo "WARNING: cargo-deny is not installed and could not be: licences and sources were NOT checked." >&2
	else
	    cargo deny --log-level error check bans licenses sources
	fi

bench: deps ## Table benchmark: load, size, apply and lookup at 5000 x 100 endpoints
	@cargo build --release --quiet --package nodeward
	$(TARGET)/release/nodeward bench table --services 5000 --endpoints 100 -o json

deps: ## Install what build and tests need from Debian (as root), or say what is missing
	@tests/lab/prepare
