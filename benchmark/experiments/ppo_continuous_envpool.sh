#!/bin/sh
# The published runs of ppo_continuous_envpool.py, JOBS at a time (default 2), one thread each;
# again to go on where it was stopped:
#     benchmark/experiments/ppo_continuous_envpool.sh          all of them
#     ENVS=Hopper-v4 SEEDS="1 2" benchmark/experiments/ppo_continuous_envpool.sh  some of them
#     RUN=cat benchmark/experiments/ppo_continuous_envpool.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-Hopper-v4 InvertedPendulum-v4}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_continuous_envpool.py --env-id $env --seed $seed $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
