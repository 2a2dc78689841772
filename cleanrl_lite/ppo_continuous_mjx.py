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


class Brax(gym.Env):
    """Many environments of brax or Playground. A part of the checkpoint, with their state."""

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
        self.single_observation_space = self.observation_space
        self.single_action_space = self.action_space
        self.render_mode = render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / self.env.dt)}

    def observations(self):
        return torch.from_dlpack(sensors(self.batch[0].obs))

    def reset(self, seed=None, options=None):
        if seed is not None:  # otherwise the next episodes have begun
            self.batch = self.reset_batch(np.atleast_1d(seed))
            no_actions = np.zeros((np.size(seed), self.env.action_size), np.float32)
            self.step_batch(self.batch, no_actions)  # compiles
            # discounted, of the episodes under way; kept by the training loop
            self.return_so_far = torch.zeros_like(torch.from_dlpack(self.batch[1]))
        return self.observations(), {}

    def step(self, actions):
        """Observations to act on next, rewards, terminations, dones; then, for who wants to know
        how episodes ended, observations before a reset, returns and lengths so far.
        """
        self.batch, results = self.step_batch(self.batch, actions)
        return [torch.from_dlpack(result) for result in results]

    def state_dict(self):
        arrays = self.jax.tree.leaves(self.batch)
        tensors = [torch.from_dlpack(array) for array in arrays]
        return {"batch": tensors, "return_so_far": self.return_so_far}

    def load_state_dict(self, state):
        """Goes on in the middle of the episodes."""
        arrays = [tensor.numpy() for tensor in state["batch"]]
        arrays = self.jax.device_put(arrays, self.jax.devices()[0])
        structure = self.jax.tree.structure(self.batch)
        self.batch = self.jax.tree.unflatten(structure, arrays)
        self.return_so_far.copy_(state["return_so_far"])


class OneBrax(Brax):
    """One environment, for evaluations."""

    def reset(self, seed=None, options=None):
        obs, _ = super().reset(seed)
        return obs[0].cpu().numpy(), {}

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


def make_env(args, render_mode=None):
    utils.check(render_mode != "human", "--render: brax has no window. Use --capture-video")
    return OneBrax(args, render_mode)


# === networks
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
    """Mean and variance of all samples so far, saved with the agent.

    Not for use inside the compiled update: on a CPU,
    torch 2.13 loses changes of 0-d float64 tensors.
    """

    def __init__(self, shape=()):
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

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
    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.obs_stats = RunningMeanStd(obs_dim)
        self.return_stats = RunningMeanStd()
        self.critic = mlp(obs_dim, 1, last_gain=1.0)
        # small weights: the mean starts at 0
        self.actor = mlp(obs_dim, action_dim, last_gain=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(action_dim))

    def normalize(self, obs):
        """Observations with mean 0 and variance 1 over the training so far."""
        obs = (obs - self.obs_stats.mean) / (self.obs_stats.var + 1e-8).sqrt()
        return obs.clamp(-10, 10).float()

    def forward(self, obs):
        """The policy's distribution and the value of normalised `obs` (batch, obs_dim)."""
        mean = self.actor(obs)
        std = self.actor_logstd.exp().expand_as(mean)
        dist = Independent(Normal(mean, std, validate_args=False), 1, validate_args=False)
        return dist, self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation; takes raw observations."""
        dist, _ = self(self.normalize(obs))
        return dist.mean


# === pure functions
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


def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All tensors are (num_steps, num_envs). next_values[t] is the value of the observation
    that step t truly led to: at an episode's end its last one, not the first one of the
    next. A truncated episode would have gone on, so its value counts; a terminated one
    has none. Nothing flows back from one episode into the one before.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    decays = gamma * gae_lambda * ~dones
    initial = torch.zeros_like(deltas[0])
    backwards = linear_recurrence(deltas.flip(0), decays.flip(0), initial)
    return backwards.flip(0)


class Adam(nn.Module):
    """Adam (Kingma & Ba 2015, algorithm 1) with a limit on the gradient's norm.

    Written out, on one flat vector, because this compiles into the update's graph;
    torch.optim.Adam would not.
    """

    def __init__(self, params):
        super().__init__()
        self.params = [param for param in params if param.requires_grad]
        flat = torch.cat([param.detach().flatten() for param in self.params])
        self.register_buffer("step", flat.new_zeros(()))
        self.register_buffer("exp_avg", torch.zeros_like(flat))
        self.register_buffer("exp_avg_sq", torch.zeros_like(flat))

    @torch.no_grad()
    def update(self, grads, learning_rate, max_grad_norm, beta1=0.9, beta2=0.999, eps=1e-5):
        """Takes a step, in place; returns the gradient's norm before it is clipped."""
        grad = torch.cat([g.flatten() for g in grads])
        grad_norm = grad.norm()
        grad = grad * (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        self.step.add_(1)
        self.exp_avg.lerp_(grad, 1 - beta1)
        self.exp_avg_sq.lerp_(grad.square(), 1 - beta2)
        denominator = (self.exp_avg_sq / (1 - beta2**self.step)).sqrt() + eps
        delta = learning_rate * self.exp_avg / (1 - beta1**self.step) / denominator
        parts = delta.split([param.numel() for param in self.params])
        for param, part in zip(self.params, parts, strict=True):
            param.sub_(part.view_as(param))
        return grad_norm


@utils.with_cleanup
def main(args: Args):
    # === setup
    check = utils.check
    device = utils.setup(args)
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches
    divides = batch_size == minibatch_size * args.num_minibatches
    steps = f"--num-envs x --num-steps = {batch_size}"
    check(divides, f"{steps} must be a multiple of --num-minibatches {args.num_minibatches}")
    several = minibatch_size > 1 or not args.norm_adv
    check(several, "minibatches of one sample need --no-norm-adv")

    envs = Brax(args)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space

    agent = Agent(obs_space.shape[0], action_space.shape[0]).to(device)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    adam = Adam(agent.parameters())
    learning_rate = torch.tensor(args.learning_rate, device=device)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam, simulation=envs)

    # === logging
    if args.track:
        import wandb

        wandb.init(
            project=args.wandb_project_name,
            entity=args.wandb_entity,
            name=run.dir.name,
            id=run.dir.name,
            config=vars(args),
            dir=run.dir.parent,
            resume="allow",
            sync_tensorboard=True,
            settings={"finish_timeout": 300},
        )
    # A resumed run logs the steps after its checkpoint again.
    writer = SummaryWriter(run.dir, flush_secs=10, purge_step=run.global_step + 1)
    writer.add_text("arguments", str(args))
    run.writer = writer

    # === update
    # The batch, allocated once: a CUDA graph needs fixed addresses.
    b_obs = torch.zeros((batch_size, *obs_space.shape), device=device)
    b_actions = torch.zeros((batch_size, *action_space.shape), device=device)
    b_logprobs = torch.zeros(batch_size, device=device)
    b_values = torch.zeros_like(b_logprobs)
    b_advantages = torch.zeros_like(b_logprobs)
    b_returns = torch.zeros_like(b_logprobs)

    # A number that changes during the run must be a tensor, as learning_rate is. A Python
    # number is a constant of the graph: a new value compiles it again (--cuda-graph ignores it).
    def update(inds):
        """PPO's loss (eq. 9) and a step of Adam on the samples inds of the batch."""
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
            change = (value - b_values[inds]).clamp(-args.clip_coef, args.clip_coef)
            clipped_value = b_values[inds] + change
            value_loss = torch.max(value_loss, (clipped_value - b_returns[inds]).square())
        value_loss = 0.5 * value_loss.mean()

        entropy = dist.entropy().mean()
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
        grads = torch.autograd.grad(loss, adam.params)
        grad_norm = adam.update(grads, learning_rate, args.max_grad_norm)
        metrics = {
            "losses/policy_loss": policy_loss,
            "losses/value_loss": value_loss,
            "losses/entropy": entropy,
            "losses/grad_norm": grad_norm,
            "losses/approx_kl": approx_kl,
            "losses/old_approx_kl": -logratio.mean(),
            "losses/clipfrac": (clipped_ratio != ratio).float().mean(),
        }
        return {tag: metric.detach() for tag, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    rollout_obs = torch.zeros((*shape, *obs_space.shape), device=device)
    next_obs = torch.zeros_like(rollout_obs)
    actions = torch.zeros((*shape, *action_space.shape), device=device)
    rewards = torch.zeros(shape, device=device)
    episodic_returns = torch.zeros_like(rewards)
    episodic_lengths = torch.zeros_like(rewards)
    terminations = torch.zeros(shape, dtype=torch.bool, device=device)
    dones = torch.zeros_like(terminations)
    obs = envs.observations()
    global_step = run.global_step
    while run.goes_on(global_step, obs):
        if args.anneal_lr:
            remaining = 1 - global_step / args.total_timesteps
            learning_rate.fill_(args.learning_rate * remaining)

        with torch.no_grad():
            # act, step, store
            std = agent.actor_logstd.exp()
            noise = torch.randn_like(actions)
            for t in range(args.num_steps):
                rollout_obs[t] = obs
                actions[t] = agent.actor(agent.normalize(obs)) + std * noise[t]
                # The policy is a Gaussian: its samples may lie outside the bounds.
                results = envs.step(actions[t].clamp(-1, 1))
                obs, rewards[t], terminations[t], dones[t] = results[:4]
                next_obs[t], episodic_returns[t], episodic_lengths[t] = results[4:]
            global_step += batch_size
            if dones.any():  # one mean a rollout: thousands of episodes may end in it
                run.returns = [episodic_returns[dones].mean().item()]
                mean_length = episodic_lengths[dones].mean()
                writer.add_scalar("charts/episodic_return", run.returns[0], global_step)
                writer.add_scalar("charts/episodic_length", mean_length, global_step)

            # values, log-probabilities and advantages of the whole rollout
            raw_obs = rollout_obs.flatten(0, 1)
            b_obs[:] = agent.normalize(raw_obs)
            b_actions[:] = actions.flatten(0, 1)
            dist, b_values[:] = agent(b_obs)
            b_logprobs[:] = dist.log_prob(b_actions)
            _, next_values = agent(agent.normalize(next_obs))
            # The policy that learns must be the one that acted.
            utils.check_actions(b_actions, dist.mean + dist.stddev * noise.flatten(0, 1))

            # statistics for the next rollout's observations and the scale of rewards
            agent.obs_stats.update(raw_obs)
            under_way = torch.cat([torch.ones_like(dones[:1]), ~dones[:-1]])
            discounted = linear_recurrence(rewards, args.gamma * under_way, envs.return_so_far)
            envs.return_so_far = discounted[-1] * ~dones[-1]
            agent.return_stats.update(discounted.flatten())
            scale = (agent.return_stats.var + 1e-8).sqrt().float()
            values = b_values.reshape(shape)
            scaled = (rewards / scale).clamp(-10, 10)
            advantages = compute_gae(
                scaled, values, next_values, terminations, dones, args.gamma, args.gae_lambda
            )
            returns = advantages + values
            b_advantages[:] = advantages.flatten()
            b_returns[:] = returns.flatten()

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(batch_size).reshape(-1, minibatch_size)
            epoch = [update(inds) for inds in torch.from_numpy(order).to(device)]
            metrics += epoch
            kls = [m["losses/approx_kl"] for m in epoch]
            if args.target_kl and torch.stack(kls).mean() > args.target_kl:
                break

        # log
        losses = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        unexplained = (returns - values).var() / (returns.var() + 1e-8)
        losses["losses/explained_variance"] = 1 - unexplained
        losses["charts/learning_rate"] = learning_rate
        run.log(losses, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
