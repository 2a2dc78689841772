#!/usr/bin/env bash
# SuperSuit 3.11.0, Stable-Baselines3 2.9.2: from PettingZoo to Stable-Baselines3, a time limit becomes a terminal state.
#
# Expected: concat_vec_envs_v1(..., base_class="stable_baselines3") says which ends are truncations, as
# Stable-Baselines3's own DummyVecEnv does with infos["TimeLimit.truncated"]. It leaves the key out, so
# Stable-Baselines3 takes every time limit for the end of the task: PPO's last step of an episode gets no value of what
# would follow. In environments that only ever end by a limit (simple_spread), all values are those of a game that
# stops.
#
# Output seen on 2026-11-28 (PPO, gamma 0.99, values set to 100, an episode that ends by its limit; the last step's
# reward in the rollout buffer, less the environment's own reward; right: 99):
#     Stable-Baselines3's DummyVecEnv (Pendulum-v1): 99.0
#     concat_vec_envs_v1 (mpe2's simple_spread_v3): 0.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "supersuit==3.11.0" "pettingzoo==1.27.0" "mpe2==1.1.1" "gymnasium==1.4.0" \
    "stable-baselines3==2.9.2" "torch==2.13.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import numpy as np
import supersuit
import torch
from mpe2 import simple_spread_v3
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

STEPS = 8


class Rewards(VecEnvWrapper):
    """Keeps the rewards as the environment gives them."""

    def reset(self):
        self.seen = []
        return self.venv.reset()

    def step_wait(self):
        obs, rewards, dones, infos = self.venv.step_wait()
        self.seen.append(np.array(rewards))
        return obs, rewards, dones, infos


def added(envs):
    """What PPO adds to the reward of the last step before the limit."""
    envs = Rewards(envs)
    model = PPO("MlpPolicy", envs, n_steps=STEPS, batch_size=STEPS, n_epochs=1)
    with torch.no_grad():
        model.policy.value_net.weight.zero_()
        model.policy.value_net.bias.fill_(100.0)
    model.learn(STEPS * envs.num_envs)
    return float((model.rollout_buffer.rewards - np.array(envs.seen[:STEPS]))[-1].mean())


own = added(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1", max_episode_steps=STEPS)]))
print(f"Stable-Baselines3's DummyVecEnv (Pendulum-v1): {own:.1f}")
envs = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env(max_cycles=STEPS))
theirs = added(supersuit.concat_vec_envs_v1(envs, 2, base_class="stable_baselines3"))
print(f"concat_vec_envs_v1 (mpe2's simple_spread_v3): {theirs:.1f}")
raise SystemExit(0 if abs(own - 99) < 0.1 and abs(theirs) < 0.1 else "the behaviour has changed")
PY
