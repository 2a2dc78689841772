#!/bin/sh
# What needs a GPU, on one machine with 16 cores: check every script on CUDA, measure speed, then
# train, JOBS runs at a time (default 12) on the one GPU. The same command again goes on where it
# was stopped:
#     benchmark/experiments/gpu.sh  until all is done
#     LIMIT=570 benchmark/experiments/gpu.sh
#                                   for at most 570 seconds; running jobs save a checkpoint first
#     RUN=cat benchmark/experiments/gpu.sh  show the training commands only
# `python -m benchmark.measure.cuda_check table` and `python -m benchmark.publish.collect` turn
# the output into results.
set -e
end=$(($(date +%s) + ${LIMIT:-8640000}))
within() {  # runs a command, interrupted 20 s before the limit
    left=$((end - $(date +%s) - 20))
    [ $left -gt 0 ] && timeout -s INT $left "$@"
}
commands() {  # in order of worth
    ENVS="PongNoFrameskip-v4 BreakoutNoFrameskip-v4" SEEDS=1 EXP_NAME=ppo_atari_bf16 \
        FLAGS="--bf16 --cuda-graph" RUN=cat benchmark/experiments/ppo_atari.sh
    for seeds in "2 3" 1; do
        envs="HalfCheetah-v4 Hopper-v4 Walker2d-v4"
        [ "$seeds" != 1 ] || envs="InvertedPendulum-v4 Humanoid-v4"
        for script in sac td3 ddpg; do
            ENVS=$envs SEEDS=$seeds FLAGS=--cuda-graph RUN=cat benchmark/experiments/$script.sh
        done
    done
}
[ "$RUN" != cat ] || { commands && exit; }
python -c "import torch; raise SystemExit(not torch.cuda.is_available())" ||
    { echo "error: torch finds no GPU" >&2 && exit 1; }
[ -e runs/cuda/speed.json ] || within python -m benchmark.measure.cuda_check all --limit 500 ||
    echo "not all was checked and measured: see runs/cuda"
commands > runs/gpu.txt
within python -m benchmark.launch --jobs "${JOBS:-12}" < runs/gpu.txt
