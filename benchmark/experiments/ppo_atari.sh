#!/bin/sh
# The published runs of ppo_atari.py, JOBS at a time (default 1), THREADS threads each (default
# 1); again to go on:
#     benchmark/experiments/ppo_atari.sh          10M steps of three games, float32: for a GPU
#     ENVS="PongNoFrameskip-v4 BreakoutNoFrameskip-v4" SEEDS=1 EXP_NAME=ppo_atari_bf16 FLAGS=--bf16 JOBS=2 \
#         benchmark/experiments/ppo_atari.sh      two games in bfloat16: 7 hours on two CPU cores
#     RUN=cat benchmark/experiments/ppo_atari.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_atari.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-10000000}" \
            "--exp-name ${EXP_NAME:-ppo_atari} --threads ${THREADS:-1} $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-1}}
