#!/bin/sh
# Trains a captioner that says several changes of a rendered pair, from captioner-mini:
# `make captioner-multi`. Every step can be stopped and resumed. SHARE=1 STEPS=6 tries the
# whole way with 1 % of the scenes and 6 steps, in some minutes.
set -eu
at=${MULTI:-out/captioner-multi}
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train
scenes() { echo $(( ($1 * ${SHARE:-100} + 99) / 100 )); }

# Scenes to train on, some with a camera that moves far; and others that nobody trained or chose
# on, with one to three changes, from a camera that stands still to one that moves far.
$prep synth "$at/scenes" --scenes "$(scenes 2000)" --seed 71 --size 112 --wording plain --changes 1..4
$prep synth "$at/far" --scenes "$(scenes 600)" --seed 72 --size 112 --wording plain --changes 1..4 --jitter 3
for jitter in 0 1 2 3 5; do
  count=$(scenes 100)
  [ "$jitter" != 1 ] || count=$(scenes 500)
  $prep synth "$at/jitter-$jitter" --scenes "$count" --seed "99$jitter" --size 112 --wording plain \
    --changes 1..3 --jitter "$jitter"
  $prep build pairs --root "$at/jitter-$jitter" --out "$at/jitter-$jitter-shards" --set "name=jitter$jitter"
done
# Names of their own: all scenes have the same numbers.
for set in scenes far; do
  $prep build pairs --root "$at/$set" --out "$at/$set-shards" --set "name=$set" --set features.mirrored=true
done

$train pair --config pairs --init captioner-mini --out "$at/run" --steps "${STEPS:-3000}" \
  --set mirror=0.5 --set decoder.changes.layers=1 --set pairs_per_scene=4 \
  --shards "$at/scenes-shards/shards/train-*.tar" --shards "$at/scenes-shards/shards/test-*.tar" \
  --shards "$at/far-shards/shards/*.tar" --valid "$at/scenes-shards/shards/val-*.tar"
for jitter in 0 1 2 3 5; do
  $train evaluate "$at/run" --shards "$at/jitter-$jitter-shards/shards/*.tar" --out "$at/jitter-$jitter-evaluation"
done
rm -rf "$at/packed"
$train export "$at/run" "$at/packed/captioner-multi" \
  --shards "$at/jitter-1-shards/shards/*.tar" --calibrate "$at/scenes-shards/shards/val-*.tar" \
  --data "$(scenes 2600) scenes with one to four changes that \`cc-prep synth\` renders (seeds 71 and 72, 112 px)" --license mit
