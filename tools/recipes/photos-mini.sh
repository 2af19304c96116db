#!/bin/sh
# Trains composites-mini, a captioner of photographs, from nothing: `make photos-mini`. Every step can
# be stopped and resumed. It needs Debian's apt-get, and ends with what it and photos-mini say of
# composed pairs, and photos-mini of real ones with its own comparison and with this one. SEED=1
# trains with another seed, on the same scenes, into folders of its own. The package has that of
# SEED=2, which is right more often than that of SEED=0 on the first halves of real videos.
set -eu
at=${PHOTOS_MINI:-out/photos-mini}
python=${BIN:-.venv/bin}/python
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train
of=
[ "${SEED:-0}" = 0 ] || of=-$SEED

# Photographs and cut-outs that may be passed on, the latter rendered from three sides in about ten
# minutes of a core; licences.csv names all authors.
$python -m tools.photo_sources "$at/sources"
$prep composites "$at/pairs" --backgrounds "$at/sources/backgrounds" \
  --objects "$at/sources/objects" --scenes "${SCENES:-3000}"
$prep build composites --root "$at/pairs" --out "$at/shards"
# Images of the size that photos-mini takes.
$prep build composites --root "$at/pairs" --out "$at/large" --set features.backbone=none \
  --set image_size=224 --set 'splits=[test,test_known]'

$train pair --config composites --out "$at/run$of" --steps "${STEPS:-1500}" \
  --set "loop.seed=${SEED:-0}" \
  --shards "$at/shards/shards/train-*.tar" --valid "$at/shards/shards/val-*.tar"
for split in test test_known; do
  $train evaluate "$at/run$of" --shards "$at/shards/shards/$split-*.tar" --out "$at/run$of-$split"
  $train evaluate photos-mini --shards "$at/large/shards/$split-*.tar" --out "$at/present-$split"
done
rm -rf "$at/packed$of"
$train export "$at/run$of" "$at/packed$of/composites-mini" --shards "$at/shards/shards/test-*.tar" \
  --calibrate "$at/shards/shards/val-*.tar" --license cc-by-4.0 \
  --data "composed scenes of \`cc-prep composites\` (seed 0): photographs, and icons and rendered views of 3-D models, from packages of Debian, in the public domain, under CC0 or CC-BY; licences.csv names the authors"
cp "$at/sources/licences.csv" "$at/packed$of/composites-mini"
$python benchmarks/photo_captions.py measure "$at/real"
$python benchmarks/photo_captions.py measure "$at/real" --comparison "$at/run$of"
