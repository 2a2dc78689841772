#!/usr/bin/env bash
# d3rlpy 2.8.1: in an online training's replay buffer, an episode that ends at its first step is joined to the next one.
#
# Expected: an episode of one step is one terminal transition. But clip_episode(), which ends an episode in the buffer,
# returns at once where the episode has no transition yet, and it counts the transitions of a running episode, of
# which there is always one less than steps. So the step stays in the running episode, and the next episode is
# appended to it: the first step is not terminal, and its next observation is the first one of the other episode. Of
# one-step tasks, such as bandits, every second end is lost, and their values count the reward of the next task too.
# Elsewhere it concerns all episodes that end at once. The same steps in an MDPDataset are right.
#
# Output seen on 2026-11-28 (each episode has one step, which pays 1, so all values are 1; the first value varies):
#     trained online: 1000 episodes of [2] steps, 1000 of 2000 transitions terminal, value 2.3
#     trained on an MDPDataset: 2000 episodes of [1] steps, 2000 of 2000 transitions terminal, value 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "d3rlpy==2.8.1" "gymnasium==1.0.0" "torch==2.13.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import contextlib
import logging
import os

import gymnasium
import numpy as np
import structlog

with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
    import d3rlpy  # the old gym that it imports prints a long message

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
steps = 2000


class Bandit(gymnasium.Env):
    """One step an episode, and its reward is always 1."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}


def show(name, buffer, agent):
    sizes = sorted({episode.size() for episode in buffer.episodes})
    picked = [buffer.transition_picker(*buffer.buffer[index]) for index in range(buffer.transition_count)]
    ends = sum(transition.terminal for transition in picked)
    values = agent.predict_value(np.eye(2, dtype=np.float32), np.array([0, 1]))
    counts = f"{buffer.size()} episodes of {sizes} steps, {ends:.0f} of {len(picked)} transitions terminal"
    print(f"{name}: {counts}, value {values.mean():.1f}")
    return buffer.size(), ends, values.mean()


def train(name, fit, buffer):
    d3rlpy.seed(1)
    agent = d3rlpy.algos.DQNConfig(learning_rate=1e-3, gamma=0.99, target_update_interval=50).create()
    fit(agent, n_steps=steps, n_steps_per_epoch=steps, logger_adapter=d3rlpy.logging.NoopAdapterFactory())
    return show(name, buffer, agent)


env = Bandit()
online = d3rlpy.dataset.create_fifo_replay_buffer(steps, env=env)
seen = train(
    "trained online",
    lambda agent, **options: agent.fit_online(env, online, random_steps=steps, show_progress=False, **options),
    online,
)
rng = np.random.default_rng(1)
offline = d3rlpy.dataset.MDPDataset(
    rng.uniform(-1, 1, (steps, 2)).astype(np.float32),
    rng.integers(2, size=steps),
    np.ones(steps, np.float32),
    np.ones(steps, np.float32),
)
right = train(
    "trained on an MDPDataset",
    lambda agent, **options: agent.fit(offline, show_progress=False, **options),
    offline,
)
joined = seen[:2] == (steps // 2, steps // 2) and seen[2] > 1.5
alone = right[:2] == (steps, steps) and abs(right[2] - 1) < 0.2
raise SystemExit(0 if joined and alone else "the behaviour has changed")
PY
