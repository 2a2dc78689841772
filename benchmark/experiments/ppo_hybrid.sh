#!/bin/sh
# The published runs of ppo_hybrid.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/ppo_hybrid.sh              all of them
#     SEEDS="1 2" benchmark/experiments/ppo_hybrid.sh  some of them
#     RUN=cat benchmark/experiments/ppo_hybrid.sh      show the commands only
# Needs hybrid-platform (pip install --no-deps hybrid-platform==0.1.0; pip install numba). Run
# directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results out
# of them.
for env in ${ENVS:-gym_platform:Platform-v0}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_hybrid.py --env-id $env --seed $seed $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
