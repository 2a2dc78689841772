#!/usr/bin/env bash
# Stable-Baselines3 2.9.2: in a resumed run, EvalCallback overwrites the evaluations and the best model so
# far.
#
# Expected: with the same folders, a run that is loaded and goes on adds its evaluations to evaluations.npz,
# and a model replaces best_model.zip where it is better than it. A new EvalCallback begins with an empty list
# and a best return of minus infinity: the curve of the first part is lost with the first evaluation of the
# second, and whatever is evaluated first is the best model. An agent that is stopped at its best and gets
# worse later has lost the good one.
#
# Output seen on 2026-11-28 (PPO, evaluated each 64 steps; the second part gets a tenth of the reward, for an
# agent that has become worse):
#     first part: evaluations at 64 128 192 256 with a best return of 10
#     second part: evaluations at 320 384 448 512 with a best return of 1
#     the best model is of step 320
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "stable-baselines3==2.9.2" "gymnasium==1.4.0" "torch==2.13.0" \
    "pandas==3.1.1" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - "$folder/log" <<'PY'
import sys

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformReward
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.monitor import Monitor

log = sys.argv[1]
STEPS = 256


def learn(agent, scale):
    """One part of the run: the steps of its evaluations, its best return and the best model's step."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=10)
    env = Monitor(TransformReward(env, lambda reward: scale * reward))
    callback = EvalCallback(
        env, n_eval_episodes=1, eval_freq=64, log_path=log, best_model_save_path=log, verbose=0
    )
    agent.learn(STEPS, callback=callback, reset_num_timesteps=False)
    steps = np.load(f"{log}/evaluations.npz")["timesteps"].tolist()
    return steps, callback.best_mean_reward, PPO.load(f"{log}/best_model").num_timesteps


agent = PPO("MlpPolicy", "CartPole-v1", n_steps=64, n_epochs=1, learning_rate=0.0, device="cpu", seed=0)
first, best, _ = learn(agent, 1.0)
agent.save(f"{log}/agent")
agent = PPO.load(f"{log}/agent", env=gymnasium.make("CartPole-v1"), device="cpu")
second, worse, step = learn(agent, 0.1)
print("first part: evaluations at", *first, f"with a best return of {best:.0f}")
print("second part: evaluations at", *second, f"with a best return of {worse:.0f}")
print("the best model is of step", step)
seen = first == [64, 128, 192, 256] and second == [320, 384, 448, 512]
seen = seen and worse < best and step > STEPS
raise SystemExit(0 if seen else "the behaviour has changed")
PY
