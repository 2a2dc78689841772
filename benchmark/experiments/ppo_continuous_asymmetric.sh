#!/bin/sh
# The published runs of ppo_continuous_asymmetric.py, JOBS at a time (default 2), one thread each;
# again to go on:
#     benchmark/experiments/ppo_continuous_asymmetric.sh          all of them
#     SEEDS=1 benchmark/experiments/ppo_continuous_asymmetric.sh  some of them
#     RUN=cat benchmark/experiments/ppo_continuous_asymmetric.sh  show the commands only
# Needs envpool (pip install "cleanrl_lite[envpool]"). ppo_continuous_symmetric is the same with a
# critic that sees what the actor sees. Run directories go to runs/benchmark/; `python -m
# benchmark.publish.collect` makes the results out of them.
name=ppo_continuous_asymmetric
for env in ${ENVS:-benchmark.environments.go1:Go1Getup-v1}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/$name.py --env-id $env --seed $seed $*"
        echo "python cleanrl_lite/$name.py --env-id $env --seed $seed" \
            "--exp-name ppo_continuous_symmetric --no-privileged-critic $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
