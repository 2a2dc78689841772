#!/usr/bin/env bash
# gymnax 1.0.1: in Asterix-MinAtar, where no row is free for a new enemy or treasure, an old one disappears.
#
# Expected: as in MinAtar, the new one comes into a free row, and where there is none, nothing happens. The search in
# gymnax leaves out one of the eight rows, drawn at random; if it finds none, it writes an empty entity over a row that
# is taken. Late in the game all rows are taken in most steps, and enemies vanish before they have crossed the screen:
# the game is easier than MinAtar's, with the same name and the same scores to compare with.
#
# Output seen on 2026-11-28 (enemies after a step with a spawn, 400 times each):
#     8 enemies and 0 free rows: MinAtar 8 (100%), gymnax 7 (100%)
#     7 enemies and 1 free rows: MinAtar 8 (100%), gymnax 6 (12%) or 8 (88%)
#     6 enemies and 2 free rows: MinAtar 7 (100%), gymnax 7 (100%)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnax==1.0.1" "jax==0.10.2" "numpy==2.3.5" six
"$folder/venv/bin/pip" install -q --no-deps "MinAtar==1.0.15"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
from collections import Counter

import gymnax
import jax
import jax.numpy as jnp
from minatar.environments.asterix import Env

TIMES, ROWS = 400, 8
# The enemies are in the middle of the screen and do not move in this step; the player is at the right border.
env, params = gymnax.make("Asterix-MinAtar")
start = env.reset(jax.random.key(0), params)[1].replace(player_x=9, spawn_timer=0, move_timer=3)


@jax.jit
@jax.vmap
def after_a_step(key, entities):
    return env.step_env(key, start.replace(entities=entities), 0, params)[1].entities[:, 4].sum()


def in_gymnax(enemies):
    entities = jnp.array([[4, row + 1, 1, 0, 1] if row < enemies else [0] * 5 for row in range(ROWS)])
    keys = jax.random.split(jax.random.key(1), TIMES)
    return Counter(after_a_step(keys, jnp.tile(entities, (TIMES, 1, 1))).tolist())


def in_minatar(enemies):
    game = Env()
    game.random.seed(1)
    found = Counter()
    for _ in range(TIMES):
        game.reset()
        game.player_x, game.spawn_timer, game.move_timer = 9, 0, 3
        game.entities = [[4, row + 1, True, False] if row < enemies else None for row in range(ROWS)]
        game.act(0)
        found[sum(entity is not None for entity in game.entities)] += 1
    return found


seen = []
for enemies in (8, 7, 6):
    counts = [in_minatar(enemies), in_gymnax(enemies)]
    shares = [" or ".join(f"{n} ({count[n] / TIMES:.0%})" for n in sorted(count)) for count in counts]
    print(f"{enemies} enemies and {ROWS - enemies} free rows: MinAtar {shares[0]}, gymnax {shares[1]}")
    seen.append([set(count) for count in counts])
as_seen = seen == [[{8}, {7}], [{8}, {6, 8}], [{7}, {7}]]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
