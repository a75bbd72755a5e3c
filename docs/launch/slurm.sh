#!/bin/bash
# A run on several nodes under Slurm: sbatch docs/launch/slurm.sh RECIPE.toml RUN_FOLDER
# Submitted again with the same folder, it goes on from its last checkpoint.
#SBATCH --job-name=qkv
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@180
set -euo pipefail

recipe=$1 out=$2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
resume=()
if [ -e "$out/recipe.toml" ]; then resume=(--resume); fi

exec srun torchrun \
  --nnodes "$SLURM_NNODES" \
  --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
  --rdzv-id "$SLURM_JOB_ID" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$head:29500" \
  -m qkv train "$recipe" --out "$out" "${resume[@]}"
