#!/bin/sh
# The published runs of ppo_selfplay.py, JOBS at a time (default 2), one thread each; again to go
# on where it was stopped:
#     benchmark/experiments/ppo_selfplay.sh          all of them
#     ENVS=benchmark.environments.board_games:ConnectFour-v1 SEEDS=1 benchmark/experiments/ppo_selfplay.sh
#                                                    some of them
#     RUN=cat benchmark/experiments/ppo_selfplay.sh  show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. Needs envpool (pip install "cleanrl_lite[envpool]"); SlimeVolley-v0 needs what
# benchmark/environments/slimevolley.py names.
games=benchmark.environments
for env in ${ENVS:-$games.board_games:ConnectFour-v1 $games.slimevolley:SlimeVolley-v0}; do
    case $env in
        *SlimeVolley-v0) flags="--opponent builtin --total-timesteps 5000000 --gamma 0.997"
        flags="$flags --random-moves 0 --eval-every 500000 --eval-episodes 20" ;;
        *) flags="--eval-every 100000 --eval-episodes 200" ;;
    esac
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_selfplay.py --env-id $env --seed $seed $flags $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
