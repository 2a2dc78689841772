#!/bin/sh
# The runs of ppo_atari_lstm.py, JOBS at a time (default 1), THREADS threads each (default 1);
# again to go on:
#     benchmark/experiments/ppo_atari_lstm.sh          10M steps of three games, float32: for a GPU
#     ENVS=PongNoFrameskip-v4 SEEDS=1 STEPS=1500000 EXP_NAME=ppo_atari_lstm_bf16_1500k FLAGS=--bf16 \
#         benchmark/experiments/ppo_atari_lstm.sh      what two CPU cores allow: Pong, bfloat16
#     RUN=cat benchmark/experiments/ppo_atari_lstm.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_atari_lstm.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-10000000}" \
            "--exp-name ${EXP_NAME:-ppo_atari_lstm} --threads ${THREADS:-1} $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-1}}
