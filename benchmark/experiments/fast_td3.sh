#!/bin/sh
# The published runs of fast_td3.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/fast_td3.sh                       all of them
#     ENVS=Hopper-v4 SEEDS="4 5" benchmark/experiments/fast_td3.sh    others
#     RUN=cat benchmark/experiments/fast_td3.sh               show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. The flags for MuJoCo were found with seeds 11 to 13 of HalfCheetah-v4.
for env in ${ENVS:-Pendulum-v1 Walker2d-v4 HalfCheetah-v4}; do
    steps=200000 name=fast_td3_200k
    flags="--bf16 --v-min -500 --v-max 1000 --num-envs 8 --train-frequency 8 --gradient-steps 2"
    flags="$flags --learning-rate 1e-3 --batch-size 256 --tau 0.02 --learning-starts 5000"
    case $env in
        Pendulum-v1)
            steps=20000 name=fast_td3
            flags="--learning-starts 1000 --v-min -1500 --v-max 0" ;;
        Walker2d-v4) steps=100000 name=fast_td3_100k ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/fast_td3.py --env-id $env --seed $seed --total-timesteps" \
            "${STEPS:-$steps}" \
            "--exp-name ${EXP_NAME:-$name} $flags $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
