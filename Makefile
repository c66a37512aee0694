# Each target sets itself up: Python 3.11 or newer, make and gcc are all that a machine needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_ALL := $(VENV)/.ready-all
# a worker for each core; neighbouring tests stay together, so that they share their fixtures
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses=8 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-integrations test-torch study results fuzz docs dist lint format clean

help:            ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The stamp makes a second call start at once; a change of what is installed makes it stale.
$(READY): pyproject.toml constraints.txt requirements-no-deps.txt $(wildcard setup.py src/lpsgd/*.c)
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "lpsgd needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test]'
	$(BIN)/pip install --quiet --no-deps -r requirements-no-deps.txt
	@touch $@

# JAX, Ray, MLflow, wandb, the Hugging Face libraries, Lightning and mkdocs, which only their own tests need
$(READY_ALL): $(READY)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[test,ray,log,optax,integrations,triton,docs]'
	@touch $@

setup: $(READY)  ## make the virtual environment and install everything pinned

# learning rates by an equal search at this length: lpsgd sweep, four rates of each on a validation split
demo: $(READY)   ## compare five optimizers on real digits: tables, a verdict and a page (about a minute)
	@$(BIN)/lpsgd compare --model mlp --width 16 --epochs 6 --seeds 7 --out runs/demo \
		--optimizers adamw:lr=0.01,sgd:lr=0.1,lion:lr=3e-3,lpsgdm:lr=0.01,lpmuon:lr=0.01
	@echo; echo "Next: lpsgd compare --help, or your own choice of optimizers with --optimizers"

test: $(READY)   ## run the tests
	$(PYTEST) -m "not slow"

test-all: $(READY_ALL)  ## run the tests, the slow ones too, and ask for coverage: 95 % of the library, 90 % of the laboratory
	$(PYTEST) --ignore=tests/integrations --cov=lpsgd --cov-report=
	$(PYTEST) tests/integrations --cov=lpsgd --cov-report= --cov-append  # apart: JAX's threads do not survive a fork
	$(BIN)/coverage report --omit='*/lab/*,*/__main__.py' --fail-under=95
	$(BIN)/coverage report --include='*/lab/*' --fail-under=90

test-integrations: $(READY_ALL)  ## run the tests with JAX, transformers, accelerate and Lightning
	$(PYTEST) tests/integrations

test-torch:      ## run the library's tests on another torch (TORCH=2.6.0) and write the row of docs/versions.md
	$(PYTHON) scripts/test_torch.py $(or $(TORCH),$(error give a version, such as TORCH=2.6.0)) $(if $(TORCH_VENV),--venv $(TORCH_VENV))

study: $(READY)  ## run the confirmatory study of docs/study.md: about six hours of a core, resumable
	$(BIN)/python benchmarks/study.py

results: $(READY) ## write the pages of results from the runs in docs/results and results; trains nothing
	$(BIN)/python scripts/draw_screening.py
	$(BIN)/python scripts/draw_study.py
	$(BIN)/python scripts/publish_paper.py

MINUTES ?= 10
fuzz: $(READY)   ## random input and random kills, for MINUTES=60 or as long as you like
	$(BIN)/python scripts/fuzz.py --minutes $(MINUTES)

docs: $(READY_ALL)  ## build the site in site/
	$(BIN)/mkdocs build --strict

dist: $(READY)   ## build sdist and wheel in dist/, and try each in an empty environment
	$(BIN)/python scripts/smoke.py dist

lint: $(READY)   ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:           ## remove the virtual environment and build leftovers
	rm -rf $(VENV) .venv-torch build dist site .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
