#!/usr/bin/env bash
# gymnax 1.0.1: GymnaxToGymWrapper has begun the next episode when it says that one has ended.
#
# Expected: of a gymnasium environment, the observation that comes with terminated or truncated is the episode's last
# one, and reset() begins the next episode. gymnax's own automatic reset, which its documentation describes for its own
# step, happens inside of the wrapper: the observation is the first one of another episode, and the last one is in
# info["final_observation"], where nothing that is written for gymnasium looks for it. At a time limit, agents add the
# value of that first state. reset() then throws the episode away that has begun.
#
# Output seen on 2026-11-28 (Pendulum-v1 without torque; cosine, sine and speed):
#     gymnasium: 200 steps; the observation changes by 0.75 at most, by 0.36 in the last step
#     gymnax: 200 steps; the observation changes by 0.75 at most, by 3.89 in the last step
#     gymnax's last observation: 0.02 -1.00 0.75 - really: -0.28 0.96 5.38
#     it is the beginning of an episode: True; reset() returns it: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnax==1.0.1" "gymnasium==1.3.0" "jax==0.10.2" "numpy==2.3.5" six
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import gymnax
import numpy as np
from gymnax.wrappers.gym import GymnaxToGymWrapper


def to_the_end(env):
    """Plays an episode: its steps, the largest change of the observation before the end and at it, the last info."""
    observation = np.asarray(env.reset(seed=1)[0])
    changes = []
    while True:
        before = observation
        observation, _, terminated, truncated, info = env.step(np.zeros(1, np.float32))
        observation = np.asarray(observation)
        changes.append(float(np.abs(observation - before).max()))
        if truncated:
            assert not terminated
            return len(changes), max(changes[:-1]), changes[-1], observation, info


steps, largest, last, *_ = to_the_end(gymnasium.make("Pendulum-v1"))
print(f"gymnasium: {steps} steps; the observation changes by {largest:.2f} at most, by {last:.2f} in the last step")
right = last <= largest
env = GymnaxToGymWrapper(*gymnax.make("Pendulum-v1"), seed=1)
steps, largest, last, observation, info = to_the_end(env)
print(f"gymnax: {steps} steps; the observation changes by {largest:.2f} at most, by {last:.2f} in the last step")
final = np.asarray(info["final_observation"])
print("gymnax's last observation:", *(f"{x:.2f}" for x in observation), "- really:", *(f"{x:.2f}" for x in final))
# The same key gives the same episode: what the wrapper returned is a state in which an episode begins.
begins = np.array_equal(observation, np.asarray(env._env.get_obs(env.env_state))) and int(env.env_state.time) == 0
again = np.array_equal(observation, np.asarray(env.reset()[0]))
print(f"it is the beginning of an episode: {begins}; reset() returns it: {again}")
as_seen = right and not np.allclose(observation, final) and begins and not again
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
