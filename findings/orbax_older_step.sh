#!/usr/bin/env bash
# orbax-checkpoint 0.12.8: after a return to an older checkpoint, CheckpointManager saves nothing for a while.
#
# Expected: a run that has diverged is taken back to a checkpoint from before, and goes on saving from there; or save()
# raises. A step that is not above the newest one of the folder is left out in silence: save() returns False. A run
# that stops in this time resumes from the checkpoints of the branch that was given up; only once it is past them is
# anything saved, and then the two branches are mixed. The same for a second save of a step with better parameters.
#
# Output seen on 2026-11-28 (100, 200, 300 are saved; the run goes back to 100 with other parameters):
#     saved: 100 True, 200 True, 300 True
#     after the return to 100: 150 False, 200 False, 250 False, 300 False, 350 True
#     latest step before 350: 300, with the parameters of the run that was given up
#     steps in the end: 100 200 300 350
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "orbax-checkpoint==0.12.8" "jax==0.10.2" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - "$folder/run" 2> "$folder/log" <<'PY' ||
import sys

import numpy as np
import orbax.checkpoint as ocp


def save(manager, steps, value):
    found = [manager.save(step, args=ocp.args.StandardSave({"w": np.full(2, value)})) for step in steps]
    manager.wait_until_finished()
    return found


with ocp.CheckpointManager(sys.argv[1]) as manager:
    first, second = (100, 200, 300), (150, 200, 250, 300)
    saved = save(manager, first, 1.0)
    print("saved:", ", ".join(f"{step} {done}" for step, done in zip(first, saved)))

with ocp.CheckpointManager(sys.argv[1]) as manager:
    manager.restore(100)
    again = save(manager, second, 2.0)
    latest = manager.latest_step()
    given_up = manager.restore(latest)["w"][0] == 1.0
    again += save(manager, (350,), 2.0)
    print("after the return to 100:", ", ".join(f"{step} {done}" for step, done in zip((*second, 350), again)))
    run = "was given up" if given_up else "goes on"
    print(f"latest step before 350: {latest}, with the parameters of the run that {run}")
    print("steps in the end:", *manager.all_steps())
as_seen = all(saved) and again == [False] * 4 + [True] and latest == 300 and given_up
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
    { cat "$folder/log" >&2; exit 1; }
