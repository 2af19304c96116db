#!/bin/sh
# Trains a small captioner of rendered pairs from nothing: `make captioner-mini`. Every
# step can be stopped and resumed. SHARE=1 STEPS=6 tries the whole way with 1 % of the
# scenes and 6 steps, in some minutes. SEED=1 trains with another seed, on the same scenes,
# into folders of its own.
set -eu
at=${MINI:-out/captioner-mini}
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train
of=
[ "${SEED:-0}" = 0 ] || of=-$SEED
scenes() { echo $(( ($1 * ${SHARE:-100} + 99) / 100 )); }

# Scenes to train on; 500 that nobody trained or chose on, and others under other conditions.
# Of each pair to train on a plain and a rich sentence.
$prep synth "$at/scenes" --scenes "$(scenes 10650)" --seed 7 --size 112 --wording both
$prep synth "$at/fresh" --scenes "$(scenes 500)" --seed 990 --size 112 --wording plain
$prep synth "$at/still" --scenes "$(scenes 250)" --seed 991 --size 112 --wording plain --jitter 0
$prep synth "$at/large" --scenes "$(scenes 250)" --seed 992 --size 224 --wording plain
# The fresh scenes in other words; nothing is rendered again.
[ -e "$at/rich" ] || { rm -rf "$at/rich.part"; cp -r "$at/fresh" "$at/rich.part"; mv "$at/rich.part" "$at/rich"; }
$prep synth "$at/rich" --scenes "$(scenes 500)" --seed 990 --size 112 --wording rich
# Half of the scenes to train on are seen mirrored at a time.
$prep build pairs --root "$at/scenes" --out "$at/scenes-shards" --set features.mirrored=true
# Names of their own: all scenes have the same numbers, and no pair is one that was trained on.
for set in fresh still large rich; do
  $prep build pairs --root "$at/$set" --out "$at/$set-shards" --set name=$set
done
# Real videos, of which it should say that it knows nothing.
$prep videos "$at/videos"
$prep build pairs --root "$at/videos" --out "$at/videos-shards" \
  --set layout=video --set 'splits=[train]' --set video.gap=24 --set video.stride=24

$train pair --config pairs --out "$at/run$of" ${STEPS:+--steps $STEPS} --set mirror=0.5 \
  --set "loop.seed=${SEED:-0}" \
  --shards "$at/scenes-shards/shards/train-*.tar" --shards "$at/scenes-shards/shards/test-*.tar" \
  --valid "$at/scenes-shards/shards/val-*.tar"
for set in still large rich; do
  $train evaluate "$at/run$of" --shards "$at/$set-shards/shards/*.tar" --out "$at/$set-evaluation$of"
done
rm -rf "$at/packed$of"
$train export "$at/run$of" "$at/packed$of/captioner-mini" \
  --shards "$at/fresh-shards/shards/*.tar" --calibrate "$at/scenes-shards/shards/val-*.tar" \
  --data "$(scenes 10650) scenes that \`cc-prep synth\` renders (seed 7, 112 px, plain and rich wording)" --license mit
$train caption "$at/packed$of/captioner-mini" --shards "$at/videos-shards/shards/*.tar"
echo "To ship it: copy $at/packed$of/captioner-mini without its evaluation into cc_train/assets"
