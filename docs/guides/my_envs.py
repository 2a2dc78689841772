"""Environments that need a wrapper. Copy this file to the current directory, then for example:

python cleanrl_lite/ppo.py --env-id my_envs:MiniGrid-v0 \\
    --env-kwargs '{"env_id": "MiniGrid-Empty-5x5-v0"}'
"""

import gymnasium as gym
import numpy as np


# --8<-- [start:minigrid]
def minigrid(env_id, **kwargs):
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gym.make(env_id, **kwargs))  # without the text of the mission


gym.register("MiniGrid-v0", minigrid)


# --8<-- [end:minigrid]
# --8<-- [start:filter]
def only(env_id, keys, **kwargs):
    return gym.wrappers.FilterObservation(gym.make(env_id, **kwargs), keys)


gym.register("Only-v0", only)


# --8<-- [end:filter]
# --8<-- [start:team]
class Team(gym.Wrapper):
    """Agents in Tuples, as in lbforaging and rware, for ppo_multiagent.py. Rewards are added up."""

    def __init__(self, env):
        super().__init__(env)
        self.numbers = np.eye(len(env.action_space), dtype=np.float32)
        own = env.observation_space[0].shape[0] + len(self.numbers)
        agents = gym.spaces.Box(-np.inf, np.inf, (len(self.numbers), own), np.float32)
        state = gym.spaces.Box(-np.inf, np.inf, (agents.shape[0] * own,), np.float32)
        self.observation_space = gym.spaces.Dict(agents=agents, state=state)
        self.action_space = gym.spaces.MultiDiscrete([space.n for space in env.action_space])

    def arrays(self, obs):
        agents = np.concatenate((obs, self.numbers), axis=1, dtype=np.float32)
        return {"agents": agents, "state": agents.ravel()}

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self.arrays(obs), info

    def step(self, action):
        obs, rewards, terminated, truncated, info = self.env.step(action.tolist())
        return self.arrays(obs), sum(rewards), terminated, truncated, info


def team(env_id, **kwargs):
    return Team(gym.make(env_id, disable_env_checker=True, **kwargs))


gym.register("Team-v0", team)


# --8<-- [end:team]
# --8<-- [start:seeded]
class Seeded(gym.Wrapper):
    """Seeds every episode, where an environment seeds only the one after reset(seed=...)."""

    seeds = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.seeds = np.random.default_rng(seed)
        return self.env.reset(seed=int(self.seeds.integers(2**31)), options=options)


def seeded(env_id, **kwargs):
    return Seeded(gym.make(env_id, **kwargs))


gym.register("Seeded-v0", seeded)


# --8<-- [end:seeded]
# --8<-- [start:legal]
class Legal2048(gym.Wrapper):
    """gymnasium-2048 for ppo_masked.py: without moves that change nothing, games end."""

    def action_masks(self):
        game = self.env.unwrapped
        return np.array([game.apply_action(game.board, move)[2] for move in range(4)])


def legal_2048(**kwargs):
    import gymnasium_2048  # noqa: F401

    return Legal2048(gym.make("gymnasium_2048/TwentyFortyEight-v0", **kwargs))


gym.register("Legal2048-v0", legal_2048)


# --8<-- [end:legal]
# --8<-- [start:jobshop]
def job_shop(**kwargs):
    from JSSEnv.envs import JssEnv

    class JobShop(JssEnv):
        def reset(self, seed=None, options=None):
            return super().reset(), {}

    return JobShop(**kwargs)


gym.register("JobShop-v0", job_shop)


# --8<-- [end:jobshop]
# --8<-- [start:trading]
def trading(csv, **kwargs):
    """gym-trading-env with prices from a file: date, open, high, low, close and volume."""
    import pandas as pd
    from gym_trading_env.environments import TradingEnv

    df = pd.read_csv(csv, parse_dates=["date"], index_col="date")
    df["feature_return"] = df["close"].pct_change()
    return TradingEnv(df=df.dropna(), verbose=0, **kwargs)


gym.register("Trading-v0", trading)


# --8<-- [end:trading]
# --8<-- [start:descent]
def descent(**kwargs):
    import bluesky_gym

    bluesky_gym.register_envs()
    return gym.make("DescentEnv-v0", **kwargs)


gym.register("Descent-v0", descent)
# --8<-- [end:descent]
