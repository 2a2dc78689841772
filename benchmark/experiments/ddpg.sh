#!/bin/sh
# The published runs of ddpg.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/ddpg.sh          all of them, float32
#     ENVS=Hopper-v4 SEEDS="1 2" STEPS=300000 EXP_NAME=ddpg_bf16_300k FLAGS=--bf16 \
#         benchmark/experiments/ddpg.sh      a part of them, shorter, in bfloat16
#     EXP_NAME=ddpg_gpu FLAGS=--cuda-graph JOBS=12 benchmark/experiments/ddpg.sh
#                                            on a GPU, which many runs can share
#     RUN=cat benchmark/experiments/ddpg.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
mujoco="HalfCheetah-v4 Hopper-v4 Walker2d-v4 Humanoid-v4"
others="Pendulum-v1 MountainCarContinuous-v0 LunarLanderContinuous-v3 BipedalWalker-v3"
for env in ${ENVS:-$mujoco $others}; do
    seeds="1 2 3" steps=1000000 name=ddpg flags=
    case $env in
        Pendulum-v1) seeds="1 2 3 4 5" steps=20000 flags="--learning-starts 1000" ;;
        MountainCarContinuous-v0)  # the noise has to find what is beyond the hill: more of it, more episodes
            seeds="1 2 3 4 5" steps=300000 name=ddpg_noise1
            flags="--learning-starts 10000 --num-envs 8 --train-frequency 8"
            flags="$flags --exploration-noise 1" ;;
        LunarLanderContinuous-v3)  # rl-baselines3-zoo's: a shorter horizon, the actor at every step
            steps=300000 name=ddpg_zoo flags="--learning-starts 10000 --buffer-size 200000"
            flags="$flags --learning-rate 1e-3"
            flags="$flags --gamma 0.98 --policy-frequency 1" ;;
        BipedalWalker-v3)  # with the defaults, some seeds do not learn to walk: docs/ddpg.md
            name=ddpg_8envs flags="--learning-starts 10000 --num-envs 8 --train-frequency 8"
            flags="$flags --gradient-steps 4" ;;
    esac
    for seed in ${SEEDS:-$seeds}; do
        echo "python cleanrl_lite/ddpg.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-$steps}" \
            "--exp-name ${EXP_NAME:-$name} $flags $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
