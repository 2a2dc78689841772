#!/bin/sh
# The published runs of sac_atari.py, JOBS at a time (default 1), THREADS threads each (default
# 1); again to go on:
#     benchmark/experiments/sac_atari.sh          2M steps of two games, float32: for a GPU
#     ENVS=ALE/Pong-v5 SEEDS=1 STEPS=500000 EXP_NAME=sac_atari_bf16_500k FLAGS=--bf16 \
#         benchmark/experiments/sac_atari.sh      a part of them, shorter, in bfloat16
#     RUN=cat benchmark/experiments/sac_atari.sh  show the commands only
# Sticky actions and 2M steps are the protocol of the published figures. Run directories go to
# runs/benchmark/; `python -m benchmark.publish.collect` makes the results out of them.
for env in ${ENVS:-ALE/Pong-v5 ALE/Breakout-v5}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/sac_atari.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-2000000}" \
            "--exp-name ${EXP_NAME:-sac_atari} --threads ${THREADS:-1} $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-1}}
