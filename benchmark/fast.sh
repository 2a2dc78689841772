#!/bin/sh
# Short runs of td3.py, sac.py and ddpg.py, JOBS at a time (default 2), one thread each: minutes, not hours, and enough
# to see whether an installation or a change learns. SEEDS="4 5" benchmark/fast.sh for others.
# Run directories go to runs/benchmark/; `python -m benchmark.collect` makes the results out of them.
for seed in ${SEEDS:-1 2 3}; do
    common="--seed $seed --runs-dir runs/benchmark $*"
    pendulum="--env-id Pendulum-v1 --total-timesteps 15000 --learning-starts 1000"
    for script in ddpg td3 sac; do
        echo "python cleanrl_lite/$script.py --exp-name ${script}_15k $pendulum $common"
    done
    echo "python cleanrl_lite/sac.py --exp-name sac_20k --env-id HalfCheetah-v4 --total-timesteps 20000" \
        "--learning-starts 2000 $common"
    echo "python cleanrl_lite/td3.py --exp-name td3_30k --env-id InvertedPendulum-v4 --total-timesteps 30000" \
        "--learning-starts 1000 --eval-every 2500 $common"
    # The learning rate and the batch of the TD3 paper's first version, with which it learned this in 30,000 steps.
    paper="--learning-rate 1e-3 --batch-size 100 --learning-starts 1000 --eval-every 2500"
    for bf16 in "" "--bf16"; do
        echo "python cleanrl_lite/td3.py --exp-name td3_30k_paper${bf16:+_bf16} --env-id InvertedPendulum-v4" \
            "--total-timesteps 30000 $paper $bf16 $common"
    done
    echo "python cleanrl_lite/td3.py --exp-name td3_50k --env-id HalfCheetah-v4 --total-timesteps 50000" \
        "--learning-starts 10000 --eval-every 10000 $common"
done | xargs -P "${JOBS:-2}" -I {} sh -c '{} 2>&1 | tail -n 2'
