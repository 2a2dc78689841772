#!/bin/sh
# The published runs of ppo_microrts.py, JOBS at a time (default 2), one thread each; again to go
# on where it was stopped:
#     benchmark/experiments/ppo_microrts.sh                               all of them
#     OPPONENTS=coacAI SEEDS="1 2" benchmark/experiments/ppo_microrts.sh  some of them
#     RUN=cat benchmark/experiments/ppo_microrts.sh                       show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. Needs Java and: pip install "cleanrl_lite[microrts]"; pip install --no-deps
# gym_microrts==0.4.3
for opponents in ${OPPONENTS:-randomBiasedAI,passiveAI coacAI}; do
    case $opponents in
        randomBiasedAI,passiveAI) name=ppo_microrts flags= ;;
        *) name=ppo_microrts_$opponents flags="--opponents $opponents" ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_microrts.py --env-id 8x8/basesWorkers8x8 --seed $seed" \
            "--exp-name $name --eval-episodes 100 $flags $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
