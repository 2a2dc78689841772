"""PPO in environments on the GPU (brax, MuJoCo Playground); a variant of ppo_continuous.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); brax: Freeman et al. 2021 (arXiv:2106.13281);
          Playground: Zakka et al. 2025 (arXiv:2502.08844).
Run:      python cleanrl_lite/ppo_continuous_mjx.py --env-id hopper
Differs:  One call of JAX steps all environments. Torch shares its memory: rollouts, statistics and
          advantages are tensors on the GPU, and no number leaves it before a rollout's end.
Expected: hopper 1,279 (1,000,000 steps, 64 environments, mean of the last 100 rollouts, 3 seeds,
          51ac9bf).
Details:  docs/ppo_continuous_mjx.md
"""

import functools
import json
import math
import os
from collections import namedtuple
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
    cuda: bool = True  # train on a GPU if there is one
    threads: int = 1  # CPU threads of torch and numpy (0: their choice)
    compile: bool = True  # compile the update: a slow start, then faster
    cuda_graph: bool = False  # replay the update as one CUDA graph (needs a GPU)
    track: bool = False  # also log to Weights & Biases
    wandb_project_name: str = "cleanrl_lite"  # Weights & Biases project
    wandb_entity: str | None = None  # Weights & Biases entity (team)
    runs_dir: str = "runs"  # folder of the run directories
    save_every: int = 5_000_000  # environment steps between checkpoints (0: only at the end)
    resume: str | None = None  # run directory to continue, or auto: the last with these flags
    evaluate: str | None = None  # run directory or checkpoint to evaluate, without training
    eval_episodes: int = 10  # episodes of an evaluation, with the greedy policy
    eval_every: int = 0  # environment steps between evaluations (0: only at the end)
    capture_video: bool = False  # record the first episode of every evaluation

    # algorithm flags
    env_id: str = "hopper"  # environment of brax, or playground/ and one of MuJoCo Playground
    backend: str = "mjx"  # physics: mjx, or brax's generalized, positional or spring
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
def sensors(obs):
    """Without what only a simulator knows, the "privileged_state" of Playground's robots."""
    return obs["state"] if isinstance(obs, dict) else obs


@functools.cache  # evaluations need not compile again
def simulator(env_id, backend, env_kwargs, max_episode_steps, cuda):
    """JAX, an environment, and the compiled reset(seeds) and step(batch, actions) of many."""
    suite, _, task = env_id.rpartition("/")
    known = suite in ("", "playground")
    utils.check(known, f"--env-id {env_id}: write hopper or playground/CheetahRun")
    utils.check(not suite or backend == "mjx", "--backend is for brax. Playground: --env-kwargs")
    package = "mujoco_playground" if suite else "brax"
    extra = suite or "mjx"
    install = f"pip install 'cleanrl_lite[{extra}]' (Python >= 3.11)"
    utils.check(find_spec(package), f"{package} is missing: {install}")
    # Otherwise JAX takes three quarters of a GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax  # takes seconds, which --help need not
    import jax.numpy as jnp

    gpu = cuda and torch.cuda.is_available()
    jax.config.update("jax_platforms", "cuda,cpu" if gpu else "cpu")
    found = jax.default_backend() == "gpu" or not gpu
    utils.check(found, "JAX finds no GPU: pip install 'jax[cuda12]', or --no-cuda")
    if suite:
        from mujoco_playground import registry

        tasks = registry.ALL_ENVS
    else:
        from brax import envs

        tasks = list(envs._envs)
    try:
        settings = json.loads(env_kwargs)
        if suite:
            config = registry.get_default_config(task)
            if not gpu:  # Warp, Playground's default physics, is very slow on a CPU.
                settings = {"impl": "jax", **settings}
            env = registry.load(task, config, settings)
        else:
            env = envs.get_environment(task, backend=backend, **settings)
    except (KeyError, TypeError, ValueError, NotImplementedError) as error:
        flags = f"--env-id {env_id} --backend {backend} --env-kwargs {env_kwargs}"
        utils.check(False, f"{flags}: {error!r}. {package} has {tasks}")
    default_limit = config.episode_length if suite else 1000  # 1000: as brax.envs.create
    limit = max_episode_steps or default_limit

    def reset(keys):
        """States, returns and lengths so far, and keys of random numbers, of all environments."""
        keys, subkeys = jax.vmap(jax.random.split, out_axes=1)(keys)
        zeros = jnp.zeros(len(keys))
        return jax.vmap(env.reset)(subkeys), zeros, zeros.astype(jnp.int32), keys

    def step(batch, actions):
        state, total, length, keys = batch
        state = jax.vmap(env.step)(state, actions)
        total += state.reward
        length += 1
        terminated = jnp.asarray(state.done) > 0
        done = terminated | (length >= limit)

        def begin(new, old):
            # Some arrays of Warp are shared by all environments: they stay.
            if new.shape[:1] != done.shape:
                return old
            return jnp.where(done.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        # Each episode begins in a state of its own. The packages' wrappers return to the first.
        under_way = state, total, length, keys
        batch = jax.tree.map(begin, reset(keys), under_way)
        obs = sensors(batch[0].obs)
        return batch, (obs, state.reward, terminated, done, sensors(state.obs), total, length)

    reset_all = jax.jit(lambda seeds: reset(jax.vmap(jax.random.PRNGKey)(seeds)))
    step_all = jax.jit(step)
    # Arrays without a device would have JAX compile three times.
    put = functools.partial(jax.device_put, device=jax.devices()[0])

    def reset_batch(seeds):
        return put(reset_all(seeds))

    def step_batch(batch, actions):
        return step_all(batch, put(jnp.from_dlpack(actions)))

    return jax, env, reset_batch, step_batch


class OneBrax(gym.Env):
    """An environment of brax or Playground, for evaluations."""

    def __init__(self, args, render_mode=None):
        self.jax, self.env, self.reset_batch, self.step_batch = simulator(
            args.env_id,
            args.backend,
            args.env_kwargs,
            args.max_episode_steps,
            args.cuda,
        )
        obs_shape = np.atleast_1d(sensors(self.env.observation_size))
        self.observation_space = Box(-np.inf, np.inf, tuple(obs_shape))
        self.action_space = Box(-1, 1, (self.env.action_size,))
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / self.env.dt)}

    def reset(self, seed=None, options=None):
        if seed is not None:  # otherwise the next episode has begun
            self.batch = self.reset_batch(np.array([seed]))
        return np.array(sensors(self.batch[0].obs))[0], {}

    def step(self, action):
        self.batch, results = self.step_batch(self.batch, action[None])
        _, reward, terminated, done, obs, *_ = [np.array(result)[0] for result in results]
        return obs, float(reward), bool(terminated), bool(done and not terminated), {}

    def render(self):
        state = self.jax.tree.map(lambda leaf: leaf[0] if len(leaf) == 1 else leaf, self.batch[0])
        if hasattr(self.env, "sys"):  # brax's
            state = state.pipeline_state
            model = self.env.sys.mj_model
        else:
            model = self.env.mj_model
        camera = model.camera(0).name if model.ncam else None
        return self.env.render(state, 480, 480, camera)


class Brax:
    """--num-envs of them, with the names of utils.Envs. All are tensors, on the device."""

    def __init__(self, args):
        one = OneBrax(args)
        self.single_observation_space = one.observation_space
        self.single_action_space = one.action_space
        self.reset_batch, self.step_batch = one.reset_batch, one.step_batch
        self.num_envs, self.seed = args.num_envs, args.seed
        self.returns = []  # the mean of the last episodes
        self.begin()

    def begin(self, step=0):
        """New episodes, with the seeds of utils.Envs."""
        streams = np.random.SeedSequence([self.seed, step])
        seeds = (streams.generate_state(self.num_envs + 1) >> 1)[:-1]
        if step == 0:
            seeds[0] = self.seed
        self.batch = self.reset_batch(seeds.astype(np.int64))
        self.obs = torch.from_dlpack(sensors(self.batch[0].obs))

    def step(self, actions):
        """next_obs, rewards, terminations, dones; returns and lengths of the episodes so far."""
        self.batch, results = self.step_batch(self.batch, actions.clamp(-1, 1))
        results = [torch.from_dlpack(result) for result in results]
        self.obs, rewards, terminations, dones, next_obs, returns, lengths = results
        return next_obs, rewards, terminations, dones, returns, lengths

    def close(self):
        pass


def make_env(args, render_mode=None):
    return OneBrax(args, render_mode)


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


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        obs_dim, action_dim = obs_space.shape[0], action_space.shape[0]
        self.obs_stats = RunningMeanStd(obs_dim)
        self.return_stats = RunningMeanStd()  # of discounted returns, to scale the rewards
        self.critic = mlp(obs_dim, 1, last_gain=1.0)
        # small weights: the mean starts at 0
        self.actor = mlp(obs_dim, action_dim, last_gain=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(action_dim))

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim)."""
        obs = (obs.double() - self.obs_stats.mean) / self.obs_stats.std
        obs = obs.clamp(-10, 10).float()
        mean = self.actor(obs)
        std = self.actor_logstd.exp().expand_as(mean)
        dist = Independent(Normal(mean, std, validate_args=False), 1, validate_args=False)
        return dist, self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs)
        return dist.mean


# === pure functions
# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions logprobs values advantages returns")


def linear_recurrence(inputs, decays, initial):
    """y[t] = inputs[t] + decays[t] * y[t - 1], with y[-1] = initial.

    inputs and decays are (num_steps, num_envs), initial is (num_envs,).
    """
    outputs = torch.empty_like(inputs)
    y = initial
    for t in range(len(inputs)):
        y = inputs[t] + decays[t] * y
        outputs[t] = y
    return outputs


def compute_gae(args, rewards, values, next_values, terminations, dones):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All tensors are (num_steps, num_envs). next_values[t] is the value of the observation that
    step t truly led to. It counts where an episode is truncated; a terminated one has no rest.
    """
    deltas = rewards + args.gamma * next_values * ~terminations - values
    decays = args.gamma * args.gae_lambda * ~dones
    initial = torch.zeros_like(deltas[0])
    backwards = linear_recurrence(deltas.flip(0), decays.flip(0), initial)
    return backwards.flip(0)


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
    envs = Brax(args)
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
    obs = torch.zeros((*shape, *obs_space.shape), device=device)
    next_obs = torch.zeros_like(obs)
    actions = torch.zeros((*shape, *action_space.shape), device=device)
    rewards = torch.zeros(shape, device=device)
    episodic_returns = torch.zeros_like(rewards)
    episodic_lengths = torch.zeros_like(rewards)
    terminations = torch.zeros(shape, dtype=torch.bool, device=device)
    dones = torch.zeros_like(terminations)
    so_far = torch.zeros_like(rewards[0])  # the discounted returns of the episodes under way
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            adam.learning_rate.fill_(args.learning_rate * remaining)

        with torch.no_grad():
            # act, step, store
            for t in range(args.num_steps):
                obs[t] = envs.obs
                dist, _ = agent(obs[t])
                actions[t] = dist.sample()
                # envs clip what lies outside the bounds
                results = envs.step(actions[t])
                next_obs[t], rewards[t], terminations[t], dones[t] = results[:4]
                episodic_returns[t], episodic_lengths[t] = results[4:]
            run.step += batch_size
            if dones.any():  # one mean a rollout: thousands of episodes may end in it
                envs.returns = [episodic_returns[dones].mean().item()]
                mean_length = episodic_lengths[dones].mean()
                writer.add_scalar("charts/episodic_return", envs.returns[0], run.step)
                writer.add_scalar("charts/episodic_length", mean_length, run.step)

            # values, log-probabilities and advantages of the whole rollout
            b_obs, b_actions = obs.flatten(0, 1), actions.flatten(0, 1)
            dist, b_values = agent(b_obs)
            _, next_values = agent(next_obs)
            logprobs = dist.log_prob(b_actions)
            values = b_values.reshape(shape)
            under_way = torch.cat([torch.ones_like(dones[:1]), ~dones[:-1]])
            discounted = linear_recurrence(rewards, args.gamma * under_way, so_far)
            so_far = discounted[-1] * ~dones[-1]
            agent.return_stats.update(discounted.flatten())
            scaled = (rewards / agent.return_stats.std.float()).clamp(-10, 10)
            advantages = compute_gae(args, scaled, values, next_values, terminations, dones)
            returns = advantages + values
        b_advantages, b_returns = advantages.flatten(), returns.flatten()
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
