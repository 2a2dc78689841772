#!/bin/sh
# The published runs of sac.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/sac.sh          all of them, float32
#     ENVS=Hopper-v4 SEEDS="1 2" STEPS=300000 EXP_NAME=sac_bf16_300k FLAGS=--bf16 \
#         benchmark/experiments/sac.sh      a part of them, shorter, in bfloat16
#     EXP_NAME=sac_gpu FLAGS=--cuda-graph JOBS=12 benchmark/experiments/sac.sh
#                                           on a GPU, which many runs can share
#     RUN=cat benchmark/experiments/sac.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
mujoco="HalfCheetah-v4 Hopper-v4 Walker2d-v4 Humanoid-v4"
others="Pendulum-v1 MountainCarContinuous-v0 LunarLanderContinuous-v3 BipedalWalker-v3"
for env in ${ENVS:-$mujoco $others}; do
    seeds="1 2 3" steps=1000000 name=sac flags=
    case $env in
        Pendulum-v1) seeds="1 2 3 4 5" steps=20000 flags="--learning-starts 1000" ;;
        MountainCarContinuous-v0)  # as many episodes as ddpg.sh and td3.sh have there
            seeds="1 2 3 4 5" steps=300000 name=sac_8envs
            flags="--learning-starts 10000 --num-envs 8 --train-frequency 8" ;;
        LunarLanderContinuous-v3 | BipedalWalker-v3) steps=300000 flags="--learning-starts 10000" ;;
    esac
    for seed in ${SEEDS:-$seeds}; do
        echo "python cleanrl_lite/sac.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-$steps}" \
            "--exp-name ${EXP_NAME:-$name} $flags $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
