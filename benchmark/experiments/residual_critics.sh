#!/bin/sh
# sac.py with layer normalisation and residual blocks in its critics, as on the page "Change a
# script", in bfloat16; sac.sh and crossq.sh have what it is compared with. JOBS runs at a time
# (default 2), one thread each; again to go on where it was stopped:
#     benchmark/experiments/residual_critics.sh             all of them
#     RUN=cat benchmark/experiments/residual_critics.sh     show the commands only
# The copy goes to runs/, run directories to runs/benchmark/; `python -m benchmark.publish.collect`
# makes the results out of them. Needs the packages of the tests, which make the copy.
set -e
mkdir -p runs
python -c 'from tests.test_changed_copies import changed
print(changed("residual_critics", "sac"), end="")' > runs/residual_critics.new
mv runs/residual_critics.new runs/residual_critics.py  # whole, for a run that starts now
for seed in ${SEEDS:-1 2 3}; do
    echo "python runs/residual_critics.py --env-id Walker2d-v4 --seed $seed --total-timesteps" \
        "${STEPS:-200000}" \
        "--exp-name sac_residual_bf16_200k --bf16 $FLAGS $*"
done | ${RUN:-python -m benchmark.launch --jobs ${JOBS:-2}}
