#!/bin/sh
# The published runs of ppo_simple.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/ppo_simple.sh                               all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/experiments/ppo_simple.sh  some of them
#     RUN=cat benchmark/experiments/ppo_simple.sh                       show the commands only
# ppo.sh has the same with ppo.py. Run directories go to runs/benchmark/; `python -m
# benchmark.publish.collect` makes the results out of them.
for env in ${ENVS:-CartPole-v1 Acrobot-v1 MountainCar-v0 LunarLander-v3}; do
    for seed in ${SEEDS:-1 2 3 4 5}; do
        echo "python cleanrl_lite/ppo_simple.py --env-id $env --seed $seed $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
