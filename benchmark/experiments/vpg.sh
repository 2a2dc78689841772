#!/bin/sh
# The published runs of vpg.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/vpg.sh                               all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/experiments/vpg.sh  some of them
#     RUN=cat benchmark/experiments/vpg.sh                       show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-CartPole-v1 Acrobot-v1}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/vpg.py --env-id $env --seed $seed $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
