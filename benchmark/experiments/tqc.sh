#!/bin/sh
# The published runs of tqc.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/tqc.sh                       all of them
#     ENVS=Hopper-v4 SEEDS="4 5" benchmark/experiments/tqc.sh    other seeds
#     RUN=cat benchmark/experiments/tqc.sh               show the commands only
# sac_bf16_300k is sac.py, for as many steps. Run directories go to runs/benchmark/;
# `python -m benchmark.publish.collect` makes the results out of them.
for env in ${ENVS:-Pendulum-v1 Hopper-v4}; do
    case $env in
        Pendulum-v1) steps=20000 names=tqc flags="--learning-starts 1000" ;;  # sac.sh has sac's
        *) steps=300000 names="tqc_drop5_bf16_300k sac_bf16_300k" flags=--bf16 ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        for name in ${EXP_NAME:-$names}; do
            drop=
            case $name in *drop5*) drop="--top-quantiles-to-drop 5 " ;; esac  # the paper's for Hopper
            echo "python cleanrl_lite/${name%%_*}.py --env-id $env --seed $seed --total-timesteps" \
                "${STEPS:-$steps}" \
                "--exp-name $name $flags $drop$FLAGS $*"
        done
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
