#!/bin/sh
# The published runs of a2c_continuous.py, JOBS at a time (default 2), one thread each;
# again to go on where it was stopped:
#     benchmark/experiments/a2c_continuous.sh  all of them
#     ENVS=Hopper-v4 SEEDS="1 2" benchmark/experiments/a2c_continuous.sh
#                                                  some of them
#     RUN=cat benchmark/experiments/a2c_continuous.sh
#                                                  show the commands only
# ppo_continuous.sh has the same with ppo_continuous.py. Run directories go to runs/benchmark/;
# `python -m benchmark.publish.collect` makes the results out of them.
for env in ${ENVS:-Pendulum-v1 InvertedPendulum-v4 Hopper-v4}; do
    flags=
    case $env in
        Pendulum-v1)  # the discount factor and the number of steps of ppo_continuous_gamma90
            flags="--exp-name a2c_continuous_gamma90 --gamma 0.9 --total-timesteps 200000" ;;
    esac
    for seed in ${SEEDS:-1 2 3 4 5}; do
        echo "python cleanrl_lite/a2c_continuous.py --env-id $env --seed $seed $flags $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
