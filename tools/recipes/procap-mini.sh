#!/bin/sh
# Trains a small ProCap, both stages, whose comparison and decoder start from captioner-mini: `make
# procap-mini`. Every step can be stopped and resumed. SHARE=2 STEPS=6 tries the whole way with 2 % of
# the scenes and 6 steps.
set -eu
at=${PROCAP_MINI:-out/procap-mini}
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train
scenes() { echo $(( ($1 * ${SHARE:-100} + 99) / 100 )); }

# Scenes to train on, and 500 (1,000 pairs) that nobody trained or chose on.
$prep synth "$at/scenes" --scenes "$(scenes 2000)" --seed 11 --size 112 --wording plain
$prep synth "$at/fresh" --scenes "$(scenes 500)" --seed 990 --size 112 --wording plain
# A name of its own: scenes of both have the same numbers, and no pair is one that was trained on.
for set in scenes fresh; do
  $prep build procap_mini --root "$at/$set" --out "$at/$set-shards" --set "name=$set"
done
for stage in 1 2; do
  [ $stage = 1 ] || set -- --init "$at/stage1"
  $train stage$stage --config procap_mini --out "$at/stage$stage" "$@" \
    ${STEPS:+--steps $STEPS} \
    --shards "$at/scenes-shards/shards/train-*.tar" --shards "$at/scenes-shards/shards/test-*.tar" \
    --valid "$at/scenes-shards/shards/val-*.tar"
done
rm -rf "$at/packed"
$train export "$at/stage2" "$at/packed/procap-mini" --by-name \
  --shards "$at/fresh-shards/shards/*.tar" --calibrate "$at/scenes-shards/shards/val-*.tar" \
  --data "$(scenes 2000) scenes that \`cc-prep synth\` renders (seed 11, 112 px, plain wording)" --license mit
echo "To ship it: copy $at/packed/procap-mini without its evaluation into cc_train/assets"
