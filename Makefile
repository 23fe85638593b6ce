# Entry points. Everything that they need from Debian is installed on the way; cargo must be there.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
# VMs, taps and namespaces need root.
ROOT := $(if $(filter 0,$(shell id -u)),,sudo -E)
TARGET := $(or $(CARGO_TARGET_DIR),target)
LAB := $(ROOT) $(TARGET)/release/floodway-lab
# What `cargo test` builds.
DEBUG := $(abspath $(TARGET))/debug
# Seconds that each fuzz target runs.
FUZZ_SECONDS ?= 600
# Seconds of each in the smoke run.
FUZZ_SMOKE_SECONDS ?= 6
# Crates whose tests need neither root nor network nor VMs.
CHECKED := api core experiment layers report sim wire
# What `make bench-ab` compares this tree with, and by which bench.
BASE ?= HEAD
BENCH ?= offload
# Minutes that all property tests and fuzz targets share.
SOAK_MINUTES ?= 30
# Crates with other code where there are no debug assertions.
WITHOUT_ASSERTIONS := $(foreach crate,process switch,--config profile.dev.package.floodway-$(crate).debug-assertions=false)
FUZZ_TARGETS = $(shell cd fuzz && $(CARGO) +nightly fuzz list)

# Tests that boot VMs run as root, too.
ifneq ($(ROOT),)
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER := $(ROOT)
endif

.PHONY: help demo check test test-ray test-packages test-newer-qemu test-frontends test-libvirt test-metrics test-reports test-web packages lint unit prove bench bench-ab bench-sim fuzz fuzz-smoke soak docs results build compiler ready

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ready ## Floodway beside Linux bridge and tap; offload off and on: two tables, out/demo*/
	$(LAB) demo

check: compiler ## Before each commit: format, layers, words, clippy, unit and property tests without root or network
	$(CARGO) fmt --all --check
	$(CARGO) run -q --locked -p floodway-layers
	tools/words
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) test -q --locked $(addprefix -p floodway-,$(CHECKED))

test: compiler lint unit prove fuzz-smoke ## Everything that must pass: lints, all tests, end to end with VMs, fuzz targets for a while

test-ray: build ## Sweeps under a local Ray, in a Python environment of its own (285 MB from PyPI)
	tools/test-ray $(TARGET)/release/floodway-lab $(TARGET)/ray-venv

packages: build ## Debian packages of switch, lab and guest module, in target/debian
	CARGO=$(CARGO) tools/packages $(TARGET)

test-packages: packages ## Lintian; installs, upgrades, removes and purges the packages in a Debian of its own; then libvirt's VMs by the installed one there
	CARGO=$(CARGO) $(ROOT) tools/test-packages
	$(ROOT) tools/test-installed

test-newer-qemu: packages ## VMs by the installed package with QEMU and libvirt of bookworm-backports
	$(ROOT) tools/test-installed --backports

test-libvirt: build ## What the guide says of libvirt, with Debian's libvirt and two VMs
	$(ROOT) tools/test-libvirt $(TARGET)/release/floodway

test-frontends: build ## DPDK's virtio-user in many shapes against the switch (dpdk-dev of Debian; no hugepages)
	$(ROOT) tools/test-frontends $(TARGET)/release/floodway

test-metrics: compiler ## Metrics, alert rules and every query of the dashboard, with Debian's Prometheus beside a switch with busy VMs
	CARGO=$(CARGO) $(ROOT) tools/test-metrics $(TARGET)

test-reports: build ## Pages of simulated reports and the book's figures in headless Chromium, wide and narrow, light and dark; screenshots
	$(ROOT) tools/test-reports --lab $(TARGET)/release/floodway-lab --out $(TARGET)/test-reports

test-web: compiler ## The live page in Debian's Chromium, and top in tmux, beside busy VMs; screenshots go to target/web
	CARGO=$(CARGO) $(ROOT) tools/test-web $(TARGET)

lint: compiler ## Formatting, clippy, links of the API documentation, layers of modules, sizes of functions and files, words of the glossary, licences and sources of dependencies
	$(CARGO) fmt --all --check
	$(CARGO) run -q --locked -p floodway-layers
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
# As embedders may build it: without the control socket, and without what builds with debug assertions have for tests.
	$(CARGO) check -q --locked -p floodway-switch --no-default-features $(WITHOUT_ASSERTIONS)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -q --workspace --no-deps --locked
	@tree=$$($(CARGO) tree --locked -p floodway-simlab -e normal --prefix none); \
	if grep '^vhost' <<<"$$tree"; then echo 'floodway-simlab must not need vhost' >&2; exit 1; fi
	tools/words
	tools/deny

unit: compiler ## Unit, property, documentation and end-to-end tests, of the development build
	$(CARGO) test --workspace --locked --no-run
	FLOODWAY_BIN=$(DEBUG)/floodway $(ROOT) $(DEBUG)/floodway-lab doctor --install
	CARGO=$(CARGO) FLOODWAY_BIN=$(DEBUG)/floodway tools/tests

# Of the whole workspace, for what `make unit` has built: with `-p floodway-switch` dependencies have fewer features and compile again.
prove: compiler ## Small rings in every state that a guest can make, all interleavings of threads that wake each other, the hand-over between processes in all states
	$(CARGO) test --workspace --lib --locked -- --include-ignored --show-output exhaustive
	$(CARGO) test --workspace --lib --locked -- --ignored interleavings

bench: build ## Floodway beside testpmd and OVS-DPDK; instruction-level benches of the packet path
	$(LAB) doctor --install --bench
	$(CARGO) bench --workspace --locked
	$(LAB) bench

bench-ab: ## Benches of commit BASE and of this tree in turn, with paired ratios (BENCH=offload or pipeline)
	CARGO='$(CARGO)' tools/bench-ab --base $(BASE) $(BENCH)

bench-sim: build ## The simulator beside ns-3: speed and completion times
	tools/ns3
	$(TARGET)/release/floodway-lab bench-sim

# `make results ONLY='vflood-* demo' WORLD=real RESULTS=--list`; see tools/results.
results: build ready ## Every experiment of both worlds and the bench again, in order, from where it stopped; then their verdicts
	$(ROOT) tools/results --lab $(TARGET)/release/floodway-lab $(if $(ONLY),--only $(foreach name,$(ONLY),'$(name)')) $(if $(WORLD),--world $(WORLD)) $(RESULTS)

fuzz: compiler ## Every fuzz target for FUZZ_SECONDS (needs nightly and cargo-fuzz)
	@command -v cargo-fuzz >/dev/null || { echo "cargo-fuzz is missing: cargo install cargo-fuzz" >&2; exit 1; }
	for target in $(FUZZ_TARGETS); do \
	  echo "fuzzing $$target for $(FUZZ_SECONDS) s"; \
	  (cd fuzz && mkdir -p corpus/$$target seeds/$$target && \
	  $(CARGO) +nightly fuzz run $$target corpus/$$target seeds/$$target -- -max_total_time=$(FUZZ_SECONDS)); done

fuzz-smoke: compiler ## Every fuzz target for FUZZ_SMOKE_SECONDS, without nightly and cargo-fuzz
	CARGO=$(CARGO) tools/fuzz-smoke $(FUZZ_SMOKE_SECONDS)

soak: compiler ## All property tests and fuzz targets on fresh seeds for SOAK_MINUTES
	CARGO=$(CARGO) tools/soak $(SOAK_MINUTES)

docs: compiler ## API documentation, and the book in docs/ if mdbook is there
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	@if command -v mdbook >/dev/null; then mdbook build docs; \
	else echo "book not built: mdbook is missing (cargo install mdbook)"; fi

build: compiler
	$(CARGO) build --release --locked -p floodway -p floodway-lab
	@if grep -q FLOODWAY_FAULT_POINTS $(TARGET)/release/floodway; then echo 'a release build must not have fault points' >&2; exit 1; fi

# What the lab needs at run time. It says what it installs.
ready: build
	$(LAB) doctor --install

compiler:
	@tools/compiler
