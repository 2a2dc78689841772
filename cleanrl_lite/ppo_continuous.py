"""Proximal Policy Optimization for Box (continuous) actions and vector observations; a variant of ppo.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); advantages: Schulman et al. 2016 (arXiv:1506.02438).
Run:      python cleanrl_lite/ppo_continuous.py --env-id Hopper-v4
Differs:  Values bootstrap from the true last observation of a truncated episode. Values and log-probabilities are
          computed in one batch after the rollout. The networks act in numpy; the update is one compiled graph.
          One set of observation statistics, the agent's own, changes between rollouts, not at every step.
Expected: Walker2d-v4 3,621, Hopper-v4 2,339 (10 seeds), HalfCheetah-v4 2,023, InvertedPendulum-v4 1,000: 1,000,000
          steps, mean of the last 100 training episodes, 5 seeds unless said otherwise, commits bfe7c58, 0279400.
Details:  docs/ppo_continuous.md
"""

import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Independent, Normal
from torch.utils.tensorboard import SummaryWriter

from cleanrl_lite import utils


# === arguments
@dataclass
class Args:
    # run flags, the same in every script
    exp_name: str = Path(__file__).stem  # name of the experiment, part of the run directory's name
    seed: int = 1  # seed of the environments, the networks and the sampling
    torch_deterministic: bool = True  # restrict cuDNN to deterministic algorithms
    cuda: bool = True  # train on a GPU if there is one
    threads: int = 1  # CPU threads of torch and numpy (0: their own choice)
    compile: bool = True  # compile the update: faster training after 15 to 25 s the first time, 5 to 12 s later
    cuda_graph: bool = False  # replay the update as one CUDA graph (needs a GPU)
    track: bool = False  # also log to Weights & Biases (WANDB_MODE=offline works)
    wandb_project_name: str = "cleanrl_lite"  # Weights & Biases project
    wandb_entity: str | None = None  # Weights & Biases entity (team)
    runs_dir: str = "runs"  # folder in which the run directory is created
    save_every: int = 100_000  # environment steps between checkpoints (0: only at the start and the end)
    resume: str | None = None  # continue this run directory; auto: the last run with the same flags, or a new one
    evaluate: str | None = None  # evaluate this run directory or checkpoint instead of training
    eval_episodes: int = 10  # episodes per evaluation (deterministic policy)
    eval_every: int = 0  # environment steps between evaluations (0: only at the end)
    capture_video: bool = False  # record the first episode of every evaluation
    render: bool = False  # show evaluations in a window

    # algorithm flags
    env_id: str = "Hopper-v4"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment as JSON, such as '{"continuous": false}'
    max_episode_steps: int | None = None  # time limit of an episode (none: the environment's own)
    total_timesteps: int = 1_000_000  # total environment steps, summed over the environments
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 1  # number of environments stepped together
    async_envs: bool = False  # run each environment in its own process
    num_steps: int = 2048  # steps per environment in each rollout
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
    target_kl: float | None = None  # stop the epochs once an epoch's mean KL divergence exceeds this (0: never)


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    return gym.wrappers.RecordEpisodeStatistics(utils.flatten(env), stats_key="statistics")


# === networks
def mlp(inputs, outputs, last_gain):
    """Two hidden layers of 64 tanh units; orthogonal weights of gain sqrt(2), `last_gain` in the last layer."""
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, gain in zip(layers[::2], (math.sqrt(2), math.sqrt(2), last_gain)):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


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
    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.obs_stats, self.return_stats = RunningMeanStd(obs_dim), RunningMeanStd()
        self.critic = mlp(obs_dim, 1, last_gain=1.0)
        self.actor = mlp(obs_dim, action_dim, last_gain=0.01)  # near zero: starts with mean 0 everywhere
        self.actor_logstd = nn.Parameter(torch.zeros(action_dim))

    def normalize(self, obs):
        """Observations as the networks want them: mean 0 and variance 1 by all that was seen in training."""
        obs = (obs - self.obs_stats.mean) / (self.obs_stats.var + 1e-8).sqrt()
        return obs.clamp(-10, 10).float()

    def policy(self, mean):
        std = self.actor_logstd.exp().expand_as(mean)
        return Independent(Normal(mean, std, validate_args=False), 1, validate_args=False)

    def forward(self, obs):
        """The policy's distribution and the value of normalised `obs` (batch, obs_dim)."""
        return self.policy(self.actor(obs)), self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation; takes raw observations."""
        return self.actor(self.normalize(obs.float()))


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
    check(isinstance(action_space, Box), f"actions must be Box, not {action_space}. Discrete: ppo.py")
    real_vectors = len(action_space.shape) == 1 and np.issubdtype(action_space.dtype, np.floating)
    check(real_vectors, f"{args.env_id} has actions {action_space}, not vectors of real numbers")

    agent = Agent(obs_space.shape[0], action_space.shape[0]).to(device)
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
    b_obs = torch.zeros((batch_size, *obs_space.shape), device=device)
    b_actions = torch.zeros((batch_size, *action_space.shape), device=device)
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
    raw_obs, rollout_obs, next_obs = np.zeros((3, *shape, *obs_space.shape), dtype=np.float32)
    means, actions = np.zeros((2, *shape, *action_space.shape), dtype=np.float32)
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
        actor = utils.numpy_forward(agent.actor, device)
        std = agent.actor_logstd.detach().exp().cpu().numpy()
        noise = np.random.standard_normal(means[:num_steps].shape).astype(np.float32) * std
        obs_mean, obs_std = agent.obs_stats.mean.cpu().numpy(), (agent.obs_stats.var + 1e-8).sqrt().cpu().numpy()
        for t in range(num_steps):
            raw_obs[t] = obs  # float32, as the statistics, V(s') and evaluations see it: MuJoCo's own are float64
            rollout_obs[t] = np.minimum(np.maximum((raw_obs[t] - obs_mean) / obs_std, -10), 10)
            means[t] = actor(rollout_obs[t])
            actions[t] = means[t] + noise[t]
            # The policy is a Gaussian: its samples may lie outside the bounds.
            clipped = np.minimum(np.maximum(actions[t], action_space.low), action_space.high)
            obs, rewards[t], terminations[t], truncations, infos = envs.step(clipped.astype(action_space.dtype))
            next_obs[t], dones[t] = obs, terminations[t] | truncations
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                next_obs[t, n] = infos["final_obs"][n]  # obs[n] is the first observation of the next episode already
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            b_obs[:size] = torch.from_numpy(rollout_obs[:num_steps]).flatten(0, 1)
            b_actions[:size] = torch.from_numpy(actions[:num_steps]).flatten(0, 1)
            behaviour = agent.policy(torch.from_numpy(means[:num_steps]).to(device).flatten(0, 1))
            b_logprobs[:size] = behaviour.log_prob(b_actions[:size])
            b_values[:size] = agent.critic(b_obs[:size]).squeeze(-1)
            next_values = agent.critic(agent.normalize(torch.from_numpy(next_obs[:num_steps]).to(device)))
            next_values = next_values.squeeze(-1).cpu().numpy()

            # statistics for the next rollout's observations, and for the scale of the rewards
            agent.obs_stats.update(torch.from_numpy(raw_obs[:num_steps]).to(device).flatten(0, 1))
            under_way = np.concatenate([np.ones((1, args.num_envs)), ~dones[: num_steps - 1]])
            discounted = linear_recurrence(rewards[:num_steps], args.gamma * under_way, return_so_far)
            return_so_far = discounted[-1] * ~dones[num_steps - 1]
            agent.return_stats.update(torch.from_numpy(discounted).to(device).flatten())
            scale = (agent.return_stats.var + 1e-8).sqrt().item()
        values = b_values[:size].reshape(num_steps, args.num_envs).cpu().numpy()
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
