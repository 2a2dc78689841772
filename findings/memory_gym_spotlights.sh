#!/usr/bin/env bash
# memory-gym 1.0.2: in SearingSpotlights, the action and the reward in the image are one step old, and
# spawn_interval_decay does nothing.
#
# Expected: an observation shows the action and the reward of the step that led to it, from which an agent in the
# dark can tell where it is. The bar is drawn before the variables are set, so that it shows those of the step before:
# the newest action is never seen, and a coin is confirmed a step late. And with spawn_interval_decay, 0.95 if nothing
# is set, spotlights come faster and faster. But the list of intervals is read at its front and shortened at its end:
# they come every 40 steps, whatever the decay, and the task is easier than its settings say.
#
# Output seen on 2026-11-29 (the actions that the image shows after each step; the steps at which spotlights come):
#     taken: [1, 2] [0, 0] [2, 1] [0, 0]
#     shown: [0, 0] [1, 2] [0, 0] [2, 1]
#     a coin: reward 0.25, mark False, then reward 0.0, mark True
#     decay 1.0: 40 80 120 160 200 240
#     decay 0.95: 40 80 120 160 200 240
#     decay 0.5: 40 80 120 160 200 240
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "memory-gym==1.0.2" "gymnasium==0.29.0" "pygame==2.4.0" "numpy==2.3.5"
SDL_AUDIODRIVER=dummy PYGAME_HIDE_SUPPORT_PROMPT=1 OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
from memory_gym.searing_spotlights import SearingSpotlightsEnv

ACTIONS = ([1, 2], [0, 0], [2, 1], [0, 0])

env = SearingSpotlightsEnv()
env.reset(seed=0)
colours = {colour: number for number, colour in enumerate(env.action_colors)}
shown = []
for action in ACTIONS:
    image = env.step(action)[0]
    shown.append([colours[tuple(image[column, 1].tolist())] for column in (44, 80)])  # in the bar at the top
print("taken:", *ACTIONS)
print("shown:", *shown)
env.agent.rect.center = env.coins[0].location  # so that the next step gets the coin
marks = []
for _ in range(2):
    image, reward, *_ = env.step([0, 0])
    marks.append((reward, tuple(image[62, 1].tolist()) == (255, 255, 0)))  # a yellow mark in the bar
print("a coin: " + ", then ".join(f"reward {reward}, mark {mark}" for reward, mark in marks))


def arrivals(decay):
    """The steps of an episode at which a further spotlight comes, for an agent that stands still."""
    env.reset(seed=0, options={"agent_health": 10**6, "spawn_interval_decay": decay})
    known, steps, done = list(env.spotlights), [], False
    while not done:
        done = env.step([0, 0])[2]
        fresh = [light for light in env.spotlights if not any(light is other for other in known)]
        steps += [env.t] * len(fresh)
        known += fresh
    return steps


found = {decay: arrivals(decay) for decay in (1.0, 0.95, 0.5)}
for decay, steps in found.items():
    print(f"decay {decay}:", *steps)
late = shown[1:] == list(ACTIONS[:-1]) and shown[0] == [0, 0]
late &= marks == [(0.25, False), (0.0, True)]
seen = late and all(steps == [40, 80, 120, 160, 200, 240] for steps in found.values())
raise SystemExit(0 if seen else "the behaviour has changed")
PY
