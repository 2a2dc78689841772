#!/usr/bin/env bash
# popgym 1.0.7: in its labyrinths, the view is not centred on the agent at the left and the upper border.
#
# Expected: the observation's 3 x 3 cells surround the agent, with walls for what lies outside, as at the right and
# the lower border. At the left and the upper one, the view is cut off on one side and filled up on the other: the
# agent stands in its first column or row. Episodes begin at a border: in half of them, the first observation shows
# open ways where walls are, and a step to the inside may leave the nine cells as they were.
#
# Output seen on 2026-11-29 (100 mazes; the four ways that the first view shows around its centre, against the moves):
#     left border:  wrong in 27 of 27, the same view after a step in 8
#     right border: wrong in 0 of 27, the same view after a step in 0
#     upper border: wrong in 20 of 20, the same view after a step in 9
#     lower border: wrong in 0 of 26, the same view after a step in 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "popgym==1.0.7" "mazelib==0.9.16" "gymnasium==1.4.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
from popgym.envs.labyrinth_escape import LabyrinthEscape

WALL = 1
WAYS = ((1, 0), (1, 2), (0, 1), (2, 1))  # where the view shows what is left, right, above and below
INWARD = {"left": 1, "right": 0, "upper": 3, "lower": 2}

env = LabyrinthEscape()
starts, wrong, same = ({side: 0 for side in INWARD} for _ in range(3))
for seed in range(100):
    observation, _ = env.reset(seed=seed)
    view = observation[:9].reshape(3, 3)
    row, column = env.position
    last = len(env.maze.grid) - 1
    side = "left" if column == 0 else "right" if column == last else "upper" if row == 0 else "lower"
    starts[side] += 1
    opened = [env.move(action) != env.position for action in range(4)]
    wrong[side] += opened != [view[way] != WALL for way in WAYS]
    inside = env.step(INWARD[side])[0]
    same[side] += bool((inside[:9] == observation[:9]).all())
for side in INWARD:
    print(f"{side + ' border:':13} wrong in {wrong[side]} of {starts[side]},", end=" ")
    print(f"the same view after a step in {same[side]}")
as_seen = all(wrong[side] == starts[side] > 0 and same[side] > 0 for side in ("left", "upper"))
as_seen &= not any(wrong[side] + same[side] for side in ("right", "lower"))
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
