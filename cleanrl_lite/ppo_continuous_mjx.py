"""Proximal Policy Optimization in thousands of environments on the GPU (brax, MJX); a variant of ppo_continuous.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); the simulator: Freeman et al. 2021 (arXiv:2106.13281).
Run:      python cleanrl_lite/ppo_continuous_mjx.py --env-id hopper
Differs:  One call of JAX steps all environments. Torch shares its memory: rollouts, statistics and advantages are
          tensors on the GPU, and no number leaves it before a rollout's end.
Expected: hopper 1,279 (1,000,000 steps, 64 environments, mean of the last 100 rollouts, 3 seeds, 51ac9bf).
Details:  docs/ppo_continuous_mjx.md
"""

import functools
import json
import math
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.distributions import Independent, Normal
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
    threads: int = 1  # CPU threads of torch and numpy (0: their choice)
    compile: bool = True  # compile the update: a slow start, then faster
    cuda_graph: bool = False  # replay the update as one CUDA graph (needs a GPU)
    track: bool = False  # also log to Weights & Biases
    wandb_project_name: str = "cleanrl_lite"  # Weights & Biases project
    wandb_entity: str | None = None  # Weights & Biases entity (team)
    runs_dir: str = "runs"  # folder of the run directories
    save_every: int = 5_000_000  # environment steps between checkpoints (0: none)
    resume: str | None = None  # run directory to continue, or auto: the last with these flags
    evaluate: str | None = None  # run directory or checkpoint to evaluate, without training
    eval_episodes: int = 10  # episodes of an evaluation, with the greedy policy
    eval_every: int = 0  # environment steps between evaluations (0: only at the end)
    capture_video: bool = False  # record the first episode of every evaluation
    render: bool = False  # show evaluations in a window

    # algorithm flags
    env_id: str = "hopper"  # name of the environment in brax
    backend: str = "mjx"  # mjx (MuJoCo's in JAX), generalized, positional or spring
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 50_000_000  # environment steps, summed over the environments
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 2048  # environments stepped together
    num_steps: int = 32  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 32  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    clip_vloss: bool = True  # clip the value loss likewise
    ent_coef: float = 0.0  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)


# === environment
@functools.cache  # evaluations need not compile again
def simulator(env_id, backend, env_kwargs, max_episode_steps, cuda):
    """JAX, the environment, reset(seeds) -> batch and step(batch, actions) -> batch, results, both compiled."""
    utils.check(find_spec("brax"), "brax is missing: pip install 'cleanrl_lite[mjx]' (Python 3.11 on)")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes three quarters of a GPU
    import jax  # takes seconds, which --help need not
    import jax.numpy as jnp
    from brax import envs

    gpu = cuda and torch.cuda.is_available()
    jax.config.update("jax_platforms", "cuda,cpu" if gpu else "cpu")
    utils.check(jax.default_backend() == "gpu" or not gpu, "JAX finds no GPU: pip install 'jax[cuda12]', or --no-cuda")
    try:
        env = envs.get_environment(env_id, backend=backend, **json.loads(env_kwargs))
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        utils.check(False, f"--env-id {env_id} --env-kwargs {env_kwargs}: {error!r}. brax has {[*envs._envs]}")

    def reset(key):
        key, subkey = jax.random.split(key)
        return env.reset(subkey), jnp.zeros(()), jnp.zeros((), jnp.int32), key

    def step(one, action):
        state, total, length, key = one
        state, length = env.step(state, action), length + 1
        total += state.reward
        terminated = jnp.asarray(state.done) > 0
        done = terminated | (length >= (max_episode_steps or 1000))  # as brax.envs.create has it
        # Each episode begins in a state of its own; brax's wrapper returns to the same one for ever.
        both = reset(key), (state, total, length, key)
        one = jax.tree.map(lambda new, old: jnp.where(done, new, old), *both)
        return one, (one[0].obs, state.reward, terminated, done, state.obs, total, length)

    begin, go_on = jax.jit(jax.vmap(lambda seed: reset(jax.random.PRNGKey(seed)))), jax.jit(jax.vmap(step))
    put = functools.partial(jax.device_put, device=jax.devices()[0])  # without a device, JAX would compile three times
    return jax, env, lambda seeds: put(begin(seeds)), lambda batch, actions: go_on(batch, put(jnp.from_dlpack(actions)))


class Brax(gym.Env):
    """brax's environments as utils.Run and the loop want them."""

    def __init__(self, args, render_mode=None):
        arguments = args.env_id, args.backend, args.env_kwargs, args.max_episode_steps, args.cuda
        self.jax, self.env, self.batch_reset, self.batch_step = simulator(*arguments)
        self.observation_space = self.single_observation_space = Box(-np.inf, np.inf, (self.env.observation_size,))
        self.action_space = self.single_action_space = Box(-1, 1, (self.env.action_size,))
        self.render_mode = render_mode
        self.metadata = dict(render_modes=["rgb_array"], render_fps=round(1 / self.env.dt))

    def reset(self, seed=None, options=None):
        if seed is not None:  # else the next episodes have begun
            self.batch = self.batch_reset(np.atleast_1d(seed))
            self.batch_step(self.batch, np.zeros((np.size(seed), self.env.action_size), np.float32))  # compiles
        return torch.from_dlpack(self.batch[0].obs), {}

    def step(self, actions):
        """Next observations, rewards, terminations, dones; observations before a reset; returns and lengths so far."""
        self.batch, results = self.batch_step(self.batch, actions)
        return [torch.from_dlpack(result) for result in results]

    def state(self):  # as tensors, which a checkpoint can hold
        return [torch.from_dlpack(array) for array in self.jax.tree.leaves(self.batch)]

    def restore(self, state):
        """Goes on from state(), in the middle of the episodes."""
        arrays = self.jax.device_put([tensor.numpy() for tensor in state], self.jax.devices()[0])
        self.batch = self.jax.tree.unflatten(self.jax.tree.structure(self.batch), arrays)
        return self.reset()[0]


class OneBrax(Brax):
    """One environment, for evaluations."""

    def reset(self, seed=None, options=None):
        return super().reset(seed)[0][0].cpu().numpy(), {}

    def step(self, action):
        self.batch, results = self.batch_step(self.batch, action[None])
        _, reward, terminated, done, next_obs, *_ = (np.array(result)[0] for result in results)
        return next_obs, float(reward), bool(terminated), bool(done and not terminated), {}

    def render(self):
        camera = self.env.sys.mj_model.camera(0).name if self.env.sys.mj_model.ncam else None
        state = self.jax.tree.map(lambda leaf: leaf[0], self.batch[0].pipeline_state)
        return self.env.render(state, 480, 480, camera)


def make_env(args, render_mode=None):
    utils.check(render_mode != "human", "brax has no window: use --capture-video")
    return OneBrax(args, render_mode)


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
    """y[t] = inputs[t] + decays[t] * y[t - 1] for tensors (num_steps, num_envs), with y[-1] = initial (num_envs,)."""
    outputs, y = torch.empty_like(inputs), initial
    for t in range(len(inputs)):
        y = outputs[t] = inputs[t] + decays[t] * y
    return outputs


def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); all tensors are (num_steps, num_envs).

    next_values[t] is the value of the observation that step t truly led to: at the end of an episode the last one of
    that episode, not the first one of the next. A truncated episode would have gone on, so its value counts; a
    terminated one has none. Nothing flows back from one episode into the one before.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    return linear_recurrence(deltas.flip(0), gamma * gae_lambda * ~dones.flip(0), torch.zeros_like(deltas[0])).flip(0)


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

    envs = Brax(args)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space

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
    raw_obs, rollout_obs, next_obs = torch.zeros((3, *shape, *obs_space.shape), device=device)
    means, actions = torch.zeros((2, *shape, *action_space.shape), device=device)
    rewards, episodic_returns, episodic_lengths = torch.zeros((3, *shape), device=device)
    terminations, dones = torch.zeros((2, *shape), dtype=torch.bool, device=device)
    return_so_far = run.values.get("return_so_far", torch.zeros(args.num_envs)).to(device)  # discounted
    obs, global_step = envs.restore(run.values["envs"]) if run.values else run.obs, run.global_step
    while run.goes_on(global_step, obs, return_so_far=return_so_far, envs=envs.state()):
        if args.anneal_lr:
            learning_rate.fill_(args.learning_rate * (1 - global_step / args.total_timesteps))
        # The last rollout may be shorter.
        num_steps = min(args.num_steps, math.ceil((args.total_timesteps - global_step) / args.num_envs))
        size = num_steps * args.num_envs

        # act, step, store
        with torch.no_grad():
            noise = torch.randn_like(means[:num_steps]) * agent.actor_logstd.exp()
            for t in range(num_steps):
                raw_obs[t], rollout_obs[t] = obs, agent.normalize(obs)
                means[t] = agent.actor(rollout_obs[t])
                actions[t] = means[t] + noise[t]
                # The policy is a Gaussian: its samples may lie outside the bounds.
                obs, rewards[t], terminations[t], dones[t], *results = envs.step(actions[t].clamp(-1, 1))
                next_obs[t], episodic_returns[t], episodic_lengths[t] = results
            global_step += size
            if (finished := dones[:num_steps]).any():  # one number per rollout: thousands of episodes may end in it
                run.returns = [episodic_returns[:num_steps][finished].mean().item()]
                writer.add_scalar("charts/episodic_return", run.returns[0], global_step)
                writer.add_scalar("charts/episodic_length", episodic_lengths[:num_steps][finished].mean(), global_step)

            # values, log-probabilities and advantages of the whole rollout
            b_obs[:size], b_actions[:size] = rollout_obs[:num_steps].flatten(0, 1), actions[:num_steps].flatten(0, 1)
            behaviour = agent.policy(means[:num_steps].flatten(0, 1))
            b_logprobs[:size] = behaviour.log_prob(b_actions[:size])
            b_values[:size] = agent.critic(b_obs[:size]).squeeze(-1)
            next_values = agent.critic(agent.normalize(next_obs[:num_steps])).squeeze(-1)

            # statistics for the next rollout's observations, and for the scale of the rewards
            agent.obs_stats.update(raw_obs[:num_steps].flatten(0, 1))
            under_way = torch.cat([torch.ones_like(dones[:1]), ~dones[: num_steps - 1]])
            discounted = linear_recurrence(rewards[:num_steps], args.gamma * under_way, return_so_far)
            return_so_far = discounted[-1] * ~dones[num_steps - 1]
            agent.return_stats.update(discounted.flatten())
            scale = (agent.return_stats.var + 1e-8).sqrt().float()
            values = b_values[:size].reshape(num_steps, args.num_envs)
            scaled = (rewards[:num_steps] / scale).clamp(-10, 10)
            rollout = scaled, values, next_values, terminations[:num_steps], dones[:num_steps]
            advantages = compute_gae(*rollout, args.gamma, args.gae_lambda)
            returns = advantages + values
            b_advantages[:size], b_returns[:size] = advantages.flatten(), returns.flatten()

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
