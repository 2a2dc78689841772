#!/usr/bin/env bash
# torchrl 0.14.1: SliceSampler draws each episode equally often, whatever its length, and so hardly any steps of long ones.
#
# Expected: in a replay buffer all steps are equally likely, up to the ends of episodes, as with torchrl's
# RandomSampler. SliceSampler draws an episode first and a place in it afterwards, which its documentation does not say.
# Where an agent learns to survive, a recurrent one or a world model is trained on its first, short episodes: here 90 %
# of the steps are in the last 9 episodes, which are 8 % of the episodes and get 8 % of the samples.
#
# Output seen on 2026-11-28 (100 episodes of 10 steps, then 9 of 1000; slices of 8):
#     steps in long episodes: 90.0%
#     RandomSampler: 89.9% of the sampled steps are from long episodes
#     SliceSampler: 8.2% of the sampled steps are from long episodes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torchrl==0.14.1" "torch==2.13.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 RL_LOGGING_LEVEL=WARNING "$folder/venv/bin/python" -W ignore - <<'PY'
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, RandomSampler, SliceSampler, TensorDictReplayBuffer

torch.manual_seed(1)
lengths = torch.tensor([10] * 100 + [1000] * 9)
total = int(lengths.sum())
done = torch.zeros(total, 1, dtype=torch.bool)
done[lengths.cumsum(0) - 1] = True
following = {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}
steps = TensorDict({"long": torch.arange(total) >= 100 * 10, "next": following}, [total])
share = float(steps["long"].float().mean())
print(f"steps in long episodes: {share:.1%}")

found = []
for sampler in (RandomSampler(), SliceSampler(slice_len=8, end_key=("next", "done"))):
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(total), sampler=sampler, batch_size=800)
    buffer.extend(steps)
    found.append(sum(float(buffer.sample()["long"].float().mean()) for _ in range(500)) / 500)
    print(f"{type(sampler).__name__}: {found[-1]:.1%} of the sampled steps are from long episodes")
as_seen = abs(found[0] - share) < 0.01 and abs(found[1] - 9 / 109) < 0.01
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
