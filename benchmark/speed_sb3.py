"""Stable-Baselines3's side of benchmark/speed.py, which starts it:  speed_sb3.py SCRIPT ENV_ID ARGS ITERATIONS FOLDER

Trains its PPO with the hyperparameters ARGS (JSON) of one of our scripts for ITERATIONS rollouts and updates, and
writes the time at which each update ended to FOLDER/times.json. Policies and Adam (eps 1e-5) are its defaults, which
are ours too: two networks of two layers of 64 tanh units, or the Nature CNN.
"""

import json
import sys
import time
from pathlib import Path

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize


class Clock(BaseCallback):
    """Remembers when each rollout began, which is when the update before it ended."""

    times = []

    def _on_rollout_start(self):
        self.times.append(time.time())

    def _on_step(self):
        return True


def make_envs(script, env_id, args):
    if script == "ppo_atari":
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        return VecFrameStack(make_atari_env(env_id, n_envs=args["num_envs"], seed=1), 4)
    envs = make_vec_env(env_id, n_envs=args["num_envs"], seed=1)
    return VecNormalize(envs, gamma=args["gamma"]) if script == "ppo_continuous" else envs


def main(script, env_id, args, iterations, folder):
    torch.set_num_threads(1)
    args = json.loads(args)
    batch_size = args["num_envs"] * args["num_steps"]
    model = PPO(
        "CnnPolicy" if script == "ppo_atari" else "MlpPolicy",
        make_envs(script, env_id, args),
        learning_rate=lambda remaining: remaining * args["learning_rate"],
        n_steps=args["num_steps"],
        batch_size=batch_size // args["num_minibatches"],
        n_epochs=args["update_epochs"],
        gamma=args["gamma"],
        gae_lambda=args["gae_lambda"],
        clip_range=args["clip_coef"],
        clip_range_vf=args["clip_coef"] if args["clip_vloss"] else None,
        normalize_advantage=args["norm_adv"],
        ent_coef=args["ent_coef"],
        vf_coef=args["vf_coef"] / 2,  # our value loss has a factor 1/2 that this one lacks
        max_grad_norm=args["max_grad_norm"],
        tensorboard_log=folder,
        seed=1,
        device="cpu",
    )
    clock = Clock()
    model.learn(int(iterations) * batch_size, callback=clock)
    Path(folder, "times.json").write_text(json.dumps([*clock.times[1:], time.time()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
