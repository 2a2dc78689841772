#!/usr/bin/env bash
# gymnasium-robotics 1.4.2: FrankaKitchen's compute_reward depends on what the running episode has done so
# far.
#
# Expected: compute_reward(achieved_goal, desired_goal, info) is a function of its arguments, and gives the
# step's own reward for the observation of this step, as the package's goal environments promise. It counts
# only the tasks that the environment, at the time of the call, has not done yet. Hindsight replay, which asks
# for old transitions, gets 0 for one that paid 1, and for a relabelled goal that was reached; after the next
# reset() the same call gives 1. What a replay buffer holds depends on when it is asked.
#
# Output seen on 2026-11-28 (the kettle is put at its goal; compute_reward of the observation of this step):
#     the step paid: 1.0
#     compute_reward after it: 0.0
#     compute_reward after the next reset(): 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium-robotics==1.4.2" "gymnasium==1.4.0" "mujoco==3.3.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - 2> "$folder/err" <<'PY' ||
import gymnasium
import gymnasium_robotics
import numpy as np
from gymnasium_robotics.envs.franka_kitchen import kitchen_env

gymnasium.register_envs(gymnasium_robotics)
env = gymnasium.make("FrankaKitchen-v1", tasks_to_complete=["kettle", "microwave"])
env.reset(seed=1)
kitchen = env.unwrapped
positions = kitchen.data.qpos.copy()
positions[kitchen_env.OBS_ELEMENT_INDICES["kettle"]] = kitchen_env.OBS_ELEMENT_GOALS["kettle"]
kitchen.robot_env.set_state(positions, 0 * kitchen.data.qvel)
obs, reward, _, _, info = env.step(np.zeros(9))
found = [reward]
found.append(kitchen.compute_reward(obs["achieved_goal"], obs["desired_goal"], info))
env.reset()
found.append(kitchen.compute_reward(obs["achieved_goal"], obs["desired_goal"], info))
print("the step paid:", found[0])
print("compute_reward after it:", found[1])
print("compute_reward after the next reset():", found[2])
raise SystemExit(0 if found == [1.0, 0.0, 1.0] else "the behaviour has changed")
PY
    { cat "$folder/err" >&2; exit 1; }
