#!/bin/bash
# Train on several machines of a SLURM cluster, one torchrun agent on each:
#
#   sbatch --nodes 2 --gpus-per-node 4 examples/slurm_nodes.sh cifar10-linf-preact18-trades-2nd --out runs/a
#
# --out lies on a disk that all machines share. A machine that dies is waited for and everything goes on from the last
# checkpoint; a job that runs out of time saves first. Where a cluster requeues no jobs, chain some: each begins when the
# one before it has ended, and one that finds the run finished ends at once.
#
#   first=$(sbatch --parsable examples/slurm_nodes.sh RECIPE --out runs/a)
#   sbatch --dependency afterany:$first examples/slurm_nodes.sh RECIPE --out runs/a
#
#SBATCH --job-name=rattle
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
set -e
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Without it an agent of torch 2.13 that comes back is never told where the others meet.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# Machines with several networks: name the one between them, export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
srun --kill-on-bad-exit=0 python -m torch.distributed.run --nnodes "$SLURM_NNODES" --max-restarts 3 \
    --nproc-per-node "${RANKS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}" \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:${PORT:-29500}" \
    -m -- rattle train "$@" --resume
