# `make` alone prints what there is. Every target but `venv`, `clean` and `help` installs first.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv demo test check cover soak bench clean

BIN := .venv/bin
ARGS ?=
export PYTHON

help:  ## list the targets (ARGS='...' is handed on to demo, test and soak)
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

venv: .venv/.stamp  ## install doorbuster with all extras into .venv; nothing to do when up to date

# The stamp is made last, so an install that broke off is tried again.
.venv/.stamp: pyproject.toml
	@.ci/venv
	@touch $@

demo: venv  ## install, then run the main job: 10,000 units, 50,000 attempts
	@$(BIN)/doorbuster demo $(ARGS)

test: venv  ## install, then run every test except the soak forms
	$(BIN)/pytest -n 2 --dist worksteal -m "not soak" $(ARGS)

check: venv  ## format, lint, types, import contracts, docstrings, fast tests: under 2 minutes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	@# pyright runs on Node.js; without one it fetches its own, which not every machine allows
	@if timeout 60 $(BIN)/pyright --version >/dev/null 2>&1; then \
	  echo "$(BIN)/pyright"; PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright; \
	else \
	  echo "SKIPPED pyright: it is not usable here (it needs Node.js on PATH, or a download)"; \
	fi
	$(BIN)/lint-imports
	$(BIN)/interrogate core plugins
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not slow and not soak"

cover: venv  ## run the tests under branch coverage; fail below 95 % in pipeline, ledger, outcomes
	$(BIN)/python .ci/cover.py

soak: venv  ## run the full count of each law that has one: minutes to hours
	$(BIN)/pytest -m soak --timeout=0 $(ARGS)

bench: venv  ## measure this machine: core, embedded, http; results go to tests/benchmarks/results
	@for what in core embedded http; do \
	  $(BIN)/doorbuster bench $$what --save tests/benchmarks/results $(ARGS); \
	done

clean:  ## remove caches, builds, coverage data and the demo's database; keep .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f .coverage .coverage.* doorbuster-demo.db doorbuster-demo.db-*
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
