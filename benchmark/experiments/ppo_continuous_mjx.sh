#!/bin/sh
# The published runs of ppo_continuous_mjx.py, JOBS at a time (default 1: JAX takes all cores);
# again to go on where it was stopped. 64 environments are what a CPU of two cores can do; a GPU
# wants the default of 2,048:
#     benchmark/experiments/ppo_continuous_mjx.sh                          all of them
#     ENVS=hopper SEEDS="1 2" benchmark/experiments/ppo_continuous_mjx.sh  some of them
#     RUN=cat benchmark/experiments/ppo_continuous_mjx.sh                  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-inverted_pendulum hopper}; do
    [ "$env" = inverted_pendulum ] && steps=500000 || steps=1000000
    flags="--exp-name ppo_continuous_mjx_64 --num-envs 64 --num-steps 64 --num-minibatches 16"
    flags="$flags --total-timesteps $steps"
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_continuous_mjx.py --env-id $env --seed $seed $flags $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-1}}
