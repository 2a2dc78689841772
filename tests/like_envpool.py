"""What the scripts import as `envpool` in tests with the fixture fake_envpool: gymnasium's
environments with envpool's interface, as far as the scripts use it, and its way of resetting. So no
test of the loop needs 740 MB, and probes can be stepped."""

from types import SimpleNamespace

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode

from cleanrl_lite import utils

__version__ = "of the tests"
MADE = []  # the pools of this process, in the order of their making


class Ids(list):
    """Every id of gymnasium's registry, and those of modules."""

    def __contains__(self, env_id):
        return ":" in env_id or super().__contains__(env_id)


def list_all_envs():
    return Ids(gym.registry)


def make_spec(task_id, **options):
    shape = make_gymnasium(task_id, **options, seed=[]).envs.single_observation_space.shape
    return SimpleNamespace(state_array_spec=dict(obs=SimpleNamespace(shape=list(shape))))


class make_gymnasium:
    def __init__(
        self,
        task_id,
        seed,
        num_envs,
        num_threads,
        max_episode_steps,
        post_constraint=None,
        **kwargs,
    ):
        def make():
            return utils.flatten(gym.make(task_id, max_episode_steps=max_episode_steps, **kwargs))

        # it resets at the step after an episode's end
        mode = AutoresetMode.NEXT_STEP
        self.envs = gym.vector.SyncVectorEnv([make] * num_envs, autoreset_mode=mode)
        self.seed = seed
        self.num_threads = num_threads
        self.post_constraint = post_constraint  # an option of envpool alone
        MADE.append(self)

    def reset(self, env_id=None):
        """With `env_id`, resets only these, and returns only their observations."""
        if env_id is not None:
            mask = np.isin(np.arange(self.envs.num_envs), env_id)
            obs, infos = self.envs.reset(options={"reset_mask": mask})
            self.elapsed[env_id] = 0
            self.ended = self.ended & ~mask
            return obs[env_id], infos
        self.elapsed = np.zeros(self.envs.num_envs, dtype=np.int32)
        self.ended = self.elapsed > 0
        obs, infos = self.envs.reset(seed=self.seed)
        return obs.copy(), infos

    def step(self, actions):
        obs, rewards, terminations, truncations, _ = self.envs.step(actions)
        self.elapsed = np.where(self.ended, 0, self.elapsed + 1)
        self.ended = terminations | truncations
        infos = dict(elapsed_step=self.elapsed)
        return obs, rewards.astype(np.float32), terminations, truncations, infos
