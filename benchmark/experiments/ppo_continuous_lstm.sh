#!/bin/sh
# The published runs of ppo_continuous_lstm.py, JOBS at a time (default 2), one thread each; again
# to go on where it was stopped:
#     benchmark/experiments/ppo_continuous_lstm.sh     all of them, and the same without memory
#     ENVS=benchmark.environments.memory:PendulumHidden-v0 \
#         benchmark/experiments/ppo_continuous_lstm.sh some of them
#     RUN=cat benchmark/experiments/ppo_continuous_lstm.sh  show the commands only
# ppo_continuous_memoryless is ppo_continuous.py with the same flags. Run directories go to
# runs/benchmark/; `python -m benchmark.publish.collect` makes the results out of them.
memory=benchmark.environments.memory
for env in ${ENVS:-$memory:PendulumHidden-v0 $memory:MountainCarContinuousHidden-v0}; do
    case $env in
        *PendulumHidden-v0) names=pendulum ;;
        *MountainCarContinuousHidden-v0) names="mountaincar mountaincar_entropy" ;;
        *) names=others ;;
    esac
    for name in $names; do
        case $name in
            pendulum)
                flags="--gamma 0.95 --learning-rate 1e-3"
                flags="$flags --num-envs 16 --num-steps 128 --num-minibatches 8" ;;
            mountaincar*)  # those of ppo_continuous.sh, with the velocity
                flags="--gamma 0.9999 --gae-lambda 0.9 --num-envs 8 --num-steps 1024" ;;
            others) flags="--num-envs 8 --num-steps 256" ;;
        esac
        case $name in  # who never saw the goal learns to save energy, and stands still
            *_entropy) flags="$flags --ent-coef 0.2" ;;
        esac
        for seed in ${SEEDS:-1 2 3}; do
            for script in lstm memoryless; do
                case $script in lstm) run=ppo_continuous_lstm ;; *) run=ppo_continuous ;; esac
                echo "python cleanrl_lite/$run.py --env-id $env --seed $seed" \
                    "--exp-name ppo_continuous_${script}_$name --total-timesteps 300000" \
                    "$flags --eval-episodes 100 $*"
            done
        done
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
