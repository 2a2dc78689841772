#!/bin/sh
# The published runs of c51_atari.py, JOBS at a time (default 1), THREADS threads each (default
# 1); again to go on:
#     benchmark/experiments/c51_atari.sh          10M steps of three games, float32: for a GPU
#     ENVS=PongNoFrameskip-v4 SEEDS=1 STEPS=1000000 EXP_NAME=c51_atari_bf16_1000k FLAGS=--bf16 \
#         benchmark/experiments/c51_atari.sh      Pong in bfloat16: 2 hours of one CPU core
#     THREADS=3 EXP_NAME=c51_atari_8envs FLAGS="--num-envs 8 --cuda-graph" \
#         benchmark/experiments/c51_atari.sh      faster on a GPU: eight environments a step
#     RUN=cat benchmark/experiments/c51_atari.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/c51_atari.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-10000000}" \
            "--exp-name ${EXP_NAME:-c51_atari} --threads ${THREADS:-1} $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-1}}
