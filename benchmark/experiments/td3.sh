#!/bin/sh
# The published runs of td3.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/td3.sh          all of them, float32
#     ENVS=Hopper-v4 SEEDS="1 2" STEPS=300000 EXP_NAME=td3_bf16_300k FLAGS=--bf16 \
#         benchmark/experiments/td3.sh      a part of them, shorter, in bfloat16
#     EXP_NAME=td3_gpu FLAGS=--cuda-graph JOBS=12 benchmark/experiments/td3.sh
#                                           on a GPU, which many runs can share
#     RUN=cat benchmark/experiments/td3.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
mujoco="HalfCheetah-v4 Hopper-v4 Walker2d-v4 Humanoid-v4"
others="Pendulum-v1 MountainCarContinuous-v0 LunarLanderContinuous-v3 BipedalWalker-v3"
for env in ${ENVS:-$mujoco $others}; do
    seeds="1 2 3" steps=1000000 name=td3 flags=
    case $env in
        Pendulum-v1) seeds="1 2 3 4 5" steps=20000 flags="--learning-starts 1000" ;;
        MountainCarContinuous-v0)  # the noise has to find what is beyond the hill: more of it, more episodes
            seeds="1 2 3 4 5" steps=300000 name=td3_noise1
            flags="--learning-starts 10000 --num-envs 8 --train-frequency 8"
            flags="$flags --exploration-noise 1" ;;
        LunarLanderContinuous-v3)  # with the defaults it hovers until the time limit: docs/td3.md
            steps=300000 name=td3_tuned flags="--learning-starts 10000 --gamma 0.98"
            flags="$flags --learning-rate 0.001" ;;
        BipedalWalker-v3)  # with the defaults, some seeds only stand still: docs/td3.md
            name=td3_8envs flags="--learning-starts 10000 --num-envs 8 --train-frequency 8"
            flags="$flags --gradient-steps 4 --batch-size 128" ;;
    esac
    for seed in ${SEEDS:-$seeds}; do
        echo "python cleanrl_lite/td3.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-$steps}" \
            "--exp-name ${EXP_NAME:-$name} $flags $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
