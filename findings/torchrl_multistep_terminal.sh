#!/usr/bin/env bash
# torchrl 0.14.1: after MultiStep, transitions that reach the end of an episode in their second or later step bootstrap.
#
# Expected: a return over n steps that meets the terminal state has no value added. MultiStep sums the rewards up to the
# end and takes the terminal state as the next one, but keeps "terminated" of the transition's own first step, which is
# false. So n - 1 transitions of every episode add gamma**k * V(terminal state), which is never trained: a fall is worth
# as much as the network happens to say. MultiStepTransform, for replay buffers, does the same.
#
# Output seen on 2026-11-28 (5 rewards of 1, then a terminal state; gamma 0.9, a Q network that says 100 everywhere;
# targets of DQNLoss for the last three transitions):
#     1 step:  right 91.00 91.00 1.00, torchrl 91.00 91.00 1.00
#     3 steps: right 2.71 1.90 1.00, torchrl 75.61 82.90 1.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torchrl==0.14.1" "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import torch
from tensordict import TensorDict
from torchrl.data import Categorical
from torchrl.data.postprocs import MultiStep
from torchrl.modules import QValueActor
from torchrl.objectives import DQNLoss

LENGTH, GAMMA, VALUE = 5, 0.9, 100.0


class Constant(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.values = torch.nn.Parameter(torch.full((2,), VALUE))

    def forward(self, observation):
        return self.values.expand(*observation.shape[:-1], 2)


end = torch.arange(LENGTH)[:, None] == LENGTH - 1
following = {
    "observation": torch.arange(1.0, LENGTH + 1)[:, None],
    "reward": torch.ones(LENGTH, 1),
    "done": end,
    "terminated": end.clone(),
    "truncated": torch.zeros_like(end),
}
now = {"observation": torch.arange(float(LENGTH))[:, None], "action": torch.zeros(LENGTH, dtype=torch.long)}
episode = TensorDict({**now, "next": following}, [LENGTH])

network = QValueActor(Constant(), in_keys=["observation"], spec=Categorical(2), action_space="categorical")
loss = DQNLoss(network, action_space="categorical")
loss.make_value_estimator(gamma=GAMMA)


def targets(steps):
    batch = episode.clone()
    if steps > 1:
        batch = MultiStep(gamma=GAMMA, n_steps=steps)(batch[None])[0]
    found = loss.value_estimator.value_estimate(batch, target_params=loss.target_value_network_params)
    return [round(float(target), 2) for target in found[-3:]]


def right(steps):
    found = []
    for t in range(LENGTH - 3, LENGTH):
        length = min(steps, LENGTH - t)
        bootstrap = GAMMA**length * VALUE if t + length < LENGTH else 0.0
        found.append(round(sum(GAMMA**k for k in range(length)) + bootstrap, 2))
    return found


for steps, name in ((1, "1 step: "), (3, "3 steps:")):
    print(name, "right", *(f"{x:.2f}" for x in right(steps)), end="")
    print(", torchrl", *(f"{x:.2f}" for x in targets(steps)))
as_seen = targets(1) == right(1) and right(3) == [2.71, 1.9, 1.0] and targets(3) == [75.61, 82.9, 1.0]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
