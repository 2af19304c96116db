#!/bin/sh
# Trains `vqgan-mini`, `vqgan-mini-f8` and `clip4idc-mini`, the weights that come with the package:
# `make assets`.
# Every step can be stopped and resumed. SHARE=2 STEPS=6 tries the whole way with 2 % of
# the scenes and 6 steps, in some minutes.
set -eu
at=${ASSETS:-out/assets}
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train
scenes() { echo $(( ($1 * ${SHARE:-100} + 99) / 100 )); }

# Scenes to train on, large for the VQGAN and small for CLIP4IDC; true frames to measure with.
$prep synth "$at/large" --scenes "$(scenes 600)" --seed 1000 --size 224
$prep synth "$at/small" --scenes "$(scenes 4000)" --seed 2000 --size 112
$prep synth "$at/more" --scenes "$(scenes 10650)" --seed 7 --size 112
$prep synth "$at/truth" --scenes "$(scenes 200)" --seed 4000 --size 112 --truth
$prep synth "$at/fresh" --scenes "$(scenes 40)" --seed 3000 --size 224
$prep videos "$at/videos"

# Sequences of them: interpolated frames are what the VQGAN will see; CLIP4IDC sees only the ends.
$prep interpolate synth --root "$at/large" --out "$at/large-seq" --split train \
  --set interpolate.depth=1
$prep interpolate video --root "$at/videos" --out "$at/video-seq" \
  --set interpolate.depth=1 --set video.stride=4
$prep interpolate synth --root "$at/small" --out "$at/small-seq" --set image_size=112 \
  --set interpolate.method=crossfade --set interpolate.depth=1
$prep interpolate synth --root "$at/more" --out "$at/more-seq" --set image_size=112 \
  --set interpolate.method=crossfade --set interpolate.depth=1
$prep interpolate synth --root "$at/truth" --out "$at/truth-seq" --set image_size=112 \
  --set interpolate.method=crossfade
$prep interpolate synth --root "$at/fresh" --out "$at/fresh-seq"

$train vqgan --out "$at/runs/vqgan" --config vqgan-mini ${STEPS:+--steps $STEPS} \
  --shards "$at/large-seq/sequences/train-*.tar" --shards "$at/video-seq/sequences/*.tar"
$train vqgan --out "$at/runs/vqgan-f8" --config vqgan-mini-f8 ${STEPS:+--steps $STEPS} \
  --shards "$at/small-seq/sequences/*.tar" --shards "$at/large-seq/sequences/train-*.tar" \
  --shards "$at/video-seq/sequences/*.tar"
# Trained on twice, with more weight on how objects look: colors and shapes come last.
looks="--set weights.perceptual=1 --set weights.revive_every=0 --set loop.steps=1000 \
 --set loop.warmup_steps=30 --set loop.validate_every=300"
# shellcheck disable=SC2086
$train vqgan --out "$at/runs/vqgan-f8-2" --config vqgan-mini-f8 --init "$at/runs/vqgan-f8" $looks \
  --set weights.squared=8 --set loop.learning_rate=7e-4 ${STEPS:+--steps $STEPS} \
  --shards "$at/small-seq/sequences/*.tar" --shards "$at/large-seq/sequences/train-*.tar" \
  --shards "$at/video-seq/sequences/*.tar"
# shellcheck disable=SC2086
$train vqgan --out "$at/runs/vqgan-f8-3" --config vqgan-mini-f8 --init "$at/runs/vqgan-f8-2" $looks \
  --set weights.squared=12 --set loop.learning_rate=8e-4 ${STEPS:+--steps $STEPS} \
  --shards "$at/small-seq/sequences/*.tar" --shards "$at/large-seq/sequences/train-*.tar" \
  --shards "$at/video-seq/sequences/*.tar"
# And on more pairs, with the perceptual distance of enlarged images: shapes come last.
$train vqgan --out "$at/runs/vqgan-f8-4" --config vqgan-mini-f8 --init "$at/runs/vqgan-f8-3" \
  --set weights.perceptual=4 --set weights.backbone=efficientnet-lite0-x2 --set weights.squared=12 \
  --set weights.revive_every=0 --set loop.learning_rate=8e-4 --set loop.warmup_steps=30 \
  --set loop.validate_every=1000 --set loop.checkpoint_every=500 --set loop.steps=3000 ${STEPS:+--steps $STEPS} \
  --shards "$at/more-seq/sequences/*.tar"
$train clip4idc --out "$at/runs/clip4idc" --config clip4idc-mini ${STEPS:+--steps $STEPS} \
  --shards "$at/small-seq/sequences/*.tar"
# Trained on with what the renderer knows, each pair in both directions: captions alone teach it slowly.
$train clip4idc --out "$at/runs/clip4idc-2" --config clip4idc-mini --init "$at/runs/clip4idc" \
  --set clip_lr_scale=1 --set 'facts={}' --set data.reverse=true --set loop.warmup_steps=30 \
  --set loop.steps=1750 ${STEPS:+--steps $STEPS} --shards "$at/small-seq/sequences/*.tar"
# And on more pairs, with more weight on how objects look: shapes come last.
$train clip4idc --out "$at/runs/clip4idc-3" --config clip4idc-mini --init "$at/runs/clip4idc-2" \
  --set clip_lr_scale=1 --set 'facts={looks: 2, objects: 1}' --set data.reverse=true \
  --set loop.warmup_steps=50 --set loop.precision=bfloat16 --set loop.validate_every=200 --set loop.checkpoint_every=200 \
  --set loop.steps=2400 ${STEPS:+--steps $STEPS} --shards "$at/more-seq/sequences/*.tar"

$train export "$at/runs/vqgan" "$at/weights/vqgan-mini" --license mit \
  --shards "$at/fresh-seq/sequences/*.tar"
$train export "$at/runs/vqgan-f8-4" "$at/weights/vqgan-mini-f8" --license mit \
  --shards "$at/fresh-seq/sequences/*.tar"
$train export "$at/runs/clip4idc-3" "$at/weights/clip4idc-mini" --license mit \
  --shards "$at/truth-seq/sequences/*.tar"
echo "To ship them: copy $at/weights into cc_prep/assets and their SHA-256 into cc_prep/weights/registry.py"
