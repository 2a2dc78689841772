#!/bin/sh
# The published runs of ppo_masked.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/ppo_masked.sh          all of them, with and without the mask
#     ENVS=Taxi-v4 SEEDS="1 2" benchmark/experiments/ppo_masked.sh  some of them
#     RUN=cat benchmark/experiments/ppo_masked.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. InvalidActions-v0 needs sb3-contrib (pip install --no-deps sb3-contrib==2.9.2),
# volleyball what benchmark/environments/slimevolley.py says.
volleyball=benchmark.environments.slimevolley:SlimeVolleyBuiltin-v0
for env in ${ENVS:-Taxi-v4 benchmark.environments.invalid_actions:InvalidActions-v0 $volleyball}; do
    case $env in
        *InvalidActions-v0)
            name=ppo_masked_lr1e3 flags="--total-timesteps 100000 --learning-rate 1e-3" ;;
        *) name=ppo_masked flags= ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        if [ $env = $volleyball ]; then  # no mask there
            echo "python cleanrl_lite/ppo_masked.py --env-id $env --seed $seed" \
                "--exp-name ppo_masked_slime" \
                "--total-timesteps 10000000 --num-envs 16 --eval-every 500000 --eval-episodes 20 $*"
            continue
        fi
        echo "python cleanrl_lite/ppo_masked.py --env-id $env --seed $seed --exp-name $name" \
            "$flags $*"
        echo "python cleanrl_lite/ppo_masked.py --env-id $env --seed $seed --exp-name ${name}_off" \
            "--no-mask $flags $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
