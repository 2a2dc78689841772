#!/bin/sh
# The published runs of ppo_lstm.py, JOBS at a time (default 2), one thread each; again to go on where it was stopped:
#     benchmark/ppo_lstm.sh                                           all of them, and the same with ppo.py
#     ENVS=popgym:popgym-RepeatPreviousEasy-v0 benchmark/ppo_lstm.sh  some of them
#     RUN=cat benchmark/ppo_lstm.sh                                   show the commands only
# They need `pip install -c constraints.txt popgym` and `pip install envpool`. ppo_memoryless is ppo.py with the flags of
# ppo_lstm.py. Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
memory=benchmark.memory_envs
for env in ${ENVS:-popgym:popgym-RepeatPreviousEasy-v0 $memory:CartPoleHidden-v0 $memory:MemoryS7-v0}; do
    case $env in *MemoryS7-v0) steps=1000000 ;; *) steps=500000 ;; esac
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_lstm.py --env-id $env --seed $seed --total-timesteps $steps" \
            "--eval-episodes 100 $*"
        echo "python cleanrl_lite/ppo.py --env-id $env --seed $seed --total-timesteps $steps" \
            "--exp-name ppo_memoryless --num-envs 8 --learning-rate 1e-3 --eval-episodes 100 $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
