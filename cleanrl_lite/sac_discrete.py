"""Soft Actor-Critic (SAC) for discrete actions and vector observations; a variant of dqn.py.

Paper:    Christodoulou 2019 (arXiv:1910.07207).
Run:      python cleanrl_lite/sac_discrete.py --env-id CartPole-v1
Differs:  The target entropy is a smaller part of the largest one: with the paper's 0.98 the
          temperature grows without end on small action sets. The actor learns from the critics'
          values before their step, which saves two passes. The policy acts in torch. A truncated
          episode bootstraps from its true last observation.
Expected: CartPole-v1 499.4 (100,000 steps, mean of the last 100 training episodes, 10 seeds,
          commit 9223f37), LunarLander-v3 236.8 as sac_discrete_tuned (300,000 steps with the flags
          of its docs page, 3 seeds, commit bd2934a).
Details:  docs/sac_discrete.md
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
    total_timesteps: int = 100_000  # environment steps, summed over the environments
    policy_lr: float = 3e-4  # Adam's learning rate for the actor
    q_lr: float = 3e-4  # Adam's learning rate for the critics and the temperature
    num_envs: int = 4  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 10_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 1_000  # environment steps before training starts
    train_frequency: int = 4  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 128  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    target_network_frequency: int = 100  # environment steps between target network updates
    tau: float = 1.0  # step size of the target: target += tau * (network - target)
    alpha: float = 0.2  # temperature (weight of the entropy) with --no-autotune
    autotune: bool = True  # learn the temperature, so that the entropy nears its target
    target_entropy_scale: float = 0.3  # target entropy, as a fraction of log(actions)


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
        obs_dim, num_actions = obs_space.shape[0], int(action_space.n)
        self.actor = mlp(obs_dim, num_actions)  # logits
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.qf1 = mlp(obs_dim, num_actions)
        self.qf2 = mlp(obs_dim, num_actions)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)
        self.qf2_target = copy.deepcopy(self.qf2).requires_grad_(False)

    def policy(self, obs):
        """The actions' log-probabilities (batch, num_actions)."""
        return self.actor(obs).log_softmax(-1)

    def temperature(self, args):
        return self.log_alpha.detach().exp() if args.autotune else args.alpha

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.policy(obs.float()).argmax(-1)


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
def sac_loss(args, agent, batch):
    """The losses of the critics, the actor and the temperature, and a dict of metrics.

    With few actions, expectations over the policy are sums; nothing is sampled. Tensors are
    (batch_size, num_actions), or (batch_size,) after a sum or gather.
    """
    alpha = agent.temperature(args)
    with torch.no_grad():
        next_log_probs = agent.policy(batch.next_obs)
        next_qf1_values = agent.qf1_target(batch.next_obs)
        next_qf2_values = agent.qf2_target(batch.next_obs)
        soft_values = torch.min(next_qf1_values, next_qf2_values) - alpha * next_log_probs
        next_values = (next_log_probs.exp() * soft_values).sum(1)  # eq. 10
        td_target = batch.rewards + args.gamma * next_values * (1 - batch.terminations)
    taken = batch.actions.long()[:, None]
    qf1_all = agent.qf1(batch.obs)
    qf2_all = agent.qf2(batch.obs)
    qf1_values = qf1_all.gather(1, taken).squeeze(1)
    qf2_values = qf2_all.gather(1, taken).squeeze(1)
    qf1_loss = (qf1_values - td_target).square().mean()
    qf2_loss = (qf2_values - td_target).square().mean()
    qf_loss = qf1_loss + qf2_loss

    log_probs = agent.policy(batch.obs)
    probs = log_probs.exp()
    # The actor's loss has no gradient in the critics: their values from above serve.
    min_q_values = torch.min(qf1_all, qf2_all).detach()
    actor_loss = (probs * (alpha * log_probs - min_q_values)).sum(1).mean()  # eq. 12
    entropy = -(probs * log_probs).sum(1).mean()
    # eq. 11: the temperature grows while the entropy is below its target
    target_entropy = args.target_entropy_scale * math.log(log_probs.shape[1])
    alpha_loss = agent.log_alpha.exp() * (entropy.detach() - target_entropy)
    metrics = {
        "losses/qf1_loss": qf1_loss,
        "losses/qf2_loss": qf2_loss,
        "losses/qf_loss": qf_loss,
        "losses/qf1_values": qf1_values.mean(),
        "losses/qf2_values": qf2_values.mean(),
        "losses/actor_loss": actor_loss,
        "losses/entropy": entropy,
    }
    return qf_loss, actor_loss, alpha_loss, metrics


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
    scale = args.target_entropy_scale
    utils.check(scale <= 1, f"--target-entropy-scale must be at most 1, got {scale}")
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    critic_adam = utils.Adam([*agent.qf1.parameters(), *agent.qf2.parameters()], args.q_lr)
    actor_adam = utils.Adam(agent.actor.parameters(), args.policy_lr)
    alpha_adam = utils.Adam([agent.log_alpha], args.q_lr)
    shapes = obs_space.shape, (), (), obs_space.shape, ()
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
    # A number that changes during the run must be a tensor.
    @utils.compiled(args)
    def update(rows):
        qf_loss, actor_loss, alpha_loss, metrics = sac_loss(args, agent, replay.unpack(rows))
        critic_adam.minimize(qf_loss)
        actor_adam.minimize(actor_loss)
        if args.autotune:
            alpha_adam.minimize(alpha_loss)
            metrics["losses/alpha_loss"] = alpha_loss
            metrics["losses/alpha"] = agent.log_alpha.exp()
        return {tag: metric.detach() for tag, metric in metrics.items()}

    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return run.step // every - (run.step - args.num_envs) // every

    metrics = {}
    while run.step < args.total_timesteps:
        # act
        obs = envs.obs.astype(np.float32)
        if run.step < args.learning_starts:
            actions = np.random.randint(action_space.n, size=args.num_envs)
        else:
            with torch.no_grad():
                log_probs = agent.policy(torch.from_numpy(obs).to(device))
            # the Gumbel-max trick: a sample from the policy
            gumbel = -torch.empty_like(log_probs).exponential_().log()
            actions = (log_probs + gumbel).argmax(-1).cpu().numpy()

        # learn from the steps so far (a GPU does so while the environments step)
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                metrics = update(replay.sample(args.batch_size))
            for _ in range(times_due(args.target_network_frequency)):
                update_target(agent.qf1_target, agent.qf1, args.tau)
                update_target(agent.qf2_target, agent.qf2, args.tau)

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
