#!/bin/sh
# The published runs of ppo_atari.py, JOBS at a time (default 1), THREADS threads each (default 1):
#     benchmark/ppo_atari.sh                                          what two CPU cores allow: Pong, bfloat16
#     ENVS="PongNoFrameskip-v4 BreakoutNoFrameskip-v4" SEEDS="1 2 3" STEPS=10000000 NAME=ppo_atari FLAGS= \
#         benchmark/ppo_atari.sh                                      the usual 10M steps, float32, for a GPU
# Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
for seed in ${SEEDS:-1}; do
    for env in ${ENVS:-PongNoFrameskip-v4}; do
        echo "python cleanrl_lite/ppo_atari.py --env-id $env --seed $seed --threads ${THREADS:-1}" \
            "--total-timesteps ${STEPS:-1500000} --exp-name ${NAME:-ppo_atari_bf16_1500k} ${FLAGS---bf16}" \
            "--save-every 50000 --runs-dir runs/benchmark $*"
    done
done | xargs -P "${JOBS:-1}" -I {} sh -c '{} 2>&1 | tail -n 2'
