#!/usr/bin/env bash
# torchrl 0.14.1: VecNorm goes on updating its statistics in eval mode; only freeze() stops it.
#
# Expected: env.eval() stops them, as VecNorm's documentation says of the transform in eval mode and as torch's
# BatchNorm behaves. The flag is set, but nothing reads it. So every evaluation moves the statistics with which training
# goes on, and the same policy is evaluated under others each time. VecNormV2 does the same.
#
# Output seen on 2026-11-28 (Pendulum-v1; mean of the angular velocity in the statistics, before and after a rollout):
#     VecNorm, eval: training flag False, statistics changed
#     VecNorm, freeze: training flag False, statistics unchanged
#     VecNormV2, eval: training flag False, statistics changed
#     VecNormV2, freeze: training flag False, statistics unchanged
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torchrl==0.14.1" "torch==2.13.0" "gymnasium==1.4.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 RL_LOGGING_LEVEL=WARNING "$folder/venv/bin/python" -W ignore - <<'PY'
import torch
from torchrl.envs import GymEnv, TransformedEnv, VecNorm, VecNormV2


def velocity(transform):
    """The mean of the angular velocity in the statistics."""
    mean = transform.loc if torch.is_tensor(transform.loc) else transform.loc["observation"]
    return float(mean[2])


found = []
for kind in (VecNorm, VecNormV2):
    for mode in ("eval", "freeze"):
        env = TransformedEnv(GymEnv("Pendulum-v1"), kind(in_keys=["observation"]))
        env.set_seed(1)
        env.rollout(200)
        env.eval()
        if mode == "freeze":
            env.transform.freeze()
        before = velocity(env.transform)
        env.rollout(200)
        found.append(velocity(env.transform) != before)
        changed = "changed" if found[-1] else "unchanged"
        print(f"{kind.__name__}, {mode}: training flag {env.transform.training}, statistics {changed}")
raise SystemExit(0 if found == [True, False, True, False] else "the behaviour has changed")
PY
