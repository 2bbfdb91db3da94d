# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first, once.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# Any Python that Paddle 3.3 has wheels for; `make PYTHON=python3.12 test` chooses another.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do \
	$$p -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

CSRC := $(wildcard lowbit/kernels/csrc/*/*)
PY := lowbit tests benchmarks examples docs train.py tools deploy setup.py

.PHONY: demo test test-slow test-sanitized test-arm test-avx2 test-wheel wheel lint format docs setup clean help

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 14

setup: $(READY)  ## create .venv and install lowbit into it

$(READY): pyproject.toml constraints.txt setup.py lowbit/kernels/build.py $(CSRC)
	@test -n "$(PYTHON)" || { echo "lowbit needs Python 3.10, 3.11 or 3.12 on the PATH (or: make PYTHON=/path/to/python $(MAKECMDGOALS))"; exit 2; }
	@echo "Setting up $(VENV) with $(PYTHON), once: pip fetches Paddle and the inference engines and says nothing for some minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps paddleclas
	@touch $(READY)

demo: $(READY)  ## fp32, W8A8, W4A4 and W4A4G4: train, deploy, verify, report; some minutes
	@$(BIN)/lowbit demo

test: lint  ## the tests that CI runs, some also with the decisions of AMD AVX2, Intel VNNI and Intel AMX
	@$(BIN)/python -m pytest -m "not slow" -n 2

test-slow: $(READY)  ## every test, also those that take minutes
	@$(BIN)/python -m pytest

test-sanitized: $(READY)  ## the C++ kernels under AddressSanitizer and UBSan: five minutes, needs g++
	@$(BIN)/python -m tests.kernels.sanitized

test-arm: $(READY)  ## the C++ kernels on an ARM processor that qemu imitates: five minutes, needs Debian
	@$(BIN)/python -m tests.kernels.other_processor

test-avx2: $(READY)  ## kernels, ONNX targets and engines, verify with AVX2 alone, which qemu imitates: needs qemu-user
	@$(BIN)/python -m tests.kernels.avx2_only

wheel: $(READY)  ## dist/lowbit-*.whl with compiled kernels, for Python 3.10 to 3.12; needs g++ or clang++
	@LOWBIT_REQUIRE_KERNELS=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .
	@ls dist/*.whl

test-wheel: wheel  ## install the wheel into an empty environment and train there: some minutes, 1.2 GB, network
	@$(BIN)/python -m tests.wheel dist

lint: $(READY)  ## style of Python and C++, and types
	@$(BIN)/ruff check $(PY)
	@$(BIN)/ruff format --check --quiet $(PY) || { echo "lint: run make format"; exit 1; }
	@$(BIN)/mypy
	@if test -x $(BIN)/clang-format; then $(BIN)/clang-format --dry-run --Werror $(CSRC); \
	else echo "lint: the C++ style was not checked, clang-format is missing (pip install clang-format)"; fi

format: $(READY)  ## write the style of Python and C++
	@$(BIN)/ruff format --quiet $(PY)
	@$(BIN)/clang-format -i $(CSRC)

docs: $(READY)  ## write docs/api.md from the docstrings, the READMEs' results from benchmarks/results.yaml
	@$(BIN)/python docs/make_api.py
	@$(BIN)/python docs/make_results.py

clean:  ## remove the environment and caches, never your runs
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .ruff_cache
