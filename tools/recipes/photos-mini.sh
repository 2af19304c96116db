#!/bin/sh
# Trains a comparison of photographs from nothing: `make photos-mini`. Every step can be stopped and
# resumed. SCENES=600 STEPS=400 tries the whole way. It needs Debian's apt-get, and ends with what
# photos-mini says with its present comparison and with the new one, on composed and on real pairs.
set -eu
at=${PHOTOS_MINI:-out/photos-mini}
python=${BIN:-.venv/bin}/python
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train

# Photographs and cut-outs that may be passed on; licences.csv names all authors.
$python -m tools.photo_sources "$at/sources"
$prep composites "$at/pairs" --backgrounds "$at/sources/backgrounds" \
  --objects "$at/sources/objects" --scenes "${SCENES:-10000}"
$prep build composites --root "$at/pairs" --out "$at/shards"
# Images of the size that photos-mini takes.
$prep build composites --root "$at/pairs" --out "$at/large" --set features.backbone=none \
  --set image_size=224 --set 'splits=[test,test_known]'

$train pair --config composites --out "$at/run" ${STEPS:+--steps $STEPS} \
  --shards "$at/shards/shards/train-*.tar" --valid "$at/shards/shards/val-*.tar"
for split in test test_known; do
  $train evaluate "$at/run" --shards "$at/shards/shards/$split-*.tar" --out "$at/run-$split"
  $train evaluate photos-mini --shards "$at/large/shards/$split-*.tar" --out "$at/present-$split"
done
$python benchmarks/photo_captions.py measure "$at/real"
$python benchmarks/photo_captions.py measure "$at/real" --comparison "$at/run"
