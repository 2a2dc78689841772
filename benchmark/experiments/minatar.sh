#!/bin/sh
# MinAtar's games: copies of scripts with the network of Young and Tian 2019 (arXiv:1903.03176), as
# on the page "Change a script". JOBS runs at a time (default 2), one thread each; again to go on
# where it was stopped:
#     benchmark/experiments/minatar.sh                                         all of them
#     SCRIPTS=dqn GAMES=Breakout SEEDS="1 2" benchmark/experiments/minatar.sh  some of them
#     RUN=cat benchmark/experiments/minatar.sh                                 show the commands only
# The copies go to runs/, run directories to runs/benchmark/; `python -m benchmark.publish.collect`
# makes the results out of them. Needs: pip install MinAtar==1.0.15, and the packages of the tests,
# which make the copies.
set -e
mkdir -p runs
# the paper's DQN, but for its optimizer: these have Adam
replay="--buffer-size 100000 --learning-starts 5000 --train-frequency 1 --batch-size 32"
replay="$replay --target-network-frequency 1000 --end-e 0.1 --exploration-fraction 0.1"
for script in ${SCRIPTS:-ppo dqn c51 rainbow pqn sac_discrete}; do
    edit=minatar flags=$replay
    case $script in
        ppo | pqn) edit=minatar_$script flags="--num-envs 8" ;;
        # rewards are 0 or 1; discounted by 0.99, one every five steps is worth 20
        c51) flags="$replay --n-atoms 51 --v-min 0 --v-max 20" ;;
        rainbow) edit=minatar_rainbow flags="$replay --v-min 0 --v-max 20" ;;
        sac_discrete) flags=${replay% --end-e*} ;;
    esac
    python -c "from tests.test_changed_copies import changed
print(changed('$edit', '$script'), end='')" > runs/minatar_$script.new
    mv runs/minatar_$script.new runs/minatar_$script.py  # whole, for a run that starts now
    for game in ${GAMES:-Breakout Asterix SpaceInvaders}; do
        for seed in ${SEEDS:-1 2 3}; do
            echo "python runs/minatar_$script.py" \
                "--env-id benchmark.environments.minatar:MinAtar/$game-v0 --seed $seed" \
                "--total-timesteps ${STEPS:-1000000} $flags $FLAGS $*"
        done
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
