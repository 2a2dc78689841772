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
import math
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import nn
from torch.nn import functional as F
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

    `noise` is f(epsilon), (inputs + outputs,), or has a row for each row of x, and so weights
    for each.
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
        noise_in, noise_out = noise.split(self.noise_sizes, dim=-1)
        # equations 10 and 11
        if noise.ndim == 1:
            weight = self.weight + self.weight_sigma * noise_out.outer(noise_in)
            bias = self.bias + self.bias_sigma * noise_out
            return x @ weight.T + bias
        # a row of noise for each row of x: the same, but no matrix for each is formed
        noisy = F.linear(x * noise_in, self.weight_sigma, self.bias_sigma)
        return super().forward(x) + noisy * noise_out


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
        """f(epsilon) for all noisy layers (count, number of their inputs and outputs)."""
        size = sum(self.q_network.noise_sizes)
        noise = torch.randn((count, size), device=self.atoms.device)
        return noise.sign() * noise.abs().sqrt()

    def act(self, obs, noise=None):
        """The greedy policy; without noise, for evaluation."""
        return self(obs.float(), noise).argmax(-1)


# === replay
# Windows of transitions: tensors (batch_size, n_step, ...). terminations are 0 or 1.
# steps are those of the episode: they tell where windows end
Batch = namedtuple("Batch", "obs actions rewards next_obs terminations steps")


class SumTree:
    """Priorities, drawn in proportion to their size (Schaul et al., appendix B.2.1).

    A tree of two levels: the priorities, in blocks, and the sum of each block. A draw looks
    for its block first and then for its place there. Both searches are short.
    """

    def __init__(self, size, device):
        self.width = math.ceil(size**0.5)
        blocks = math.ceil(size / self.width)
        self.leaves = torch.zeros(blocks * self.width, dtype=torch.float64, device=device)
        self.sums = torch.zeros(blocks, dtype=torch.float64, device=device)

    def set(self, index, priorities):
        self.leaves[index] = priorities.double()
        block = index // self.width
        self.sums[block] = self.leaves.view(-1, self.width)[block].sum(1)

    def draw(self, points):
        """The places of `points`, from 0 to 1, on the line of all priorities."""
        ends = self.sums.cumsum(0)
        points = points * ends[-1]
        block = first_beyond(ends, points)
        points = points - (ends - self.sums)[block]
        ends = self.leaves.view(-1, self.width)[block].cumsum(1)
        return block * self.width + first_beyond(ends, points[:, None])[:, 0]


def first_beyond(ends, points):
    """The first of `ends` beyond each point.

    The trap: rounding may lead to a priority of 0 at the start, or behind the last one.
    """
    inside = points.clamp(min=0).minimum(ends[..., -1:] * (1 - 1e-12))
    return torch.searchsorted(ends, inside, right=True)


class ReplayBuffer:
    """The last `buffer_size` transitions, one row of a matrix each, and their priorities.

    `shapes` are those of Batch.
    """

    def __init__(self, buffer_size, num_envs, shapes, device, n_step):
        self.shapes = shapes
        self.widths = [math.prod(shape) for shape in shapes]
        self.num_envs = num_envs
        self.capacity = buffer_size // num_envs * num_envs
        self.rows = torch.zeros((self.capacity, sum(self.widths)), device=device)
        # The same memory: writing through numpy takes half the time.
        self.in_numpy = None if self.rows.is_cuda else self.rows.numpy()
        self.position = 0
        self.size = 0
        self.n_step = n_step
        self.tree = SumTree(self.capacity, device)
        # The largest so far, which new transitions get. The trap: torch 2.13 loses what a
        # compiled update writes to a float64 tensor without dimensions.
        self.max_priority = torch.ones((), device=device)

    def add(self, *parts):
        """Stores a transition of each environment: arrays (num_envs, *shape)."""
        rows = np.column_stack(parts)
        end = self.position + self.num_envs
        if self.in_numpy is not None:
            self.in_numpy[self.position : end] = rows
        else:
            self.rows[self.position : end] = torch.from_numpy(rows)
        index = torch.arange(self.position, end, device=self.rows.device)
        self.tree.set(index, self.max_priority)
        self.position = end % self.capacity
        self.size = max(self.size, end)

    def sample(self, batch_size):
        """A minibatch: rows (batch_size, n_step, width), which of them count, and their places.

        Drawn by priority, one from each of batch_size equal parts of the line of priorities.
        """
        device = self.rows.device
        draws = torch.rand(batch_size, dtype=torch.float64, device=device)
        parts = torch.arange(batch_size, device=device)
        index = self.tree.draw((parts + draws) / batch_size)
        # The trap: behind an environment's newest transition lies its oldest.
        newer = (self.position - 1 - index) % self.capacity // self.num_envs
        steps = torch.arange(self.n_step, device=device)
        places = (index[:, None] + steps * self.num_envs) % self.capacity
        rows = self.rows.index_select(0, places.flatten()).unflatten(0, places.shape)
        return rows, steps <= newer[:, None], index

    def unpack(self, rows):
        """The parts of a minibatch."""
        parts = zip(rows.split(self.widths, dim=2), self.shapes, strict=True)
        return Batch(*[part.reshape(*rows.shape[:2], *shape) for part, shape in parts])

    def set_priorities(self, index, priorities):
        """Gives drawn transitions new priorities; a small one where it is NaN or infinite."""
        priorities = priorities.nan_to_num(1e-6, 1e-6)
        self.tree.set(index, priorities)
        self.max_priority.copy_(self.max_priority.maximum(priorities.max()))

    def state_dict(self):
        # By way of numpy, torch.save writes this part only, and needs no memory for a copy.
        rows = torch.from_numpy(self.rows[: self.size].cpu().numpy())
        return {
            "position": self.position,
            "rows": rows,
            "leaves": torch.from_numpy(self.tree.leaves[: self.size].cpu().numpy()),
            "sums": self.tree.sums,
            "max_priority": self.max_priority,
        }

    def load_state_dict(self, state):
        self.position = state["position"]
        self.size = len(state["rows"])
        self.rows[: self.size] = state["rows"]
        self.tree.leaves[: self.size] = state["leaves"]
        self.tree.sums.copy_(state["sums"])
        self.max_priority.copy_(state["max_priority"])


# === pure functions
def linear_schedule(start, end, duration, step):
    """Linear from `start` at step 0 to `end` at step `duration`, then constant."""
    return start + (end - start) * min(step / duration, 1.0)


def n_step_returns(rewards, steps, stored, gamma):
    """The discounted sum of each window's rewards and its length, (batch,).

    All but gamma are (batch, n_step). `stored` is False behind the newest transition. A window
    ends with its episode: after it, `steps` does not count on from the first one.
    """
    ahead = torch.arange(rewards.shape[1], device=rewards.device)
    in_window = stored & (steps == steps[:, :1] + ahead)
    discounted = torch.where(in_window, rewards * gamma**ahead, 0)
    return discounted.sum(1), in_window.sum(1)


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


def rainbow_loss(args, agent, batch, stored, weights, noise):
    """The weighted cross-entropy; each window's divergence (batch_size,); a dict of metrics.

    noise (3, ...) is for learning, for judging the next action, and for choosing it.
    """
    returns, lengths = n_step_returns(batch.rewards, batch.steps, stored, args.gamma)
    index = torch.arange(len(returns), device=returns.device)
    # the true last observation of the window, and whether the episode terminated there
    next_obs = batch.next_obs[index, lengths - 1]
    terminations = batch.terminations[index, lengths - 1]
    discounts = args.gamma ** lengths[:, None]
    with torch.no_grad():
        next_logits = agent.target_network(next_obs, noise[1])
        chooser = agent.q_network(next_obs, noise[2]) if args.double else next_logits
        next_probs = next_logits.softmax(-1)[index, agent.values(chooser).argmax(-1)]
        target_probs = project_distribution(
            next_probs, returns, terminations, discounts, agent.atoms
        )
    logits = agent.q_network(batch.obs[:, 0], noise[0])[index, batch.actions[:, 0].long()]
    log_probs = logits.log_softmax(-1)
    losses = -(target_probs * log_probs).sum(-1)
    loss = (weights * losses).mean()
    # The Kullback-Leibler divergence is the loss without the target's entropy.
    entropy = -torch.xlogy(target_probs, target_probs).sum(-1)
    divergence = (losses.detach() - entropy).clamp(min=0)
    q_values = log_probs.exp() @ agent.atoms
    return loss, divergence, {"losses/loss": loss, "losses/q_values": q_values.mean()}


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
    for name in "priority_alpha", "priority_beta":
        value = getattr(args, name)
        flag = name.replace("_", "-")
        utils.check(0 <= value <= 1, f"--{flag} must be from 0 to 1, got {value}")
    min_size = max(args.batch_size, max(8, args.n_step) * args.num_envs)
    utils.check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.q_network.parameters(), args.learning_rate, eps=0.01 / args.batch_size)
    shapes = obs_space.shape, (), (), obs_space.shape, (), ()
    replay = ReplayBuffer(args.buffer_size, args.num_envs, shapes, device, args.n_step)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam, replay=replay)
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
    # A number that changes during the run must be a tensor, as beta is.
    @utils.compiled(args)
    def update(rows, stored, index, noise, beta):
        # prioritised replay, section 3.4, with the largest weight 1
        priorities = replay.tree.leaves[index]
        weights = ((priorities.min() / priorities) ** beta).float()
        batch = replay.unpack(rows)
        loss, divergence, metrics = rainbow_loss(args, agent, batch, stored, weights, noise)
        adam.minimize(loss)
        replay.set_priorities(index, (divergence + 1e-6) ** args.priority_alpha)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return run.step // every - (run.step - args.num_envs) // every

    beta = torch.zeros((), device=device)
    steps = np.zeros(args.num_envs)  # of the episodes under way
    metrics = {}
    while run.step < args.total_timesteps:
        # act
        epsilon_steps = args.exploration_fraction * args.total_timesteps
        epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, run.step)
        if args.noisy:
            epsilon = 0.0  # the noise explores
        obs = envs.obs.astype(np.float32)
        # separate draws for each environment
        draws, uniform = np.random.random((2, args.num_envs))
        actions = (uniform * action_space.n).astype(np.int64)
        if (draws >= epsilon).any():
            # noise of its own for each environment, and for each step
            noise = agent.draw_noise(args.num_envs)
            with torch.no_grad():
                greedy = agent.act(torch.from_numpy(obs).to(device), noise)
            actions = np.where(draws < epsilon, actions, greedy.cpu().numpy())

        # learn from the steps so far (a GPU does so while the environments step)
        beta.fill_(linear_schedule(args.priority_beta, 1.0, args.total_timesteps, run.step))
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                sample = replay.sample(args.batch_size)
                metrics = update(*sample, agent.draw_noise(3), beta)
            for _ in range(times_due(args.target_network_frequency)):
                update_target(agent.target_network, agent.q_network, args.tau)

        # step, store
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        # terminations only: a truncated episode bootstraps from next_obs
        replay.add(obs, actions, rewards, next_obs, terminations, steps)
        steps = (steps + 1) * ~(terminations | truncations)
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
