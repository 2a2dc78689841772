"""Scaled-v0, any environment with observations and rewards of ordinary size.

Copy this file to the current directory, then for example:

python cleanrl_lite/sac.py --env-id scaled:Scaled-v0 --env-kwargs '{"env_id": "Pendulum-v1"}'

Keyword arguments: env_id; steps of random actions to measure (2000); reward_scale, to divide
rewards by this number and not by the measured one; all others go to the environment.
"""

import functools
import json

import gymnasium as gym
import numpy as np

from cleanrl_lite import utils


# --8<-- [start:scaled]
@functools.cache
def measure(env_id, steps, kwargs):
    """Mean and spread of every observation, and size of the rewards, over random actions."""
    env = utils.flatten(gym.make(env_id, **json.loads(kwargs)))
    env.action_space.seed(0)
    observations = [np.array(env.reset(seed=0)[0], np.float64)]
    rewards = []
    for _ in range(steps):
        obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(np.array(obs, np.float64))
        rewards.append(reward)
        if terminated or truncated:
            observations.append(np.array(env.reset()[0], np.float64))
    env.close()
    mean = np.mean(observations, 0)
    std = np.std(observations, 0)
    std = np.maximum(std, 1e-6 * np.abs(mean))  # less is float32's rounding
    # Not the standard deviation: rewards may be large and all the same.
    size = np.sqrt(np.mean(np.square(rewards)))
    return mean, np.where(std > 0, std, 1), float(size) or 1.0


def scaled(env_id, steps=2000, reward_scale=None, render_mode=None, **kwargs):
    mean, std, size = measure(env_id, steps, json.dumps(kwargs, sort_keys=True))
    size = reward_scale or size
    print_once(f"Scaled-v0: returns are those of {env_id} divided by {size:.6g}")
    env = utils.flatten(gym.make(env_id, render_mode=render_mode, **kwargs))
    env = gym.wrappers.TransformObservation(
        env,
        lambda obs: ((obs - mean) / std).astype(np.float32),
        gym.spaces.Box(-np.inf, np.inf, mean.shape),
    )
    return gym.wrappers.TransformReward(env, lambda reward: reward / size)


print_once = functools.cache(print)
gym.register("Scaled-v0", scaled)
# --8<-- [end:scaled]
