"""Proximal Policy Optimization for images from any environment, Discrete or Box actions; a variant of ppo_atari.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); network: Mnih et al. 2015 (Nature 518).
Run:      python cleanrl_lite/ppo_image.py --env-id CarRacing-v3 --env-kwargs '{"continuous": false}'
Differs:  Images keep their colours, are resized to --image-size and stacked. Rewards are divided by a running standard
          deviation of the return, not clipped to their signs. Box actions are rescaled to [-1, 1] and Gaussian.
Expected: benchmark.environments.envpool_images:CarRacing-v0 659 (last 100 episodes of 200,000 steps, one seed, 13f2014),
          benchmark.environments.minigrid_images:MiniGridImages-Empty-Random-6x6-v0 0.96 (40,000 steps, 3 seeds, 42d51c7).
Details:  docs/ppo_image.md
"""

import math
from dataclasses import dataclass
from pathlib import Path

import cv2  # pip install "cleanrl_lite[atari]"
import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode
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
    torch_deterministic: bool = True  # use deterministic algorithms of cuDNN
    cuda: bool = True  # train on a GPU if there is one
    threads: int = 0  # CPU threads of torch and numpy (0: their choice)
    compile: bool = True  # compile the update: a slow start, then faster
    cuda_graph: bool = False  # replay the update as one CUDA graph (needs a GPU)
    track: bool = False  # also log to Weights & Biases
    wandb_project_name: str = "cleanrl_lite"  # Weights & Biases project
    wandb_entity: str | None = None  # Weights & Biases entity (team)
    runs_dir: str = "runs"  # folder of the run directories
    save_every: int = 100_000  # environment steps between checkpoints (0: none)
    resume: str | None = None  # run directory to continue, or auto: the last with these flags
    evaluate: str | None = None  # run directory or checkpoint to evaluate, without training
    eval_episodes: int = 10  # episodes of an evaluation, with the greedy policy
    eval_every: int = 0  # environment steps between evaluations (0: only at the end)
    capture_video: bool = False  # record the first episode of every evaluation
    render: bool = False  # show evaluations in a window

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
    """The observation as a uint8 image (channels, size, size); of a Dict, the one part that is an image."""

    def __init__(self, env, size):
        super().__init__(env)
        space, self.size = env.observation_space, (size, size)
        parts = space.spaces if isinstance(space, Dict) else {None: space}
        names = [name for name, part in parts.items() if part.dtype == np.uint8 and len(part.shape) in (2, 3)]
        kinds = "one uint8 image, or a Dict with one"
        utils.check(len(names) == 1, f"observations must be {kinds}, not {space}. Vectors: ppo.py, ppo_continuous.py")
        self.name, shape = names[0], (*parts[names[0]].shape, 1)[:3]
        self.channels_first, self.fours = shape[0] < shape[2], range(4, min(shape[0], shape[2]), 4)  # see below
        self.observation_space = Box(0, 255, (min(shape[0], shape[2]), size, size), np.uint8)

    def observation(self, obs):
        image = obs if self.name is None else obs[self.name]
        image = image.transpose(1, 2, 0) if self.channels_first else image.reshape(*image.shape[:2], -1)
        if image.shape[:2] != (size := self.size):  # OpenCV resizes at most four channels by area
            image = np.dstack([cv2.resize(x, size, None, 0, 0, cv2.INTER_AREA) for x in np.split(image, self.fours, 2)])
        return image.transpose(2, 0, 1)


def make_env(args, render_mode=None):
    """Stacks of images (stack_size, channels, size, size) as observations; Box actions between -1 and 1."""
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    if isinstance(space := env.action_space, Box) and np.issubdtype(space.dtype, np.floating):
        finite = space.is_bounded() and (space.low < space.high).all()
        utils.check(finite, f"actions {space}: finite bounds and low < high must hold. Rescale them in a wrapper")
        # Rescaling rounds, by up to 1e-6 beyond the bounds.
        clip = lambda action: np.clip(action, space.low, space.high).astype(space.dtype)  # noqa: E731
        env = gym.wrappers.TransformAction(env, clip, space)
        env = gym.wrappers.ClipAction(gym.wrappers.RescaleAction(env, np.float32(-1), np.float32(1)))
    env = gym.wrappers.TransformReward(env, lambda r: float(np.sum(r)))  # some are arrays of shape (1,)
    env = gym.wrappers.FrameStackObservation(Image(env, args.image_size), args.stack_size)
    return gym.wrappers.RecordEpisodeStatistics(env, stats_key="statistics")


# === networks
def layer_init(layer, gain=2**0.5):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class RunningMeanStd(nn.Module):
    """Mean and variance of all samples so far; buffers, so that they are saved and loaded with the agent."""

    def __init__(self, shape=()):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def update(self, samples):
        """Merges in the mean and variance of `samples` (num_samples, *shape) (Chan et al. 1979)."""
        count = self.count + len(samples)
        delta = samples.double().mean(0) - self.mean
        weight = len(samples) / count
        self.var.lerp_(samples.double().var(0, correction=0), weight).add_(delta.square() * weight * (1 - weight))
        self.mean.add_(delta * weight)
        self.count.copy_(count)


class Agent(nn.Module):
    def __init__(self, obs_shape, outputs, discrete, bf16=False):
        super().__init__()
        self.return_stats, (frames, channels, size, _) = RunningMeanStd(), obs_shape
        depth, side = frames * channels, ((size - 4) // 4 - 2) // 2 - 2  # side: of what the convolutions leave
        convolutions = nn.Conv2d(depth, 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2), nn.Conv2d(64, 64, 3, stride=1)
        conv1, conv2, conv3 = (layer_init(layer) for layer in convolutions)
        linear, relu = layer_init(nn.Linear(64 * side * side, 512)), nn.ReLU()
        self.network = nn.Sequential(conv1, relu, conv2, relu, conv3, relu, nn.Flatten(), linear, relu)
        self.critic = layer_init(nn.Linear(512, 1), gain=1.0)
        self.actor = layer_init(nn.Linear(512, outputs), gain=0.01)  # near zero: starts uniform, or with mean 0
        self.actor_logstd = None if discrete else nn.Parameter(torch.zeros(outputs))
        self.bf16 = bf16

    def policy(self, logits):
        if self.actor_logstd is None:
            return Categorical(logits=logits, validate_args=False)
        std = self.actor_logstd.exp().expand_as(logits)
        return Independent(Normal(logits, std, validate_args=False), 1, validate_args=False)

    def forward(self, obs):
        """The policy's distribution and the value of `obs`, uint8 (batch, stack_size, channels, size, size)."""
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
            images = obs.flatten(1, 2) / 255.0
            hidden = self.network(images.contiguous(memory_format=torch.channels_last)).float()
        return self.policy(self.actor(hidden)), self.critic(hidden).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs)[0].mode


# === pure functions
def linear_recurrence(inputs, decays, initial):
    """y[t] = inputs[t] + decays[t] * y[t - 1] for arrays (num_steps, num_envs), with y[-1] = initial (num_envs,)."""
    outputs = np.empty_like(inputs)
    # Python floats are faster than numpy rows for up to about ten environments.
    for n, y in enumerate(initial.tolist()):
        column = []
        for x, decay in zip(inputs[:, n].tolist(), decays[:, n].tolist()):
            y = x + decay * y
            column.append(y)
        outputs[:, n] = column
    return outputs


def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); all arrays are (num_steps, num_envs).

    next_values[t] is the value of the observation that step t truly led to: at the end of an episode the last one of
    that episode, not the first one of the next. A truncated episode would have gone on, so its value counts; a
    terminated one has none. Nothing flows back from one episode into the one before.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    return linear_recurrence(deltas[::-1], gamma * gae_lambda * ~dones[::-1], np.zeros(deltas.shape[1]))[::-1].copy()


def adam_step(params, grads, adam, learning_rate, max_grad_norm, beta1=0.9, beta2=0.999, eps=1e-5):
    """Clips the gradient's norm and takes one step of Adam (Kingma & Ba 2015, algorithm 1), in place.

    Written out, on one flat vector, because this compiles into the update's graph; torch.optim.Adam would not.
    """
    grad = torch.cat([g.flatten() for g in grads])
    grad_norm = grad.norm()
    grad = grad * (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
    adam["step"].add_(1)
    adam["exp_avg"].lerp_(grad, 1 - beta1)
    adam["exp_avg_sq"].lerp_(grad.square(), 1 - beta2)
    denominator = (adam["exp_avg_sq"] / (1 - beta2 ** adam["step"])).sqrt() + eps
    step = learning_rate * adam["exp_avg"] / (1 - beta1 ** adam["step"]) / denominator
    for param, delta in zip(params, step.split([p.numel() for p in params])):
        param.sub_(delta.view_as(param))
    return grad_norm


def main(args: Args):
    # === setup
    check, batch_size = utils.check, args.num_envs * args.num_steps
    device = utils.setup(args)
    minibatch_size, remainder = divmod(batch_size, args.num_minibatches)
    check(remainder == 0, f"--num-envs x --num-steps = {batch_size} must be a multiple of --num-minibatches")
    check(minibatch_size > 1 or not args.norm_adv, "minibatches of one sample need --no-norm-adv")
    check(args.total_timesteps >= batch_size, f"--total-timesteps must be at least one rollout, {batch_size}")

    envs = utils.vector_env([lambda: make_env(args)] * args.num_envs, args.async_envs, AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    discrete = isinstance(action_space, Discrete) and action_space.start == 0
    real_vectors = len(action_space.shape or ()) == 1 and np.issubdtype(action_space.dtype, np.floating)
    kinds = "Discrete from 0, or vectors of real numbers"
    check(discrete or real_vectors, f"actions must be {kinds}, not {action_space}. Several parts: ppo_masked.py")
    check(args.image_size >= 36, f"--image-size must be at least 36 for the convolutions, got {args.image_size}")

    outputs, dtype = (action_space.n, torch.int64) if discrete else (action_space.shape[0], torch.float32)
    agent = Agent(obs_space.shape, int(outputs), discrete, args.bf16).to(device, memory_format=torch.channels_last)
    params = [param for param in agent.parameters() if param.requires_grad]
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())
    learning_rate = torch.tensor(args.learning_rate, device=device)

    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
    if run.result is not None:  # --evaluate
        return run.result
    if args.track:
        import wandb

        names = dict(project=args.wandb_project_name, entity=args.wandb_entity, name=run.dir.name, id=run.dir.name)
        settings = dict(config=vars(args), dir=run.dir.parent, resume="allow", sync_tensorboard=True, save_code=True)
        utils.online_or_offline(wandb.init, **names, **settings)
    writer = run.writer = SummaryWriter(run.dir, flush_secs=10, purge_step=run.global_step + 1)
    writer.add_text("arguments", "\n".join(f"    {name}: {value}" for name, value in vars(args).items()))

    # === update
    # The batch is on the networks' device, in tensors allocated once: a CUDA graph needs fixed addresses.
    b_obs = torch.zeros((batch_size, *obs_space.shape), dtype=torch.uint8, device=device)
    b_actions = torch.zeros((batch_size, *action_space.shape), dtype=dtype, device=device)
    b_logprobs, b_values, b_advantages, b_returns = torch.zeros((4, batch_size), device=device).unbind()

    def update(inds):
        """One minibatch, the samples inds (minibatch_size,) of the batch: PPO's loss (eq. 9) and a step of Adam."""
        dist, value = agent(b_obs[inds])
        logratio = dist.log_prob(b_actions[inds]) - b_logprobs[inds]
        ratio = logratio.exp()
        approx_kl = ((ratio - 1) - logratio).mean()  # http://joschu.net/blog/kl-approx.html

        advantages = b_advantages[inds]
        if args.norm_adv:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7

        value_loss = (value - b_returns[inds]).square()
        if args.clip_vloss:
            clipped = b_values[inds] + (value - b_values[inds]).clamp(-args.clip_coef, args.clip_coef)
            value_loss = torch.max(value_loss, (clipped - b_returns[inds]).square())
        value_loss = 0.5 * value_loss.mean()

        entropy = dist.entropy().mean()
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            grad_norm = adam_step(params, grads, adam, learning_rate, args.max_grad_norm)
        metrics = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, grad_norm=grad_norm)
        metrics |= dict(approx_kl=approx_kl, old_approx_kl=-logratio.mean())
        metrics |= dict(clipfrac=(clipped_ratio != ratio).float().mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    # Views of the batch as (num_steps, num_envs, ...): acting writes values and log-probabilities straight into it.
    rollout_obs, actions = (x.view(*shape, *x.shape[1:]) for x in (b_obs, b_actions))
    rollout_values, logprobs = b_values.view(shape), b_logprobs.view(shape)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations, dones = np.zeros((2, *shape), dtype=bool)
    return_so_far = np.zeros(args.num_envs)  # discounted, of this episode
    if run.episodes_go_on:
        return_so_far = np.array(run.values["return_so_far"])
    obs, global_step = run.obs, run.global_step
    while run.goes_on(global_step, obs, return_so_far=return_so_far.tolist()):
        if args.anneal_lr:
            learning_rate.fill_(args.learning_rate * (1 - global_step / args.total_timesteps))
        # The last rollout may be shorter.
        num_steps = min(args.num_steps, math.ceil((args.total_timesteps - global_step) / args.num_envs))
        size = num_steps * args.num_envs

        # act, step, store
        truncated = []
        for t in range(num_steps):
            rollout_obs[t] = torch.from_numpy(obs)
            with torch.no_grad():
                dist, rollout_values[t] = agent(rollout_obs[t])
                actions[t] = dist.sample()
                logprobs[t] = dist.log_prob(actions[t])
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t].cpu().numpy())
            dones[t] = terminations[t] | truncations
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
            truncated += [(t, n, infos["final_obs"][n].copy()) for n in np.flatnonzero(truncations)]

        # values and advantages of the whole rollout
        with torch.no_grad():
            next_values = torch.cat([rollout_values[1:num_steps], agent(torch.from_numpy(obs).to(device))[1][None]])
            for t, n, final_obs in truncated:  # the value of an episode's last observation, not of the next one's first
                next_values[t, n] = agent(torch.from_numpy(final_obs[None]).to(device))[1]

            # statistics for the scale of the rewards
            under_way = np.concatenate([np.ones((1, args.num_envs)), ~dones[: num_steps - 1]])
            discounted = linear_recurrence(rewards[:num_steps], args.gamma * under_way, return_so_far)
            return_so_far = discounted[-1] * ~dones[num_steps - 1]
            agent.return_stats.update(torch.from_numpy(discounted).to(device).flatten())
            scale = (agent.return_stats.var + 1e-8).sqrt().item()
        values, next_values = rollout_values[:num_steps].cpu().numpy(), next_values.cpu().numpy()
        scaled = (rewards[:num_steps] / scale).clip(-10, 10)
        rollout = scaled, values, next_values, terminations[:num_steps], dones[:num_steps]
        advantages = compute_gae(*rollout, args.gamma, args.gae_lambda)
        returns = advantages + values
        b_advantages[:size] = torch.from_numpy(advantages).flatten()
        b_returns[:size] = torch.from_numpy(returns).flatten()

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            # A short rollout's last minibatch is filled up from the front of the permutation.
            inds = np.resize(np.random.permutation(size), (math.ceil(size / minibatch_size), minibatch_size))
            epoch = [update(minibatch) for minibatch in torch.from_numpy(inds).to(device)]
            metrics += epoch
            if args.target_kl and torch.stack([m["losses/approx_kl"] for m in epoch]).mean() > args.target_kl:
                break

        # log
        losses = {name: torch.stack([m[name] for m in metrics]).mean().item() for name in metrics[0]}
        losses["losses/explained_variance"] = 1 - (returns - values).var() / (returns.var() + 1e-8)
        run.log(losses | {"charts/learning_rate": learning_rate}, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
