#!/usr/bin/env bash
# pgx 2.6.0: in a game of three, an illegal move costs one player 1 and gives 2 to each of the
# others.
#
# Expected: what the player of an illegal move loses, the others share, so that the rewards of a
# zero-sum game stay one: -1, 0.5 and 0.5. Every other player gets the whole penalty times the
# number of the others. With two players that is right; in Sparrow Mahjong the rewards add up to 3,
# where those of finished games add up to 0. In self-play with one network for all seats, an illegal
# move is then worth 1 a player on average, more than any way to play on.
#
# Output seen on 2026-11-28 (the first move of each game; games to the end by random legal moves):
#     leduc_holdem: illegal move -1 1, sum 0; sums of 30 legal games: 0
#     backgammon: illegal move -3 3, sum 0
#     sparrow_mahjong: illegal move -1 2 2, sum 3; sums of 30 legal games: 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "pgx==2.6.0" "jax==0.10.2" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import jax
import jax.numpy as jnp
import numpy as np
import pgx

found = {}
for name, games in (("leduc_holdem", 30), ("backgammon", 0), ("sparrow_mahjong", 30)):
    env = pgx.make(name)
    init, step = jax.jit(env.init), jax.jit(env.step)
    key = jax.random.PRNGKey(1)
    state = init(key)
    illegal = np.flatnonzero(~np.asarray(state.legal_action_mask))[0]
    rewards = np.sort(step(state, illegal, key).rewards)
    text = " ".join(f"{reward:.0f}" for reward in rewards)
    print(f"{name}: illegal move {text}, sum {rewards.sum():.0f}", end="")
    sums = []
    for _ in range(games):
        key, subkey = jax.random.split(key)
        state = init(subkey)
        total = 0.0
        while not state.terminated:
            key, choice, chance = jax.random.split(key, 3)
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            action = jax.random.categorical(choice, logits)
            state = step(state, action, chance)
            total += float(state.rewards.sum())
        sums.append(total)
    text = f"; sums of {games} legal games:" if games else ""
    print(text, *(f"{total:.0f}" for total in set(sums)))
    found[name] = [*rewards, *set(sums)]
as_seen = found["sparrow_mahjong"] == [-1, 2, 2, 0] and found["leduc_holdem"] == [-1, 1, 0]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
