#!/usr/bin/env bash
# agilerl 2.58.0: in MultiStepReplayBuffer, an episode's last transition goes on into the next episode.
#
# Expected: a return over n steps stops where the episode ends. The first of the n steps is not asked whether it is the
# end: the last transition of every episode gets the first rewards of the next one, the next observation from there, and
# is no longer done. And with several environments, the end of one of them stops the returns of all: those of the others
# are shorter, with another next observation, while RainbowDQN goes on to multiply by gamma**n.
#
# Output seen on 2026-11-28 (episode 1 has rewards of 1, episode 2 of 2; n = 3, gamma 0.5; first the observation, then
# return, next observation, done):
#     one environment, an end at 105: 103 1.50 105 done, 104 2.50 202 -
#     right: 103 1.50 105 done, 104 1.00 105 done
#     the second of two, without an end: 100 1.75 103 -, 101 1.50 103 -
#     right: 100 1.75 103 -, 101 1.75 104 -
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==2.13.0" "gymnasium==1.4.0" "tensordict==0.13.0" "accelerate==1.15.0" \
    "pydantic==2.14.4" "lazy-loader==0.6" "numpy==2.3.5"
# Without what the buffer does not need (wandb, Google's cloud, ...)
"$folder/venv/bin/pip" install -q --no-deps "agilerl==2.58.0" "agilerl-arena==1.29.0"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import torch
from agilerl.components.replay_buffer import MultiStepReplayBuffer
from tensordict import TensorDict


def stored(ends, steps):
    """The transitions of each environment; an environment's episodes have as many steps as `ends` says."""
    buffer = MultiStepReplayBuffer(100, n_step=3, gamma=0.5)
    episode, step = [1] * len(ends), [0] * len(ends)
    for _ in range(steps):
        observation = torch.tensor([[100.0 * e + s] for e, s in zip(episode, step)])
        done = torch.tensor([float(s + 1 == end) for s, end in zip(step, ends)])
        data = {"obs": observation, "action": torch.zeros(len(ends), 1), "reward": torch.tensor(episode).float()}
        buffer.add(TensorDict({**data, "next_obs": observation + 1, "done": done}, batch_size=[len(ends)]))
        step = [0 if d else s + 1 for s, d in zip(step, done)]
        episode = [e + int(d) for e, d in zip(episode, done)]
    rows = torch.cat([buffer.storage[key] for key in ("obs", "reward", "next_obs", "done")], 1)[: len(buffer)].tolist()
    return [[tuple(row) for row in rows[number :: len(ends)]] for number in range(len(ends))]


def show(name, rows):
    print(name, ", ".join(f"{o:.0f} {r:.2f} {n:.0f} {'done' if d else '-'}" for o, r, n, d in rows))


one = stored([5], 8)[0][3:5]
show("one environment, an end at 105:", one)
show("right:", [(103, 1.5, 105, 1), (104, 1.0, 105, 1)])
second = stored([3, 100], 5)[1][:2]
show("the second of two, without an end:", second)
show("right:", [(100, 1.75, 103, 0), (101, 1.75, 104, 0)])
as_seen = one == [(103, 1.5, 105, 1), (104, 2.5, 202, 0)] and second == [(100, 1.75, 103, 0), (101, 1.5, 103, 0)]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
