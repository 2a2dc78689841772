#!/bin/sh
# The published runs of rainbow.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/rainbow.sh                               all of them
#     ENVS=CartPole-v1 SEEDS="1 2" benchmark/experiments/rainbow.sh  some of them
#     PARTS=all benchmark/experiments/rainbow.sh                     without the ablation
#     RUN=cat benchmark/experiments/rainbow.sh                       show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for env in ${ENVS:-LunarLander-v3 CartPole-v1 Acrobot-v1}; do
    if [ $env != LunarLander-v3 ]; then
        for seed in ${SEEDS:-1 2 3 4 5 6 7 8 9 10}; do
            echo "python cleanrl_lite/rainbow.py --env-id $env --seed $seed $*"
        done
        continue
    fi
    # all of the five parts, then each of them turned off
    for part in ${PARTS:-all double dueling noisy n_step priority}; do
        off=
        case $part in
            double) off="--no-double " ;;
            dueling) off="--no-dueling " ;;
            noisy) off="--no-noisy --exploration-fraction 0.12 " ;;  # epsilon in its place
            n_step) off="--n-step 1 " ;;
            priority) off="--priority-alpha 0 " ;;
        esac
        name=rainbow_tuned
        [ $part = all ] || name=rainbow_no_$part
        for seed in ${SEEDS:-1 2 3}; do
            # chosen on seed 11: c51.sh's settings, and eight environments, which act faster
            echo "python cleanrl_lite/rainbow.py --env-id $env --seed $seed --exp-name $name" \
                "--v-min -300 --v-max 300 --buffer-size 50000 --learning-starts 1000" \
                "--train-frequency 4 --num-envs 8 --batch-size 64 --learning-rate 1e-3 $off$*"
        done
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
