#!/bin/bash
#SBATCH --job-name=cc-prepare
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=08:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.log
# Pairs → training shards on all nodes of the job: one Ray for all of them.
#
#   sbatch --nodes=4 deploy/slurm/prepare.sh clevr /data/clevr /shared/out/clevr
#
# The folders must be shared by all nodes. A job that is requeued resumes. For GPUs
# add --gpus-per-node=4 to sbatch; Ray sees them. Further arguments go to `cc-prep build`.
set -euo pipefail

if [ $# -lt 3 ]; then
  echo "usage: sbatch $0 DATASET ROOT OUT [arguments of cc-prep build]" >&2
  exit 2
fi
dataset=$1 root=$2 out=$3
shift 3

: "${SLURM_JOB_NODELIST:?start this with sbatch}"
: "${CC_BIN:=.venv/bin}"  # where ray and cc-prep are
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))  # two jobs on one node do not meet
export MALLOC_ARENA_MAX=1 RAY_ADDRESS="$head:$port"

# A token that only this job knows: Ray refuses everybody else.
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token

cpus=${SLURM_CPUS_PER_TASK:-1}
# Since Slurm 22.05 a step does not inherit this from the job, and would have a single core.
export SRUN_CPUS_PER_TASK=$cpus
srun --nodes=1 --ntasks=1 --nodelist="$head" \
  "$CC_BIN/ray" start --head --port="$port" --num-cpus="$cpus" --include-dashboard=false --block &
trap 'kill %1 2>/dev/null || true; wait' EXIT

# Waits until the head answers, or gives up.
for _ in $(seq 120); do
  (: <"/dev/tcp/$head/$port") 2>/dev/null && break
  kill -0 %1 2>/dev/null || { echo "Ray's head on $head ended" >&2; exit 1; }
  sleep 1
done

others=$((SLURM_JOB_NUM_NODES - 1))
if [ "$others" -gt 0 ]; then
  srun --nodes="$others" --ntasks="$others" --exclude="$head" \
    "$CC_BIN/ray" start --address="$RAY_ADDRESS" --num-cpus="$cpus" --block &
  trap 'kill %1 %2 2>/dev/null || true; wait' EXIT
fi

# Waits until all nodes are there, or gives up.
for _ in $(seq 60); do
  alive=$("$CC_BIN/python" -c \
    'import ray; ray.init(logging_level="ERROR"); print(sum(n["Alive"] for n in ray.nodes()))' \
    2>/dev/null || echo 0)
  [ "$alive" -ge "$SLURM_JOB_NUM_NODES" ] && break
  sleep 5
done
if [ "$alive" -lt "$SLURM_JOB_NUM_NODES" ]; then
  echo "$alive of $SLURM_JOB_NUM_NODES nodes joined Ray at $RAY_ADDRESS" >&2
  exit 1
fi

"$CC_BIN/cc-prep" build "$dataset" --root "$root" --out "$out" "$@"
"$CC_BIN/cc-prep" verify "$out/shards"
