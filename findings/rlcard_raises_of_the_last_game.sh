#!/usr/bin/env bash
# rlcard 1.2.0: in limit-holdem, a game's first observation shows the raises of the game before it.
#
# Expected: the last 20 numbers of the observation, how often was raised in each of the four rounds of betting, say
# "0, 0, 0, 0" in a new game. But reset() makes the first state before it sets the counts back: the player that acts
# first sees how the last game went, and decides on cards of before the flop with the counts of up to four rounds. At
# its next turn they are right. A policy learns two kinds of first move, and one that is loaded for a single game, or
# meets another opponent, sees first observations that its training did not have.
#
# Output seen on 2026-11-29:
#     all raise:     first [0, 0, 0, 0], second [1, 0, 0, 0], last [4, 4, 4, 4]
#     no one raises: first [4, 4, 4, 4], second [0, 0, 0, 0], last [0, 0, 0, 0]
#     no one raises: first [0, 0, 0, 0], second [0, 0, 0, 0], last [0, 0, 0, 0]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "rlcard==1.2.0" "numpy==2.3.5" "termcolor==3.3.0"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import rlcard

CALL, RAISE, CHECK = 0, 1, 3


def raises(state):
    """The number of raises in each of the four rounds, from the one-hot part of the observation."""
    return state["obs"][52:].reshape(4, 5).argmax(axis=1).tolist()


def play(env, preferred):
    """The counts in the first two observations and in the last one of a game."""
    state = env.reset()[0]
    found = [raises(state)]
    while not env.is_over():
        legal = state["legal_actions"]
        state = env.step(next(action for action in (preferred, CALL, CHECK) if action in legal))[0]
        found.append(raises(state))
    return found[0], found[1], found[-1]


env = rlcard.make("limit-holdem", config={"seed": 0})
games = []
for name, preferred in (("all raise", RAISE), ("no one raises", CHECK), ("no one raises", CHECK)):
    games.append(play(env, preferred))
    print(f"{name + ':':14}", "first {}, second {}, last {}".format(*games[-1]))
zeros = [0, 0, 0, 0]
seen = [game[0] for game in games] == [zeros, games[0][2], zeros] and games[1][1] == zeros and sum(games[0][2]) > 8
raise SystemExit(0 if seen else "the behaviour has changed")
PY
