#!/bin/sh
# Does --bf16 cost td3.py returns? 300,000 steps on HalfCheetah-v4, float32 and bfloat16 with the
# same seeds. JOBS runs at a time (default 2), one thread each; again to go on where it was
# stopped:
#     benchmark/experiments/bfloat16.sh                 both, seeds 1 to 3
#     SEEDS="4 5" benchmark/experiments/bfloat16.sh     other seeds
#     RUN=cat benchmark/experiments/bfloat16.sh         show the commands only
# Run directories go to runs/benchmark/; `python -m benchmark.publish.collect` makes the results
# out of them.
for seed in ${SEEDS:-1 2 3}; do
    for bf16 in "" --bf16; do
        echo "python cleanrl_lite/td3.py --env-id HalfCheetah-v4 --seed $seed" \
            "--total-timesteps 300000 --exp-name td3${bf16:+_bf16}_300k $bf16 $*"
    done
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
