#!/bin/sh
# The published runs of ppo_multiagent.py, JOBS at a time (default 2), one thread each; again to
# go on where it was stopped:
#     benchmark/experiments/ppo_multiagent.sh  all of them, with a central critic and local ones
#     ENVS=benchmark.environments.cleaner:Cleaner-v0 SEEDS=1 benchmark/experiments/ppo_multiagent.sh
#                                              some of them
#     RUN=cat benchmark/experiments/ppo_multiagent.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. Cleaner-v0 needs envpool, SimpleSpread-v3 mpe2: pip install
# "cleanrl_lite[multiagent]"
teams=benchmark.environments
for env in ${ENVS:-$teams.cleaner:Cleaner-v0 $teams.spread:SimpleSpread-v3}; do
    case $env in
        *SimpleSpread-v3)
            name=ppo_multiagent_g95 flags="--total-timesteps 200000 --gamma 0.95 --no-clip-vloss" ;;
        *) name=ppo_multiagent flags= ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_multiagent.py --env-id $env --seed $seed --exp-name $name" \
            "$flags $*"
        echo "python cleanrl_lite/ppo_multiagent.py --env-id $env --seed $seed --exp-name" \
            "${name}_local --no-central-critic $flags $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
