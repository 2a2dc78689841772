"""FastTD3 for Box (continuous) actions and many environments; a variant of td3.py.

Paper:    Seo et al. 2025 (arXiv:2505.22642), 2025 (arXiv:2512.01996); the critic: c51.py's.
Run:      python cleanrl_lite/fast_td3.py --env-id Hopper-v4
Differs:  Sizes for one CPU core: 16 environments, batches of 512, networks of 256-256, no weight
          decay. envpool/ before an id steps the environments in C++. The actor learns from the
          first critic, as in td3.py. Windows of --n-step transitions end where episodes do, and
          at the newest transition; unless that terminated, they bootstrap from the true last
          observation.
Expected: Pendulum-v1 -422.9 (20,000 steps, mean of all 96 training episodes, the random first ones
          included, 3 seeds, commit ef49b7b).
Details:  docs/fast_td3.md
"""

import copy
import json
import warnings
from collections import namedtuple
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.nn import functional as F

from cleanrl_lite import utils


# === arguments
@dataclass
class Args:
    # run flags, the same in every script
    exp_name: str = Path(__file__).stem  # name of the experiment
    seed: int = 1  # seed of environments, networks and sampling
    cuda: bool = True  # train on a GPU if there is one
    threads: int = 1  # CPU threads of torch and numpy (0: their choice)
    compile: bool = True  # compile the update: a slow start, then faster
    cuda_graph: bool = False  # replay the update as one CUDA graph (needs a GPU)
    track: bool = False  # also log to Weights & Biases
    wandb_project_name: str = "cleanrl_lite"  # Weights & Biases project
    wandb_entity: str | None = None  # Weights & Biases entity (team)
    runs_dir: str = "runs"  # folder of the run directories
    save_every: int = 100_000  # environment steps between checkpoints (0: only at the end)
    resume: str | None = None  # run directory to continue, or auto: the last with these flags
    evaluate: str | None = None  # run directory or checkpoint to evaluate, without training
    eval_episodes: int = 10  # episodes of an evaluation, with the greedy policy
    eval_every: int = 0  # environment steps between evaluations (0: only at the end)
    capture_video: bool = False  # record the first episode of every evaluation

    # algorithm flags
    env_id: str = "Hopper-v4"  # environment id, module:Env-v0, or envpool/ and one of envpool
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 16  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    env_threads: int = 1  # threads in which envpool steps the environments (0: one for each core)
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 10_000  # environment steps before training starts
    train_frequency: int = 16  # environment steps, of all environments, between trainings
    gradient_steps: int = 4  # gradient steps each time it trains
    batch_size: int = 512  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    n_step: int = 1  # rewards that are summed before the target bootstraps (1: as c51)
    n_atoms: int = 101  # atoms of the return distribution
    v_min: float = -500.0  # lower end of the return distribution's support
    v_max: float = 500.0  # upper end of the return distribution's support
    tau: float = 0.05  # step size of the target: target += tau * (network - target)
    policy_frequency: int = 2  # gradient steps of the critic between updates of the actor
    policy_noise: float = 0.2  # std of the target policy's noise, in half action ranges
    noise_clip: float = 0.5  # limit of the target policy's noise, in half action ranges
    std_min: float = 0.001  # smallest std of an environment's noise, in half action ranges
    std_max: float = 0.4  # largest std of an environment's noise, in half action ranges
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


# === environment
def make_env(args, render_mode=None):
    """gymnasium's environment, also of envpool's ids: for evaluations and videos."""
    args = replace(args, env_id=args.env_id.removeprefix("envpool/"))
    return utils.flatten(utils.make(args, render_mode))


class EnvPool(gym.vector.VectorEnv):
    """envpool's environments, in C++, with the spaces of gymnasium's environment of the same id."""

    def __init__(self, args):
        advice = "pip install 'cleanrl_lite[envpool]' (Python >= 3.11)"
        utils.check(find_spec("envpool"), f"envpool is missing: {advice}")
        import envpool  # takes a second, which --help need not

        # about the bounds of its float64 spaces
        warnings.filterwarnings("ignore", ".*precision lowered")
        env = make_env(args)
        self.num_envs = args.num_envs
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.action_space = gym.vector.utils.batch_space(env.action_space, args.num_envs)
        self.flags = f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}"
        ids = envpool.list_all_envs()
        both = ", ".join(sorted(gym.registry.keys() & ids))
        known = env.spec.id in ids
        utils.check(known, f"{self.flags} is not in envpool. envpool and gymnasium have: {both}")
        # Pendulum at its top speed, phys2d/CartPole's pole, tabular/Blackjack's aces
        differs = env.spec.id.startswith(("Pendulum", "phys2d/", "tabular/"))
        others = "ppo.py, ppo_continuous.py or fast_td3.py"
        utils.check(not differs, f"{env.spec.id} differs in envpool: use {others}")
        # off by default in v4, and then the contact forces are always 0
        humanoid = env.spec.id in ("Humanoid-v4", "HumanoidStandup-v4")
        options = {
            **({"post_constraint": True} if humanoid else {}),
            **json.loads(args.env_kwargs),
            "num_envs": args.num_envs,
            "num_threads": min(args.env_threads, args.num_envs),
            "max_episode_steps": env.spec.max_episode_steps or 2**31 - 1,
        }
        self.make = partial(envpool.make_gymnasium, env.spec.id, **options)

    def reset(self, *, seed, options=None):
        """Makes the environments, for envpool takes seeds only then."""
        try:
            self.pool = self.make(seed=seed)
        except (TypeError, KeyError) as error:
            utils.check(False, f"{self.flags}: {error}")
        self.returns = np.zeros(self.num_envs)
        obs, _ = self.pool.reset()
        same = obs.shape[1:] == self.single_observation_space.shape
        utils.check(same, f"{self.flags}: observations in envpool are not those of gymnasium")
        return obs, {}

    def step(self, actions):
        """envpool's step, and a reset of what ended: by itself it resets a step later."""
        obs, rewards, terminations, truncations, info = self.pool.step(actions)
        self.returns += rewards
        infos = {}
        for n in np.flatnonzero(terminations | truncations):
            episode = {"r": self.returns[n], "l": info["elapsed_step"][n]}
            infos[n] = {"episode": episode, "final_obs": obs[n].copy()}
        if infos:
            ended = np.array([*infos])
            self.returns[ended] = 0
            obs[ended], _ = self.pool.reset(ended)
        return obs, rewards, terminations, truncations, infos

    def close_extras(self, **kwargs):
        self.pool = None  # which ends its threads


# === agent
class MLP(nn.Module):
    """Two hidden layers of 256 ReLU units, initialised as PyTorch does."""

    def __init__(self, inputs, outputs, bf16):
        super().__init__()
        self.fc1 = nn.Linear(inputs, 256)
        self.fc2 = nn.Linear(256, 256)
        self.fc3 = nn.Linear(256, outputs)
        self.bf16 = bf16

    def forward(self, x):
        x = F.relu(self.fc1(x))
        # This product takes most of the time: bf16 is for it alone.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            x = self.fc2(x)
        return self.fc3(F.relu(x.float()))


class RunningMeanStd(nn.Module):
    """Mean and variance of all samples so far.

    Not to be updated in a compiled function: on a CPU, torch 2.13 loses changes of 0-d float64
    tensors.
    """

    def __init__(self, shape=()):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @property
    def std(self):
        return (self.var + 1e-8).sqrt()

    def update(self, samples):
        """Updates the statistics with `samples` (num_samples, *shape) (Chan et al. 1979)."""
        samples = samples.double()
        self.count.add_(len(samples))
        weight = len(samples) / self.count
        delta = samples.mean(0) - self.mean
        self.var.lerp_(samples.var(0, correction=0), weight)
        self.var.add_(delta.square() * weight * (1 - weight))
        self.mean.add_(delta * weight)


class Agent(nn.Module):
    """Its methods take raw observations: whoever calls them need not know the statistics."""

    def __init__(self, args, obs_space, action_space):
        super().__init__()
        utils.check(
            isinstance(action_space, Box) and len(action_space.shape) == 1,
            f"actions must be a 1-D Box of floats, not {action_space}. Discrete: dqn.py",
        )
        obs_dim, action_dim = obs_space.shape[0], action_space.shape[0]
        self.obs_stats = RunningMeanStd(obs_dim)
        atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.register_buffer("atoms", atoms, persistent=False)
        # (action_dim,): each dimension has its own bounds
        low = torch.tensor(action_space.low, dtype=torch.float32)
        high = torch.tensor(action_space.high, dtype=torch.float32)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)
        bounded = self.action_scale.isfinite().all()  # high - low must not overflow float32
        utils.check(bounded, f"no bounds: {action_space}. Use ppo_continuous.py")
        self.actor = MLP(obs_dim, action_dim, args.bf16)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.qf1 = MLP(obs_dim + action_dim, args.n_atoms, args.bf16)
        self.qf2 = MLP(obs_dim + action_dim, args.n_atoms, args.bf16)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)
        self.qf2_target = copy.deepcopy(self.qf2).requires_grad_(False)

    def normalize(self, obs):
        """Observations with mean 0 and variance 1 over the training so far."""
        return ((obs - self.obs_stats.mean) / self.obs_stats.std).clamp(-10, 10).float()

    def policy(self, actor, obs):
        """The actor's actions (batch, action_dim), within the bounds."""
        return actor(self.normalize(obs)).tanh() * self.action_scale + self.action_bias

    def logits(self, critic, obs, actions):
        """Logits of the critic's return distributions (batch, n_atoms)."""
        return critic(torch.cat([self.normalize(obs), actions], dim=1))

    def value(self, critic, obs, actions):
        """The critic's Q-values (batch,): expected returns."""
        return self.logits(critic, obs, actions).softmax(-1) @ self.atoms

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.policy(self.actor, obs.float())


# === replay
# Windows of transitions: tensors (batch_size, n_step, ...). terminations are 0 or 1
# steps: of the episode: they tell where windows end
Batch = namedtuple("Batch", "obs actions rewards next_obs terminations steps")
