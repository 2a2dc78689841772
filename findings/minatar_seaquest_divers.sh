#!/usr/bin/env bash
# MinAtar 1.0.15: in Seaquest, after six divers are brought up, the submarine may surface without divers for ever.
#
# Expected: six divers at the surface give a reward and leave none, and surfacing without a diver ends the game, as a
# comment in its code says. After the reward one more is taken off: the count is -1, and as only 0 ends the game, the
# submarine gets full oxygen as often as it likes, at -2, -3 and so on. The observation shows no divers, as at 0, and
# the next reward needs one diver more for each of these times. An agent that gets so far plays another game.
#
# Output seen on 2026-11-29 (the submarine comes up with divers, then goes down and up again without any):
#     with 1 diver:  reward 0, divers 0, full oxygen; without: 1 time, the game is over
#     with 6 divers: reward 5, divers -1, full oxygen; without: 10 times, divers -11, full oxygen, the game goes on
#     divers in the observation: 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/pip" install -q --no-deps "MinAtar==1.0.15"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - 2> "$folder/log" <<'PY' || { cat "$folder/log"; exit 1; }
from minatar import Environment

UP, DOWN = 2, 4

env = Environment("seaquest", sticky_action_prob=0.0)
env.seed(0)
game = env.env


def come_up(divers):
    """Come up with so many divers and half of the oxygen, then go down and up until the game ends, or ten times."""
    env.reset()
    game.diver_count, game.oxygen, game.sub_y, game.surface = divers, 100, 1, False
    reward, over = env.act(UP)
    first = int(reward), game.diver_count, game.oxygen
    times = 0
    while not over and times < 10:
        over = env.act(DOWN)[1] or env.act(UP)[1]
        times += 1
    return *first, times, bool(over), game.diver_count, game.oxygen


one = come_up(1)
print(f"with 1 diver:  reward {one[0]}, divers {one[1]}, full oxygen; without: {one[3]} time, the game is over")
six = come_up(6)
print(f"with 6 divers: reward {six[0]}, divers {six[1]}, full oxygen; without: {six[3]} times,", end=" ")
print(f"divers {six[5]}, full oxygen, the game goes on")
shown = int(env.state()[:, :, game.channels["diver_guage"]].sum())
print("divers in the observation:", shown)
seen = one[:5] == (0, 0, 200, 1, True) and six == (5, -1, 200, 10, False, -11, 200) and shown == 0
raise SystemExit(0 if seen else "the behaviour has changed")
PY
