#!/bin/sh
# The published runs of rainbow_atari.py, JOBS at a time (default 1), THREADS threads each (default
# 1); again to go on:
#     benchmark/experiments/rainbow_atari.sh          10M steps of three games, float32: for a GPU
#     ENVS=PongNoFrameskip-v4 SEEDS=1 STEPS=20000 EXP_NAME=rainbow_atari_20k \
#         FLAGS="--learning-starts 4000 --buffer-size 20000" \
#         benchmark/experiments/rainbow_atari.sh      a short run of Pong on a busy CPU core
#     THREADS=3 EXP_NAME=rainbow_atari_8envs FLAGS="--num-envs 8 --cuda-graph" \
#         benchmark/experiments/rainbow_atari.sh      faster on a GPU: eight environments a step
#     RUN=cat benchmark/experiments/rainbow_atari.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-PongNoFrameskip-v4 MsPacmanNoFrameskip-v4 AlienNoFrameskip-v4}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/rainbow_atari.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-10000000}" \
            "--exp-name ${EXP_NAME:-rainbow_atari} --threads ${THREADS:-1} $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-1}}
