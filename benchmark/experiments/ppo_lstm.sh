#!/bin/sh
# The published runs of ppo_lstm.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/ppo_lstm.sh          all of them, and the same with ppo.py
#     ENVS=popgym:popgym-RepeatPreviousEasy-v0 benchmark/experiments/ppo_lstm.sh  some of them
#     RUN=cat benchmark/experiments/ppo_lstm.sh  show the commands only
# They need `pip install -c constraints.txt popgym` and `pip install envpool`. ppo_memoryless is
# ppo.py with the flags of ppo_lstm.py. Run directories go to runs/benchmark/; `python -m
# benchmark.publish.collect` makes the results out of them.
memory=benchmark.environments.memory
for env in ${ENVS:-popgym:popgym-RepeatPreviousEasy-v0 $memory:CartPoleHidden-v0 $memory:MemoryS7-v0}; do
    case $env in
        *MemoryS7-v0)
            name=_s7 flags="--total-timesteps 2500000 --num-envs 32 --num-minibatches 8"
            flags="$flags --ent-coef 0.03" ;;
        *) name= flags="--total-timesteps 500000 --num-envs 8" ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        for script in lstm memoryless; do
            case $script in lstm) run="ppo_lstm.py" ;; *) run="ppo.py --learning-rate 1e-3" ;; esac
            echo "python cleanrl_lite/$run --env-id $env --seed $seed --exp-name ppo_$script$name" \
                "$flags --eval-episodes 100 $*"
        done
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
