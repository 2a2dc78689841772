#!/bin/sh
# The published runs of ppo.py, JOBS at a time (default 2), one thread each; again to go on where
# it was stopped:
#     benchmark/experiments/ppo.sh                               all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/experiments/ppo.sh  some of them
#     RUN=cat benchmark/experiments/ppo.sh                       show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
five="1 2 3 4 5"
ten="$five 6 7 8 9 10"

plan() {  # SEEDS FLAGS...: a command for each seed
    seeds=$1
    shift
    for seed in ${SEEDS:-$seeds}; do
        echo "python cleanrl_lite/ppo.py --env-id $env --seed $seed $*"
    done
}

for env in ${ENVS:-CartPole-v1 Acrobot-v1 MountainCar-v0 LunarLander-v3}; do
    case $env in
        LunarLander-v3) plan "$five" "$@" ;;
        *) plan "$ten" "$@" ;;
    esac
    case $env in
        CartPole-v1)  # rl-baselines3-zoo's settings, 100,000 steps
            plan "$five" --exp-name ppo_zoo --total-timesteps 100000 --num-envs 8 --num-steps 32 \
                --num-minibatches 1 --update-epochs 20 --gamma 0.98 --gae-lambda 0.8 \
                --ent-coef 0 --learning-rate 1e-3 --no-clip-vloss "$@" ;;
        MountainCar-v0)  # 1M steps; returns near -100: a small weight keeps the value loss from drowning the policy
            plan "$five" --exp-name ppo_tuned --total-timesteps 1000000 --num-envs 16 \
                --num-steps 256 --num-minibatches 16 --update-epochs 10 --gae-lambda 0.98 \
                --learning-rate 3e-3 --vf-coef 0.01 --no-clip-vloss "$@" ;;
        LunarLander-v3)  # and for the lander, 1M steps: long rollouts, far sight
            plan "$five" --exp-name ppo_zoo --total-timesteps 1000000 --num-envs 16 \
                --num-steps 1024 --num-minibatches 256 --gamma 0.999 --gae-lambda 0.98 \
                --learning-rate 3e-4 --no-clip-vloss "$@" ;;
    esac
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
