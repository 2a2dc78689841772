#!/bin/sh
# The published runs of ppo_continuous_adaptive.py, JOBS at a time (default 2), one thread each;
# again to go on:
#     benchmark/experiments/ppo_continuous_adaptive.sh          all of them: the ablation
#     ENVS=Hopper-v4 SEEDS=1 benchmark/experiments/ppo_continuous_adaptive.sh  some of them
#     RUN=cat benchmark/experiments/ppo_continuous_adaptive.sh  show the commands only
# _lr, _value and _bounds have one of the three additions each, _none has none: it is
# ppo_continuous.py. Run directories go to runs/benchmark/; `python -m benchmark.publish.collect`
# makes the results out of them.
name=ppo_continuous_adaptive
for seed in ${SEEDS:-1 2 3}; do
    for env in ${ENVS:-Hopper-v4 Ant-v4}; do
        run="python cleanrl_lite/$name.py --env-id $env --seed $seed --total-timesteps ${STEPS:-300000}"
        echo "$run $*"
        echo "$run --exp-name ${name}_none --kl-threshold 0 --no-norm-value --bounds-coef 0 $*"
        echo "$run --exp-name ${name}_lr --no-norm-value --bounds-coef 0 $*"
        echo "$run --exp-name ${name}_value --kl-threshold 0 --bounds-coef 0 $*"
        echo "$run --exp-name ${name}_bounds --kl-threshold 0 --no-norm-value $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
