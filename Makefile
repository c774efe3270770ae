# Each target builds the virtual environment first. It needs Python 3.11 and make.

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYRIGHT := tests/typing/node_modules/.package-lock.json
OTHERS := $(addsuffix /node_modules/.package-lock.json,clients/typescript tests/interop/node tests/toolsets/mcp tests/toolsets/openapi tests/web/dashboard)
# Rules of flake8-async that ruff does not have. ASYNC910-912 are left out: they require a checkpoint in every
# private async function, and a checkpoint costs more than most of these steps.
ASYNC_RULES := ASYNC102,ASYNC103,ASYNC104,ASYNC112,ASYNC121,ASYNC210,ASYNC913

# All tests that read ACTGENT_SOAK; tests/test_repository.py compares the list.
SOAKED := tests/journal tests/mutation \
	tests/agents/approvals/test_approval_property.py tests/agents/approvals/test_ungranted_calls.py \
	tests/agents/definitions/test_instructions.py \
	tests/agents/properties/test_control_property.py tests/agents/properties/test_cancel_at_each_step.py \
	tests/agents/properties/test_named_types.py \
	tests/agents/properties/test_session_record_writer.py \
	tests/agents/turns/test_double_texting.py tests/cluster/nodes tests/cluster/test_takeover.py \
	tests/agents/labels/test_paths.py tests/agents/labels/test_random_programs.py tests/agents/labels/test_shown_values.py \
	tests/memory/longterm tests/memory/test_histories.py tests/simulation

# The targets of `make check`, two at a time and the longest first. Each version of Python has its own cache of types.
CHECKS := check-types check-types-3.12 check-types-3.13 check-async check-layers check-lint check-format

.PHONY: help demo test core matrix lock soak check docs format bench material clean $(CHECKS)
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml .ci/requirements.lock
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo 'installing actgent and its tools into $(VENV)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/requirements.lock --editable '.[dev]'
	@touch $@

%/node_modules/.package-lock.json: %/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $* --no-audit --no-fund --loglevel=error; \
	else echo 'npm is missing: tests of what it installs in $* are skipped'; fi

demo: $(INSTALLED) ## run agents with tools in 1,000 sessions against a model on loopback; needs no key
	$(BIN)/actgent demo

test: $(INSTALLED) $(PYRIGHT) $(OTHERS) ## run all tests on two cores; ARGS="tests/journal -x"
ifdef ARGS
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 10 --durations-min 5 $(ARGS)
else
	$(BIN)/python tests/run.py
endif

core: $(INSTALLED) ## run the tests of the core in a copy without cli, client, cluster, evaluation, interop, observe, portal, simulation and web
	$(BIN)/python tests/run.py --core

matrix: $(INSTALLED) ## run a part of the tests on other versions of Python and the lowest versions of dependencies; ARGS="3.13 lowest"
	$(BIN)/python tests/matrix.py $(ARGS)

lock: $(INSTALLED) ## write the installed versions to .ci/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --upgrade --no-header --no-emit-index-url --no-annotate --extra dev --python-version 3.11 --output-file .ci/requirements.lock pyproject.toml

soak: $(INSTALLED) ## run kills, power cuts, mutants and chaos at full counts, with 20 chaos runs of three minutes; takes hours
	ACTGENT_SOAK=1 $(BIN)/python -m pytest $(SOAKED)

check: $(INSTALLED) ## check lint, format, types and import layers
	$(MAKE) --no-print-directory --jobs 2 --output-sync $(CHECKS)

check-lint:
	$(BIN)/ruff check

check-format:
	$(BIN)/ruff format --check

check-types:
	$(BIN)/mypy --strict actgent examples

check-types-3.12 check-types-3.13: check-types-%:
	$(BIN)/mypy --strict --python-version $* actgent

check-async:
	$(BIN)/flake8-async --enable=$(ASYNC_RULES) $$(find actgent -name '*.py')

check-layers:
	$(BIN)/lint-imports --config setup.cfg

docs: $(INSTALLED) ## build the documentation site in build/docs/index.html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs/site docs build/docs

format: $(INSTALLED) ## format the code, and apply ruff's fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(INSTALLED) ## measure speed and memory against plain trio; ARGS="--only W2 --rounds 3 --quick --write-docs"
	ACTGENT_BENCH=1 $(BIN)/python -m pytest -q tests/bench
	$(BIN)/python tests/bench/external_tools.py
	$(BIN)/python tests/bench/transport.py
	$(BIN)/python tests/bench/clustered.py
	$(BIN)/python tests/bench/relayed.py
	$(BIN)/python tests/bench $(ARGS)

material: $(INSTALLED) ## run benchmarks on public material in a local folder; downloads nothing; MATERIAL=/folder ARGS="--only bfcl --quick --write-docs"
	$(BIN)/python -m tests.material $(MATERIAL) $(ARGS)

clean: ## remove the environment and all caches
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache *.egg-info build
