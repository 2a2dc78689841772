#!/bin/sh
# The runs of pqn_atari.py, JOBS at a time (default 1), THREADS threads each (default 1); again to
# go on:
#     benchmark/experiments/pqn_atari.sh               10M steps of two games, float32: for a GPU
#     ENVS=PongNoFrameskip-v4 SEEDS=1 STEPS=1500000 EXP_NAME=pqn_atari_bf16_1500k FLAGS=--bf16 \
#         benchmark/experiments/pqn_atari.sh           what two CPU cores allow: Pong, bfloat16
#     RUN=cat benchmark/experiments/pqn_atari.sh       show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-PongNoFrameskip-v4 BreakoutNoFrameskip-v4}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/pqn_atari.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-10000000}" \
            "--exp-name ${EXP_NAME:-pqn_atari} --threads ${THREADS:-1} $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-1}}
