#!/usr/bin/env bash
# stable-retro 1.0.1: a restored state pays for its score again, and going back costs nothing.
#
# Expected: the reward of a step is what this step scored. It is the score less the one of the step before,
# and `em.set_state()`, by which searches go back to a state, does not tell the side that counts: it still has
# the score of the state that was left. From a state with 20 points, entered from one with none, the first
# idle step pays 20, each time anew; the way back would be -20, which the game's reward leaves out. A tree
# search, or an agent that starts from stored states, takes points for its own that were scored before, and
# prefers to jump between states to playing. With the state as `initial_state`, reset() counts rightly.
#
# Output seen on 2026-11-28 (Airstriker; rewards of idle steps after 20 points were scored):
#     going on: 0 0 0
#     restored, entered from the same score: 0 0 0
#     restored, entered from no points: 20 0 0
#     restored again, from no points: 20 0 0
#     by initial_state and reset(): 0 0 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "stable-retro==1.0.1" "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import stable_retro

env = stable_retro.make("Airstriker-Genesis-v0", render_mode="rgb_array")
emulator = env.unwrapped.em
idle = np.zeros(12, np.int8)


def rewards():
    """What three idle steps pay."""
    return [int(env.step(idle)[1]) for _ in range(3)]


env.reset(seed=1)
beginning = emulator.get_state()
actions = np.random.RandomState(0)
score = 0
while score < 20:
    score = env.step(actions.randint(0, 2, 12).astype(np.int8))[4]["score"]
later = emulator.get_state()
found = {"going on": rewards()}
emulator.set_state(later)
found["restored, entered from the same score"] = rewards()
for name in ("restored, entered from no points", "restored again, from no points"):
    emulator.set_state(beginning)
    rewards()
    emulator.set_state(later)
    found[name] = rewards()
env.unwrapped.initial_state = later
env.reset()
found["by initial_state and reset()"] = rewards()
for name, values in found.items():
    print(f"{name}:", *values)
seen = list(found.values()) == [[0, 0, 0], [0, 0, 0], [20, 0, 0], [20, 0, 0], [0, 0, 0]]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
