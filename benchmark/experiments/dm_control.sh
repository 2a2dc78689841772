#!/bin/sh
# ppo_continuous.py on tasks of DeepMind's dm_control, with its default flags, JOBS at a time
# (default 2), one thread each; again to go on where it was stopped:
#     benchmark/experiments/dm_control.sh                 all of them
#     ENVS=hopper-hop SEEDS="1 2" benchmark/experiments/dm_control.sh
#                                                         some of them
#     RUN=cat benchmark/experiments/dm_control.sh         show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. dm_control does not work with the mujoco of constraints.txt, so it needs an
# environment of its own:
#     python -m venv .venv-dm-control && . .venv-dm-control/bin/activate
#     pip install -c constraints.txt torch
#     pip install -e . shimmy==2.0.1 dm_control==1.0.50 mujoco==3.17.0
for env in ${ENVS:-cheetah-run walker-walk hopper-hop}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_continuous.py --env-id shimmy:dm_control/$env-v0" \
            "--seed $seed $FLAGS $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
