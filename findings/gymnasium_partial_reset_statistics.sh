#!/usr/bin/env bash
# gymnasium 1.4.0: wrappers.vector.RecordEpisodeStatistics forgets the episodes of *all* environments at a partial reset.
#
# Expected: reset(options={"reset_mask": mask}) restarts the returns and lengths of the environments in the mask; the
# wrapper has the lines for it. But the environment's own reset takes "reset_mask" out of the dict first, so the wrapper
# does not see it and starts all environments anew: episodes that went on are reported too short.
#
# Output seen on 2026-11-27 (AutoresetMode.DISABLED, two CartPoles, the first is reset whenever its game ends):
#     the second CartPole played 27 steps; its reported length is 8
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

make = [lambda: gymnasium.make("CartPole-v1")] * 2
envs = RecordEpisodeStatistics(SyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED))
envs.reset(seed=[1, 2])
steps = 0
while True:
    # The first falls soon; the second is pushed to and fro, and falls later.
    _, _, terminated, _, infos = envs.step(np.array([0, steps % 2]))
    steps += 1
    if terminated[1]:
        break
    if terminated[0]:
        envs.reset(options={"reset_mask": np.array([True, False])})
reported = int(infos["episode"]["l"][1])
print(f"the second CartPole played {steps} steps; its reported length is {reported}")
raise SystemExit(0 if reported < steps else "the behaviour has changed")
PY
