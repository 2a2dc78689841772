#!/usr/bin/env bash
# MiniGrid 3.2.0: DirectionObsWrapper's direction is the same for two goals on opposite sides of the
# agent.
#
# Expected: by its docstring, the observation "goal_direction" tells the slope or the angle from the
# agent to the goal, so that the agent knows where to go. Also with type="angle" it is the arc
# tangent of the slope: a goal at the right and one at the left are both 0, above and below are both
# infinite slopes, and each diagonal stands for two ways.
#
# Output seen on 2026-11-28 (FourRooms, the agent in column 5, row 5):
#     goal (8, 5): slope 0.00, angle 0.00
#     goal (2, 5): slope -0.00, angle -0.00
#     goal (8, 8): slope 1.00, angle 0.79
#     goal (2, 2): slope 1.00, angle 0.79
#     goal (8, 2): slope -1.00, angle -0.79
#     goal (2, 8): slope -1.00, angle -0.79
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "minigrid==3.2.0" "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import minigrid
from minigrid.wrappers import DirectionObsWrapper

assert minigrid
AGENT = (5, 5)
OPPOSITE = [((8, 5), (2, 5)), ((8, 8), (2, 2)), ((8, 2), (2, 8))]


def direction(goal, kind):
    env = gymnasium.make("MiniGrid-FourRooms-v0", agent_pos=AGENT, goal_pos=goal)
    return float(DirectionObsWrapper(env, type=kind).reset(seed=1)[0]["goal_direction"])


as_seen = True
for pair in OPPOSITE:
    found = [(direction(goal, "slope"), direction(goal, "angle")) for goal in pair]
    for goal, (slope, angle) in zip(pair, found):
        print(f"goal {goal}: slope {slope:.2f}, angle {angle:.2f}")
    as_seen = as_seen and found[0] == found[1]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
