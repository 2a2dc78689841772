#!/bin/sh
# The published runs of ppo_image.py, JOBS at a time (default 2), THREADS threads each (default
# 1); again to go on:
#     benchmark/experiments/ppo_image.sh          MiniGrid, CoinRun, envpool's CarRacing, and 1M
#                                                 steps of gymnasium's
#     ENVS=benchmark.environments.envpool_images:CarRacing-v0 SEEDS=1 benchmark/experiments/ppo_image.sh
#                                                 some of them
#     ENVS=CarRacing-v3 SEEDS=1 STEPS=50000 EXP_NAME=ppo_image_50k benchmark/experiments/ppo_image.sh
#                                                 what an hour on a busy machine allows
#     RUN=cat benchmark/experiments/ppo_image.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. MiniGridImages needs minigrid (pip install minigrid), Coinrun and CarRacing-v0 the
# extra envpool, CarRacing-v3 the extra box2d.
minigrid=benchmark.environments.minigrid_images:MiniGridImages-Empty-Random-6x6-v0
envpool=benchmark.environments.envpool_images
for env in ${ENVS:-$minigrid $envpool:Coinrun-v0 $envpool:CarRacing-v0 CarRacing-v3}; do
    case $env in
        *MiniGrid*)
            name=ppo_image_lr1e3
            flags="--image-size 56 --stack-size 1 --total-timesteps 40000 --learning-rate 1e-3" ;;
        *Coinrun*)
            name=ppo_image_200k
            flags="--stack-size 1 --total-timesteps 200000 --learning-rate 5e-4 --gamma 0.999" ;;
        *CarRacing-v0)  # an action holds for 4 frames
            name=ppo_image_200k
            flags="--stack-size 2 --total-timesteps 200000 --learning-rate 5e-4 --clip-coef 0.2"
            flags="$flags --ent-coef 0 --update-epochs 6" ;;
        *)
            name=${EXP_NAME:-ppo_image}
            flags="--env-kwargs '{\"continuous\":false}' --total-timesteps ${STEPS:-1000000}" ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_image.py --env-id $env --seed $seed --exp-name $name" \
            "--threads ${THREADS:-1} $flags $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
