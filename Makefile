# `make demo` and `make test` do everything. Both build .venv first if it is missing or out of date.

SHELL := /bin/bash
BIN := .venv/bin
STAMP := .venv/.stamp
# The script of the player's page; nothing without that plug-in.
PLAYER := $(patsubst %/page,%/built/main.js,$(wildcard plugins/player/page))
DEV_STAMP := .venv/.stamp-dev
UV := uv==0.13.9
TORCH = $(shell sed -n 's/^\# \(torch==[0-9.]*\) .*/\1/p' requirements.lock)
# Set PYTHON=/path/to/python to choose one; else the first of these that is new enough and has venv.
PYTHON ?=
PYTHONS := python3 python3.13 python3.12 python3.11
PYTHON_CHECK := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# uv: links to its cache, or copies where no link can be made; copies alone take twice the disk.
export UV_LINK_MODE := hardlink

define install_locked
if $(BIN)/uv --version >/dev/null 2>&1; then \
	$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --require-hashes -r $(1); \
else \
	$(BIN)/python -m pip install -q --no-deps --require-hashes -r $(1); \
fi
endef

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup setup-dev demo wheel release test test-long test-all test-oldest test-newest test-python docs lint format bench lock clean

define find_python
python=""; \
for candidate in $(if $(PYTHON),"$(PYTHON)",$(PYTHONS)); do \
	if "$$candidate" -c '$(PYTHON_CHECK)' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
done; \
if [ -z "$$python" ]; then \
	echo "error: no Python 3.11 or newer with the venv module among: $(or $(PYTHON),$(PYTHONS)); install it or run make PYTHON=/path/to/python" >&2; \
	exit 1; \
fi
endef

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) $(PLAYER) ## build .venv from requirements.lock, and the player's page

# The stamp is removed first and written last. Without it .venv is rebuilt from nothing, since an
# interrupted installation can leave half a package that it later takes for a whole one.
# torch comes in one build a machine (CPU or CUDA, with packages of its own), so pip chooses it, by the
# version that a comment of the lock names; all else is installed as locked, by uv where it can be had.
$(STAMP): requirements.lock pyproject.toml
	@$(find_python); \
	if [ -f $(STAMP) ] && $(BIN)/python -m pip --version >/dev/null 2>&1 \
		&& $(BIN)/python -c '$(PYTHON_CHECK)'; then \
		rm -f $(STAMP) $(DEV_STAMP); \
	else \
		echo "building .venv with $$python"; \
		"$$python" -m venv --clear .venv; \
		$(BIN)/python -m pip install -q $(UV) || echo "no uv here: pip installs"; \
	fi
	$(call install_locked,requirements.lock)
	$(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	@rm -rf gaitforge.egg-info # of an earlier build: its entry points would hide those of this one
	@touch $(STAMP)

# Without Node or npm one line says so, and all but `gaitforge view` works.
$(PLAYER): $(STAMP) $(wildcard plugins/player/page/*.json plugins/player/page/src/*)
	@$(BIN)/python -m gaitforge.plugins.player.build || true

setup-dev: $(DEV_STAMP) ## add what tests, lint and docs need, from requirements-dev.lock

# Tests start hundreds of processes. uv compiles nothing by itself, and where Python may not write bytecode each of
# them would compile all that it imports.
$(DEV_STAMP): export UV_COMPILE_BYTECODE := 1
$(DEV_STAMP): $(STAMP) requirements-dev.lock | $(PLAYER)
	$(call install_locked,requirements-dev.lock)
	$(BIN)/python -m compileall -q common collectors datasets flows learners pipeline plugins
	@touch $(DEV_STAMP)

demo: $(STAMP) $(PLAYER) ## collect, train, evaluate and report, small: runs/demo/report.html
	$(BIN)/gaitforge demo --out runs/demo

# Without build/lib setuptools cannot take along what an earlier build left there.
wheel: $(STAMP) $(PLAYER) ## build dist/gaitforge-*.whl, with the player's page
	rm -rf build/lib dist
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
	rm -rf build/lib build/bdist.* gaitforge.egg-info

# RELEASE has options, as --uncommitted or --url https://HOST/OWNER/gaitforge; see python -m release --help.
release: $(DEV_STAMP) $(PLAYER) ## build and check sdist and wheel, dist/, and the container image
	$(BIN)/python -m release $(RELEASE)

# Bytecode is kept, where the shell forbids it too: rewriting the tests' assertions takes each worker 6 s.
test test-long test-all test-oldest test-newest: export PYTHONDONTWRITEBYTECODE :=

# A third worker for the times in which tests wait for servers and clusters; tests/conftest.py orders the files.
test: $(DEV_STAMP) ## the tests, without those that take long; CI runs test-all
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not long" $(PYTEST)

# Among them tests with lerobot, mjlab and d4rl: their packages ask for other versions than ours, so each
# project gets an environment of its own in build/.
test-long: $(DEV_STAMP) ## the others: clusters, servers, kills at random, compilers, other projects' packages
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "slow or long" $(PYTEST)

# In one run: apart, workers would wait at the end of each. What fails while servers and clusters of other tests
# share the machine runs once more alone, and must pass there; both runs are shown.
test-all: $(DEV_STAMP) ## all tests, as CI runs them
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --no-loadscope-reorder -m "" $(PYTEST) || { test $$? -eq 1 && \
		echo "Once more, alone:" && $(BIN)/python -m pytest -q -m "" --last-failed --last-failed-no-failures none; }

# The quick tests at one end of pyproject.toml's ranges, in an environment of its own: build/oldest, build/newest.
# CUDA packages come along where torch asks for them: some 3 GB.
define test_resolved
	@$(find_python); \
	mkdir -p build && $(BIN)/uv pip compile -q pyproject.toml --extra all --extra dev --python "$$python" \
		--resolution $(1) --no-annotate --no-header -o build/$(2).txt && \
	$(BIN)/uv venv -q --clear --python "$$python" build/$(2) && \
	$(BIN)/uv pip install -q --python build/$(2)/bin/python -r build/$(2).txt setuptools && \
	$(BIN)/uv pip install -q --python build/$(2)/bin/python --no-build-isolation -e '.[all,dev]' && \
	$(BIN)/uv pip check -q --python build/$(2)/bin/python
	@rm -rf gaitforge.egg-info
	build/$(2)/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -p no:cacheprovider \
		-m "not slow and not long" $(PYTEST)
endef

test-oldest: $(DEV_STAMP) ## the tests with the oldest packages that the ranges allow: make test-oldest PYTHON=python3.13
	$(call test_resolved,lowest-direct,oldest)

test-newest: $(DEV_STAMP) ## the tests with the newest packages that the ranges allow
	$(call test_resolved,highest,newest)

# The store's tests but those of streams, which need torch: 3 GB on most machines.
WITHOUT_TORCH := tests/datasets/catalog tests/datasets/test_selection.py tests/datasets/storage/test_store.py

test-python: $(STAMP) ## the store's tests on another Python: make test-python PYTHON=python3.13
	$(BIN)/uv venv -q --clear --python "$(PYTHON)" build/python
	$(BIN)/uv pip install -q --python build/python/bin/python --no-deps --require-hashes \
		-r requirements.lock -r requirements-dev.lock
	PYTHONPATH=. build/python/bin/python -m pytest -q -n 2 -p no:cacheprovider $(WITHOUT_TORCH)

docs: $(DEV_STAMP) ## the documentation site: build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict -q -d build/site

lint: $(DEV_STAMP) ## ruff, formatting, types of Python and TypeScript
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	if [ -d plugins/player/page/node_modules ]; then $(BIN)/python -m gaitforge.plugins.player.build --check; fi

format: $(DEV_STAMP) ## let ruff mend style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV_STAMP) ## measure speeds: runs/bench
	$(BIN)/python -m benchmarks --out runs/bench

# Exact versions with hashes for every Python and platform, without index addresses; what is locked stays unless a
# range of pyproject.toml refuses it (`make lock UPGRADE=--upgrade` takes the newest). torch and its CUDA packages
# stay out, see `setup`.
UPGRADE :=
COMPILE := uv pip compile pyproject.toml $(UPGRADE) -q --universal --generate-hashes --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links --python-version 3.11

NOT_LOCKED := ^(torch|triton)$$|^nvidia-|^cuda-

lock: $(STAMP) ## write both locks anew from pyproject.toml
	mkdir -p build/lock
	(echo $(TORCH); cat requirements.lock requirements-dev.lock) > build/lock/all.lock
	$(BIN)/$(COMPILE) --extra dev -o build/lock/all.lock > build/lock/log
	$(BIN)/$(COMPILE) --extra all -c build/lock/all.lock -o build/lock/runtime.lock > build/lock/log
	for name in requirements requirements-dev; do grep '^#' $$name.lock > build/lock/$$name; done
	awk '/^[a-z]/ { split($$1, a, "=="); keep = a[1] !~ /$(NOT_LOCKED)/ } keep' \
		build/lock/runtime.lock >> build/lock/requirements
	awk '/^[a-z]/ { split($$1, a, "=="); keep = a[1] !~ /$(NOT_LOCKED)/ } \
		FNR == NR { runtime[a[1]]; next } keep && !(a[1] in runtime)' \
		build/lock/runtime.lock build/lock/all.lock >> build/lock/requirements-dev
	for name in requirements requirements-dev; do mv build/lock/$$name $$name.lock; done
	rm -rf build/lock

clean: ## remove the environment and caches, never runs/
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
