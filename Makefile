# Everything a newcomer needs; `make help` says what there is.
DATASET ?= synth
OUT     ?= out/$(DATASET)
PYTHON  ?= python3
ARGS    ?=
DEMO    ?= out/demo
ASSETS  ?= out/assets
VENV    := .venv
BIN     := $(VENV)/bin
SETUP   := $(VENV)/.setup-done
BROWSER := $(VENV)/.browser-done

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test lint format check bench interpolate score shards assets

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14
	@echo
	@echo "DATASET is a name under manifests/ or a YAML file; OUT=$(OUT); ARGS are passed on."
	@echo "Example: make interpolate DATASET=clevr OUT=out/clevr ARGS='--limit 100'"

setup: $(SETUP)  ## make .venv and install everything at known-good versions

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# The page tests open reports in a real browser. Installed only where there is none.
browser: $(BROWSER)

$(BROWSER): $(SETUP)
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$sudo apt-get update -qq && \
	  $$sudo apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } || { \
	  echo "The tests need a Chromium on the PATH: install it by hand"; exit 1; }
	@touch $@

demo: $(SETUP)  ## from nothing to verified training shards of scenes and videos, with reports
	$(BIN)/cc-prep synth $(DEMO)/scenes --scenes 12 --truth
	$(BIN)/cc-prep inspect synth --root $(DEMO)/scenes
	$(BIN)/cc-prep interpolate synth --root $(DEMO)/scenes --out $(DEMO)/synth
	$(BIN)/cc-prep score-frames synth --root $(DEMO)/scenes --out $(DEMO)/synth
	$(BIN)/cc-prep build synth --root $(DEMO)/scenes --out $(DEMO)/synth
	$(BIN)/cc-prep videos $(DEMO)/videos
	$(BIN)/cc-prep build video --root $(DEMO)/videos --out $(DEMO)/video --limit 12
	$(BIN)/cc-prep verify $(DEMO)/synth
	$(BIN)/cc-prep verify $(DEMO)/video
	$(BIN)/cc-prep stats $(DEMO)/synth
	$(BIN)/cc-prep report $(DEMO)/synth
	$(BIN)/cc-prep report $(DEMO)/video
	@echo
	@echo "Look at $(DEMO)/synth/report.html and $(DEMO)/video/report.html"

interpolate: $(SETUP)  ## pairs → sequences: OUT/sequences
	$(BIN)/cc-prep interpolate $(DATASET) --out $(OUT) $(ARGS)

score: $(SETUP)  ## sequences → scores: OUT/scores
	$(BIN)/cc-prep score-frames $(DATASET) --out $(OUT) $(ARGS)

shards: $(SETUP)  ## pairs, or what OUT holds of them → training shards: OUT/shards
	$(BIN)/cc-prep build $(DATASET) --out $(OUT) $(ARGS)
	$(BIN)/cc-prep verify $(OUT)/shards

# How the small default weights were made, on two cores in about four hours; see docs/weights.md.
assets: $(SETUP)  ## train the small default weights anew: ASSETS/weights
	BIN=$(BIN) ASSETS=$(ASSETS) sh cc_train/recipes/assets.sh

test: $(SETUP) $(BROWSER)  ## all tests
	$(BIN)/python -m pytest $(ARGS)

lint: $(SETUP)  ## style, types and house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_house_rules.py

format: $(SETUP)  ## bring the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test  ## all that CI would say

bench: $(SETUP)  ## measure; one program a claim, see benchmarks/
	@for program in benchmarks/bench_*.py; do echo "== $$program"; $(BIN)/python $$program || exit 1; done
