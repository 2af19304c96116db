# Everything a newcomer needs; `make help` says what there is.
DATASET ?= synth
OUT     ?= out/$(basename $(notdir $(DATASET)))
PYTHON  ?= python3
ARGS    ?=
DEMO    ?= out/demo
ASSETS  ?= out/assets
MINI    ?= out/captioner-mini
CHAIN_MINI ?= out/chain-mini
PROCAP_MINI ?= out/procap-mini
MULTI   ?= out/captioner-multi
PHOTOS_MINI ?= out/photos-mini
ABLATION ?= out/ablation
IMAGINING ?= out/imagining
TRIES   ?= 50
RUN     ?= stage2
PREPARE ?=
TRAIN   ?=
SYSTEM  ?= procap
ROWS    ?= out/zoo
SCENES  ?= 1300
IMAGES_ALONE := --set interpolate.method=crossfade --set interpolate.depth=0 \
  --set score.weights=none --set keyframes.k=0 --set tokenize.weights=none
# Those on which docs/results.md measured SCORER, as in tools/recipes/zoo-row.sh.
SCORER_FEATURES := --set features.backbone=efficientnet-lite0 $(IMAGES_ALONE)
# Those of captioner-mini, so that --init can start from it.
MINI_FEATURES := --set features.backbone=efficientnet-lite0-x2 $(IMAGES_ALONE)
VENV    := .venv
BIN     := $(VENV)/bin
SETUP   := $(VENV)/.setup-done
BROWSER := $(VENV)/.browser-done
JAVA    := $(VENV)/.java-done
ORT_WEB := $(VENV)/onnxruntime-web/.done
DOCS    := $(VENV)/.docs-done
LOWEST  := $(VENV)-lowest/.setup-done

.DEFAULT_GOAL := help
.PHONY: help setup browser java demo test test-lowest faults gpu-smoke wheel mutants docs lint format check bench \
  interpolate score shards stage1 stage2 pair scorer chain mllm evaluate zoo-row ablation imagining assets captioner-mini \
  captioner-multi chain-mini procap-mini photos-mini

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

# A test captions in the browser with it. It is used from here alone, and in no package of ours.
$(ORT_WEB): $(SETUP)
	@command -v npm || { \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$sudo apt-get update -qq && \
	  $$sudo apt-get install -y -qq --no-install-recommends npm; } || { \
	  echo "The tests need npm on the PATH: install it by hand"; exit 1; }
	npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/onnxruntime-web \
	  onnxruntime-web@1.30.0
	@touch $@

# A test compares tokens with those of a Java program. Installed only where there is none.
java: $(JAVA)

$(JAVA): $(SETUP)
	@command -v java || { \
	  sudo=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$sudo apt-get update -qq && \
	  $$sudo apt-get install -y -qq --no-install-recommends default-jre-headless; } || { \
	  echo "The tests need a Java on the PATH: install it by hand"; exit 1; }
	@touch $@

# procap-mini imagines the frames at a quarter and at three quarters; synth --truth renders the eighths.
demo: $(SETUP)  ## from nothing to shards, a captioner, its captions and scores, with reports
	$(BIN)/cc-prep synth '$(DEMO)/scenes' --scenes 20 --seed 1 --size 112
	$(BIN)/cc-prep synth '$(DEMO)/true' --scenes 1 --seed 9 --size 112 --truth
	$(BIN)/cc-prep inspect synth --root '$(DEMO)/scenes'
	$(BIN)/cc-prep build procap_mini --root '$(DEMO)/scenes' --out '$(DEMO)/synth' \
	  --set interpolate.method=rife --set score.weights=clip4idc-mini \
	  --set keyframes.strategy=confidence --set features.frames=all
	$(BIN)/cc-prep verify '$(DEMO)/synth'
	$(BIN)/cc-prep report '$(DEMO)/synth'
	$(BIN)/cc-prep videos '$(DEMO)/videos'
	$(BIN)/cc-prep build video --root '$(DEMO)/videos' --out '$(DEMO)/video' --limit 3 \
	  --set tokenize.weights=vqgan-mini-f8
	$(BIN)/cc-prep report '$(DEMO)/video'
	$(MAKE) --no-print-directory stage1 DATASET=procap_mini OUT='$(DEMO)/synth' \
	  ARGS='--steps 20 --set keyframes.strategy=confidence --set loop.batch_size=4 --set loop.warmup_steps=5'
	$(MAKE) --no-print-directory stage2 DATASET=procap_mini OUT='$(DEMO)/synth' \
	  ARGS='--steps 40 --set loop.batch_size=4 --set loop.warmup_steps=5'
	$(BIN)/cc-train report '$(DEMO)/synth/stage1'
	$(BIN)/cc-train evaluate '$(DEMO)/synth/stage2' --shards '$(DEMO)/synth/shards/test-*.tar' > /dev/null
	$(BIN)/cc-train report '$(DEMO)/synth/stage2' --shards '$(DEMO)/synth/shards/test-*.tar'
	$(BIN)/cc-train evaluate procap-mini --shards '$(DEMO)/synth/shards/*.tar' --out '$(DEMO)/procap-mini'
	$(BIN)/cc-train report procap-mini --shards '$(DEMO)/synth/shards/*.tar' \
	  --evaluation '$(DEMO)/procap-mini' --out '$(DEMO)/procap-mini/report.html'
	@echo
	@printf '%-42s %s\n' \
	  '$(DEMO)/scenes/' 'rendered scenes in the layout of CLEVR-Change' \
	  '$(DEMO)/synth/shards/' 'training shards of these scenes' \
	  '$(DEMO)/synth/report.html' 'page: frames, penalties, keyframes, tokens' \
	  '$(DEMO)/video/report.html' 'page: the same of real videos' \
	  '$(DEMO)/synth/stage1/report.html' 'page: ProCap, stage 1, after 20 steps' \
	  '$(DEMO)/synth/stage2/report.html' 'page: ProCap, stage 2, 40 steps from captioner-mini' \
	  '$(DEMO)/procap-mini/report.html' 'page: captions of procap-mini, and what it imagines'
	@printf '%-42s %s\n' '$(DEMO)/photograph.jpg' 'picture: a real street, and where it changed' \
	  '$(DEMO)/imagined.jpg' 'picture: what procap-mini imagines, and the true frames'
	@echo
	@echo "What procap-mini, which comes with the package, says of rendered pairs:"
	@$(BIN)/cc-train caption procap-mini --shards '$(DEMO)/synth/shards/test-*.tar' --limit 3
	@echo
	@echo "And of the pair between whose images it imagines two frames:"
	@$(BIN)/cc-train imagine procap-mini '$(DEMO)/true/images/CLEVR_default_000000.png' \
	  '$(DEMO)/true/sc_images/CLEVR_semantic_000000.png' --out '$(DEMO)/imagined.jpg' \
	  --truth '$(DEMO)/true/truth/sc/000000/02.png' --truth '$(DEMO)/true/truth/sc/000000/06.png'
	@echo
	@echo "And what photos-mini says of two photographs of a street:"
	@$(BIN)/cc-train caption photos-mini --overlay '$(DEMO)/photograph.jpg' \
	  '$(DEMO)/videos/frames/street_before.png' '$(DEMO)/videos/frames/street_after.png'

interpolate: $(SETUP)  ## pairs → sequences: OUT/sequences
	$(BIN)/cc-prep interpolate '$(DATASET)' --out '$(OUT)' $(ARGS)

score: $(SETUP)  ## sequences → scores: OUT/scores
	$(BIN)/cc-prep score-frames '$(DATASET)' --out '$(OUT)' $(ARGS)

shards: $(SETUP)  ## pairs, or what OUT holds of them → training shards: OUT/shards
	$(BIN)/cc-prep build '$(DATASET)' --out '$(OUT)' $(ARGS)
	$(BIN)/cc-prep verify '$(OUT)/shards'

stage1: $(SETUP)  ## OUT/shards → procedure encoder: OUT/stage1
	$(BIN)/cc-train stage1 --config '$(DATASET)' --out '$(OUT)/stage1' \
	  --shards '$(OUT)/shards/train-*.tar' --valid '$(OUT)/shards/val-*.tar' $(ARGS)

stage2: $(SETUP)  ## OUT/shards, OUT/stage1 → captioner: OUT/stage2
	$(BIN)/cc-train stage2 --config '$(DATASET)' --out '$(OUT)/stage2' --init '$(OUT)/stage1' \
	  --shards '$(OUT)/shards/train-*.tar' --valid '$(OUT)/shards/val-*.tar' $(ARGS)

# Without shards of both splits in OUT, or with a part of them, they are made first, of both images'
# features alone. PREPARE goes through the environment: it may have quotes, as in --set 'splits=[train]'.
export PREPARE TRAIN MLLM_SHARDS
SHARDS_ARE_WHOLE = grep -qs '"complete": true' '$(OUT)/shards/provenance.json' && \
  ls '$(OUT)'/shards/train-*.tar '$(OUT)'/shards/val-*.tar > /dev/null 2>&1
CAPTIONER_FEATURES = $(if $(filter scorer,$@),$(SCORER_FEATURES),$(MINI_FEATURES))
pair:  ## OUT/shards with features → the pair captioner: OUT/pair
scorer:  ## OUT/shards with features → SCORER's captioner: OUT/scorer
chain:  ## OUT/shards with masks and features → a captioner that also masks the change: OUT/chain
pair scorer chain: $(SETUP)
	@$(SHARDS_ARE_WHOLE) || \
	  $(MAKE) --no-print-directory shards ARGS="$(CAPTIONER_FEATURES) $$PREPARE"
	$(BIN)/cc-train $@ --config '$(DATASET)' --out '$(OUT)/$@' \
	  --shards '$(OUT)/shards/train-*.tar' --valid '$(OUT)/shards/val-*.tar' $(ARGS)

# Pairs of synth and pairs train SmolLM2-135M with a vision connector, which reads features of images of
# 112 px, and FOUND=yes adds attention control and entities. Without any scenes synth's are rendered
# first. Other data sets train the model that their manifest or ARGS names, with what is found in their
# images; where neither names one, nothing is built. See docs/mllm.md.
RENDERED   := $(filter synth pairs,$(DATASET))
MLLM_NAMED := $(if $(findstring model.weights,$(ARGS))$(CC_TRAIN_MLLM_WEIGHTS),yes)
FOUND      ?= $(if $(RENDERED),,yes)
MLLM_SHARDS = $(if $(RENDERED),$(MINI_FEATURES) --set image_size=112,$(IMAGES_ALONE)) $(PREPARE)
MLLM_TRAIN  = $(if $(RENDERED),--init captioner-mini \
  $(if $(FOUND),--set attention.where=vision --set entity.source=retrieved))
SYNTH_DATA  = $${SYNTH_ROOT:-data/synth}
mllm: $(SETUP)  ## OUT/shards → adapters of a multi-modal language model: OUT/mllm
	@test -n "$(MLLM_NAMED)" || grep -qs '^ *mllm:' 'manifests/$(DATASET).yaml' '$(DATASET)' || \
	  { test ! -f 'manifests/$(DATASET).yaml' && test ! -f '$(DATASET)'; } || { echo \
	  "make mllm: $(DATASET) names no model. Give one: ARGS='--set model.weights=FOLDER'" >&2; exit 2; }
	@$(SHARDS_ARE_WHOLE) || test '$(DATASET)' != synth || \
	  test -n "$(findstring --root,$(PREPARE))" || test -e "$(SYNTH_DATA)/splits.json" || \
	  $(BIN)/cc-prep synth "$(SYNTH_DATA)" --scenes $(SCENES) --seed 8 --size 112 --wording plain
	@$(SHARDS_ARE_WHOLE) || test -z "$(FOUND)" || { \
	  $(BIN)/cc-prep changes '$(DATASET)' --out '$(OUT)' $(MLLM_SHARDS) && \
	  $(BIN)/cc-prep entities '$(DATASET)' --out '$(OUT)' $(MLLM_SHARDS); }
	@$(SHARDS_ARE_WHOLE) || \
	  $(MAKE) --no-print-directory shards ARGS="$$MLLM_SHARDS"
	$(BIN)/cc-train mllm --config '$(DATASET)' $(MLLM_TRAIN) --out '$(OUT)/mllm' \
	  --shards '$(OUT)/shards/train-*.tar' --valid '$(OUT)/shards/val-*.tar' $(ARGS)

evaluate: $(SETUP)  ## captions of the test split and their scores: OUT/RUN/evaluation, RUN=stage2
	$(BIN)/cc-train evaluate '$(OUT)/$(RUN)' --shards '$(OUT)/shards/test-*.tar' $(ARGS)
	$(BIN)/cc-train report '$(OUT)/$(RUN)' --shards '$(OUT)/shards/test-*.tar'

# See docs/zoo.md. PREPARE and TRAIN are passed on; ROWS is the folder that the row goes into. Without
# OUT each system has a folder of its own, since they prepare the data differently.
ZOO_OUT = $(if $(filter file,$(origin OUT)),$(OUT)-$(SYSTEM),$(OUT))
zoo-row: $(SETUP)  ## raw files → shards → SYSTEM=procap|scorer → scores by protocol → a row of ROWS
	BIN=$(BIN) SYSTEM=$(SYSTEM) DATASET='$(DATASET)' OUT='$(ZOO_OUT)' ROWS='$(ROWS)' \
	  sh tools/recipes/zoo-row.sh

ablation: $(SETUP)  ## with and without stage 1 and queries, on rendered scenes; see docs/results.md
	$(BIN)/python benchmarks/ablation.py --out '$(ABLATION)' --docs benchmarks/results/notes/ablation.md $(ARGS)

imagining: $(SETUP)  ## does stage 1 pay where labels are few? On rendered scenes; see docs/imagining.md
	$(BIN)/python benchmarks/imagining.py --out '$(IMAGINING)' --docs docs/imagining.md $(ARGS)

# How captioner-mini was made, step by step, in some hours on two cores; see docs/results.md.
captioner-mini: $(SETUP)  ## train a captioner of rendered pairs from nothing: MINI/packed
	BIN=$(BIN) MINI='$(MINI)' sh tools/recipes/captioner-mini.sh

captioner-multi: $(SETUP)  ## train a captioner that says several changes, from captioner-mini: MULTI/packed
	BIN=$(BIN) MULTI='$(MULTI)' sh tools/recipes/captioner-multi.sh

# How chain-mini was made, in some ten minutes on two cores; see docs/chain.md.
chain-mini: $(SETUP)  ## train a captioner that also masks the change, from captioner-mini: CHAIN_MINI/packed
	BIN=$(BIN) CHAIN_MINI='$(CHAIN_MINI)' sh tools/recipes/chain-mini.sh

# How procap-mini was made, in some hour and a half on two cores; see docs/imagining.md.
procap-mini: $(SETUP)  ## train a small ProCap of both stages, from captioner-mini: PROCAP_MINI/packed
	BIN=$(BIN) PROCAP_MINI='$(PROCAP_MINI)' sh tools/recipes/procap-mini.sh

# From packages of Debian alone; see docs/photos.md.
photos-mini: $(SETUP)  ## train composites-mini from nothing, and measure it beside photos-mini: PHOTOS_MINI/packed
	BIN=$(BIN) PHOTOS_MINI='$(PHOTOS_MINI)' sh tools/recipes/photos-mini.sh

# How the small default weights were made: an estimated ten hours on two cores; see docs/weights.md.
assets: $(SETUP)  ## train the small default weights from nothing: ASSETS/weights
	BIN=$(BIN) ASSETS='$(ASSETS)' sh tools/recipes/assets.sh

test: $(SETUP) $(BROWSER) $(JAVA) $(ORT_WEB)  ## all tests, two files at a time
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

# A CUDA build of torch among them: 9 GB on disk. To be run after a change of the dependencies.
test-lowest: $(LOWEST) $(BROWSER) $(JAVA) $(ORT_WEB)  ## all tests with the lowest version of each dependency
	$(VENV)-lowest/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

$(LOWEST): pyproject.toml
	$(PYTHON) -m venv $(VENV)-lowest
	$(PYTHON) tests/lowest_versions.py > $(VENV)-lowest/constraints.txt
	$(VENV)-lowest/bin/python -m pip install --quiet uv
	$(VENV)-lowest/bin/uv pip install --quiet --python $(VENV)-lowest/bin/python \
	  --constraint $(VENV)-lowest/constraints.txt --editable '.[dev]'
	@touch $@

faults: $(SETUP) $(BROWSER) $(JAVA)  ## cause faults, TRIES=50 of each kind; see docs/reliability.md
	TRIES=$(TRIES) $(BIN)/python -m pytest tests/faults $(ARGS)

gpu-smoke: $(SETUP)  ## each network and both stages on a GPU as on the CPU, in five minutes
	GPU_SMOKE=1 $(BIN)/python -m pytest tests/gpu $(ARGS)

# Everything but what the package depends on is new; WHEEL=--download installs that anew as well.
wheel: $(SETUP)  ## build dist/*.whl and try it in a new environment, outside the checkout
	rm -rf dist build/lib
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(BIN)/python tests/try_wheel.py dist/*.whl $(WHEEL)

mutants: $(SETUP) $(JAVA)  ## change operators and constants: do the nearest tests notice?
	$(BIN)/python -m tests.mutants $(ARGS)

docs: $(DOCS)  ## the documentation as a site: build/docs/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open build/docs/index.html"

$(DOCS): $(SETUP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

lint: $(SETUP)  ## style, types, house rules, links of the documentation
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/unit/test_house_rules.py tests/unit/test_docs.py

format: $(SETUP)  ## bring the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test  ## make lint and make test

bench: $(SETUP) $(JAVA)  ## measure; one program a claim, see benchmarks/
	@for program in benchmarks/bench_*.py; do echo "== $$program"; $(BIN)/python $$program || exit 1; done
