# Two commands do everything: `make demo` and `make test`. Both build .venv first if it is missing or out of date.

SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.stamp
# Set PYTHON=/path/to/python3.11 to choose one; else the first of these that is a usable 3.11.
PYTHON ?=
PYTHON_CHECK := import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test test-fast lint format bench lock clean

define find_python
python=""; \
for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3); do \
	if "$$candidate" -c '$(PYTHON_CHECK)' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
done; \
if [ -z "$$python" ]; then \
	echo "error: no Python 3.11 with the venv module among: $(or $(PYTHON),python3.11 python3); install it or run make PYTHON=/path/to/python3.11" >&2; \
	exit 1; \
fi
endef

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## build .venv from requirements.lock

# The stamp is removed first and written last. Without it .venv is rebuilt from nothing, since an
# interrupted pip can leave half a package that it later takes for a whole one.
$(STAMP): requirements.lock pyproject.toml
	@$(find_python); \
	if [ -f $(STAMP) ] && $(BIN)/python -m pip --version >/dev/null 2>&1 \
		&& $(BIN)/python -c '$(PYTHON_CHECK)'; then \
		rm -f $(STAMP); \
	else \
		echo "building .venv with $$python"; \
		"$$python" -m venv --clear .venv; \
	fi
	$(BIN)/python -m pip install -r requirements.lock
	$(BIN)/python -m pip install --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: $(STAMP) ## collect, train, evaluate and report, small: runs/demo/report.html
	$(BIN)/gaitforge demo --out runs/demo

test: $(STAMP) ## every test
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-fast: $(STAMP) ## the tests without the slow ones
	$(BIN)/python -m pytest -q -n 2 -m "not slow"

lint: $(STAMP) ## ruff, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(STAMP) ## let ruff mend style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## measure speeds: runs/bench
	$(BIN)/gaitforge bench --out runs/bench
	$(BIN)/gaitforge bench store --out runs/bench
	$(BIN)/gaitforge bench learners --out runs/bench
	$(BIN)/gaitforge bench sim --out runs/bench
	$(BIN)/gaitforge bench formats --out runs/bench

# A fresh environment from pyproject.toml's ranges, written down. The comment lines at the top of the
# lock file are kept. CUDA's own packages stay out (see there).
lock: ## write requirements.lock anew from pyproject.toml
	@$(find_python); rm -rf build/lock && "$$python" -m venv build/lock/venv
	build/lock/venv/bin/python -m pip install 'setuptools>=77' '.[dev]'
	build/lock/venv/bin/python -m pip check
	grep '^#' requirements.lock > build/lock/requirements.lock
	build/lock/venv/bin/python -m pip freeze --all --exclude pip --exclude gaitforge \
		| grep -Eiv '^(nvidia|cuda|triton)' | sed -E 's/\+(cpu|cu[0-9]+)$$//' >> build/lock/requirements.lock
	mv build/lock/requirements.lock requirements.lock
	rm -rf build

clean: ## remove the environment and caches, never runs/
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
