"""Proximal Policy Optimization for mixed actions; a variant of ppo_continuous.py.

Paper:    Fan et al. 2019 (arXiv:1903.01344), with PPO of Schulman et al. 2017.
Run:      python cleanrl_lite/ppo_hybrid.py --env-id gym_platform:Platform-v0
Differs:  Discrete parts of an action have a Categorical each, Box parts a Gaussian, scaled to their
          bounds. One ratio, of the joint probability; the paper has one for each.
Expected: gym_platform:Platform-v0 0.90 (200,000 steps, mean of the last 100 training episodes,
          3 seeds, f47efd0).
Details:  docs/ppo_hybrid.md
"""

import math
from collections import namedtuple
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from torch import nn
from torch.distributions import Categorical, Independent, Normal
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
    env_id: str = "gym_platform:Platform-v0"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 200_000  # environment steps, summed over the environments
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 8  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 256  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 32  # minibatches per epoch
    update_epochs: int = 10  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    clip_vloss: bool = True  # clip the value loss likewise
    ent_coef: float = 0.0  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)


# === environment
def replace_parts(space, function):
    """A nested `space` with function(part) in the place of each part."""
    if isinstance(space, Dict):
        return {name: replace_parts(part, function) for name, part in space.items()}
    if isinstance(space, Tuple):
        return tuple(replace_parts(part, function) for part in space)
    return function(space)


class MixedActions(gym.ActionWrapper):
    """Actions as one vector: the index of each choice, then all numbers, in [-1, 1].

    Choices are the environment's Discrete parts, numbers those of its Box parts.
    """

    def __init__(self, env):
        super().__init__(env)
        self.last = []  # index of each choice
        self.num_numbers = 0
        replace_parts(env.action_space, self.count)
        low = [0] * len(self.last) + [-1] * self.num_numbers
        high = self.last + [1] * self.num_numbers
        self.action_space = Box(np.float32(low), np.float32(high))

    def count(self, part):
        if isinstance(part, Discrete):
            self.last.append(int(part.n) - 1)
            return
        floats = isinstance(part, Box) and part.dtype.kind == "f"
        # high - low must not overflow
        utils.check(
            floats and (part.high / 2 - part.low / 2 <= np.finfo(part.dtype).max / 2).all(),
            f"actions must be Discrete or Box, with finite bounds, not {self.env.action_space}. "
            "MultiDiscrete: ppo_masked.py; unbounded: ppo_continuous.py",
        )
        self.num_numbers += part.low.size

    def action(self, action):
        indices = iter(action[: len(self.last)])
        numbers = iter(action[len(self.last) :])

        def convert(part):
            if isinstance(part, Discrete):
                return part.start + int(next(indices))
            share = [(1 + next(numbers)) / 2 for _ in range(part.low.size)]
            share = np.reshape(share, part.shape)
            scaled = part.low + (part.high - part.low) * share
            return scaled.clip(part.low, part.high).astype(part.dtype)  # it was rounded

        return replace_parts(self.env.action_space, convert)


def make_env(args, render_mode=None):
    utils.check(
        "gym_platform" not in args.env_id or find_spec("gym_platform"),
        "gym_platform is missing: pip install --no-deps hybrid-platform==0.1.0; pip install numba",
    )
    return utils.flatten(MixedActions(utils.make(args, render_mode)))


# === agent
def mlp(inputs, outputs, last_gain):
    """Two hidden layers of 64 tanh units, with orthogonal weights."""
    network = nn.Sequential(
        nn.Linear(inputs, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, outputs),
    )
    gains = math.sqrt(2), math.sqrt(2), last_gain
    for layer, gain in zip(network[::2], gains, strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return network


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


class Mixed:
    """Independent choices, of `options` each, and Gaussian numbers.

    outputs (batch, sum(options) + len(std)): the choices' logits, then the numbers' means.
    """

    def __init__(self, outputs, options, std):
        *logits, mean = outputs.split([*options, len(std)], dim=-1)
        normal = Normal(mean, std, validate_args=False)
        self.choices = [Categorical(logits=each, validate_args=False) for each in logits]
        self.numbers = Independent(normal, 1, validate_args=False)

    def log_prob(self, actions):
        log_prob = self.numbers.log_prob(actions[..., len(self.choices) :])
        for n, choice in enumerate(self.choices):
            log_prob = log_prob + choice.log_prob(actions[..., n])
        return log_prob

    def entropy(self):
        return sum([choice.entropy() for choice in self.choices], self.numbers.entropy())

    def sample(self):
        indices = [choice.sample()[..., None] for choice in self.choices]
        return torch.cat([*indices, self.numbers.sample()], dim=-1)

    @property
    def mode(self):
        indices = [choice.logits.argmax(-1, keepdim=True) for choice in self.choices]
        return torch.cat([*indices, self.numbers.mean], dim=-1)


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        obs_dim = obs_space.shape[0]
        # a choice is from 0 to its last index, a number from -1 to 1
        choices = action_space.low == 0
        self.options = (action_space.high[choices] + 1).astype(int).tolist()
        num_numbers = int((~choices).sum())
        self.obs_stats = RunningMeanStd(obs_dim)
        self.return_stats = RunningMeanStd()  # of discounted returns, to scale the rewards
        self.critic = mlp(obs_dim, 1, last_gain=1.0)
        # small weights: choices start out uniform, means at 0
        self.actor = mlp(obs_dim, sum(self.options) + num_numbers, last_gain=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(num_numbers))

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim)."""
        obs = (obs.double() - self.obs_stats.mean) / self.obs_stats.std
        obs = obs.clamp(-10, 10).float()
        dist = Mixed(self.actor(obs), self.options, self.actor_logstd.exp())
        return dist, self.critic(obs).squeeze(-1)

    def sampler(self):
        """The same policy as a function from obs to random actions, in numpy: it is faster."""
        actor = utils.in_numpy(self.actor)
        obs_mean = self.obs_stats.mean.cpu().numpy().copy()
        obs_std = self.obs_stats.std.cpu().numpy()
        std = self.actor_logstd.detach().exp().cpu().numpy()
        ends = np.cumsum(self.options)

        def sample(obs):
            obs = ((obs - obs_mean) / obs_std).clip(-10, 10)
            *logits, mean = np.split(actor(obs.astype(np.float32)), ends, axis=-1)
            # the Gumbel-max trick: a sample from softmax(logits)
            noisy = [each + np.random.gumbel(size=each.shape).astype(np.float32) for each in logits]
            indices = [each.argmax(-1, keepdims=True) for each in noisy]
            noise = np.random.standard_normal(mean.shape).astype(np.float32)
            return np.concatenate([*indices, mean + std * noise], axis=-1)

        return sample

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs)
        return dist.mode


# === pure functions
# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions logprobs values advantages returns")


def discounted_returns(args, rewards, dones, so_far):
    """Those of each episode until step t, (num_steps, num_envs); so_far is what step 0 adds to."""
    discounted = np.zeros_like(rewards)
    decays = args.gamma * ~dones
    for t in range(len(rewards)):
        discounted_return = rewards[t] + so_far
        discounted[t] = discounted_return
        so_far = decays[t] * discounted_return
    return discounted


def compute_gae(args, rewards, values, next_values, terminations, dones):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation that
    step t truly led to. It counts where an episode is truncated; a terminated one has no rest.
    """
    deltas = rewards + args.gamma * next_values * ~terminations - values
    decays = args.gamma * args.gae_lambda * ~dones
    advantages = np.zeros_like(deltas)
    advantage = 0.0
    for t in reversed(range(len(deltas))):
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages


def ppo_loss(args, agent, batch):
    """The loss of a minibatch (eq. 9), and a dict of metrics."""
    dist, values = agent(batch.obs)
    logratio = dist.log_prob(batch.actions) - batch.logprobs
    ratio = logratio.exp()
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    advantages = batch.advantages
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7

    value_loss = (values - batch.returns).square()
    if args.clip_vloss:
        change = (values - batch.values).clamp(-args.clip_coef, args.clip_coef)
        value_loss = torch.max(value_loss, (batch.values + change - batch.returns).square())
    value_loss = 0.5 * value_loss.mean()

    entropy = dist.entropy().mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    return loss, {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": (ratio - 1 - logratio).mean(),  # http://joschu.net/blog/kl-approx.html
        "losses/old_approx_kl": -logratio.mean(),
        "losses/clipfrac": (clipped_ratio != ratio).float().mean(),
    }


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    batch_size = args.num_envs * args.num_steps
    fits = batch_size % args.num_minibatches == 0
    utils.check(fits, f"--num-minibatches must divide --num-envs x --num-steps = {batch_size}")
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.parameters(), args.learning_rate, args.max_grad_norm, eps=1e-5)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
    utils.check_policy(agent, envs.obs)
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
    def update(inds, *batch):
        minibatch = Batch(*[x[inds] for x in batch])
        loss, metrics = ppo_loss(args, agent, minibatch)
        metrics["losses/grad_norm"] = adam.minimize(loss)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    shape = args.num_steps, args.num_envs
    obs = np.zeros((*shape, *obs_space.shape), obs_space.dtype)
    next_obs = np.zeros_like(obs)
    actions = np.zeros((*shape, *action_space.shape), np.float32)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, bool)
    dones = np.zeros(shape, bool)
    so_far = np.zeros(args.num_envs)  # the discounted returns of the episodes under way
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            adam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        sample = agent.sampler()
        for t in range(args.num_steps):
            obs[t] = envs.obs
            actions[t] = sample(obs[t])
            # envs clip what lies outside the bounds
            next_obs[t], rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            dones[t] = terminations[t] | truncations
            for info in infos:
                run.step += 1
                if "episode" in info:
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            b_obs = torch.from_numpy(obs).to(device).flatten(0, 1)
            b_actions = torch.from_numpy(actions).to(device).flatten(0, 1)
            dist, b_values = agent(b_obs)
            _, next_values = agent(torch.from_numpy(next_obs).to(device))
            logprobs = dist.log_prob(b_actions)
        values = b_values.reshape(shape).cpu().numpy()
        next_values = next_values.cpu().numpy()
        discounted = discounted_returns(args, rewards, dones, so_far)
        so_far = args.gamma * ~dones[-1] * discounted[-1]
        agent.return_stats.update(torch.from_numpy(discounted).to(device).flatten())
        scaled = (rewards / agent.return_stats.std.item()).clip(-10, 10)
        advantages = compute_gae(args, scaled, values, next_values, terminations, dones)
        returns = advantages + values
        b_advantages = torch.from_numpy(advantages).to(device).flatten()
        b_returns = torch.from_numpy(returns).to(device).flatten()
        batch = Batch(b_obs, b_actions, logprobs, b_values, b_advantages, b_returns)

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(batch_size).reshape(args.num_minibatches, -1)
            epoch = [update(inds, *batch) for inds in torch.from_numpy(order).to(device)]
            metrics += epoch
            kls = [m["losses/approx_kl"] for m in epoch]
            if args.target_kl and torch.stack(kls).mean() > args.target_kl:
                break

        agent.obs_stats.update(b_obs)  # for the next rollout

        # log, evaluate, save
        scalars = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        unexplained = (returns - values).var() / (returns.var() + 1e-8)
        scalars["losses/explained_variance"] = 1 - unexplained
        scalars["charts/learning_rate"] = adam.learning_rate
        run.log(writer, scalars)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
