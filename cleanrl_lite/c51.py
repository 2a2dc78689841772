"""Categorical DQN (C51) for discrete actions and vector observations; a variant of dqn.py.

Paper:    Bellemare et al. 2017 (arXiv:1707.06887).
Run:      python cleanrl_lite/c51.py --env-id CartPole-v1
Differs:  A truncated episode bootstraps from its true last observation. The projection loses no
          probability when an atom falls on a fixed one or outside the support. The network acts
          in numpy.
Expected: CartPole-v1 467.8, Acrobot-v1 -87.8 (500,000 steps, mean of the last 100 training
          episodes, 10 seeds, commits 63f1a14, 4d375c9, 6246af4).
Details:  docs/c51.md
"""

import copy
import math
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import nn
from torch.utils.tensorboard import SummaryWriter

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
    n_atoms: int = 101  # atoms of the return distribution
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
def mlp(inputs, outputs):
    """Two hidden layers of 120 and 84 ReLU units, initialised as PyTorch does."""
    return nn.Sequential(
        nn.Linear(inputs, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )


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
        self.q_network = mlp(obs_space.shape[0], int(action_space.n) * args.n_atoms)
        self.target_network = copy.deepcopy(self.q_network).requires_grad_(False)

    def logits(self, network, obs):
        """Logits of the return distributions (batch, num_actions, n_atoms)."""
        return network(obs).unflatten(1, (-1, len(self.atoms)))

    def forward(self, obs):
        """The values of all actions in `obs` (batch, obs_dim): expected returns."""
        return self.logits(self.q_network, obs).softmax(-1) @ self.atoms

    def sampler(self):
        """The greedy policy as a function in numpy, which is faster; it sees weights change."""
        q_network = utils.in_numpy(self.q_network, live=True)
        atoms = self.atoms.numpy(force=True)

        def greedy(obs):
            logits = q_network(obs).reshape(len(obs), -1, len(atoms))
            probs = np.exp(logits - logits.max(-1, keepdims=True))
            return (probs @ atoms / probs.sum(-1)).argmax(-1)

        return greedy

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs.float()).argmax(-1)


# === replay
# Transitions: tensors (batch_size, ...). terminations are 0 or 1
Batch = namedtuple("Batch", "obs actions rewards next_obs terminations")


class ReplayBuffer:
    """The last `buffer_size` transitions, one row of a matrix each; `shapes` are those of Batch."""

    def __init__(self, buffer_size, num_envs, shapes, device):
        self.shapes = shapes
        self.widths = [math.prod(shape) for shape in shapes]
        self.num_envs = num_envs
        self.capacity = buffer_size // num_envs * num_envs
        self.rows = torch.zeros((self.capacity, sum(self.widths)), device=device)
        # The same memory: writing through numpy takes half the time.
        self.in_numpy = None if self.rows.is_cuda else self.rows.numpy()
        self.position = 0
        self.size = 0

    def add(self, *parts):
        """Stores a transition of each environment: arrays (num_envs, *shape)."""
        rows = np.column_stack(parts)
        end = self.position + self.num_envs
        if self.in_numpy is not None:
            self.in_numpy[self.position : end] = rows
        else:
            self.rows[self.position : end] = torch.from_numpy(rows)
        self.position = end % self.capacity
        self.size = max(self.size, end)

    def sample(self, batch_size):
        """A minibatch of rows, drawn with replacement."""
        draws = torch.rand(batch_size, dtype=torch.float64, device=self.rows.device)
        return self.rows.index_select(0, (draws * self.size).long())

    def unpack(self, rows):
        """The parts of a minibatch."""
        parts = zip(rows.split(self.widths, dim=1), self.shapes, strict=True)
        return Batch(*[part.reshape(-1, *shape) for part, shape in parts])

    def state_dict(self):
        # By way of numpy, torch.save writes this part only, and needs no memory for a copy.
        rows = torch.from_numpy(self.rows[: self.size].cpu().numpy())
        return {"position": self.position, "rows": rows}

    def load_state_dict(self, state):
        self.position = state["position"]
        self.size = len(state["rows"])
        self.rows[: self.size] = state["rows"]


# === pure functions
def linear_schedule(start, end, duration, step):
    """Linear from `start` at step 0 to `end` at step `duration`, then constant."""
    return start + (end - start) * min(step / duration, 1.0)


def project_distribution(next_probs, rewards, terminations, gamma, atoms):
    """The distribution of rewards + gamma * next return on the atoms (algorithm 1).

    next_probs and the result are (batch, n_atoms). An atom's probability goes to its two
    neighbours on the support, in proportion to their nearness. The trap: with the neighbours
    floor(b) and ceil(b), an atom that falls exactly on the support has weight 0 for both, and
    is lost.
    """
    last = len(atoms) - 1
    next_atoms = rewards[:, None] + gamma * (1 - terminations)[:, None] * atoms
    # in units of the spacing, (batch, n_atoms)
    b = (next_atoms - atoms[0]) * (last / (atoms[last] - atoms[0]))
    b = b.clamp(0, last)
    # NaN cannot be an index; the weights and the loss stay NaN.
    lower = b.nan_to_num().floor().clamp(max=last - 1)
    index = lower.long()
    projected = torch.zeros_like(next_probs)
    projected.scatter_add_(1, index, next_probs * (lower + 1 - b))
    projected.scatter_add_(1, index + 1, next_probs * (b - lower))
    return projected


def c51_loss(args, agent, batch):
    """The cross-entropy with the projected distribution, and a dict of metrics."""
    index = torch.arange(len(batch.obs), device=batch.obs.device)
    with torch.no_grad():
        next_probs = agent.logits(agent.target_network, batch.next_obs).softmax(-1)
        next_actions = (next_probs @ agent.atoms).argmax(-1)
        next_probs = next_probs[index, next_actions]
        target_probs = project_distribution(
            next_probs, batch.rewards, batch.terminations, args.gamma, agent.atoms
        )
    logits = agent.logits(agent.q_network, batch.obs)[index, batch.actions.long()]
    log_probs = logits.log_softmax(-1)
    loss = -(target_probs * log_probs).sum(-1).mean()
    q_values = log_probs.exp() @ agent.atoms
    return loss, {"losses/loss": loss, "losses/q_values": q_values.mean()}


# === training
@torch.no_grad()
def update_target(target, network, tau):
    """target += tau * (network - target), weight by weight, in place; buffers are copied."""
    for old, new in zip(target.parameters(), network.parameters(), strict=True):
        old.lerp_(new, tau)
    for old, new in zip(target.buffers(), network.buffers(), strict=True):
        old.copy_(new)


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    utils.check(args.n_atoms > 1, f"--n-atoms must be > 1, got {args.n_atoms}")
    finite = -1e30 < args.v_min < args.v_max < 1e30
    utils.check(finite, "--v-min must be below --v-max, both finite")
    min_size = max(args.batch_size, 8 * args.num_envs)
    utils.check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.q_network.parameters(), args.learning_rate, eps=0.01 / args.batch_size)
    shapes = obs_space.shape, (), (), obs_space.shape, ()
    replay = ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam, replay=replay)
    utils.check_policy(agent, envs.obs.astype(np.float32))
    if args.track:
        import wandb

        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            name=run.id,
            id=run.id,
            config=vars(args),
            resume="allow",
            sync_tensorboard=True,
        )
    # A resumed run logs the steps after its checkpoint again.
    writer = SummaryWriter(run.dir, flush_secs=10, purge_step=run.step + 1)
    writer.add_text("arguments", str(args))

    # === training
    # A number that changes during the run must be a tensor, as adam.learning_rate is.
    @utils.compiled(args)
    def update(rows):
        loss, metrics = c51_loss(args, agent, replay.unpack(rows))
        adam.minimize(loss)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return run.step // every - (run.step - args.num_envs) // every

    greedy = agent.sampler()
    metrics = {}
    while run.step < args.total_timesteps:
        # act
        epsilon_steps = args.exploration_fraction * args.total_timesteps
        epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, run.step)
        obs = envs.obs.astype(np.float32)
        # separate draws for each environment
        draws, uniform = np.random.random((2, args.num_envs))
        actions = (uniform * action_space.n).astype(np.int64)
        if (draws >= epsilon).any():
            actions = np.where(draws < epsilon, actions, greedy(obs))

        # learn from the steps so far (a GPU does so while the environments step)
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                metrics = update(replay.sample(args.batch_size))
            for _ in range(times_due(args.target_network_frequency)):
                update_target(agent.target_network, agent.q_network, args.tau)

        # step, store
        next_obs, rewards, terminations, _, infos = envs.step(actions)
        # terminations only: a truncated episode bootstraps from next_obs
        replay.add(obs, actions, rewards, next_obs, terminations)
        for info in infos:
            run.step += 1
            if "episode" in info:
                writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # log, evaluate, save
        if times_due(100) or run.step >= args.total_timesteps:
            run.log(writer, {**metrics, "charts/epsilon": epsilon})
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
