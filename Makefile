# Each target builds the virtual environment first; only Python 3.11 and make have to be there.

PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYRIGHT := tests/typing/node_modules/.package-lock.json
OTHERS := $(addsuffix /node_modules/.package-lock.json,clients/typescript tests/interop/node tests/toolsets/mcp tests/toolsets/openapi tests/web/dashboard)
# What flake8-async finds and ruff does not. ASYNC910-912 are left out: they want a checkpoint in every
# private async function, and a checkpoint costs more than most of these steps.
ASYNC_RULES := ASYNC102,ASYNC103,ASYNC104,ASYNC112,ASYNC121,ASYNC210,ASYNC913

# All that read ACTGENT_SOAK; tests/test_repository.py compares.
SOAKED := tests/journal tests/mutation \
	tests/agents/approvals/test_approval_property.py tests/agents/approvals/test_ungranted_calls.py \
	tests/agents/definitions/test_instructions.py \
	tests/agents/properties/test_control_property.py tests/agents/properties/test_cancel_at_each_step.py \
	tests/agents/properties/test_named_types.py \
	tests/agents/properties/test_session_record_writer.py \
	tests/agents/turns/test_double_texting.py tests/cluster/nodes tests/cluster/test_takeover.py \
	tests/agents/labels/test_paths.py tests/agents/labels/test_random_programs.py \
	tests/memory/longterm tests/memory/test_histories.py tests/simulation

# What `make check` runs, two at a time and the longest first. Each version of Python has its own cache of types.
CHECKS := check-types check-types-3.12 check-types-3.13 check-async check-layers check-lint check-format

.PHONY: help demo test core matrix lock soak check docs format bench material clean $(CHECKS)
.DEFAULT_GOAL := help

help: ## what there is
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

$(INSTALLED): pyproject.toml .ci/requirements.lock
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo 'installing actgent and its tools into $(VENV)'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint .ci/requirements.lock --editable '.[dev]'
	@touch $@

%/node_modules/.package-lock.json: %/package-lock.json
	@if command -v npm >/dev/null; then npm ci --prefix $* --no-audit --no-fund --loglevel=error; \
	else echo 'npm is missing: tests of what it installs in $* are skipped'; fi

demo: $(INSTALLED) ## the main job: agents, tools and 1,000 sessions against a model on loopback; needs no key
	$(BIN)/actgent demo

test: $(INSTALLED) $(PYRIGHT) $(OTHERS) ## all tests, on two cores; ARGS="tests/journal -x"
ifdef ARGS
	$(BIN)/python -m pytest -n 2 --dist worksteal --durations 10 --durations-min 5 $(ARGS)
else
	$(BIN)/python tests/run.py
endif

core: $(INSTALLED) ## the tests of the core in a copy without cli, client, cluster, evaluation, interop, observe, portal, simulation and web
	$(BIN)/python tests/run.py --core

matrix: $(INSTALLED) ## a part of the tests on other versions of Python and on the lowest versions of dependencies; ARGS="3.13 lowest"
	$(BIN)/python tests/matrix.py $(ARGS)

lock: $(INSTALLED) ## write the versions that are installed for the tests to .ci/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --upgrade --no-header --no-emit-index-url --no-annotate --extra dev --python-version 3.11 --output-file .ci/requirements.lock pyproject.toml

soak: $(INSTALLED) ## the tests of the journal and of control with as many kills, power cuts, damages and random deeds as they promise, large counts, and mutants, 20 runs of what kills nodes, 20 drawn schedules of disasters, and 20 chaos runs of three minutes; hours
	ACTGENT_SOAK=1 $(BIN)/python -m pytest $(SOAKED)

check: $(INSTALLED) ## lint, format, types and import layers
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

docs: $(INSTALLED) ## the documentation as a site, in build/docs/index.html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs/site docs build/docs

format: $(INSTALLED) ## let ruff format and mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(INSTALLED) ## speed and memory against bare trio; ARGS="--only W2 --rounds 3 --quick --write-docs"
	ACTGENT_BENCH=1 $(BIN)/python -m pytest -q tests/bench
	$(BIN)/python tests/bench/external_tools.py
	$(BIN)/python tests/bench/transport.py
	$(BIN)/python tests/bench/clustered.py
	$(BIN)/python tests/bench $(ARGS)

material: $(INSTALLED) ## benchmarks on public material in a folder of yours; fetches nothing; MATERIAL=/folder ARGS="--only bfcl --quick --write-docs"
	$(BIN)/python -m tests.material $(MATERIAL) $(ARGS)

clean: ## remove the environment and all caches
	rm -rf $(VENV) .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache *.egg-info build
