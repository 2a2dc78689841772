"""Truncated Quantile Critics (TQC) for Box (continuous) actions; a variant of sac.py.

Paper:    Kuznetsov et al. 2020 (arXiv:2005.04269); quantile regression: arXiv:1710.10044.
Run:      python cleanrl_lite/tqc.py --env-id Hopper-v4
Differs:  Two critics of two hidden layers of 256 units, as sac.py's, not five of three layers of
          512. The actor learns twice at every second step of the critics, as in sac.py. The paper
          drops a different number of quantiles on some robots: --top-quantiles-to-drop.
Expected: Pendulum-v1 -351.1 (20,000 steps, mean of the last 100 training episodes, 3 seeds, commit
          bd2934a), Hopper-v4 2,468 as tqc_drop5_bf16_300k (300,000 steps, 3 seeds, commits
          3d87523, bd2934a).
Details:  docs/tqc.md
"""

import copy
import math
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box
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
    env_id: str = "Hopper-v4"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    policy_lr: float = 3e-4  # Adam's learning rate for the actor
    q_lr: float = 1e-3  # Adam's learning rate for the critics and the temperature
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 5_000  # environment steps before training starts
    train_frequency: int = 1  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 256  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # step size of the target: target += tau * (network - target)
    policy_frequency: int = 2  # gradient steps of the critic between updates of the actor
    n_critics: int = 2  # critics, each with quantiles of its own
    n_quantiles: int = 25  # quantiles of each critic
    top_quantiles_to_drop: int = 2  # largest quantiles left out of the target, times --n-critics
    alpha: float = 0.2  # temperature (weight of the entropy) with --no-autotune
    autotune: bool = True  # learn the temperature, so that the entropy nears its target
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


# === environment
def make_env(args, render_mode=None):
    return utils.flatten(utils.make(args, render_mode))


# === agent
LOG_STD_MIN = -5
LOG_STD_MAX = 2


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


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        floats = isinstance(action_space, Box) and action_space.dtype.kind == "f"
        ok = floats and len(action_space.shape) == 1
        utils.check(ok, f"actions must be a 1-D float Box, not {action_space}. Discrete: dqn.py")
        obs_dim, action_dim = obs_space.shape[0], action_space.shape[0]
        # (action_dim,): each dimension has its own bounds
        low = torch.tensor(action_space.low, dtype=torch.float32)
        high = torch.tensor(action_space.high, dtype=torch.float32)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)
        bounded = (self.action_scale > 0) & self.action_scale.isfinite()
        utils.check(bounded.all(), f"no bounds: {action_space}. Use ppo_continuous.py")
        self.actor = MLP(obs_dim, 2 * action_dim, args.bf16)  # mean and log sigma
        self.log_alpha = nn.Parameter(torch.zeros(()))
        critics = [
            MLP(obs_dim + action_dim, args.n_quantiles, args.bf16) for _ in range(args.n_critics)
        ]
        self.qfs = nn.ModuleList(critics)
        self.qfs_target = copy.deepcopy(self.qfs).requires_grad_(False)

    def policy(self, obs, noise):
        """Actions (batch, action_dim), within the bounds, and their log-probabilities (batch,).

        noise is standard normal, of the actions' shape; 0 gives the greedy action.
        """
        mean, log_std = self.actor(obs).chunk(2, dim=1)
        log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (log_std.tanh() + 1)
        raw = mean + log_std.exp() * noise
        log_probs = -noise.square() / 2 - log_std - math.log(2 * math.pi) / 2
        # The actions are scale * tanh(raw) + bias (SAC, appendix C). The log of its slope is
        # log scale + log(1 - tanh^2).
        log_tanh_slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))  # is never log(0)
        log_probs = log_probs - self.action_scale.log() - log_tanh_slope
        return raw.tanh() * self.action_scale + self.action_bias, log_probs.sum(1)

    def quantiles(self, critics, obs, actions):
        """The critics' quantiles of the return (batch, n_critics, n_quantiles)."""
        x = torch.cat([obs, actions], dim=1)
        return torch.stack([critic(x) for critic in critics], dim=1)

    def temperature(self, args):
        return self.log_alpha.detach().exp() if args.autotune else args.alpha

    def act(self, obs):
        """The greedy policy, for evaluation."""
        actions, _ = self.policy(obs.float(), torch.zeros_like(self.action_scale))
        return actions


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
def truncate(quantiles, top_quantiles_to_drop):
    """The smallest quantiles of all critics' mixture, (batch, kept), in rising order (section 3).

    quantiles is (batch, n_critics, n_quantiles). The largest n_critics * top_quantiles_to_drop
    of the mixture go, whichever critics they are of.
    """
    _, n_critics, n_quantiles = quantiles.shape
    kept = n_critics * (n_quantiles - top_quantiles_to_drop)
    mixture, _ = quantiles.flatten(1).sort(dim=1)
    return mixture[:, :kept]


def quantile_huber_loss(quantiles, targets):
    """The critics' losses (n_critics,): eq. 10 of arXiv:1710.10044 with kappa = 1.

    quantiles is (batch, n_critics, n_quantiles), targets (batch, kept). Each quantile meets each
    target.
    """
    n_quantiles = quantiles.shape[2]
    levels = (torch.arange(n_quantiles, device=quantiles.device) + 0.5) / n_quantiles
    # (batch, n_critics, n_quantiles, kept)
    errors = targets[:, None, None, :] - quantiles[:, :, :, None]
    huber = torch.where(errors.abs() <= 1, errors.square() / 2, errors.abs() - 0.5)
    weights = (levels[:, None] - (errors.detach() < 0).float()).abs()
    return (weights * huber).mean(dim=(0, 2, 3))


def critic_loss(args, agent, batch, noise):
    """The loss of the quantiles of the soft return (section 3), and a dict of metrics.

    noise is standard normal, (batch_size, action_dim).
    """
    with torch.no_grad():
        next_actions, next_log_probs = agent.policy(batch.next_obs, noise)
        next_quantiles = agent.quantiles(agent.qfs_target, batch.next_obs, next_actions)
        next_values = truncate(next_quantiles, args.top_quantiles_to_drop)
        next_values = next_values - (agent.temperature(args) * next_log_probs)[:, None]
        ends = batch.terminations[:, None]
        td_targets = batch.rewards[:, None] + args.gamma * next_values * (1 - ends)
    quantiles = agent.quantiles(agent.qfs, batch.obs, batch.actions)
    loss = quantile_huber_loss(quantiles, td_targets).sum()
    return loss, {
        "losses/qf_loss": loss,
        "losses/qf_values": quantiles.mean(),
        "losses/qf_targets": td_targets.mean(),
    }


def actor_loss(args, agent, batch, noise):
    """The loss of the policy, on the mean of all quantiles: none is dropped.

    And that of the temperature, as in sac.py, and a dict of metrics.
    """
    actions, log_probs = agent.policy(batch.obs, noise)
    values = agent.quantiles(agent.qfs, batch.obs, actions).mean(dim=(1, 2))
    loss = (agent.temperature(args) * log_probs - values).mean()
    target_entropy = -actions.shape[1]
    alpha_loss = -(agent.log_alpha.exp() * (log_probs.detach() + target_entropy)).mean()
    metrics = {"losses/actor_loss": loss, "losses/entropy": -log_probs.mean()}
    return loss, alpha_loss, metrics


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
    min_size = max(args.batch_size, 8 * args.num_envs)
    utils.check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")
    few = f"--top-quantiles-to-drop must be >= 0 and below --n-quantiles {args.n_quantiles}"
    utils.check(0 <= args.top_quantiles_to_drop < args.n_quantiles, few)
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    critic_adam = utils.Adam(agent.qfs.parameters(), args.q_lr)
    actor_adam = utils.Adam(agent.actor.parameters(), args.policy_lr)
    alpha_adam = utils.Adam([agent.log_alpha], args.q_lr)
    shapes = obs_space.shape, action_space.shape, (), obs_space.shape, ()
    replay = ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    adams = {"critic_adam": critic_adam, "actor_adam": actor_adam, "alpha_adam": alpha_adam}
    run = utils.Run(args, __file__, make_env, envs, agent, replay=replay, **adams)
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
    # A number that changes during the run must be a tensor. Two graphs compile faster than one.
    @utils.compiled(args)
    def update_critic(rows, noise):
        loss, metrics = critic_loss(args, agent, replay.unpack(rows), noise)
        critic_adam.minimize(loss)
        update_target(agent.qfs_target, agent.qfs, args.tau)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    @utils.compiled(args)
    def update_actor(rows, noise):
        loss, alpha_loss, metrics = actor_loss(args, agent, replay.unpack(rows), noise)
        actor_adam.minimize(loss)
        if args.autotune:
            alpha_adam.minimize(alpha_loss)
            metrics["losses/alpha_loss"] = alpha_loss
            metrics["losses/alpha"] = agent.log_alpha.exp()
        return {tag: metric.detach() for tag, metric in metrics.items()}

    # A GPU would wait for Python before each of its kernels.
    policy = utils.recorded(args, lambda obs, noise: agent.policy(obs, noise)[0])

    def randn(rows):
        return torch.randn((rows, *action_space.shape), device=device)

    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return run.step // every - (run.step - args.num_envs) // every

    updates = int(critic_adam.step)
    metrics = {}
    while run.step < args.total_timesteps:
        # act
        obs = envs.obs.astype(np.float32)
        if run.step < args.learning_starts:
            actions = envs.action_space.sample()
        else:
            with torch.no_grad():
                actions = policy(torch.from_numpy(obs).to(device), randn(args.num_envs))
            actions = actions.cpu().numpy()

        # learn from the steps so far (a GPU does so while the environments step)
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                rows = replay.sample(args.batch_size)
                metrics.update(update_critic(rows, randn(args.batch_size)))
                updates += 1
                if updates % args.policy_frequency == 0:
                    for _ in range(args.policy_frequency):  # on average as often as the critics
                        metrics.update(update_actor(rows, randn(args.batch_size)))

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
            run.log(writer, metrics)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
