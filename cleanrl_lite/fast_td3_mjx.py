"""FastTD3 in environments on the GPU (brax, MuJoCo Playground); a variant of fast_td3.py.

Paper:    Seo et al. 2025 (arXiv:2505.22642), 2025 (arXiv:2512.01996); Playground: Zakka et al. 2025
          (arXiv:2502.08844).
Run:      python cleanrl_lite/fast_td3_mjx.py --env-id playground/CheetahRun --v-min 0 --v-max 100
Differs:  One call of JAX steps all environments. Torch shares its memory: the replay buffer and
          the exploration noise are on the GPU, and no number leaves it but for the log. From the
          paper's code: networks of 256-256, no weight decay, targets' noise 0.2 (there 0.001).
Expected: inverted_pendulum 526.2 (200,000 steps, 64 environments, mean of all 17 logs with ended
          episodes, the random first ones included, 3 seeds, commit a2ee1a3, an earlier update).
Details:  docs/fast_td3_mjx.md
"""

import copy
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
    num_envs: int = 1024  # environments stepped together
    buffer_size: int = 5_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 10_000  # environment steps before training starts
    train_frequency: int = 1024  # environment steps, of all environments, between trainings
    gradient_steps: int = 2  # gradient steps each time it trains
    batch_size: int = 32_768  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    n_step: int = 1  # rewards that are summed before the target bootstraps (1: as c51)
    n_atoms: int = 101  # atoms of the return distribution
    v_min: float = -500.0  # lower end of the return distribution's support
    v_max: float = 500.0  # upper end of the return distribution's support
    tau: float = 0.1  # step size of the target: target += tau * (network - target)
    policy_frequency: int = 2  # gradient steps of the critic between updates of the actor
    policy_noise: float = 0.2  # std of the target policy's noise, in half action ranges
    noise_clip: float = 0.5  # limit of the target policy's noise, in half action ranges
    std_min: float = 0.001  # smallest std of an environment's noise, in half action ranges
    std_max: float = 0.4  # largest std of an environment's noise, in half action ranges
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


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
    """Its methods take raw observations: whoever calls them need not know the statistics."""

    def __init__(self, args, obs_space, action_space):
        super().__init__()
        obs_dim, action_dim = obs_space.shape[0], action_space.shape[0]
        self.obs_stats = RunningMeanStd(obs_dim)
        atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.register_buffer("atoms", atoms, persistent=False)
        # (action_dim,): each dimension has its own bounds
        low = torch.tensor(action_space.low, dtype=torch.float32)
        high = torch.tensor(action_space.high, dtype=torch.float32)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)
        self.actor = MLP(obs_dim, action_dim, args.bf16)
        self.qf1 = MLP(obs_dim + action_dim, args.n_atoms, args.bf16)
        self.qf2 = MLP(obs_dim + action_dim, args.n_atoms, args.bf16)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)
        self.qf2_target = copy.deepcopy(self.qf2).requires_grad_(False)

    def normalize(self, obs):
        """Observations with mean 0 and variance 1 over the training so far."""
        return ((obs - self.obs_stats.mean) / self.obs_stats.std).clamp(-10, 10).float()

    def policy(self, obs):
        """The actor's actions (batch, action_dim), within the bounds."""
        return self.actor(self.normalize(obs)).tanh() * self.action_scale + self.action_bias

    def logits(self, critic, obs, actions):
        """Logits of the critic's return distributions (batch, n_atoms)."""
        return critic(torch.cat([self.normalize(obs), actions], dim=1))

    def value(self, critic, obs, actions):
        """The critic's Q-values (batch,): expected returns."""
        return self.logits(critic, obs, actions).softmax(-1) @ self.atoms

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.policy(obs.float())


# === replay
# Windows of transitions: tensors (batch_size, n_step, ...). terminations are 0 or 1.
# steps are those of the episode: they tell where windows end
Batch = namedtuple("Batch", "obs actions rewards next_obs terminations steps")


class ReplayBuffer:
    """The last `buffer_size` transitions, one row of a matrix each; `shapes` are those of Batch."""

    def __init__(self, buffer_size, num_envs, shapes, device, n_step):
        self.shapes = shapes
        self.widths = [math.prod(shape) for shape in shapes]
        self.num_envs = num_envs
        self.capacity = buffer_size // num_envs * num_envs
        self.rows = torch.zeros((self.capacity, sum(self.widths)), device=device)
        self.position = 0
        self.size = 0
        self.n_step = n_step

    def add(self, *parts):
        """Stores a transition of each environment: tensors (num_envs, *shape)."""
        end = self.position + self.num_envs
        self.rows[self.position : end] = torch.column_stack(parts)
        self.position = end % self.capacity
        self.size = max(self.size, end)

    def sample(self, batch_size):
        """A minibatch: rows (batch_size, n_step, width), and which of them count.

        Windows are drawn with replacement. Their first transition may be any stored one.
        """
        device = self.rows.device
        draws = torch.rand(batch_size, dtype=torch.float64, device=device)
        index = (draws * self.size).long()
        # The trap: behind an environment's newest transition lies its oldest.
        newer = (self.position - 1 - index) % self.capacity // self.num_envs
        steps = torch.arange(self.n_step, device=device)
        places = (index[:, None] + steps * self.num_envs) % self.capacity
        rows = self.rows.index_select(0, places.flatten()).unflatten(0, places.shape)
        return rows, steps <= newer[:, None]

    def unpack(self, rows):
        """The parts of a minibatch."""
        parts = zip(rows.split(self.widths, dim=2), self.shapes, strict=True)
        return Batch(*[part.reshape(*rows.shape[:2], *shape) for part, shape in parts])

    def state_dict(self):
        # By way of numpy, torch.save writes this part only, and needs no memory for a copy.
        rows = torch.from_numpy(self.rows[: self.size].cpu().numpy())
        return {"position": self.position, "rows": rows}

    def load_state_dict(self, state):
        self.position = state["position"]
        self.size = len(state["rows"])
        self.rows[: self.size] = state["rows"]


# === pure functions
def n_step_returns(rewards, steps, stored, gamma):
    """The discounted sum of each window's rewards and its length, (batch,).

    All but gamma are (batch, n_step). `stored` is False behind the newest transition. A window
    ends with its episode: after it, `steps` does not count on from the first one.
    """
    ahead = torch.arange(rewards.shape[1], device=rewards.device)
    in_window = stored & (steps == steps[:, :1] + ahead)
    discounted = torch.where(in_window, rewards * gamma**ahead, 0)
    return discounted.sum(1), in_window.sum(1)


def smaller_distribution(probs1, probs2, atoms):
    """For each row, the distribution with the smaller expected return; all (batch, n_atoms)."""
    first = (probs1 @ atoms <= probs2 @ atoms)[:, None]
    return torch.where(first, probs1, probs2)


def project_distribution(next_probs, rewards, terminations, gamma, atoms):
    """The distribution of rewards + gamma * next return on the atoms (algorithm 1).

    next_probs and the result are (batch, n_atoms). An atom's probability goes to its two
    neighbours on the support, in proportion to their nearness. The trap: with the neighbours
    floor(b) and ceil(b), an atom that falls exactly on the support has weight 0 for both, and
    is lost.
    """
    last = len(atoms) - 1
    next_atoms = rewards[:, None] + gamma * (1 - terminations)[:, None] * atoms
    # in units of the spacing, (batch, n_atoms)
    b = (next_atoms - atoms[0]) * (last / (atoms[last] - atoms[0]))
    b = b.clamp(0, last)
    # NaN cannot be an index; the weights and the loss stay NaN.
    lower = b.nan_to_num().floor().clamp(max=last - 1)
    index = lower.long()
    projected = torch.zeros_like(next_probs)
    projected.scatter_add_(1, index, next_probs * (lower + 1 - b))
    projected.scatter_add_(1, index + 1, next_probs * (b - lower))
    return projected


def critic_loss(args, agent, batch, stored, noise):
    """The cross-entropies with the projected distribution, and a dict of metrics.

    noise is standard normal, (batch_size, action_dim).
    """
    returns, lengths = n_step_returns(batch.rewards, batch.steps, stored, args.gamma)
    index = torch.arange(len(returns), device=returns.device)
    # the true last observation of the window, and whether the episode terminated there
    next_obs = batch.next_obs[index, lengths - 1]
    terminations = batch.terminations[index, lengths - 1]
    discounts = args.gamma ** lengths[:, None]
    with torch.no_grad():
        # target policy smoothing (TD3, section 5.3), of the actor itself: it has no target
        noise = (args.policy_noise * noise).clamp(-args.noise_clip, args.noise_clip)
        low = agent.action_bias - agent.action_scale
        high = agent.action_bias + agent.action_scale
        next_actions = agent.policy(next_obs)
        next_actions = (next_actions + noise * agent.action_scale).clamp(low, high)
        # clipped double Q-learning: of two distributions on the support, the smaller mean's
        projected = []
        for critic in agent.qf1_target, agent.qf2_target:
            probs = agent.logits(critic, next_obs, next_actions).softmax(-1)
            target = probs, returns, terminations, discounts, agent.atoms
            projected.append(project_distribution(*target))
        target_probs = smaller_distribution(*projected, agent.atoms)
    obs, actions = batch.obs[:, 0], batch.actions[:, 0]
    qf1_log_probs = agent.logits(agent.qf1, obs, actions).log_softmax(-1)
    qf2_log_probs = agent.logits(agent.qf2, obs, actions).log_softmax(-1)
    qf1_loss = -(target_probs * qf1_log_probs).sum(-1).mean()
    qf2_loss = -(target_probs * qf2_log_probs).sum(-1).mean()
    loss = qf1_loss + qf2_loss
    return loss, {
        "losses/qf1_loss": qf1_loss,
        "losses/qf2_loss": qf2_loss,
        "losses/qf_loss": loss,
        "losses/qf1_values": (qf1_log_probs.exp() @ agent.atoms).mean(),
        "losses/qf2_values": (qf2_log_probs.exp() @ agent.atoms).mean(),
        # Over 0.1, the support is too narrow: returns beyond it look alike.
        "losses/mass_at_v_min": target_probs[:, 0].mean(),
        "losses/mass_at_v_max": target_probs[:, -1].mean(),
    }


def actor_loss(args, agent, batch):
    """The deterministic policy gradient's, by the smaller value; and a dict of metrics."""
    obs = batch.obs[:, 0]
    actions = agent.policy(obs)
    values = [agent.value(critic, obs, actions) for critic in (agent.qf1, agent.qf2)]
    loss = -torch.min(*values).mean()
    return loss, {"losses/actor_loss": loss}


# === training
@torch.no_grad()
def update_target(target, network, tau):
    """target += tau * (network - target), weight by weight, in place; buffers are copied."""
    for old, new in zip(target.parameters(), network.parameters(), strict=True):
        old.lerp_(new, tau)
    for old, new in zip(target.buffers(), network.buffers(), strict=True):
        old.copy_(new)


def draw_stds(args, device):
    """The size of each environment's exploration noise, for one episode: (num_envs,)."""
    return args.std_min + (args.std_max - args.std_min) * torch.rand(args.num_envs, device=device)


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    utils.check(args.n_atoms > 1, f"--n-atoms must be > 1, got {args.n_atoms}")
    finite = -1e30 < args.v_min < args.v_max < 1e30
    utils.check(finite, "--v-min must be below --v-max, both finite")
    utils.check(args.std_min <= args.std_max, "--std-min must not be above --std-max")
    min_size = max(args.batch_size, max(8, args.n_step) * args.num_envs)
    utils.check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")
    envs = Brax(args)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    critics = [*agent.qf1.parameters(), *agent.qf2.parameters()]
    critic_adam = utils.Adam(critics, args.learning_rate)
    actor_adam = utils.Adam(agent.actor.parameters(), args.learning_rate)
    shapes = obs_space.shape, action_space.shape, (), obs_space.shape, (), ()
    replay = ReplayBuffer(args.buffer_size, args.num_envs, shapes, device, args.n_step)
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
    def update_critic(rows, stored, noise):
        loss, metrics = critic_loss(args, agent, replay.unpack(rows), stored, noise)
        critic_adam.minimize(loss)
        update_target(agent.qf1_target, agent.qf1, args.tau)
        update_target(agent.qf2_target, agent.qf2, args.tau)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    @utils.compiled(args)
    def update_actor(rows):
        loss, metrics = actor_loss(args, agent, replay.unpack(rows))
        actor_adam.minimize(loss)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    # A GPU would wait for Python before each of its kernels.
    policy = utils.recorded(args, agent.policy)

    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return run.step // every - (run.step - args.num_envs) // every

    shape = args.num_envs, *action_space.shape
    stds = draw_stds(args, device)  # of the noise of the episodes under way
    ended = torch.zeros(3, device=device)  # number of episodes, sums of returns and lengths
    updates = int(critic_adam.step)
    metrics = {}
    while run.step < args.total_timesteps:
        # act; actions are within -1 and 1
        obs = envs.obs
        if run.step < args.learning_starts:
            actions = 2 * torch.rand(shape, device=device) - 1
        else:
            with torch.no_grad():
                actions = policy(obs)
            noise = torch.randn(shape, device=device) * agent.action_scale
            actions = (actions + stds[:, None] * noise).clamp(-1, 1)
        agent.obs_stats.update(obs)

        # learn from the steps so far
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                rows, stored = replay.sample(args.batch_size)
                noise = torch.randn((args.batch_size, *action_space.shape), device=device)
                metrics.update(update_critic(rows, stored, noise))
                updates += 1
                if updates % args.policy_frequency == 0:
                    metrics.update(update_actor(rows))

        # step, store
        next_obs, rewards, terminations, dones, returns, lengths = envs.step(actions)
        # terminations only: a truncated episode bootstraps from next_obs
        replay.add(obs, actions, rewards, next_obs, terminations, lengths)
        stds = torch.where(dones, draw_stds(args, device), stds)
        ended += torch.stack([dones, returns * dones, lengths * dones]).sum(1)
        run.step += args.num_envs

        # log, evaluate, save; one mean of the episodes that ended: there may be thousands
        if times_due(100 * args.num_envs) or run.step >= args.total_timesteps:
            count, total_return, total_length = ended.tolist()
            ended.zero_()
            if count:
                envs.returns = [total_return / count]
                writer.add_scalar("charts/episodic_return", envs.returns[0], run.step)
                writer.add_scalar("charts/episodic_length", total_length / count, run.step)
            run.log(writer, metrics)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
