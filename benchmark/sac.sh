#!/bin/sh
# The published runs of sac.py, JOBS at a time (default 2), one thread each:
#     benchmark/sac.sh                                                all of them, 1M steps, float32
#     ENVS=Hopper-v4 SEEDS=1 STEPS=200000 NAME=sac_200k FLAGS=--bf16 \
#         benchmark/sac.sh                                            a part of them, shorter, with flags
#     NAME=sac_bf16 FLAGS=--bf16 benchmark/sac.sh                      in bfloat16; on a GPU: FLAGS=--cuda-graph
# Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
for seed in ${SEEDS:-1 2 3}; do
    for env in ${ENVS:-HalfCheetah-v4 Hopper-v4 Walker2d-v4}; do
        echo "python cleanrl_lite/sac.py --env-id $env --seed $seed --total-timesteps ${STEPS:-1000000}" \
            "--exp-name ${NAME:-sac} $FLAGS --runs-dir runs/benchmark $*"
    done
done | xargs -P "${JOBS:-2}" -I {} sh -c '{} 2>&1 | tail -n 2'
