#!/bin/sh
# The published runs of sac_her.py, JOBS at a time (default 2), one thread each; again to go on where it was stopped:
#     benchmark/sac_her.sh                                             all of them
#     ENVS=panda_gym:PandaReach-v3 SEEDS="1 2" benchmark/sac_her.sh     a part of them
#     EXP_NAME=sac_her_none FLAGS="--n-sampled-goals 0" benchmark/sac_her.sh    without hindsight
#     RUN=cat benchmark/sac_her.sh                                     show the commands only
# They need `pip install panda-gym`; pushing is planned, not measured yet. Run directories go to runs/benchmark/;
# `python -m benchmark.collect` makes the results out of them.
for env in ${ENVS:-panda_gym:PandaReach-v3 panda_gym:PandaPush-v3}; do
    steps=20000
    case $env in *Push*) steps=1000000 ;; esac
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/sac_her.py --env-id $env --seed $seed --total-timesteps ${STEPS:-$steps}" \
            "--exp-name ${EXP_NAME:-sac_her} --eval-episodes 100 $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
