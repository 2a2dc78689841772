#!/usr/bin/env bash
# SuperSuit 3.11.0: black_death_v3 ends an episode one step late, with a black observation, as terminated *and* truncated.
#
# Expected: the episode ends in the step in which the last agents end, with their last observations, and a time limit
# stays a truncation. The wrapper waits until all agents are terminated and truncated at once. As that never happens, it
# plays one more step without agents: no observation, no reward, no flags. That step ends the episode with both flags.
# So the values of the last states are learned from a black image, and a time limit reads as the end of the task.
#
# Output seen on 2026-11-28 (mpe2's simple_spread_v3, three agents, a limit of 5 steps):
#     plain: 5 steps, terminated: no, truncated: yes, last observation black: no
#     black_death_v3: 6 steps, terminated: yes, truncated: yes, last observation black: yes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "supersuit==3.11.0" "pettingzoo==1.27.0" "mpe2==1.1.1" "gymnasium==1.4.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import supersuit
from mpe2 import simple_spread_v3


def end(env):
    """Steps of an episode; flags and blackness of its end, the same for all three agents."""
    env.reset(seed=1)
    steps = 0
    while env.agents:
        obs, _, terminated, truncated, _ = env.step({agent: 1 for agent in env.agents})
        steps += 1
    black = {agent: not obs[agent].any() for agent in obs}
    return [steps] + [all(part.values()) for part in (terminated, truncated, black)]


found = []
for name, wrap in (("plain", lambda env: env), ("black_death_v3", supersuit.black_death_v3)):
    found.append(end(wrap(simple_spread_v3.parallel_env(max_cycles=5))))
    steps, *flags = found[-1]
    names = ("terminated", "truncated", "last observation black")
    print(f"{name}: {steps} steps,", ", ".join(f"{n}: {'yes' if flag else 'no'}" for n, flag in zip(names, flags)))
as_seen = found == [[5, False, True, False], [6, True, True, True]]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
