#!/bin/sh
# The published runs of dqn_atari.py, JOBS at a time (default 1), THREADS threads each (default 1):
#     benchmark/dqn_atari.sh                                          the usual 10M steps of Pong, float32, for a GPU
#     SEEDS=1 STEPS=1000000 NAME=dqn_atari_bf16_1000k FLAGS=--bf16 \
#         benchmark/dqn_atari.sh                                      what two CPU cores allow: fewer steps, bfloat16
#     SEEDS=1 THREADS=3 NAME=dqn_atari_8envs FLAGS="--num-envs 8 --cuda-graph" \
#         benchmark/dqn_atari.sh                                      faster on a GPU: eight environments a step
# Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
for seed in ${SEEDS:-1 2 3}; do
    for env in ${ENVS:-PongNoFrameskip-v4}; do
        echo "python cleanrl_lite/dqn_atari.py --env-id $env --seed $seed --threads ${THREADS:-1}" \
            "--total-timesteps ${STEPS:-10000000} --exp-name ${NAME:-dqn_atari} $FLAGS --runs-dir runs/benchmark $*"
    done
done | xargs -P "${JOBS:-1}" -I {} sh -c '{} 2>&1 | tail -n 2'
