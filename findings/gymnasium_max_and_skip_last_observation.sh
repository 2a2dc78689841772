#!/usr/bin/env bash
# gymnasium 1.4.0: an episode that ends within the skipped frames gets an old last observation from MaxAndSkipObservation.
#
# Expected: the last observation is that of the last frame, or the larger of the last two. The wrapper keeps only the
# frames skip - 1 and skip, and does not clear them: an episode that ends earlier gets those of the step before, or, in
# its first step, zeros. An agent that bootstraps from the last observation of a time limit takes the value of a state
# of long ago.
#
# Output seen on 2026-11-28 (MountainCar-v0, always to the right, skip 4; positions of the last observation and of the
# car):
#     limit of 10 frames: observation -0.4699, car -0.4562
#     limit of 2 frames: observation 0.0000, car -0.4952
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
from gymnasium.wrappers import MaxAndSkipObservation


def play(env, seed):
    """The position in the last observation, and the car's."""
    env.reset(seed=seed)
    ended = False
    while not ended:
        obs, _, terminated, truncated, _ = env.step(2)
        ended = terminated or truncated
    return [round(float(obs[0]), 4), round(float(env.unwrapped.state[0]), 4)]


def make(limit):
    return MaxAndSkipObservation(gymnasium.make("MountainCar-v0", max_episode_steps=limit), skip=4)


exact = play(make(8), 1)
found = [play(make(10), 1), play(make(2), 1)]
for name, (seen, position) in zip(("limit of 10 frames", "limit of 2 frames"), found):
    print(f"{name}: observation {seen:.4f}, car {position:.4f}")
as_seen = exact[0] == exact[1] and all(seen != position for seen, position in found) and found[1][0] == 0
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
