#!/bin/bash
#SBATCH --job-name=cc-prepare
#SBATCH --array=0-2
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --output=%x-%A-%a.log
# Pairs → training shards, one split for each job of an array, without a Ray across nodes.
#
#   sbatch deploy/slurm/prepare-array.sh clevr /data/clevr /shared/out/clevr
#
# Each split has a folder of its own, OUT/train, OUT/val and OUT/test, since one job at a time works
# in a folder. Training takes them as --shards 'OUT/train/shards/*.tar'.
set -euo pipefail

if [ $# -lt 3 ]; then
  echo "usage: sbatch $0 DATASET ROOT OUT [arguments of cc-prep build]" >&2
  exit 2
fi
dataset=$1 root=$2 out=$3
shift 3

: "${SLURM_ARRAY_TASK_ID:?start this with sbatch}"
: "${CC_BIN:=.venv/bin}"  # where cc-prep is
splits=(train val test)
split=${splits[$SLURM_ARRAY_TASK_ID]:?no such split}

# A Ray of this node alone, even where another one is announced.
unset RAY_ADDRESS
"$CC_BIN/cc-prep" build "$dataset" --root "$root" --out "$out/$split" --split "$split" "$@"
"$CC_BIN/cc-prep" verify "$out/$split/shards"
