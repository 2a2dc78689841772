#!/bin/sh
# The published runs of ppo.py, JOBS at a time (default 2), one thread each:
#     benchmark/ppo.sh                                                all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/ppo.sh                   some of them
# Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
for seed in ${SEEDS:-1 2 3 4 5}; do
    for env in ${ENVS:-CartPole-v1 Acrobot-v1}; do
        echo "python cleanrl_lite/ppo.py --env-id $env --seed $seed --runs-dir runs/benchmark $*"
    done
    # rl-baselines3-zoo's settings for CartPole, 100,000 steps
    [ -n "$ENVS" ] || echo "python cleanrl_lite/ppo.py --exp-name ppo_zoo --total-timesteps 100000 --num-envs 8" \
        "--num-steps 32 --num-minibatches 1 --update-epochs 20 --gamma 0.98 --gae-lambda 0.8 --ent-coef 0" \
        "--learning-rate 1e-3 --no-clip-vloss --seed $seed --runs-dir runs/benchmark $*"
done | xargs -P "${JOBS:-2}" -I {} sh -c '{} 2>&1 | tail -n 2'
