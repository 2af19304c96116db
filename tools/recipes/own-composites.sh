#!/bin/sh
# What 50, 200 and 1,000 labelled pairs of things and photographs that composites-mini never saw are worth:
# trains from it and from nothing, with three seeds, and says how much is right on others of these
# photographs. It takes what `make photos-mini` made of Debian's packages, and about an hour of a core.
# STEPS=4 SEEDS=0 tries the whole way.
set -eu
at=$(realpath -m "${OWN_COMPOSITES:-out/own-composites}")
sources=${SOURCES:-out/photos-mini/sources}
python=${BIN:-.venv/bin}/python
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train

# One scene says what the test of composites-mini has; 1,000 pairs are those of 500 scenes.
$prep composites "$at/trained" --backgrounds "$sources/backgrounds" --objects "$sources/objects" --scenes 1
rm -rf "$at/unseen"
$python -m tools.unseen_sources "$at/trained" "$sources" "$at/unseen"
$prep composites "$at/pairs" --backgrounds "$at/unseen/backgrounds" --objects "$at/unseen/objects" \
  --scenes 1200 --seed 1
$prep build composites --root "$at/pairs" --out "$at/test" --split test_known
# Labelled by people: with captions, and without what the computer knows of the things that it pasted.
mkdir -p "$at/labelled"
ln -sf "$at"/pairs/* "$at/labelled"
rm "$at/labelled/facts.json"
for count in 50 200 1000; do
  $prep build composites --root "$at/labelled" --out "$at/$count" --split train --limit $count
done

$train evaluate composites-mini --shards "$at/test/shards/*.tar" --out "$at/untrained.evaluation"
run() { # NAME SEED PAIRS STEPS MORE…
  out="$at/$1-$2" seed=$2 shards="$at/$3/shards/train-*.tar" steps=${STEPS:-$4}
  shift 4
  $train pair --out "$out" --shards "$shards" --steps "$steps" --set encoder.places=true \
    --set loop.batch_size=12 --set loop.learning_rate=3e-4 --set loop.warmup_steps=20 \
    --set "loop.seed=$seed" "$@"
  $train evaluate "$out" --shards "$at/test/shards/*.tar" --out "$out.evaluation"
}
for seed in ${SEEDS:-0 1 2}; do
  run from-50 "$seed" 50 100 --init composites-mini
  run from-200 "$seed" 200 200 --init composites-mini
  run from-1000 "$seed" 1000 400 --init composites-mini
  run nothing-1000 "$seed" 1000 400
done
$train compare "$at"/*.evaluation
