# One way in for developers. `make` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

CARGO ?= cargo
# Where cargo builds to: `cargo` reads the same variable.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# A real embedding table, from a wheel on PyPI: 30522 rows of 384 f32.
DEMO_TABLE := .demo/model.safetensors
DEMO_TENSOR := embeddings.word_embeddings.weight

.PHONY: help demo build test test-workspace test-doc test-loom test-address test-miri bench lint fuzz soak

help: ## List the targets.
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1 \2/p' Makefile | while read -r name what; do printf '%-8s %s\n' "$$name" "$$what"; done

demo: ## Build, fetch a real table, and run the demo.
	python3 scripts/demo_table.py $(DEMO_TABLE)
	$(CARGO) build --locked --release --all-features --bin mneme
	$(TARGET)/release/mneme demo --table $(DEMO_TABLE) --tensor $(DEMO_TENSOR)

build: ## Build the `mneme` binary: release, all features.
	$(CARGO) build --locked --release --all-features --bin mneme
	@echo "built $(TARGET)/release/mneme"

test: test-loom test-address test-miri test-doc test-workspace ## Run all tests (25 minutes at most on two cores).

# The process tests run the real binary, so it is built first, in the tests' profile.
test-workspace:
	$(CARGO) build --locked --workspace --all-features --bins --examples
	scripts/run_tests

# What documentation shows must compile and run.
test-doc:
	$(CARGO) test --locked --workspace --doc

# The lock-free cores of `memory` under loom: every interleaving within three preemptions.
test-loom:
	LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom -A dead_code -A unused" $(CARGO) test --locked -p mneme-memory --lib --target-dir $(TARGET)/loom

# The same crate's tests with AddressSanitizer watching, where the compiler brings it.
test-address:
	scripts/test_address $(TARGET)/address

# And under Miri, where it is installed.
test-miri:
	@if $(CARGO) miri --version >/dev/null 2>&1; then MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) miri test -p mneme-proto --lib --target-dir $(TARGET)/miri; else echo "SKIP miri: not installed (rustup component add miri, on a nightly toolchain)"; fi

bench: ## Measure against redis, a bare loop and bare QUIC (installs redis-server with apt if missing).
	command -v redis-server >/dev/null || { echo "installing redis-server with apt"; apt-get install -y redis-server; }
	$(CARGO) build --locked --profile dist --workspace --bins
	$(TARGET)/dist/peers

lint: ## Format, clippy, rustdoc and the house rules, all without warnings.
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --all-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps
	$(CARGO) test --locked --workspace --test tidy

# What libFuzzer finds goes to the target directory; corpora are kept in fuzz/corpus. The sanitizer
# is an unstable option: RUSTC_BOOTSTRAP lets the stable compiler take it, for this run only.
FUZZ_SECONDS ?= 60
fuzz: ## Fuzz every decoder with libFuzzer, FUZZ_SECONDS=60 each (needs: cargo install cargo-fuzz).
	for target in $(notdir $(wildcard fuzz/corpus/*)); do mkdir -p $(TARGET)/found/$$target; RUSTC_BOOTSTRAP=1 $(CARGO) fuzz run $$target $(TARGET)/found/$$target fuzz/corpus/$$target -- -max_total_time=$(FUZZ_SECONDS); done

soak: ## Long runs, not in CI: property tests with many cases, deeper loom, process tests repeated.
	PROPTEST_CASES=20000 $(CARGO) test --locked --release -p mneme-proto -p mneme-memory -p mneme-net -p mneme-meta -p mneme-server -p mneme-client
	LOOM_MAX_PREEMPTIONS=5 RUSTFLAGS="--cfg loom -A dead_code -A unused" $(CARGO) test --locked --release -p mneme-memory --lib --target-dir $(TARGET)/loom
	$(CARGO) build --locked --workspace --all-features --bins --examples
	for round in {1..20}; do $(CARGO) test --locked -p mneme-tests || exit 1; done

# One target at a time: two cargo processes would only wait for each other.
.NOTPARALLEL:
