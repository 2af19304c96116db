#!/bin/sh
# From raw files to a row of the zoo: `make zoo-row DATASET=spot SYSTEM=procap SPOT_ROOT=/data/spot`.
# Every step can be stopped and resumed. PREPARE is added to the preparation, such as
# `--set tokenize.weights=FILE`; TRAIN to every training, such as `--steps 10`. Both are quoted as in a
# shell: `--set 'splits=[train]'`.
set -eu
prep=${BIN:-.venv/bin}/cc-prep
train=${BIN:-.venv/bin}/cc-train
python=${BIN:-.venv/bin}/python
data=$DATASET
title=$(basename "$data" .yaml)
out=$OUT
# A file of your own is no official data set, whatever it is called.
case $title in
  clevr | clevr_dc | spot | spot_multi | edit | levir) [ "$data" = "$title" ] || title=$title.yaml ;;
esac
case $data in
  clevr) protocol=clevr-change ;;
  clevr_dc) protocol=clevr-dc ;;
  spot) protocol=spot-single ;;
  edit) protocol=image-editing ;;
  levir) protocol=levir-cc ;;
  *) protocol= ;;  # data of your own: no protocol
esac

# Shards, with further options; then a system trained on them, likewise.
build() {
  eval "set -- \"\$@\" ${PREPARE:-}"
  $prep build "$data" --out "$out" "$@"
}
fit() {
  eval "set -- \"\$@\" ${TRAIN:-}"
  step=$1
  shift
  $train "$step" --config "$data" --out "$out/$step" "$@" \
    --shards "$out/shards/train-*.tar" --valid "$out/shards/val-*.tar"
}

# Both images' features alone are what SCORER needs; `make scorer` prepares the same.
features="--set features.backbone=efficientnet-lite0 \
 --set interpolate.method=crossfade --set interpolate.depth=0 --set score.weights=none \
 --set keyframes.k=0 --set tokenize.weights=none"
case $SYSTEM in
  procap)
    build
    fit stage1
    fit stage2 --init "$out/stage1"
    run=$out/stage2 name=ProCap ;;
  scorer)
    # shellcheck disable=SC2086
    build $features
    fit scorer
    run=$out/scorer name=SCORER+CBR ;;
  *)
    echo "SYSTEM=$SYSTEM: give procap or scorer" >&2
    exit 2 ;;
esac

# What the row says that made it, quoted as in a shell.
quoted() { printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"; }
shown=$data
case $data in *[!a-zA-Z0-9_./-]*) shown=$(quoted "$data") ;; esac
command="make zoo-row DATASET=$shown SYSTEM=$SYSTEM"
[ -z "${PREPARE:-}" ] || command="$command PREPARE=$(quoted "$PREPARE")"
[ -z "${TRAIN:-}" ] || command="$command TRAIN=$(quoted "$TRAIN")"

# Captions of the test split, and their scores; --protocol refuses other pairs than the official.
$train evaluate "$run" --shards "$out/shards/test-*.tar" ${protocol:+--protocol "$protocol"}
$python -m tools.zoo add "$run/evaluation" --run "$run" --zoo "$ROWS" --name "$SYSTEM-$title" \
  --system "$name" --dataset "$title" --command "$command" --replace
$python -m tools.zoo page --zoo "$ROWS" --out "$ROWS/zoo.md"
