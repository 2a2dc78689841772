#!/bin/sh
# The published runs of ppo_continuous.py, JOBS at a time (default 2), one thread each:
#     benchmark/ppo_continuous.sh                                     all of them
#     ENVS=Hopper-v4 SEEDS="6 7 8 9 10" benchmark/ppo_continuous.sh   the five more of Hopper, which varies most
#     benchmark/ppo_continuous.sh --total-timesteps 200000            with more flags
# Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
for seed in ${SEEDS:-1 2 3 4 5}; do
    for env in ${ENVS:-Hopper-v4 HalfCheetah-v4 Walker2d-v4 InvertedPendulum-v4}; do
        echo "python cleanrl_lite/ppo_continuous.py --env-id $env --seed $seed --runs-dir runs/benchmark $*"
    done
done | xargs -P "${JOBS:-2}" -I {} sh -c '{} 2>&1 | tail -n 2'
