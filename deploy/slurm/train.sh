#!/bin/bash
#SBATCH --job-name=cc-train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@300
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
# A training on all GPUs of the job, by torchrun; it is requeued five minutes before its time ends.
#
#   sbatch deploy/slurm/train.sh stage1 --config clevr --out /shared/runs/stage1 \
#     --shards '/shared/out/clevr/shards/train-*.tar' --set loop.global_batch_size=64
#
# The arguments are those of cc-train. With loop.global_batch_size another number of GPUs goes on
# with the same run. The run's folder is written by the first process; shards and --init must be
# seen by all nodes.
set -euo pipefail

if [ $# -lt 1 ]; then
  echo "usage: sbatch $0 SYSTEM [arguments of cc-train]" >&2
  exit 2
fi
: "${SLURM_JOB_NODELIST:?start this with sbatch}"
: "${CC_BIN:=.venv/bin}"  # where python is
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 20000))
processes=${SLURM_GPUS_ON_NODE:-1}
threads=$((${SLURM_CPUS_PER_TASK:-$processes} / processes))
export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))
export CUBLAS_WORKSPACE_CONFIG=:4096:8
# Since Slurm 22.05 a step does not inherit this from the job, and would have a single core.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

srun --kill-on-bad-exit=1 "$CC_BIN/python" -m torch.distributed.run \
  --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$processes" \
  --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$SLURM_JOB_ID" \
  -m cc_train "$@" &
step=$!

# shellcheck disable=SC2329  # the trap below calls it
requeue() {
  echo "time is nearly over: the training saves and stops, then the job is requeued" >&2
  stopping=yes
  scancel --signal=TERM "$SLURM_JOB_ID.0" || kill -TERM "$step" || true
}
stopping=no
trap requeue TERM

status=0
wait "$step" || status=$?
if [ "$stopping" = yes ]; then
  wait "$step" || true  # the first wait ended with the signal
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"
