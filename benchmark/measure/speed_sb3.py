"""Stable-Baselines3's side of speed.py, which starts it.

    python benchmark/measure/speed_sb3.py SCRIPT ENV_ID ARGS STEPS EVERY FOLDER

Trains its algorithm with the hyperparameters ARGS (JSON) of one of our scripts for STEPS
environment steps. Writes [step, time] of all multiples of EVERY steps, updates included, to
FOLDER/times.json, with the model's policy_delay.

Both sides do the same work, except for these points, which are left as Stable-Baselines3 has them:
- PPO: the same networks (two of two layers of 64 tanh units, or the Nature CNN) and Adam (eps
  1e-5). Its value loss lacks our factor 1/2.
- C51: it has none. Its DQN stands in, which does less: one value per action where C51 has 51 or 101
  atoms.
- DQN: Huber loss and gradient clipping, which ours lacks. With them, our hyperparameters do not
  learn CartPole-v1: the Q-values grow far beyond 100, the highest discounted return. Its Atari
  replay buffer holds whole stacks of four frames, once each (optimize_memory_usage); ours holds
  single frames.
- SAC: one actor step per step, ours two at every second step; one learning rate for all networks,
  that of the actor.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize


class Clock(BaseCallback):
    """Records when steps were reached.

    A rollout begins when the updates of the steps before it are done.
    """

    def __init__(self, every, learning_starts):
        super().__init__()
        self.every = every
        self.learning_starts = learning_starts
        self.marks = []

    def _on_rollout_start(self):
        step = self.num_timesteps
        if step > self.learning_starts and step % self.every == 0:
            self.marks.append((step, time.time()))

    def _on_step(self):
        return True


def make_envs(script, env_id, args, seed):
    if script.endswith("_atari"):
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        return VecFrameStack(make_atari_env(env_id, n_envs=args["num_envs"], seed=seed), 4)
    envs = make_vec_env(env_id, n_envs=args["num_envs"], seed=seed)
    return VecNormalize(envs, gamma=args["gamma"]) if script == "ppo_continuous" else envs


def ppo_kwargs(args):
    return {
        "learning_rate": lambda remaining: remaining * args["learning_rate"],
        "n_steps": args["num_steps"],
        "batch_size": args["num_envs"] * args["num_steps"] // args["num_minibatches"],
        "n_epochs": args["update_epochs"],
        "gae_lambda": args["gae_lambda"],
        "clip_range": args["clip_coef"],
        "clip_range_vf": args["clip_coef"] if args["clip_vloss"] else None,
        "normalize_advantage": args["norm_adv"],
        "ent_coef": args["ent_coef"],
        "vf_coef": args["vf_coef"] / 2,  # our value loss has a factor 1/2 that this one lacks
        "max_grad_norm": args["max_grad_norm"],
    }


def off_policy_kwargs(algorithm, atari, args, action_shape):
    kwargs = {
        "buffer_size": args["buffer_size"],
        "learning_starts": args["learning_starts"],
        "batch_size": args["batch_size"],
        "gradient_steps": args["gradient_steps"],
        "train_freq": args["train_frequency"] // args["num_envs"],
        "tau": args["tau"],
    }
    if algorithm == "DQN":
        return {**kwargs, **dqn_kwargs(atari, args)}
    kwargs["policy_kwargs"] = {"net_arch": [256, 256]}
    if algorithm == "SAC":
        kwargs["learning_rate"] = args["policy_lr"]
        kwargs["ent_coef"] = "auto" if args["autotune"] else args["alpha"]
        return kwargs  # targets move at every step by default
    std = np.full(action_shape, args["exploration_noise"])
    kwargs["action_noise"] = NormalActionNoise(np.zeros(action_shape), std)
    kwargs["learning_rate"] = args["learning_rate"]
    if algorithm == "TD3":
        kwargs["target_policy_noise"] = args["policy_noise"]
        kwargs["target_noise_clip"] = args["noise_clip"]
    return kwargs


def dqn_kwargs(atari, args):
    kwargs = {
        "learning_rate": args["learning_rate"],
        "target_update_interval": args["target_network_frequency"],
        "exploration_initial_eps": args["start_e"],
        "exploration_final_eps": args["end_e"],
        "exploration_fraction": args["exploration_fraction"],
    }
    if atari:
        # Episodes cut off by a time limit cannot be told apart in the replay that stores each
        # observation once.
        kwargs["optimize_memory_usage"] = True
        kwargs["replay_buffer_kwargs"] = {"handle_timeout_termination": False}
    else:
        kwargs["policy_kwargs"] = {"net_arch": [120, 84]}
    return kwargs


def make_model(script, env_id, args, folder, seed=1):
    """Its algorithm with the hyperparameters of one of our scripts, on one thread of the CPU."""
    torch.set_num_threads(1)
    atari = script.endswith("_atari")
    algorithm = script.split("_")[0].upper().replace("C51", "DQN")
    envs = make_envs(script, env_id, args, seed)
    if algorithm == "PPO":
        kwargs = ppo_kwargs(args)
    else:
        kwargs = off_policy_kwargs(algorithm, atari, args, envs.action_space.shape)
    model = getattr(stable_baselines3, algorithm)(
        "CnnPolicy" if atari else "MlpPolicy",
        envs,
        gamma=args["gamma"],
        tensorboard_log=folder,
        seed=seed,
        device="cpu",
        **kwargs,
    )
    if algorithm in ("DDPG", "TD3"):
        model.policy_delay = args["policy_frequency"]
    return model


def main(script, env_id, args, steps, every, folder):
    args = json.loads(args)
    model = make_model(script, env_id, args, folder)
    clock = Clock(int(every), args.get("learning_starts", 0))
    model.learn(int(steps), callback=clock)
    times = {
        "marks": [*clock.marks, (model.num_timesteps, time.time())],
        "policy_delay": getattr(model, "policy_delay", None),
    }
    Path(folder, "times.json").write_text(json.dumps(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
