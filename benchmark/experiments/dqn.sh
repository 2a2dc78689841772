#!/bin/sh
# The published runs of dqn.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/dqn.sh                               all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/experiments/dqn.sh  some of them
#     RUN=cat benchmark/experiments/dqn.sh                       show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
five="1 2 3 4 5"
ten="$five 6 7 8 9 10"

plan() {  # SEEDS FLAGS...: a command for each seed
    seeds=$1
    shift
    for seed in ${SEEDS:-$seeds}; do
        echo "python cleanrl_lite/dqn.py --env-id $env --seed $seed $*"
    done
}

for env in ${ENVS:-CartPole-v1 Acrobot-v1 MountainCar-v0 LunarLander-v3}; do
    case $env in
        LunarLander-v3) plan "$five" "$@" ;;
        *) plan "$ten" "$@" ;;
    esac
    case $env in  # settings near those of rl-baselines3-zoo: learn earlier, and more often
        MountainCar-v0)
            plan "$five" --exp-name dqn_tuned --learning-rate 1e-3 --gamma 0.98 \
                --learning-starts 1000 --train-frequency 16 --gradient-steps 8 \
                --target-network-frequency 600 --exploration-fraction 0.2 --end-e 0.07 "$@" ;;
        LunarLander-v3)
            plan "$five" --exp-name dqn_tuned --learning-rate 6.3e-4 --buffer-size 50000 \
                --learning-starts 1000 --train-frequency 4 --gradient-steps 4 \
                --target-network-frequency 250 --exploration-fraction 0.12 --end-e 0.1 "$@" ;;
    esac
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
