"""Rainbow for discrete actions and vector observations; a variant of c51.py.

Paper:    Hessel et al. 2018 (arXiv:1710.02298), and those of its parts: double (1509.06461),
          dueling (1511.06581), prioritised replay (1511.05952), noisy layers (1706.10295).
Run:      python cleanrl_lite/rainbow.py --env-id CartPole-v1
Differs:  A flag turns each part off; without all five and with --n-atoms 101, this is c51.py with
          stratified draws. Windows of --n-step transitions end where episodes do, and at the newest
          transition; unless that terminated, they bootstrap. The next action is chosen with noise
          of its own. The first layer has none. Adam's epsilon is c51.py's.
Expected: CartPole-v1 500.0 and Acrobot-v1 -82.4 (10 seeds each, commits b124fa7 and 45c65d5),
          LunarLander-v3 271.9 as rainbow_tuned (with the flags of its docs page, 3 seeds, commit
          6c08ee7): 500,000 steps, mean of the last 100 training episodes.
Details:  docs/rainbow.md
"""

import copy
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import torch
from gymnasium.spaces import Discrete
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
    env_id: str = "CartPole-v1"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 500_000  # environment steps, summed over the environments
    learning_rate: float = 2.5e-4  # the optimizer's learning rate
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 10_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 10_000  # environment steps before training starts
    train_frequency: int = 10  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 128  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    n_step: int = 3  # rewards that are summed before the target bootstraps (1: as c51)
    double: bool = True  # choose the next action by the network, value it by its target
    dueling: bool = True  # separate streams for the state's value and the actions' advantages
    noisy: bool = True  # explore by noise on the weights, not by epsilon (--start-e, --end-e)
    noisy_sigma: float = 0.5  # initial std of the noisy layers' noise, times 1 / sqrt(inputs)
    priority_alpha: float = 0.5  # exponent of the priorities, at most 1 (0: draw uniformly)
    priority_beta: float = 0.4  # initial exponent of the importance weights; rises to 1
    n_atoms: int = 51  # atoms of the return distribution
    v_min: float = -100.0  # lower end of the return distribution's support
    v_max: float = 100.0  # upper end of the return distribution's support
    target_network_frequency: int = 500  # environment steps between target network updates
    tau: float = 1.0  # step size of the target: target += tau * (network - target)
    start_e: float = 1.0  # initial epsilon, the probability of a random action
    end_e: float = 0.05  # final epsilon
    exploration_fraction: float = 0.5  # part of the run over which epsilon falls


# === environment
def make_env(args, render_mode=None):
    return utils.flatten(utils.make(args, render_mode))


# === agent
class NoisyLinear(nn.Linear):
    """A linear layer with learned, factorised Gaussian noise on its weights (section 3).

    `noise` is (inputs + outputs,), or has a row for each row of x, and so weights for each.
    """

    def __init__(self, inputs, outputs, noisy, sigma):
        super().__init__(inputs, outputs)
        self.noise_sizes = [inputs, outputs] if noisy else [0, 0]
        if noisy:
            scale = sigma / inputs**0.5
            self.weight_sigma = nn.Parameter(torch.full_like(self.weight, scale))
            self.bias_sigma = nn.Parameter(torch.full_like(self.bias, scale))

    def forward(self, x, noise):
        if noise is None or sum(self.noise_sizes) == 0:
            return super().forward(x)
        scaled = noise.sign() * noise.abs().sqrt()
        noise_in, noise_out = scaled.split(self.noise_sizes, dim=-1)
        # equations 10 and 11
        outer = noise_out[..., :, None] * noise_in[..., None, :]
        weight = self.weight + self.weight_sigma * outer
        bias = self.bias + self.bias_sigma * noise_out
        return (x[:, None] @ weight.mT)[:, 0] + bias


class QNetwork(nn.Module):
    """Hidden layers of 120 and 84 ReLU units; with `dueling`, 84 more for the state."""

    def __init__(self, args, inputs, num_actions):
        super().__init__()
        noisy, sigma = args.noisy, args.noisy_sigma
        self.shape = num_actions, args.n_atoms
        self.fc1 = nn.Linear(inputs, 120)
        self.fc2 = NoisyLinear(120, 84, noisy, sigma)
        self.fc3 = NoisyLinear(84, num_actions * args.n_atoms, noisy, sigma)
        self.dueling = args.dueling
        if args.dueling:
            self.value_fc2 = NoisyLinear(120, 84, noisy, sigma)
            self.value_fc3 = NoisyLinear(84, args.n_atoms, noisy, sigma)
        layers = [layer for layer in self.modules() if isinstance(layer, NoisyLinear)]
        self.noise_sizes = [sum(layer.noise_sizes) for layer in layers]

    def forward(self, obs, noise=None):
        """Logits (batch, num_actions, n_atoms); without noise, those of the mean weights."""
        noises = [None] * 4 if noise is None else noise.split(self.noise_sizes, dim=-1)
        x = F.relu(self.fc1(obs))
        logits = self.fc3(F.relu(self.fc2(x, noises[0])), noises[1])
        logits = logits.unflatten(1, self.shape)
        if not self.dueling:
            return logits
        values = self.value_fc3(F.relu(self.value_fc2(x, noises[2])), noises[3])
        # equation 9 of the dueling paper, for each atom
        return values[:, None] + logits - logits.mean(1, keepdim=True)


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        utils.check(
            isinstance(action_space, Discrete) and action_space.start == 0,
            f"actions must be Discrete, from 0, not {action_space}. "
            "Box: sac.py; MultiDiscrete: ppo_masked.py",
        )
        atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.register_buffer("atoms", atoms, persistent=False)
        self.q_network = QNetwork(args, obs_space.shape[0], int(action_space.n))
        self.target_network = copy.deepcopy(self.q_network).requires_grad_(False)

    def values(self, logits):
        """Expected returns, of logits (..., n_atoms)."""
        return logits.softmax(-1) @ self.atoms

    def forward(self, obs, noise=None):
        """The values of all actions in `obs` (batch, obs_dim)."""
        return self.values(self.q_network(obs, noise))

    def draw_noise(self, count):
        """Noise for all noisy layers (count, number of their inputs and outputs)."""
        size = sum(self.q_network.noise_sizes)
        return torch.randn((count, size), device=self.atoms.device)

    def act(self, obs, noise=None):
        """The greedy policy; without noise, for evaluation."""
        return self(obs.float(), noise).argmax(-1)


# === replay
# Windows of transitions: tensors (batch_size, n_step, ...). terminations are 0 or 1
# steps: of the episode: they tell where windows end
Batch = namedtuple("Batch", "obs actions rewards next_obs terminations steps")
