#!/usr/bin/env bash
# gymnasium 1.4.0: with AddWhiteNoise or ObstructView, looking at an environment changes what happens in it.
#
# Expected: the wrappers change the picture; an episode of the same seed and the same actions is the same, rendered or
# not. They draw their noise from the environment's own random numbers, in render(). With RecordVideo the recorded
# episodes are others than they would have been, and an agent that learns from noisy pictures (AddRenderObservation)
# meets other levels, winds or slips at each strength of the noise: a comparison of strengths compares these too.
#
# Output seen on 2026-11-28 (FrozenLake-v1 with 8x8 fields, seed 1, down and right by turns; the first fields):
#     plain: 0 1 9 10 18 26 18 26, rendered: 0 1 9 10 18 26 18 26
#     AddWhiteNoise: 0 1 9 10 18 26 18 26, rendered: 0 1 1 0 0 8 16 16
#     ObstructView: 0 1 9 10 18 26 18 26, rendered: 0 0 1 2 3 11 3 2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "numpy==2.3.5" pygame-ce
SDL_VIDEODRIVER=dummy PYGAME_HIDE_SUPPORT_PROMPT=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
from gymnasium.wrappers import AddWhiteNoise, ObstructView


def fields(wrapper, rendered):
    env = wrapper(gymnasium.make("FrozenLake-v1", map_name="8x8", render_mode="rgb_array"))
    found = [env.reset(seed=1)[0]]
    for step in range(7):
        if rendered:
            env.render()
        found.append(int(env.step(1 + step % 2)[0]))
    return found


same = []
for name, wrapper in (
    ("plain", lambda env: env),
    ("AddWhiteNoise", lambda env: AddWhiteNoise(env, probability_of_noise_per_pixel=0.2)),
    ("ObstructView", lambda env: ObstructView(env, obstructed_pixels_ratio=0.2, obstruction_width=8)),
):
    unseen, seen = fields(wrapper, False), fields(wrapper, True)
    print(f"{name}:", *unseen[:-1], f"{unseen[-1]}, rendered:", *seen)
    same.append(unseen == seen)
raise SystemExit(0 if same == [True, False, False] else "the behaviour has changed")
PY
