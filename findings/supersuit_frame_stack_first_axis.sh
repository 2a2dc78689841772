#!/usr/bin/env bash
# SuperSuit 3.11.0: frame_stack_v1 and v2 with stack_dim=0 give gray images no history.
#
# Expected: the last four frames, the oldest first, as with stack_dim=-1. On images without a channel (after
# color_reduction_v0), the newest frame is written to all places but the last, and the last stays black. A network in
# PyTorch, for which one stacks along the first axis, sees no movement and learns a policy without memory.
#
# Output seen on 2026-11-28 (images whose pixels are 1, 2, 3, ...; the four frames after five steps):
#     frame_stack_v1, stack_dim=-1: 3 4 5 6
#     frame_stack_v1, stack_dim=0: 6 6 6 0
#     frame_stack_v2, stack_dim=-1: 3 4 5 6
#     frame_stack_v2, stack_dim=0: 6 6 6 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "supersuit==3.11.0" "pettingzoo==1.27.0" "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
import supersuit


class Counter(gymnasium.Env):
    """The image's pixels are the number of the frame."""

    observation_space = gymnasium.spaces.Box(0, 255, (2, 2), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.frame = 1
        return np.full((2, 2), self.frame, np.uint8), {}

    def step(self, action):
        self.frame += 1
        return np.full((2, 2), self.frame, np.uint8), 0.0, False, False, {}


found = []
for wrap in (supersuit.frame_stack_v1, supersuit.frame_stack_v2):
    for axis in (-1, 0):
        env = wrap(Counter(), 4, stack_dim=axis)
        env.reset()
        for _ in range(5):
            obs = env.step(0)[0]
        frames = np.moveaxis(obs, axis, 0)[:, 0, 0].tolist()
        found.append(frames)
        print(f"{wrap.__name__}, stack_dim={axis}:", *frames)
as_seen = found == [[3, 4, 5, 6], [6, 6, 6, 0]] * 2
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
