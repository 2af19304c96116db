#!/bin/sh
# Trains a small captioner that also masks the change, from captioner-mini: `make chain-mini`. Every step
# can be stopped and resumed. SHARE=2 STEPS=6 tries the whole way with 2 % of the scenes.
set -eu
at=${CHAIN_MINI:-out/chain-mini}
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train
scenes() { echo $(( ($1 * ${SHARE:-100} + 99) / 100 )); }

# Scenes to train on, and 500 (1,000 pairs) that nobody trained or chose on.
$prep synth "$at/scenes" --scenes "$(scenes 1300)" --seed 8 --size 112 --wording plain
$prep synth "$at/fresh" --scenes "$(scenes 500)" --seed 990 --size 112 --wording plain
# A name of its own: scenes of both have the same numbers, and no pair is one that was trained on.
$prep build pairs --root "$at/scenes" --out "$at/scenes-shards"
$prep build pairs --root "$at/fresh" --out "$at/fresh-shards" --set name=fresh
$train chain --init captioner-mini --out "$at/run" --steps "${STEPS:-230}" \
  --shards "$at/scenes-shards/shards/train-*.tar" --shards "$at/scenes-shards/shards/test-*.tar" \
  --valid "$at/scenes-shards/shards/val-*.tar" \
  --set rounds=1 --set trunk_rate=0 --set loop.batch_size=6 --set loop.ema_decay=0.97 \
  --set loop.warmup_steps=15 --set loop.validate_every=1000 --set loop.threads=1
rm -rf "$at/packed"
$train export "$at/run" "$at/packed/chain-mini" \
  --shards "$at/fresh-shards/shards/*.tar" --calibrate "$at/scenes-shards/shards/val-*.tar" \
  --data "$(scenes 1300) scenes that \`cc-prep synth\` renders (seed 8, 112 px, plain wording)" --license mit
echo "To ship it: copy $at/packed/chain-mini without its evaluation into cc_train/assets"
