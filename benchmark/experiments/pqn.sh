#!/bin/sh
# The published runs of pqn.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/pqn.sh                               all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/experiments/pqn.sh  some of them
#     EXP_NAME=pqn benchmark/experiments/pqn.sh                  with the default flags only
#     RUN=cat benchmark/experiments/pqn.sh                       show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-CartPole-v1 Acrobot-v1 MountainCar-v0}; do
    names="pqn pqn_cleanrl_rate pqn_32envs"
    [ $env != MountainCar-v0 ] || names="pqn pqn_32envs"  # random actions rarely reach its goal
    for name in ${EXP_NAME:-$names}; do
        flags=
        case $name in
            pqn_cleanrl_rate) flags="--learning-rate 2.5e-4" ;;
            pqn_32envs) flags="--learning-rate 2.5e-4 --num-envs 32 --num-steps 16" ;;
        esac
        for seed in ${SEEDS:-1 2 3 4 5 6 7 8 9 10}; do
            echo "python cleanrl_lite/pqn.py --env-id $env --seed $seed --exp-name $name $flags $*"
        done
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
