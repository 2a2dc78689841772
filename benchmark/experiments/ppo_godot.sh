#!/bin/sh
# The published runs of ppo_godot.py, JOBS at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/ppo_godot.sh                            all of them
#     ACTIONS=mixed SEEDS="1 2" benchmark/experiments/ppo_godot.sh  some of them
#     RUN=cat benchmark/experiments/ppo_godot.sh                    show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. Needs Debian's godot3-server and: pip install --no-deps godot-rl==0.8.2. The game
# is tests/godot_game.
for actions in ${ACTIONS:-continuous discrete mixed}; do
    case $actions in
        continuous) name=Reach-v0 ;;
        discrete) name=ReachDiscrete-v0 ;;
        mixed) name=ReachMixed-v0 ;;
    esac
    game="--env-path tests/godot_game/reach.x86_64 --speedup 200 --total-timesteps 100000"
    game="$game --eval-episodes 100"
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_godot.py --env-id $name $game" \
            "--env-kwargs '{\"actions\":\"$actions\"}' --seed $seed $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
