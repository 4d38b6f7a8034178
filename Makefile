# Two commands do everything: `make serve` starts the gateway, `make test` runs every test.
# UPSTREAM=http://host:port/v1 names the server to proxy; ARGS are passed on to `slipstream serve`.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
UPSTREAM ?=
ARGS ?=
PIP_INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check

# Without bytecode every start would compile PyTorch anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help serve test services coverage bench docs release clean

help: ## Show what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

serve: $(VENV)/$(if $(UPSTREAM),.serve,.engine) ## Start the gateway on 127.0.0.1:8080 (UPSTREAM=http://host:port/v1 to proxy a server)
	@$(BIN)/slipstream serve $(if $(UPSTREAM),--upstream $(UPSTREAM)) $(ARGS)

test: ## Install what the tests need, then run all of them
	@$(MAKE) --no-print-directory -j 2 services $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy -n 2
# What many processes import at once, one of them compiles here.
	@$(BIN)/python -m compileall -q backends gateway kernels policies
	@$(BIN)/python -c 'import sentence_transformers'
# Tests wait for servers a third of their time and more, so four processes keep two cores busy.
	$(BIN)/python -m pytest -n 4 --dist worksteal

services:
	@sh tests/install_services.sh

coverage: $(VENV)/.dev ## Run the tests of policies and HTTP backends, and hold their branch coverage to its floor
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/backends tests/contract tests/policies --ignore=tests/policies/cache/semantic --cov --cov-report=

bench: $(VENV)/.dev ## Measure what the gateway costs (HARNESS=folder of gateway_bench, PEERS=folder of installed peers)
	$(BIN)/python -m tests.benchmarks.gateway.cost $(if $(HARNESS),--harness $(HARNESS)) $(if $(PEERS),--peers $(PEERS))

docs: $(VENV)/.dev ## Rewrite the generated parts of docs/
	$(BIN)/slipstream config docs
	$(BIN)/python -m tests.support.architecture_map

release: .release/.tools ## Build wheel, sdist, SBOM and hashes into dist/: the same bytes on every machine
	@.release/bin/python deploy/release.py

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .release dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# A half-made environment would look finished to the next call, so it goes where one cannot be made.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, as in: make PYTHON=python3.12 $(MAKECMDGOALS)")'
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

.release/.tools: deploy/release.lock
	@$(PYTHON) -m venv .release
	@.release/bin/pip install --quiet --disable-pip-version-check --require-hashes -r deploy/release.lock
	@touch $@

# Two thirds of an installation would be the compiling of modules, most of which nobody reads: who reads one first compiles it.
$(VENV)/.serve: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing pinned dependencies into $(VENV) ..."
	@$(PIP_INSTALL) --no-compile -e '.[dashboard,prices]' -c constraints.txt
	@touch $@

$(VENV)/.engine: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing pinned dependencies and the engine into $(VENV) ..."
	@$(PIP_INSTALL) --no-compile -e '.[engine,dashboard,prices]' -c constraints.txt
	@touch $@ $(VENV)/.serve

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	@echo "Installing pinned dependencies of the tests into $(VENV) ..."
	@$(PIP_INSTALL) --no-compile -e '.[dev]' -c constraints.txt
# PyTorch for CUDA brings the Triton it was built with. The one for CPUs brings none, and the kernels are interpreted and
# compiled without a GPU in the tests; where there is no Triton at all, those tests are skipped.
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP_INSTALL) --no-deps triton==3.6.0 || true
	@touch $@ $(VENV)/.serve $(VENV)/.engine
