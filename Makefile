# Ferry's commands. Everything is installed into .venv and written below var/; nothing else is touched.
# Settings: ENGINE, INSTANCES, PORT, HOST, MODEL, KV_CACHE_GIB, ENGINE_MEMORY_GIB, ACCELERATOR.

PYTHON ?= python3.11
VENV_PYTHON := .venv/bin/python
export PYTHON

.PHONY: help install up down doctor test chaos lint audit lock

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  Settings (make up NAME=value):"
	@echo "    ENGINE=vllm|simulated  INSTANCES=2  PORT=8000  HOST=127.0.0.1  MODEL=<folder or hub id>"
	@echo "    KV_CACHE_GIB=0.5  ENGINE_MEMORY_GIB=2.0  ACCELERATOR=cpu|gpu"

install: ## Create .venv and install the locked dependencies.
	@$(PYTHON) ops/install.py

up: install ## Start everything; stays in the foreground until Ctrl-C.
	@$(VENV_PYTHON) -m ops.up

down: ## Stop what `make up` started, from another shell.
	@$(VENV_PYTHON) -m ops.down

doctor: ## Check a running installation like a user would.
	@$(VENV_PYTHON) manage.py doctor

test: install ## Install what the tests need, then lint and run every test (LANES=1: one at a time).
	@$(VENV_PYTHON) -m ops.test

chaos: install ## Kill and stop each process of an installation under load; FAULTS=50 takes half an hour.
	@$(VENV_PYTHON) -m benchmarks.chaos --faults $(or $(FAULTS),50)

lint: install ## Formatting, lint rules, types and the rules about imports.
	@$(VENV_PYTHON) -m ops.lint

audit: install ## Look for known vulnerabilities in the locked dependencies.
	@$(VENV_PYTHON) -m ops.audit

lock: install ## Make requirements/*.txt anew from pyproject.toml.
	@$(VENV_PYTHON) -m ops.lock
