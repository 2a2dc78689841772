#!/bin/sh
# The published runs of c51.py, JOBS at a time (default 2), one thread each:
#     benchmark/c51.sh                                                all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/c51.sh                   some of them
# Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
for seed in ${SEEDS:-1 2 3 4 5}; do
    for env in ${ENVS:-CartPole-v1 Acrobot-v1}; do
        echo "python cleanrl_lite/c51.py --env-id $env --seed $seed --runs-dir runs/benchmark $*"
    done
done | xargs -P "${JOBS:-2}" -I {} sh -c '{} 2>&1 | tail -n 2'
