#!/usr/bin/env bash
# ale-py 0.12.1 and gymnasium 1.4.0: with noop_max=30, ale-py's vector environment begins a game with 0 to 29 idle frames,
# AtariPreprocessing with 1 to 30. A limit on the frames of a game counts them in AtariPreprocessing only.
#
# Expected: two implementations of the same protocol begin alike. The difference is a frame, and up to 8 steps of 27,000.
#
# Output seen on 2026-11-27 (Pong, 150 games; a limit of 400 frames):
#     ale-py's vector environment: 0 to 29 idle frames; with the limit 100 steps of 4 frames
#     AtariPreprocessing: 1 to 30 idle frames; with the limit 95 steps of 4 frames
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "ale-py==0.12.1" "gymnasium==1.4.0" "numpy==2.3.5" "opencv-python-headless"
"$folder/venv/bin/python" -W ignore - <<'PY'
import ale_py
import gymnasium
import numpy as np
from ale_py.vector_env import AtariVectorEnv

gymnasium.register_envs(ale_py)


def vector(**kwargs):
    return AtariVectorEnv("pong", num_envs=1, noop_max=30, use_fire_reset=False, **kwargs)


def wrapped(**kwargs):
    env = gymnasium.make("PongNoFrameskip-v4", frameskip=1, **kwargs)
    return gymnasium.wrappers.AtariPreprocessing(env, noop_max=30)


def first_frames(env, is_vector):
    found = []
    for seed in range(150):
        _, info = env.reset(seed=np.array([seed]) if is_vector else seed)
        found.append(int(np.ravel(info["episode_frame_number"])[0]))
    return min(found), max(found)


def steps(env, is_vector):
    """Of the first seed that idles for a while: until the limit."""
    for seed in range(100):
        _, info = env.reset(seed=np.array([seed]) if is_vector else seed)
        if np.ravel(info["episode_frame_number"])[0] >= 20:
            break
    count = 0
    while True:
        _, _, terminated, truncated, _ = env.step(np.array([0]) if is_vector else 0)
        count += 1
        if np.any(terminated) or np.any(truncated):
            return count


limit = {"max_num_frames_per_episode": 400}
for name, make in (("ale-py's vector environment", vector), ("AtariPreprocessing", wrapped)):
    low, high = first_frames(make(), make is vector)
    count = steps(make(**limit), make is vector)
    print(f"{name}: {low} to {high} idle frames; with the limit {count} steps of 4 frames")
    wanted = (0, 29, 100) if make is vector else (1, 30, 95)
    if (low, high, count) != wanted:
        raise SystemExit("the behaviour has changed")
PY
