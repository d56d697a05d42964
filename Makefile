# Everything from a fresh Debian or Ubuntu machine: `make demo`, `make test`.
# One build folder, build/$(PRESET), serves both; what is there is not made
# again. The presets are in CMakePresets.json.

PRESET ?= dev
# A compilation that includes torch takes up to 2.2 GiB.
JOBS ?= $(shell awk -v cores=$$(nproc) '/MemAvailable/ { \
  n = int($$2 / 2306867); print n < 1 ? 1 : n < cores ? n : cores }' \
  /proc/meminfo)
BUILD = build/$(PRESET)

# Tools that setup put into the virtual environment come first.
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Some containers forbid Python to keep compiled modules, which setup does not make:
# each import of torch would compile hundreds, for two seconds.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup configure build demo test asan tsan bench python lint tidy
.PHONY: format clean

help: ## This list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## Install what is missing (Debian packages, .venv)
	@scripts/setup.sh

configure: setup
	@test -e $(BUILD)/build.ninja || cmake --preset $(PRESET)

build: configure ## Build everything (PRESET=dev by default)
	cmake --build $(BUILD) -j $(JOBS)

demo: configure ## Build and run the quick-start on four simulated ranks
	cmake --build $(BUILD) -j $(JOBS) --target example_quickstart
	OMP_NUM_THREADS=1 $(BUILD)/examples/quickstart

test: build ## Build everything and run the whole suite
	ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure

asan: ## The simulated-world tests under address and UB sanitizers
	@$(MAKE) --no-print-directory build PRESET=asan
	ctest --preset asan -j $(JOBS)

tsan: ## The simulated-world tests under the thread sanitizer
	@$(MAKE) --no-print-directory build PRESET=tsan
	ctest --preset tsan -j $(JOBS)

bench: ## Build the benchmarks (build/bench/benchmarks/bench_*)
	@scripts/setup.sh --bench
	@$(MAKE) --no-print-directory build PRESET=bench

python: configure ## Build the Python package (PYTHONPATH=build/dev/python)
	cmake --build $(BUILD) -j $(JOBS) --target tessera_python

lint: setup tidy ## Format, layers, headers, clang-tidy (WHAT as for tidy)
	scripts/format.sh --check
	python3 scripts/check_layers.py
	cmake --build $(BUILD) -j $(JOBS) --target tests_public_headers

tidy: configure ## clang-tidy over src/ (WHAT=layer, files, "--since REV")
	scripts/tidy.py --build $(BUILD) --jobs $(JOBS) $(WHAT)

format: setup ## Format every C++ file in place
	scripts/format.sh

clean: ## Remove all builds
	rm -rf build
