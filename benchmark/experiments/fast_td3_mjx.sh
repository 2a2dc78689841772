#!/bin/sh
# The published runs of fast_td3_mjx.py, JOBS at a time (default 1: JAX takes all cores); again to
# go on where it was stopped. 64 environments are what a CPU of two cores can do; a GPU wants the
# default of 1,024:
#     benchmark/experiments/fast_td3_mjx.sh                          all of them
#     SEEDS="1 2" benchmark/experiments/fast_td3_mjx.sh              some of them
#     RUN=cat benchmark/experiments/fast_td3_mjx.sh                  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. --v-min and --v-max are for this environment's returns.
for env in ${ENVS:-inverted_pendulum}; do
    flags="--exp-name fast_td3_mjx_64 --num-envs 64 --train-frequency 64 --batch-size 512"
    flags="$flags --learning-starts 1280 --buffer-size 200000 --total-timesteps 200000"
    flags="$flags --v-min 0 --v-max 100"
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/fast_td3_mjx.py --env-id $env --seed $seed $flags $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-1}}
