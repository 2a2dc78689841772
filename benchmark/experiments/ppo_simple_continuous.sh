#!/bin/sh
# The published runs of ppo_simple_continuous.py, JOBS at a time (default 2), one thread each;
# again to go on where it was stopped:
#     benchmark/experiments/ppo_simple_continuous.sh  all of them
#     ENVS=Hopper-v4 SEEDS="1 2" benchmark/experiments/ppo_simple_continuous.sh
#                                                  some of them
#     RUN=cat benchmark/experiments/ppo_simple_continuous.sh
#                                                  show the commands only
# ppo_continuous.sh has the same with ppo_continuous.py. Run directories go to runs/benchmark/;
# `python -m benchmark.publish.collect` makes the results out of them.
for env in ${ENVS:-Pendulum-v1 InvertedPendulum-v4 Hopper-v4}; do
    flags=
    case $env in
        Pendulum-v1)  # the flags of ppo_continuous_gamma90
            flags="--exp-name ppo_simple_continuous_gamma90 --gamma 0.9 --learning-rate 1e-3"
            flags="$flags --total-timesteps 200000" ;;
    esac
    for seed in ${SEEDS:-1 2 3 4 5}; do
        echo "python cleanrl_lite/ppo_simple_continuous.py --env-id $env --seed $seed $flags $*"
        case $env in
            Pendulum-v1)  # and smaller steps, the default: nothing limits the gradient here
                echo "python cleanrl_lite/ppo_simple_continuous.py --env-id $env --seed $seed" \
                    "--exp-name ppo_simple_continuous_gamma90_rate3e-4 --gamma 0.9" \
                    "--total-timesteps 200000 $*" ;;
        esac
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
