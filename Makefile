# `make help` lists the targets. Each target creates the environment .venv first.
#   VENV=path     use an existing environment unchanged
#   PYTHON=path   use an interpreter unchanged, without creating an environment
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test test-boot test-processors test-runs test-all check options docs format install environment clean

VENV ?= .venv
BASE_PYTHON ?= python3

ifneq ($(origin PYTHON),undefined)
  AS_IS := yes
else
  PYTHON := $(VENV)/bin/python
  # A folder without our marker file is an environment of the user.
  ifneq ($(wildcard $(VENV)/bin/python),)
    ifeq ($(wildcard $(VENV)/.yolo_lightning),)
      AS_IS := yes
    endif
  endif
endif

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: environment ## generate a small dataset, train, test, predict (minutes on a CPU)
	PYTHONPATH="$(CURDIR)" $(PYTHON) scripts/demo.py

# One process more than cores, at most 4: tests of supervision wait for other processes.
test: environment ## the quick tests
	$(PYTHON) -m pytest -n $$($(PYTHON) -c 'import os; print(min(4, os.cpu_count() + 1))') --dist worksteal

# A time namespace moves the monotonic clock and the clock since boot back to 0 for all processes of the tests.
test-boot: environment ## the quick tests with clocks that start at 0 (Linux, user namespaces)
	unshare --user --map-current-user --time --fork --boottime=-$$(cut -d. -f1 /proc/uptime) \
	  --monotonic=-$$($(PYTHON) -c 'import time; print(int(time.monotonic()))') \
	  $(PYTHON) -m pytest -n auto --maxprocesses 4 --dist worksteal

# The instruction sets of older processors, and two threads: results may differ by rounding only.
NUMERIC := tests/conv tests/model tests/training tests/evaluation tests/parity tests/test_golden_loss.py \
  tests/test_parity.py tests/test_module_convolution.py
test-processors: environment ## the numeric tests with the instruction sets of older processors, one and two threads
	ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 \
	  $(PYTHON) -m pytest -q -n 2 --dist worksteal $(NUMERIC)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OMP_NUM_THREADS=2 \
	  $(PYTHON) -m pytest -q -n 2 --dist worksteal $(NUMERIC)

test-runs: environment ## complete trainings: faults, resume, every configuration, several processes, exports
	$(PYTHON) -m pytest -n auto --maxprocesses 4 --dist worksteal -m "whole_run and not slow"

test-all: environment ## all tests, including the slow ones
	$(PYTHON) -m pytest -n auto --maxprocesses 4 --dist worksteal -m "slow or not slow"

check: environment ## ruff, formatting, mypy (strict for the product)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy --config-file tests/mypy.ini

options: environment ## the table of options, which help and errors read without torch
	PYTHONPATH="$(CURDIR)" $(PYTHON) scripts/make_option_table.py

docs: environment ## the documentation as a site in build/site; needs the extra `docs`
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

format: environment ## sort imports and format with ruff
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

install: ## install missing packages into VENV and keep its torch
	@$(BASE_PYTHON) scripts/set_up.py install $(VENV)

environment:
ifeq ($(AS_IS),yes)
	@$(PYTHON) scripts/set_up.py check
else
	@$(BASE_PYTHON) scripts/set_up.py install $(VENV)
endif

clean: ## delete .venv and the files of the demo
	rm -rf .venv runs/demo runs/demo-data
