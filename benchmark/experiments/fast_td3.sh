#!/bin/sh
# The published runs of fast_td3.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/fast_td3.sh                       all of them
#     ENVS=Hopper-v4 SEEDS="4 5" benchmark/experiments/fast_td3.sh    other seeds
#     RUN=cat benchmark/experiments/fast_td3.sh               show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. --v-min and --v-max are for each environment's returns.
for env in ${ENVS:-Pendulum-v1 Hopper-v4 Walker2d-v4 HalfCheetah-v4}; do
    steps=300000 name=fast_td3_bf16_300k flags=--bf16
    case $env in
        Pendulum-v1)
            steps=20000 name=fast_td3
            flags="--learning-starts 1000 --v-min -1500 --v-max 0" ;;
        HalfCheetah-v4) flags="--bf16 --v-min -1000 --v-max 1000" ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/fast_td3.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-$steps}" \
            "--exp-name ${EXP_NAME:-$name} $flags $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
