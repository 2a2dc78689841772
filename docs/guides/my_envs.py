"""Environments that need a wrapper. Copy this file to the current directory, then for example:

python cleanrl_lite/ppo.py --env-id my_envs:MiniGrid-v0 \\
    --env-kwargs '{"env_id": "MiniGrid-Empty-5x5-v0"}'
"""

import os
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np


def minigrid(env_id, **kwargs):
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gym.make(env_id, **kwargs))  # without the text of the mission


gym.register("MiniGrid-v0", minigrid)


def only(env_id, keys, **kwargs):
    return gym.wrappers.FilterObservation(gym.make(env_id, **kwargs), keys)


gym.register("Only-v0", only)


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


class Legal2048(gym.Wrapper):
    """gymnasium-2048 for ppo_masked.py: without moves that change nothing, games end."""

    def action_masks(self):
        game = self.env.unwrapped
        return np.array([game.apply_action(game.board, move)[2] for move in range(4)])


def legal_2048(**kwargs):
    import gymnasium_2048  # noqa: F401

    return Legal2048(gym.make("gymnasium_2048/TwentyFortyEight-v0", **kwargs))


gym.register("Legal2048-v0", legal_2048)


def job_shop(**kwargs):
    from JSSEnv.envs import JssEnv

    class JobShop(JssEnv):
        def reset(self, seed=None, options=None):
            return super().reset(), {}

    return JobShop(**kwargs)


gym.register("JobShop-v0", job_shop)


def random_walk(days=500):
    import pandas as pd

    close = 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, days)))
    prices = {"open": close, "high": close, "low": close, "close": close, "volume": 1.0}
    return pd.DataFrame(prices, pd.date_range("2020-01-01", periods=days, name="date"))


def trading(csv=None, **kwargs):
    """gym-trading-env with prices from a file: date, open, high, low, close and volume."""
    import pandas as pd

    with warnings.catch_warnings():  # the package makes errors of all warnings
        from gym_trading_env.environments import TradingEnv

    df = random_walk()  # to try it
    if csv is not None:
        df = pd.read_csv(csv, parse_dates=["date"], index_col="date")
    df["feature_return"] = df["close"].pct_change()
    return TradingEnv(df=df.dropna(), verbose=0, **kwargs)


gym.register("Trading-v0", trading)


def descent(**kwargs):
    import bluesky_gym

    bluesky_gym.register_envs()
    return gym.make("DescentEnv-v0", **kwargs)


gym.register("Descent-v0", descent)


def new_space(space):
    """The same space of gymnasium."""
    if hasattr(space, "n"):
        return gym.spaces.Discrete(int(space.n))
    return gym.spaces.Box(space.low, space.high, space.shape, space.dtype)


class OldGym(gym.Env):
    """An environment of gym, gymnasium's predecessor: steps give four values, not five."""

    def __init__(self, env):
        self.env = env
        self.observation_space = new_space(env.observation_space)
        self.action_space = new_space(env.action_space)

    def reset(self, *, seed=None, options=None):
        return self.env.reset(), {}

    def step(self, action):
        obs, reward, done, info = self.env.step(action)
        truncated = bool(info.get("TimeLimit.truncated", False))
        return obs, reward, done and not truncated, truncated, info


class Crafter(OldGym):
    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self.env._seed = seed  # its constructor takes one, reset does not
            self.env._episode = 0
        return super().reset()


def crafter(**kwargs):
    import crafter

    return Crafter(crafter.Env(**kwargs))


gym.register("Crafter-v0", crafter)


def reactor(steps=60, **kwargs):
    """pcgym: keep the concentration in a stirred tank at 0.85, and then at 0.9."""
    from pcgym import make_env

    wanted = [0.85] * (steps // 2) + [0.9] * (steps - steps // 2)
    parameters = {
        "model": "cstr",
        "N": steps,
        "tsim": 25,
        "SP": {"Ca": wanted},
        "x0": np.array([0.8, 330, 0.8]),
        "o_space": {"low": np.array([0.7, 300, 0.8]), "high": np.array([1, 350, 0.9])},
        "a_space": {"low": np.array([295]), "high": np.array([302])},
        "noise": True,
        "noise_percentage": 0.001,
    }
    return make_env({**parameters, **kwargs})


gym.register("Reactor-v0", reactor)


def crossing(**kwargs):
    """sumo-rl: the traffic lights of one crossing. pip install sumo-rl eclipse-sumo"""
    import sumo

    os.environ.setdefault("SUMO_HOME", sumo.SUMO_HOME)
    import sumo_rl

    path = Path(sumo_rl.__file__).parent / "nets/single-intersection/single-intersection"
    return sumo_rl.SumoEnvironment(
        net_file=f"{path}.net.xml",
        route_file=f"{path}.rou.xml",
        single_agent=True,
        num_seconds=2000,
        sumo_warnings=False,
        **kwargs,
    )


gym.register("Crossing-v0", crossing)


def retro(game="Airstriker-Genesis-v0", render_mode=None, **kwargs):
    """stable-retro: one emulator a process, so use --async-envs."""
    import stable_retro

    return stable_retro.make(
        game,
        use_restricted_actions=stable_retro.Actions.DISCRETE,
        render_mode=render_mode or "rgb_array",  # None opens a window
        **kwargs,
    )


gym.register("Retro-v0", retro, max_episode_steps=4500)


def grid(**kwargs):
    """grid2op: keep the lines of a small power grid below their limits."""
    import grid2op
    from grid2op.gym_compat import BoxGymObsSpace, DiscreteActSpace, GymEnv

    inner = grid2op.make("rte_case5_example", test=True)
    env = GymEnv(inner)
    seen = ["rho", "gen_p", "load_p"]
    env.observation_space = BoxGymObsSpace(inner.observation_space, attr_to_keep=seen)
    env.action_space = DiscreteActSpace(inner.action_space, attr_to_keep=["set_bus"])
    return env


gym.register("Grid-v0", grid)


def microgrid(number=0):
    """python-microgrid: a battery, the sun and the grid. An hour a step, a year an episode."""
    from pymgrid.envs import DiscreteMicrogridEnv

    return OldGym(DiscreteMicrogridEnv.from_scenario(microgrid_number=number))


gym.register("Microgrid-v0", microgrid)


gym.register(
    "Glucose-v0",
    "simglucose.envs:T1DSimGymnaisumEnv",
    kwargs={"patient_name": "adolescent#002"},
    max_episode_steps=480,  # of three minutes: a day
)


def mini_world(env_id, **kwargs):
    os.environ.setdefault("PYGLET_HEADLESS", "True")  # without a display
    import miniworld  # noqa: F401

    return gym.make(env_id, **kwargs)


gym.register("MiniWorld-v0", mini_world)


def jumanji_game(name="Snake-v1", keys=("grid", "action_mask")):
    """jumanji, in JAX: some parts of its observations, among them a mask of valid actions."""
    import jumanji
    from jumanji.wrappers import JumanjiToGymWrapper

    class Game(JumanjiToGymWrapper):
        @property
        def unwrapped(self):
            return self  # not jumanji's own environment: gymnasium notes its id here

    return gym.wrappers.FilterObservation(Game(jumanji.make(name)), keys)


gym.register("Jumanji-v0", jumanji_game)
