#!/usr/bin/env bash
# rlcard 1.2.0: after step_back(), the raises of no-limit-holdem are of another size, in limit-holdem counts remain.
#
# Expected: a step and a step_back() leave the game as it was, which its README offers for searches of the game tree,
# such as CFR. But in no-limit-holdem, the saved round and the saved game get separate copies of the dealer, who
# holds the pot: from then on the round knows the pot of that moment only. RAISE_POT adds this old pot, other raises
# are legal, and so a tree that is walked with step_back() is that of another game. In limit-holdem, the raises of
# each round are put back into a misspelt variable: the observation after step_back() still has the one taken back.
#
# Output seen on 2026-11-29:
#     no-limit-holdem, played at once: [2, 2] [2, 6] [10, 6]
#     no-limit-holdem, after a step_back(): [2, 2] [2, 5] [5, 5]
#     limit-holdem, raises before: [0, 0, 0, 0] after a raise and step_back(): [1, 0, 0, 0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "rlcard==1.2.0" "numpy==2.3.5" "termcolor==3.3.0"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import rlcard


def make(game):
    return rlcard.make(game, config={"seed": 1, "allow_step_back": True})


def chips(detour):
    """The players' chips after each of: call, raise by the pot, raise by the pot."""
    env = make("no-limit-holdem")
    env.reset()
    if detour:
        env.step(1)
        env.step_back()
    return [[int(chips) for chips in env.step(action)[0]["raw_obs"]["all_chips"]] for action in (1, 3, 3)]


def raises(state):
    return state["obs"][52:].reshape(4, 5).argmax(axis=1).tolist()


direct, after = chips(False), chips(True)
print("no-limit-holdem, played at once:", *direct)
print("no-limit-holdem, after a step_back():", *after)
env = make("limit-holdem")
before = raises(env.reset()[0])
env.step(1)
restored = raises(env.step_back()[0])
print("limit-holdem, raises before:", before, "after a raise and step_back():", restored)
seen = direct[0] == after[0] and max(after[2]) < max(direct[2]) and before == [0] * 4 and restored == [1, 0, 0, 0]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
