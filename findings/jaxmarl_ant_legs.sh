#!/usr/bin/env bash
# jaxmarl 0.2.0, brax 0.14.2: in MABrax's ant_4x2, each agent observes one leg and moves another one.
#
# Expected: each of the four agents moves the hip and the ankle of the leg that it observes in full; of other legs it
# sees only the hips. The lists of observations count the legs in the order of the joints, those of actions in that of
# the motors, which begin with the last leg: agent 0 moves leg 4 and sees the ankle of leg 1, and no agent sees the
# ankle that it moves. (MABrax is deprecated in 0.2.0; 0.0.4 to 0.1.0 have the same lists.) With
# homogenisation_method="max", each observation begins not behind the agents' numbers, as its documentation says, but
# within them: one place later for each agent.
#
# Output seen on 2026-11-29 (the change of the velocities that each agent sees of its leg, where one agent acts; the
# first nine numbers with "max", where the observation is 101, 102 and so on):
#     only agent 0 acts: the joints of agent 0 2.3, agent 1 3.2, agent 2 2.3, agent 3 10.7
#     only agent 1 acts: the joints of agent 0 10.7, agent 1 2.4, agent 2 3.2, agent 3 2.3
#     only agent 2 acts: the joints of agent 0 2.4, agent 1 10.8, agent 2 2.3, agent 3 3.2
#     only agent 3 acts: the joints of agent 0 3.4, agent 1 2.4, agent 2 11.0, agent 3 2.5
#     agent_0, with max: 1 101 102 103 104 105 106 107 108
#     agent_1, with max: 0 1 101 102 103 104 105 106 108
#     agent_2, with max: 0 0 1 101 102 103 104 105 106
#     agent_3, with max: 0 0 0 1 101 102 103 104 105
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "jaxmarl==0.2.0" "gymnax==1.0.1" "brax==0.14.2" "jax==0.10.2" "mujoco==4.0.0" \
    "mujoco-mjx==3.17.0" "numpy==2.3.5"
JAX_PLATFORMS=cpu OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - 2> "$folder/log" <<'PY' |
import jax
import jax.numpy as jnp
import jaxmarl
import numpy as np

KEY = jax.random.PRNGKey(0)

env = jaxmarl.make("ant_4x2", backend="spring")
_, state = env.reset(KEY)
actions = {agent: jnp.zeros((5, 2)).at[number].set(1.0) for number, agent in enumerate(env.agents)}  # the 5th: none
step = jax.jit(jax.vmap(env.step_env, in_axes=(None, None, 0)))
observations = step(KEY, state, actions)[0]
change = np.stack([np.abs(seen[:4, -2:] - seen[4, -2:]).sum(1) for seen in map(observations.get, env.agents)], 1)
for number, row in enumerate(change):
    others = ", ".join(f"agent {other} {value:.1f}" for other, value in enumerate(row))
    print(f"only agent {number} acts: the joints of {others}")
moved = change.argmax(1).tolist()

padded = jaxmarl.make("ant_4x2", backend="spring", homogenisation_method="max")
first = padded.map_global_obs_to_agents(jnp.arange(101.0, 128.0))
begins = []
for agent in padded.agents:
    print(f"{agent}, with max:", *first[agent][:9].astype(int).tolist())
    begins.append(first[agent].tolist().index(101))
seen = moved == [3, 0, 1, 2] and begins == [1, 2, 3, 4]
raise SystemExit(0 if seen else "the behaviour has changed")
PY
    sed "/ubmoduled environments/d" || { cat "$folder/log"; exit 1; }
