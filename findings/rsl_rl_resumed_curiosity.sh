#!/usr/bin/env bash
# rsl-rl-lib 5.5.1: a resumed run gets the curiosity's weight of its beginning again.
#
# Expected: a checkpoint holds what decides how training goes on. The weight of RND's intrinsic reward may follow a
# schedule; its count of steps is not in the checkpoint, which has the networks, the optimizers and the iteration. An
# agent whose curiosity had been faded out is driven by it again, for the whole length of the schedule.
#
# Output seen on 2026-11-28 (from 1 to 0 in 80 steps; iterations of 8 steps):
#     after 10 iterations: 0.0
#     loaded into a new runner, after one more: 0.9
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "rsl-rl-lib==5.5.1" "torch==2.13.0" "tensordict==0.15.3" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - "$folder/checkpoint.pt" <<'PY'
import contextlib
import io
import sys

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict


class Noise(VecEnv):
    num_envs, num_actions, max_episode_length, device, cfg = 4, 1, 1000, "cpu", {}
    step_dt = 1.0
    unwrapped = property(lambda self: self)
    episode_length_buf = torch.zeros(4, dtype=torch.long)

    def get_observations(self):
        return TensorDict({"policy": torch.randn(4, 3)}, [4])

    def step(self, actions):
        return self.get_observations(), torch.zeros(4), torch.zeros(4, dtype=torch.long), {}


def learned(iterations, load=None):
    torch.manual_seed(1)
    net = {"class_name": "rsl_rl.models:MLPModel", "hidden_dims": [8], "activation": "elu"}
    schedule = {"mode": "linear", "initial_step": 0, "final_step": 80, "final_value": 0.0}
    sizes = {"num_outputs": 2, "predictor_hidden_dims": [4], "target_hidden_dims": [4]}
    config = {
        "num_steps_per_env": 8,
        "save_interval": 1000,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"], "rnd_state": ["policy"]},
        "actor": net | {"distribution_cfg": {"class_name": "rsl_rl.modules:GaussianDistribution"}},
        "critic": net,
        "algorithm": {"class_name": "PPO", "rnd_cfg": sizes | {"weight": 1.0, "weight_schedule": schedule}},
    }
    with contextlib.redirect_stdout(io.StringIO()):
        runner = OnPolicyRunner(Noise(), config, log_dir=None, device="cpu")
        if load:
            runner.load(load)
        runner.learn(iterations)
    return runner


first = learned(10)
first.save(sys.argv[1])
resumed = learned(1, load=sys.argv[1])
print("after 10 iterations:", first.alg.rnd.weight)
print("loaded into a new runner, after one more:", resumed.alg.rnd.weight)
as_seen = first.alg.rnd.weight == 0 and abs(resumed.alg.rnd.weight - 0.9) < 1e-6
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
