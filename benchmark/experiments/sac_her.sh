#!/bin/sh
# The published runs of sac_her.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/sac_her.sh                               all of them
#     EXP_NAME=sac_her SEEDS="4 5" benchmark/experiments/sac_her.sh  other seeds
#     RUN=cat benchmark/experiments/sac_her.sh                       show the commands only
# They need `pip install panda-gym`. sac_her_none learns without hindsight, as sac.py does. Run
# directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results out
# of them.
for env in ${ENVS:-panda_gym:PandaReach-v3}; do
    for name in ${EXP_NAME:-sac_her sac_her_none}; do
        case $name in *_none) flags="--n-sampled-goals 0" ;; *) flags= ;; esac
        for seed in ${SEEDS:-1 2 3}; do
            echo "python cleanrl_lite/sac_her.py --env-id $env --seed $seed --total-timesteps" \
                "${STEPS:-20000}" \
                "--exp-name $name --eval-episodes 100 $flags $FLAGS $*"
        done
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
