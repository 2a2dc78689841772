#!/usr/bin/env bash
# gymnasium 1.4.0: the first environment's type decides for all values of a key in a vector environment's infos.
#
# Expected: infos["x"] holds the numbers that the environments gave. The array gets the type of the first environment
# that has the key in this step; where that is an int, the others' fractions are cut off: 0 and 0.7 become [0, 0], False
# and 0.7 become [False, True]. In another order all is right. Metrics such as a share of success are logged too low. It
# happens in gymnasium's own FrozenLake, whose "prob" is 1 after reset and 1/3 after a slippery step.
#
# Output seen on 2026-11-28 (two FrozenLake-v1, 1000 random steps; each step's "prob" of the second environment):
#     0.3333 in steps in which the first one stepped too
#     0 in steps in which the first one restarted
#     own environments with the metric 0.7 and 0: 0.7 0.0
#     own environments with the metric 0 and 0.7: 0 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np

envs = gymnasium.make_vec("FrozenLake-v1", num_envs=2)
envs.action_space.seed(1)
envs.reset(seed=1)
ended = np.zeros(2, bool)
stepped, restarted = set(), set()
for _ in range(1000):
    _, _, terminated, truncated, infos = envs.step(envs.action_space.sample())
    if not ended[1]:  # the second one made a step
        (restarted if ended[0] else stepped).add(round(float(infos["prob"][1]), 4))
    ended = terminated | truncated
print(*stepped, "in steps in which the first one stepped too")
print(*(f"{value:g}" for value in restarted), "in steps in which the first one restarted")


class Metric(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, value):
        self.value = value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {"metric": self.value}


found = []
for values in ((0.7, 0), (0, 0.7)):
    envs = gymnasium.vector.SyncVectorEnv([lambda value=value: Metric(value) for value in values])
    envs.reset(seed=1)
    found.append(envs.step(np.zeros(2, int))[4]["metric"].tolist())
    print("own environments with the metric", *values[:1], "and", f"{values[1]}:", *found[-1])
as_seen = stepped == {0.3333} and restarted == {0.0} and found == [[0.7, 0.0], [0, 0]]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
