"""Proximal Policy Optimization for images from any environment; a variant of ppo_atari.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); network: Mnih et al. 2015 (Nature 518).
Run:      python cleanrl_lite/ppo_image.py --env-kwargs '{"continuous": false}'
Differs:  Images keep their colours, are resized to --image-size and stacked. Rewards are divided by
          a running standard deviation of the return, not clipped to their signs. Box actions are
          rescaled to [-1, 1] and Gaussian.
Expected: benchmark.environments.envpool_images:CarRacing-v0 659 (last 100 episodes of 200,000
          steps, 1 seed, 13f2014), MiniGrid's Empty-Random-6x6 0.96 (40,000 steps, 3 seeds,
          42d51c7).
Details:  docs/ppo_image.md
"""

from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import cv2  # pip install "cleanrl_lite[atari]"
import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
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
    threads: int = 0  # CPU threads of torch and numpy (0: their choice)
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
    env_id: str = "CarRacing-v3"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    image_size: int = 64  # height and width to which images are resized
    stack_size: int = 4  # latest images that make up an observation
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 2.5e-4  # the optimizer's learning rate
    num_envs: int = 8  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 128  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.1  # epsilon of the clipped surrogate objective
    clip_vloss: bool = True  # clip the value loss likewise
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)


# === environment
class Image(gym.ObservationWrapper):
    """The observation as a uint8 image (channels, size, size); of a Dict, its one image."""

    def __init__(self, env, size):
        super().__init__(env)
        space = env.observation_space
        parts = space.spaces if isinstance(space, Dict) else {None: space}
        names = [
            name
            for name, part in parts.items()
            if part.dtype == np.uint8 and len(part.shape) in (2, 3)
        ]
        utils.check(
            len(names) == 1,
            f"observations must be one uint8 image, or a Dict with one, not {space}. "
            "Vectors: ppo.py, ppo_continuous.py",
        )
        self.name = names[0]
        self.size = size, size
        # a gray image may have no axis of channels
        self.shape = (*parts[self.name].shape, 1)[:3]
        self.channel_axis = 0 if self.shape[0] < self.shape[2] else 2
        channels = self.shape[self.channel_axis]
        self.observation_space = Box(0, 255, (channels, size, size), np.uint8)

    def observation(self, obs):
        image = obs if self.name is None else obs[self.name]
        channels = np.moveaxis(image.reshape(self.shape), self.channel_axis, 0)
        if channels.shape[1:] == self.size:
            return channels.copy()  # an environment may write into it again
        # one by one: OpenCV resizes at most four together
        return np.stack(
            [cv2.resize(channel, self.size, interpolation=cv2.INTER_AREA) for channel in channels]
        )


class RescaleAction(gym.ActionWrapper):
    """Actions from -1 to 1, clipped, instead of those between the environment's bounds."""

    def __init__(self, env):
        super().__init__(env)
        space = env.action_space
        # high - low must not overflow
        bounded = space.high / 2 - space.low / 2 <= np.finfo(space.dtype).max / 2
        utils.check(bounded.all(), f"actions need finite bounds, not {space}")
        self.action_space = Box(-1, 1, space.shape)

    def action(self, action):
        space = self.env.action_space
        rescaled = space.low + (space.high - space.low) * (action.clip(-1, 1) + 1) / 2
        # Rounding may lead beyond the bounds.
        return rescaled.clip(space.low, space.high).astype(space.dtype)


def make_env(args, render_mode=None):
    """Stacks of images, (stack_size, channels, size, size)."""
    env = utils.make(args, render_mode)
    if isinstance(env.action_space, Box) and env.action_space.dtype.kind == "f":
        env = RescaleAction(env)
    return gym.wrappers.FrameStackObservation(Image(env, args.image_size), args.stack_size)


# === agent
def layer_init(layer, gain=2**0.5):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


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
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        discrete = isinstance(action_space, Discrete) and action_space.start == 0
        floats = isinstance(action_space, Box) and action_space.dtype.kind == "f"
        utils.check(
            discrete or (floats and len(action_space.shape) == 1),
            "actions must be Discrete, from 0, or a 1-D float Box, "
            f"not {action_space}. With vectors, not images: ppo_masked.py, ppo_hybrid.py",
        )
        outputs = int(action_space.n) if discrete else action_space.shape[0]
        self.return_stats = RunningMeanStd()  # of discounted returns, to scale the rewards
        frames, channels, size, _ = obs_space.shape
        side = ((size - 4) // 4 - 2) // 2 - 2  # of what the convolutions leave
        conv1 = nn.Conv2d(frames * channels, 32, 8, stride=4)
        conv2 = nn.Conv2d(32, 64, 4, stride=2)
        conv3 = nn.Conv2d(64, 64, 3, stride=1)
        self.network = nn.Sequential(
            layer_init(conv1),
            nn.ReLU(),
            layer_init(conv2),
            nn.ReLU(),
            layer_init(conv3),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(64 * side * side, 512)),
            nn.ReLU(),
        )
        self.critic = layer_init(nn.Linear(512, 1), gain=1.0)
        # small weights: the policy starts out uniform, or with mean 0
        self.actor = layer_init(nn.Linear(512, outputs), gain=0.01)
        self.actor_logstd = None if discrete else nn.Parameter(torch.zeros(outputs))
        self.bf16 = args.bf16
        self.to(memory_format=torch.channels_last)

    def forward(self, obs):
        """The policy's distribution and the value of `obs`.

        obs is uint8, (batch, stack_size, channels, size, size).
        """
        x = (obs.flatten(1, 2) / 255.0).contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.network(x).float()
        outputs = self.actor(hidden)
        if self.actor_logstd is None:
            dist = Categorical(logits=outputs, validate_args=False)
        else:
            std = self.actor_logstd.exp().expand_as(outputs)
            dist = Independent(Normal(outputs, std, validate_args=False), 1, validate_args=False)
        return dist, self.critic(hidden).squeeze(-1)

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
    utils.check(args.image_size >= 36, "--image-size must be at least 36")
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.parameters(), args.learning_rate, args.max_grad_norm, eps=1e-5)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
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
    obs = torch.zeros((*shape, *obs_space.shape), dtype=torch.uint8, device=device)
    dtype = torch.int64 if isinstance(action_space, Discrete) else torch.float32
    actions = torch.zeros((*shape, *action_space.shape), dtype=dtype, device=device)
    logprobs = torch.zeros(shape, device=device)
    values = torch.zeros(shape, device=device)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, bool)
    dones = np.zeros(shape, bool)
    so_far = np.zeros(args.num_envs)  # the discounted returns of the episodes under way
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            adam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        truncated = []
        for t in range(args.num_steps):
            obs[t] = torch.from_numpy(envs.obs)
            with torch.no_grad():
                dist, values[t] = agent(obs[t])
                actions[t] = dist.sample()
                logprobs[t] = dist.log_prob(actions[t])
            results = envs.step(actions[t].cpu().numpy())
            next_obs, rewards[t], terminations[t], truncations, infos = results
            dones[t] = terminations[t] | truncations
            truncated += [(t, n, next_obs[n]) for n in np.flatnonzero(truncations)]
            for info in infos:
                run.step += 1
                if "episode" in info:
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # values and advantages of the whole rollout
        with torch.no_grad():
            _, last_values = agent(torch.from_numpy(envs.obs).to(device))
            next_values = torch.cat([values[1:], last_values[None]])
            for t, n, last_obs in truncated:
                _, next_values[t, n] = agent(torch.from_numpy(last_obs[None]).to(device))
        old_values = values.cpu().numpy()
        next_values = next_values.cpu().numpy()
        discounted = discounted_returns(args, rewards, dones, so_far)
        so_far = args.gamma * ~dones[-1] * discounted[-1]
        agent.return_stats.update(torch.from_numpy(discounted).to(device).flatten())
        scaled = (rewards / agent.return_stats.std.item()).clip(-10, 10)
        advantages = compute_gae(args, scaled, old_values, next_values, terminations, dones)
        returns = advantages + old_values
        b_advantages = torch.from_numpy(advantages).to(device)
        b_returns = torch.from_numpy(returns).to(device)
        rollout = obs, actions, logprobs, values, b_advantages, b_returns
        batch = Batch(*[x.flatten(0, 1) for x in rollout])

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(batch_size).reshape(args.num_minibatches, -1)
            epoch = [update(inds, *batch) for inds in torch.from_numpy(order).to(device)]
            metrics += epoch
            kls = [m["losses/approx_kl"] for m in epoch]
            if args.target_kl and torch.stack(kls).mean() > args.target_kl:
                break

        # log, evaluate, save
        scalars = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        unexplained = (returns - old_values).var() / (returns.var() + 1e-8)
        scalars["losses/explained_variance"] = 1 - unexplained
        scalars["charts/learning_rate"] = adam.learning_rate
        run.log(writer, scalars)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
