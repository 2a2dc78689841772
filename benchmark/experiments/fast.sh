#!/bin/sh
# Short runs of td3.py, sac.py and ddpg.py: minutes, enough to see whether an installation or a
# change learns. JOBS runs at a time (default 2), one thread each. SEEDS="4 5"
# benchmark/experiments/fast.sh runs other seeds; RUN=cat only prints the commands. Run
# directories go to runs/benchmark/; `python -m benchmark.publish.collect` turns them into
# results.
for seed in ${SEEDS:-1 2 3}; do
    for script in ddpg td3 sac; do
        echo "python cleanrl_lite/$script.py --exp-name ${script}_15k --env-id Pendulum-v1 --seed" \
            "$seed" \
            "--total-timesteps 15000 --learning-starts 1000 $*"
    done
    echo "python cleanrl_lite/sac.py --exp-name sac_20k --env-id HalfCheetah-v4 --seed $seed" \
        "--total-timesteps 20000 --learning-starts 2000 $*"
    pole="--env-id InvertedPendulum-v4 --seed $seed --total-timesteps 30000"
    pole="$pole --learning-starts 1000 --eval-every 2500"
    echo "python cleanrl_lite/td3.py --exp-name td3_30k $pole $*"
    # The learning rate and the batch size of the TD3 paper's first version, which learned this in
    # 30,000 steps.
    for bf16 in "" "--bf16"; do
        echo "python cleanrl_lite/td3.py --exp-name td3_30k_paper${bf16:+_bf16} $pole" \
            "--learning-rate 1e-3 --batch-size 100 $bf16 $*"
    done
    echo "python cleanrl_lite/td3.py --exp-name td3_50k --env-id HalfCheetah-v4 --seed $seed" \
        "--total-timesteps 50000" \
        "--learning-starts 10000 --eval-every 10000 $*"
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
