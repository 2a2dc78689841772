#!/usr/bin/env bash
# vizdoom 1.3.2, gymnasium 1.4.0: a game that runs out of time ends as terminated and truncated at once, and its last
# observation is zeros.
#
# Expected: truncated only, with the screen after the last step, as gymnasium's API says: a learner bootstraps from it.
# So a learner that looks at `terminated` first takes the time limit for the end of the task, and one that looks at
# `truncated` bootstraps from a black screen.
#
# Output seen on 2026-11-27:
#     after 300 steps: terminated True, truncated True; mean of the screen 0.0, of the one before 60.8
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "vizdoom==1.3.2" "gymnasium==1.4.0" "numpy==2.3.5"
cd "$folder"  # vizdoom writes its settings where it runs
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
from vizdoom import gymnasium_wrapper  # noqa: F401

env = gymnasium.make("VizdoomBasic-v1")
obs, _ = env.reset(seed=1)
steps = 0
terminated = truncated = False
while not (terminated or truncated):
    before = obs["screen"]
    obs, _, terminated, truncated, _ = env.step(0)
    steps += 1
means = obs["screen"].mean(), before.mean()
print(
    f"after {steps} steps: terminated {terminated}, truncated {truncated}; "
    f"mean of the screen {means[0]:.1f}, of the one before {means[1]:.1f}"
)
seen = terminated and truncated and means[0] == 0 and means[1] > 10
raise SystemExit(0 if seen else "the behaviour has changed")
PY
