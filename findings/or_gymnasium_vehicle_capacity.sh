#!/usr/bin/env bash
# or-gymnasium 0.1.0: in VehicleRouting-v0, each order that comes too late takes a place from the vehicle for ever.
#
# Expected: an order in the vehicle whose time is over is removed: the vehicle has one more free place, and each
# episode begins with an empty vehicle of four places. But it is the capacity that is made smaller, not the load, and
# no reset() restores it: an instance that has lost four orders begins every episode with a vehicle that cannot carry
# anything. So later episodes of a training are another task than the first ones, in which no delivery is possible,
# and another one than an evaluation's in a fresh instance.
#
# Output seen on 2026-11-29 (episodes of a random agent):
#     episode 0: 4 places, 3 orders picked up
#     episode 1: 3 places, 3 orders picked up
#     episode 2: 2 places, 2 orders picked up
#     episode 3: 1 places, 2 orders picked up
#     episode 4: 0 places, 0 orders picked up
#     episode 5: 0 places, 0 orders picked up
#     episode 6: 0 places, 0 orders picked up
#     episode 7: 0 places, 0 orders picked up
#     episode 7 in a fresh instance: 4 places, 4 orders picked up
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "or-gymnasium==0.1.0" "gymnasium==1.4.0" "numpy==2.3.5"
MPLCONFIGDIR=$folder OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium as gym
import or_gymnasium  # noqa: F401


def episode(env, seed):
    """The vehicle's places at the beginning, and the orders picked up in an episode of random actions."""
    env.action_space.seed(seed)
    observation, _ = env.reset(seed=seed)
    load, places = observation[6:8].astype(int).tolist()
    picked, over = 0, False
    while not over:
        observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
        picked += int(observation[6]) > load
        load, over = int(observation[6]), terminated or truncated
    return places, picked


used = gym.make("VehicleRouting-v0")
episodes = [episode(used, seed) for seed in range(8)]
for seed, (places, picked) in enumerate(episodes):
    print(f"episode {seed}: {places} places, {picked} orders picked up")
fresh = episode(gym.make("VehicleRouting-v0"), 7)
print(f"episode 7 in a fresh instance: {fresh[0]} places, {fresh[1]} orders picked up")
counts = [places for places, _ in episodes]
seen = counts[0] == fresh[0] == 4 and counts == sorted(counts, reverse=True)
seen &= episodes[-1] == (0, 0) and fresh[1] > 0
raise SystemExit(0 if seen else "the behaviour has changed")
PY
