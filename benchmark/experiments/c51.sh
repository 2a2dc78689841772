#!/bin/sh
# The published runs of c51.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/c51.sh                               all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/experiments/c51.sh  some of them
#     RUN=cat benchmark/experiments/c51.sh                       show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
five="1 2 3 4 5"
ten="$five 6 7 8 9 10"

plan() {  # SEEDS FLAGS...: a command for each seed
    seeds=$1
    shift
    for seed in ${SEEDS:-$seeds}; do
        echo "python cleanrl_lite/c51.py --env-id $env --seed $seed $*"
    done
}

for env in ${ENVS:-CartPole-v1 Acrobot-v1 MountainCar-v0 LunarLander-v3}; do
    case $env in
        LunarLander-v3) plan "$five" "$@" ;;
        *) plan "$ten" "$@" ;;
    esac
    case $env in
        MountainCar-v0)  # the settings of dqn.sh
            plan "$five" --exp-name c51_tuned --learning-rate 1e-3 --gamma 0.98 \
                --learning-starts 1000 --train-frequency 16 --gradient-steps 8 \
                --target-network-frequency 600 --exploration-fraction 0.2 --end-e 0.07 "$@" ;;
        LunarLander-v3)  # returns down to -300 and up to 300; learn earlier, and more often
            plan "$five" --exp-name c51_tuned --v-min -300 --v-max 300 --buffer-size 50000 \
                --learning-starts 1000 --train-frequency 4 --exploration-fraction 0.12 "$@" ;;
    esac
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
