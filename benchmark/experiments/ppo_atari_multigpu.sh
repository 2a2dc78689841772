#!/bin/sh
# The runs of ppo_atari_multigpu.py, one after the other, PROCESSES processes each (default 2);
# again to go on:
#     PROCESSES=4 benchmark/experiments/ppo_atari_multigpu.sh
#                                                      10M steps of three games, float32: for four GPUs
#     ENVS=BreakoutNoFrameskip-v4 SEEDS=1 STEPS=150000 EXP_NAME=ppo_atari_multigpu_2_bf16_150k FLAGS=--bf16 \
#         benchmark/experiments/ppo_atari_multigpu.sh  what two CPU cores allow: Breakout, bfloat16
#     RUN=cat benchmark/experiments/ppo_atari_multigpu.sh
#                                                      show the commands only, as for one process
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them. The launcher starts jobs of one process; so this script starts torchrun itself.
for env in ${ENVS:-PongNoFrameskip-v4 BreakoutNoFrameskip-v4 BeamRiderNoFrameskip-v4}; do
    for seed in ${SEEDS:-1 2 3}; do
        echo "python cleanrl_lite/ppo_atari_multigpu.py --env-id $env --seed $seed" \
            "--total-timesteps ${STEPS:-10000000}" \
            "--exp-name ${EXP_NAME:-ppo_atari_multigpu} --threads ${THREADS:-1} $FLAGS $*"
    done
done | if [ "$RUN" ]; then $RUN; else
    torchrun="torchrun --standalone --nproc_per_node=${PROCESSES:-2}"
    sed "s|^python|$torchrun|; s|\$| --runs-dir runs/benchmark --resume auto|" | sh -ex
fi
