#!/bin/sh
# What some hundred labelled pairs of real photographs are worth: trains on the first halves of real
# videos from composites-mini, from captioner-mini and from nothing, with three seeds, and says how
# much is right on the second halves. About an hour of a core. STEPS=4 SEEDS=0 tries the whole way.
set -eu
at=${OWN:-out/own-photographs}
python=${BIN:-.venv/bin}/python
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train
small=efficientnet-lite0-x2

$python benchmarks/photo_captions.py pairs "$at/real" "$at/table"
for backbone in $small $small+nanodet; do
  $prep build pairs --root "$at/table" --out "$at/$backbone" --set layout=table --set name=own \
    --set 'splits=[train,test]' --set outside_root=true --set "features.backbone=$backbone"
done

run() { # NAME SEED BACKBONE PAIRS STEPS MORE…
  out="$at/$1-$2" seed=$2 shards="$at/$3/shards" limit=$4 steps=${STEPS:-$5}
  shift 5
  if [ "$limit" != all ]; then
    $prep build pairs --root "$at/table" --out "$at/$limit" --set layout=table --set name=own \
      --split train --limit "$limit" --set 'splits=[train,test]' --set outside_root=true \
      --set "features.backbone=$small+nanodet"
  fi
  from=$shards
  [ "$limit" = all ] || from="$at/$limit/shards"
  $train pair --out "$out" --shards "$from/train-*.tar" --steps "$steps" --set loop.batch_size=12 \
    --set loop.learning_rate=3e-4 --set loop.warmup_steps=20 --set "loop.seed=$seed" "$@"
  $train evaluate "$out" --shards "$shards/test-*.tar" --out "$out.evaluation"
}
$train evaluate composites-mini --shards "$at/$small+nanodet/shards/test-*.tar" \
  --out "$at/untrained.evaluation"
for seed in ${SEEDS:-0 1 2}; do
  run composites-mini "$seed" $small+nanodet all 200 --init composites-mini --set encoder.places=true
  run fifty-pairs "$seed" $small+nanodet 50 100 --init composites-mini --set encoder.places=true
  run captioner-mini "$seed" $small all 200 --init captioner-mini
  run nothing "$seed" $small+nanodet all 200 --set encoder.places=true
done
$python benchmarks/photo_captions.py own "$at"/*.evaluation
