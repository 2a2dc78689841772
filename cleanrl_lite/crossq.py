"""CrossQ for Box (continuous) actions: SAC without target networks; a variant of sac.py.

Paper:    Bhatt et al. 2024 (ICLR; arXiv:1902.05605); batch renormalisation: arXiv:1702.03275.
Run:      python cleanrl_lite/crossq.py --env-id Walker2d-v4
Differs:  The critics' hidden layers have 256 units, not 2,048, which one core cannot afford. The
          normalisation's bounds open at once after --renorm-warmup, not step by step.
Expected: Pendulum-v1 -270.0 (20,000 steps, mean of the last 100 training episodes, 3 seeds,
          commits 1ab573a, 4d0169a), Walker2d-v4 3,772 as crossq_bf16_200k (200,000 steps, 3
          seeds, commits 3d87523, bd2934a).
Details:  docs/crossq.md
"""

import math
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
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
    policy_lr: float = 1e-3  # Adam's learning rate for the actor
    q_lr: float = 1e-3  # Adam's learning rate for the critics and the temperature
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 5_000  # environment steps before training starts
    train_frequency: int = 1  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 256  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    beta1: float = 0.5  # Adam's decay of the mean gradient, for actor and critics
    renorm_warmup: int = 100_000  # a layer's first minibatches, with their own statistics only
    policy_frequency: int = 3  # gradient steps of the critic between updates of the actor
    alpha: float = 0.2  # temperature (weight of the entropy) with --no-autotune
    autotune: bool = True  # learn the temperature, so that the entropy nears its target
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


# === environment
def make_env(args, render_mode=None):
    return utils.flatten(utils.make(args, render_mode))


# === agent
LOG_STD_MIN = -5
LOG_STD_MAX = 2


ACTOR_UNITS = 256
CRITIC_UNITS = 256  # the paper's 2048 need a GPU
NORM_RATE = 0.01  # of the running statistics towards a minibatch's
NORM_EPS = 1e-3
R_MAX = 3
D_MAX = 5


class BatchRenorm(nn.Module):
    """Batch renormalisation (Ioffe 2017, algorithm 1): learns as if with running statistics.

    It knows no train() or eval(): whoever calls it says which statistics it takes.
    """

    def __init__(self, features, warmup):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.register_buffer("step", torch.zeros(()))
        self.warmup = warmup

    def forward(self, x, batch_stats):
        if not batch_stats:
            x = (x - self.running_mean) / (self.running_var + NORM_EPS).sqrt()
            return x * self.weight + self.bias
        var, mean = torch.var_mean(x, dim=0, correction=0)  # gradients flow through both
        std = (var + NORM_EPS).sqrt()
        with torch.no_grad():
            running_std = (self.running_var + NORM_EPS).sqrt()
            warm = self.step >= self.warmup  # before: r = 1 and d = 0, batch normalisation
            r = (std / running_std).clamp(1 / R_MAX, R_MAX)
            d = ((mean - self.running_mean) / running_std).clamp(-D_MAX, D_MAX)
            r = torch.where(warm, r, 1.0)
            d = torch.where(warm, d, 0.0)
            self.running_mean.lerp_(mean, NORM_RATE)
            self.running_var.lerp_(var, NORM_RATE)
            self.step.add_(1)
        x = (x - mean) / std * r + d
        return x * self.weight + self.bias


class MLP(nn.Module):
    """Two hidden layers of ReLU units, with a normalisation before each layer."""

    def __init__(self, inputs, units, outputs, warmup, bf16):
        super().__init__()
        self.norm1 = BatchRenorm(inputs, warmup)
        self.fc1 = nn.Linear(inputs, units)
        self.norm2 = BatchRenorm(units, warmup)
        self.fc2 = nn.Linear(units, units)
        self.norm3 = BatchRenorm(units, warmup)
        self.fc3 = nn.Linear(units, outputs)
        self.bf16 = bf16

    def forward(self, x, batch_stats):
        x = F.relu(self.fc1(self.norm1(x, batch_stats)))
        x = self.norm2(x, batch_stats)
        # This product takes most of the time: bf16 is for it alone.
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            x = self.fc2(x)
        x = self.norm3(F.relu(x.float()), batch_stats)
        return self.fc3(x)


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
        mlp = partial(MLP, warmup=args.renorm_warmup, bf16=args.bf16)
        self.actor = mlp(obs_dim, ACTOR_UNITS, 2 * action_dim)  # mean and log sigma
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.qf1 = mlp(obs_dim + action_dim, CRITIC_UNITS, 1)
        self.qf2 = mlp(obs_dim + action_dim, CRITIC_UNITS, 1)

    # batch_stats has no default: a network whose running statistics never move would
    # normalise nothing, and no error would say so.
    def policy(self, obs, noise, *, batch_stats):
        """Actions (batch, action_dim), within the bounds, and their log-probabilities (batch,).

        noise is standard normal, of the actions' shape; 0 gives the greedy action.
        batch_stats is True in the actor's own update only.
        """
        mean, log_std = self.actor(obs, batch_stats).chunk(2, dim=1)
        log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (log_std.tanh() + 1)
        raw = mean + log_std.exp() * noise
        log_probs = -noise.square() / 2 - log_std - math.log(2 * math.pi) / 2
        # The actions are scale * tanh(raw) + bias (SAC, appendix C). The log of its slope is
        # log scale + log(1 - tanh^2).
        log_tanh_slope = 2 * (math.log(2) - raw - F.softplus(-2 * raw))  # is never log(0)
        log_probs = log_probs - self.action_scale.log() - log_tanh_slope
        return raw.tanh() * self.action_scale + self.action_bias, log_probs.sum(1)

    def q_values(self, obs, actions, *, batch_stats):
        """Those of both critics, (batch,). batch_stats is True in the critics' own update only."""
        x = torch.cat([obs, actions], dim=1)
        return self.qf1(x, batch_stats).squeeze(1), self.qf2(x, batch_stats).squeeze(1)

    def temperature(self, args):
        return self.log_alpha.detach().exp() if args.autotune else args.alpha

    def act(self, obs):
        """The greedy policy, for evaluation."""
        no_noise = torch.zeros_like(self.action_scale)
        actions, _ = self.policy(obs.float(), no_noise, batch_stats=False)
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


# === training
def critic_loss(args, agent, batch, noise):
    """The squared errors of the soft Bellman equation (SAC's eq. 5), and a dict of metrics.

    noise is standard normal, (batch_size, action_dim). There are no target networks: a critic
    values both steps of a transition in one minibatch, with the same statistics; the running ones
    move.
    """
    with torch.no_grad():
        next_actions, next_log_probs = agent.policy(batch.next_obs, noise, batch_stats=False)
    # (2 * batch_size, dim)
    both_obs = torch.cat([batch.obs, batch.next_obs])
    both_actions = torch.cat([batch.actions, next_actions])
    both_qf1_values, both_qf2_values = agent.q_values(both_obs, both_actions, batch_stats=True)
    qf1_values, next_qf1_values = both_qf1_values.chunk(2)
    qf2_values, next_qf2_values = both_qf2_values.chunk(2)
    with torch.no_grad():
        next_values = torch.min(next_qf1_values, next_qf2_values)
        next_values = next_values - agent.temperature(args) * next_log_probs  # SAC's eq. 3
        td_target = batch.rewards + args.gamma * next_values * (1 - batch.terminations)
    qf1_loss = (qf1_values - td_target).square().mean()
    qf2_loss = (qf2_values - td_target).square().mean()
    loss = qf1_loss + qf2_loss
    return loss, {
        "losses/qf1_loss": qf1_loss,
        "losses/qf2_loss": qf2_loss,
        "losses/qf_loss": loss,
        "losses/qf1_values": qf1_values.mean(),
        "losses/qf2_values": qf2_values.mean(),
    }


def actor_loss(args, agent, batch, noise):
    """The losses of the policy and of the temperature (SAC's eq. 7, 18), and a dict of metrics.

    The actor takes the minibatch's statistics, the critics their running ones.
    """
    actions, log_probs = agent.policy(batch.obs, noise, batch_stats=True)
    values = torch.min(*agent.q_values(batch.obs, actions, batch_stats=False))
    loss = (agent.temperature(args) * log_probs - values).mean()
    target_entropy = -actions.shape[1]
    alpha_loss = -(agent.log_alpha.exp() * (log_probs.detach() + target_entropy)).mean()
    metrics = {"losses/actor_loss": loss, "losses/entropy": -log_probs.mean()}
    return loss, alpha_loss, metrics


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    min_size = max(args.batch_size, 8 * args.num_envs)
    utils.check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")
    utils.check(args.beta1 < 1, f"--beta1 must be below 1, got {args.beta1}")
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    critics = [*agent.qf1.parameters(), *agent.qf2.parameters()]
    critic_adam = utils.Adam(critics, args.q_lr, beta1=args.beta1)
    actor_adam = utils.Adam(agent.actor.parameters(), args.policy_lr, beta1=args.beta1)
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
    policy = utils.recorded(args, partial(agent.policy, batch_stats=False))

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
                actions, _ = policy(torch.from_numpy(obs).to(device), randn(args.num_envs))
            actions = actions.cpu().numpy()

        # learn from the steps so far (a GPU does so while the environments step)
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                rows = replay.sample(args.batch_size)
                metrics.update(update_critic(rows, randn(args.batch_size)))
                updates += 1
                if updates % args.policy_frequency == 0:
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
