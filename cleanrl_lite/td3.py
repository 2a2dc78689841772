"""Twin Delayed DDPG (TD3) for Box (continuous) actions; a variant of ddpg.py.

Paper:    Fujimoto et al. 2018 (arXiv:1802.09477).
Run:      python cleanrl_lite/td3.py --env-id Hopper-v4
Differs:  Noise is relative to half the action's range in each dimension. A truncated episode
          bootstraps from its true last observation.
Expected: HalfCheetah-v4 10,164, Walker2d-v4 3,705, Hopper-v4 2,811 (1,000,000 steps, mean of
          the last 100 training episodes, 3 seeds each, commits 57548cc, f8b1baa, 3d87523).
Details:  docs/td3.md
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
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 25_000  # environment steps before training starts
    train_frequency: int = 1  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 256  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # step size of the target: target += tau * (network - target)
    policy_frequency: int = 2  # gradient steps of the critic between updates of the actor
    policy_noise: float = 0.2  # std of the target policy's noise, in half action ranges
    noise_clip: float = 0.5  # limit of the target policy's noise, in half action ranges
    exploration_noise: float = 0.1  # std of the exploration noise, in half action ranges
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


# === environment
def make_env(args, render_mode=None):
    return utils.flatten(utils.make(args, render_mode))


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
        bounded = self.action_scale.isfinite().all()  # high - low must not overflow float32
        utils.check(bounded, f"no bounds: {action_space}. Use ppo_continuous.py")
        self.actor = MLP(obs_dim, action_dim, args.bf16)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.qf1 = MLP(obs_dim + action_dim, 1, args.bf16)
        self.qf2 = MLP(obs_dim + action_dim, 1, args.bf16)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)
        self.qf2_target = copy.deepcopy(self.qf2).requires_grad_(False)

    def policy(self, actor, obs):
        """The actor's actions (batch, action_dim), within the bounds."""
        return actor(obs).tanh() * self.action_scale + self.action_bias

    def value(self, critic, obs, actions):
        """The critic's Q-values (batch,)."""
        return critic(torch.cat([obs, actions], dim=1)).squeeze(1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.policy(self.actor, obs.float())


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
def critic_loss(args, agent, batch, noise):
    """The squared errors of the Bellman equation, and a dict of metrics.

    noise is standard normal, (batch_size, action_dim).
    """
    with torch.no_grad():
        # target policy smoothing (section 5.3)
        noise = (args.policy_noise * noise).clamp(-args.noise_clip, args.noise_clip)
        low = agent.action_bias - agent.action_scale
        high = agent.action_bias + agent.action_scale
        next_actions = agent.policy(agent.target_actor, batch.next_obs)
        next_actions = (next_actions + noise * agent.action_scale).clamp(low, high)
        # clipped double Q-learning (section 4.2)
        next_qf1_values = agent.value(agent.qf1_target, batch.next_obs, next_actions)
        next_qf2_values = agent.value(agent.qf2_target, batch.next_obs, next_actions)
        next_values = torch.min(next_qf1_values, next_qf2_values)
        td_target = batch.rewards + args.gamma * next_values * (1 - batch.terminations)
    qf1_values = agent.value(agent.qf1, batch.obs, batch.actions)
    qf2_values = agent.value(agent.qf2, batch.obs, batch.actions)
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


def actor_loss(args, agent, batch):
    """Its gradient is the deterministic policy gradient; and a dict of metrics."""
    actions = agent.policy(agent.actor, batch.obs)
    loss = -agent.value(agent.qf1, batch.obs, actions).mean()
    return loss, {"losses/actor_loss": loss}


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
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    critics = [*agent.qf1.parameters(), *agent.qf2.parameters()]
    critic_adam = utils.Adam(critics, args.learning_rate)
    actor_adam = utils.Adam(agent.actor.parameters(), args.learning_rate)
    shapes = obs_space.shape, action_space.shape, (), obs_space.shape, ()
    replay = ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    adams = {"critic_adam": critic_adam, "actor_adam": actor_adam}
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
    def update_actor(rows):
        loss, metrics = actor_loss(args, agent, replay.unpack(rows))
        actor_adam.minimize(loss)
        update_target(agent.target_actor, agent.actor, args.tau)
        update_target(agent.qf1_target, agent.qf1, args.tau)
        update_target(agent.qf2_target, agent.qf2, args.tau)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    # A GPU would wait for Python before each of its kernels.
    policy = utils.recorded(args, lambda obs: agent.policy(agent.actor, obs))

    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return run.step // every - (run.step - args.num_envs) // every

    scale = agent.action_scale.cpu().numpy()
    updates = int(critic_adam.step)
    metrics = {}
    while run.step < args.total_timesteps:
        # act
        obs = envs.obs.astype(np.float32)
        if run.step < args.learning_starts:
            actions = envs.action_space.sample()
        else:
            with torch.no_grad():
                actions = policy(torch.from_numpy(obs).to(device)).cpu().numpy()
            noise = np.random.standard_normal(actions.shape) * scale
            actions = actions + args.exploration_noise * noise
            actions = actions.clip(action_space.low, action_space.high)

        # learn from the steps so far (a GPU does so while the environments step)
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                rows = replay.sample(args.batch_size)
                noise = torch.randn((args.batch_size, *action_space.shape), device=device)
                metrics.update(update_critic(rows, noise))
                updates += 1
                if updates % args.policy_frequency == 0:
                    metrics.update(update_actor(rows))

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
