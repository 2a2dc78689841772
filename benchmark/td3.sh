#!/bin/sh
# The published runs of td3.py, JOBS at a time (default 2), one thread each:
#     benchmark/td3.sh                                                all of them, 1M steps, float32
#     ENVS=Hopper-v4 SEEDS=1 STEPS=200000 NAME=td3_200k FLAGS=--bf16 \
#         benchmark/td3.sh                                            a part of them, shorter, with flags
#     NAME=td3_bf16 FLAGS=--bf16 benchmark/td3.sh                      in bfloat16; on a GPU: FLAGS=--cuda-graph
# Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
for seed in ${SEEDS:-1 2 3}; do
    for env in ${ENVS:-HalfCheetah-v4 Hopper-v4 Walker2d-v4}; do
        echo "python cleanrl_lite/td3.py --env-id $env --seed $seed --total-timesteps ${STEPS:-1000000}" \
            "--exp-name ${NAME:-td3} $FLAGS --runs-dir runs/benchmark $*"
    done
done | xargs -P "${JOBS:-2}" -I {} sh -c '{} 2>&1 | tail -n 2'
