#!/usr/bin/env bash
# navix 0.7.4, which pip takes on Python 3.11: in the KeyCorridor environments no agent leaves the corridor, for ever.
#
# Expected: as in MiniGrid, the agent opens a door, takes the key, opens the locked door and reaches the goal. But a
# door lies in the wall, where the map says "wall", and a step needs a free place of the map: an open door cannot be
# passed either. The key and the goal are out of reach. The goal would not pay anyway: it is a ball, and the event of
# a reached goal needs an entity of the class Goal. All agents score 0, and no message says that the task is broken.
# In DoorKey, doors can be passed. navix 4.0.0 has other code there, but it needs Python 3.12: on 3.11, pip takes
# 0.7.4 without a word.
#
# Output seen on 2026-11-28 (128 environments, 500 random steps each):
#     Navix-KeyCorridorS3R1-v0: agents in columns [3], up to 1 doors open, 0 goals reached
#     Navix-KeyCorridorS3R3-v0: agents in columns [3], up to 5 doors open, 0 goals reached
#     Navix-DoorKey-5x5-v0: agents in columns [1, 2, 3], up to 1 doors open, 32 goals reached
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "navix==0.7.4" "jax==0.10.2" "flax==0.12.8" "numpy==2.3.5"
OMP_NUM_THREADS=1 JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import jax
import navix
import numpy as np

environments = 128
steps = 500


def play(name):
    """The columns in which agents have been, whether doors were opened, and the sum of all rewards."""
    env = navix.make(name, observation_fn=navix.observations.none)

    def step(timestep, key):
        timestep = env.step(timestep, jax.random.randint(key, (), 0, 6))
        player = timestep.state.entities["player"]
        doors = timestep.state.entities["door"]
        return timestep, (player.position[0, 1], (doors.open == 1).sum(), timestep.reward)

    def episode(key):
        keys = jax.random.split(key, steps + 1)
        return jax.lax.scan(step, env.reset(keys[0]), keys[1:])[1]

    columns, opened, rewards = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.PRNGKey(0), environments))
    columns = sorted(set(np.asarray(columns).ravel().tolist()))
    opened = int(np.max(opened))
    total = float(np.sum(rewards))
    print(f"{name}: agents in columns {columns}, up to {opened} doors open, {total:.0f} goals reached")
    return columns, opened, total


names = ["Navix-KeyCorridorS3R1-v0", "Navix-KeyCorridorS3R3-v0"]
corridors = [play(name) for name in names]
columns, opened, total = play("Navix-DoorKey-5x5-v0")
stuck = all(result[0] == [3] and result[1] > 0 and result[2] == 0 for result in corridors)
raise SystemExit(0 if stuck and len(columns) > 1 and total > 0 else "the behaviour has changed")
PY
