"""FastTD3 for Box (continuous) actions and many environments; a variant of td3.py.

Paper:    Seo et al. 2025 (arXiv:2505.22642), 2025 (arXiv:2512.01996); the critic: c51.py's.
Run:      python cleanrl_lite/fast_td3.py --env-id Hopper-v4
Differs:  From the paper's code: sizes for one CPU core (16 environments, batches of 512, networks
          of 256-256), no weight decay, targets' noise 0.2 and tau 0.05 (there 0.001 and 0.1).
          envpool/ before an id steps the environments in C++. Windows of --n-step transitions end
          where episodes do, and at the newest transition; unless that terminated, they bootstrap
          from the true last observation.
Expected: HalfCheetah-v4 5,972 (200,000 steps with the flags of benchmark/experiments/fast_td3.sh,
          3 seeds, commit bba72e6).
Details:  docs/fast_td3.md
"""

import copy
import json
import math
import warnings
from collections import namedtuple
from dataclasses import dataclass, replace
from functools import partial
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
    save_every: int = 100_000  # environment steps between checkpoints (0: only at the end)
    resume: str | None = None  # run directory to continue, or auto: the last with these flags
    evaluate: str | None = None  # run directory or checkpoint to evaluate, without training
    eval_episodes: int = 10  # episodes of an evaluation, with the greedy policy
    eval_every: int = 0  # environment steps between evaluations (0: only at the end)
    capture_video: bool = False  # record the first episode of every evaluation

    # algorithm flags
    env_id: str = "Hopper-v4"  # environment id, module:Env-v0, or envpool/ and one of envpool
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 16  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    env_threads: int = 1  # threads in which envpool steps the environments (0: one for each core)
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 10_000  # environment steps before training starts
    train_frequency: int = 16  # environment steps, of all environments, between trainings
    gradient_steps: int = 4  # gradient steps each time it trains
    batch_size: int = 512  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    n_step: int = 1  # rewards that are summed before the target bootstraps (1: as c51)
    n_atoms: int = 101  # atoms of the return distribution
    v_min: float = -500.0  # lower end of the return distribution's support
    v_max: float = 500.0  # upper end of the return distribution's support
    tau: float = 0.05  # step size of the target: target += tau * (network - target)
    policy_frequency: int = 2  # gradient steps of the critic between updates of the actor
    policy_noise: float = 0.2  # std of the target policy's noise, in half action ranges
    noise_clip: float = 0.5  # limit of the target policy's noise, in half action ranges
    std_min: float = 0.001  # smallest std of an environment's noise, in half action ranges
    std_max: float = 0.4  # largest std of an environment's noise, in half action ranges
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


# === environment
def make_env(args, render_mode=None):
    """gymnasium's environment, also of envpool's ids: for evaluations and videos."""
    args = replace(args, env_id=args.env_id.removeprefix("envpool/"))
    return utils.flatten(utils.make(args, render_mode))


class EnvPool(gym.vector.VectorEnv):
    """envpool's environments, in C++, with the spaces of gymnasium's environment of the same id."""

    def __init__(self, args):
        advice = "pip install 'cleanrl_lite[envpool]' (Python >= 3.11)"
        utils.check(find_spec("envpool"), f"envpool is missing: {advice}")
        import envpool  # takes a second, which --help need not

        # about the bounds of its float64 spaces
        warnings.filterwarnings("ignore", ".*precision lowered")
        env = make_env(args)
        self.num_envs = args.num_envs
        self.single_observation_space = env.observation_space
        self.single_action_space = env.action_space
        self.action_space = gym.vector.utils.batch_space(env.action_space, args.num_envs)
        self.flags = f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}"
        ids = envpool.list_all_envs()
        both = ", ".join(sorted(gym.registry.keys() & ids))
        known = env.spec.id in ids
        utils.check(known, f"{self.flags} is not in envpool. envpool and gymnasium have: {both}")
        # Pendulum at its top speed, phys2d/CartPole's pole, tabular/Blackjack's aces
        differs = env.spec.id.startswith(("Pendulum", "phys2d/", "tabular/"))
        others = "ppo.py, ppo_continuous.py or fast_td3.py"
        utils.check(not differs, f"{env.spec.id} differs in envpool: use {others}")
        # off by default in v4, and then the contact forces are always 0
        humanoid = env.spec.id in ("Humanoid-v4", "HumanoidStandup-v4")
        options = {
            **({"post_constraint": True} if humanoid else {}),
            **json.loads(args.env_kwargs),
            "num_envs": args.num_envs,
            "num_threads": min(args.env_threads, args.num_envs),
            "max_episode_steps": env.spec.max_episode_steps or 2**31 - 1,
        }
        self.make = partial(envpool.make_gymnasium, env.spec.id, **options)

    def reset(self, *, seed, options=None):
        """Makes the environments, for envpool takes seeds only then."""
        try:
            self.pool = self.make(seed=seed)
        except (TypeError, KeyError) as error:
            utils.check(False, f"{self.flags}: {error}")
        self.returns = np.zeros(self.num_envs)
        obs, _ = self.pool.reset()
        same = obs.shape[1:] == self.single_observation_space.shape
        utils.check(same, f"{self.flags}: observations in envpool are not those of gymnasium")
        return obs, {}

    def step(self, actions):
        """envpool's step, and a reset of what ended: by itself it resets a step later."""
        obs, rewards, terminations, truncations, info = self.pool.step(actions)
        self.returns += rewards
        infos = {}
        for n in np.flatnonzero(terminations | truncations):
            episode = {"r": self.returns[n], "l": info["elapsed_step"][n]}
            infos[n] = {"episode": episode, "final_obs": obs[n].copy()}
        if infos:
            ended = np.array([*infos])
            self.returns[ended] = 0
            obs[ended], _ = self.pool.reset(ended)
        return obs, rewards, terminations, truncations, infos

    def close_extras(self, **kwargs):
        self.pool = None  # which ends its threads


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
        floats = isinstance(action_space, Box) and action_space.dtype.kind == "f"
        ok = floats and len(action_space.shape) == 1
        utils.check(ok, f"actions must be a 1-D float Box, not {action_space}. Discrete: dqn.py")
        obs_dim, action_dim = obs_space.shape[0], action_space.shape[0]
        self.obs_stats = RunningMeanStd(obs_dim)
        atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.register_buffer("atoms", atoms, persistent=False)
        # (action_dim,): each dimension has its own bounds
        low = torch.tensor(action_space.low, dtype=torch.float32)
        high = torch.tensor(action_space.high, dtype=torch.float32)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)
        bounded = self.action_scale.isfinite().all()  # high - low must not overflow float32
        utils.check(bounded, f"no bounds: {action_space}. Use ppo_continuous.py")
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
        # The same memory: writing through numpy takes half the time.
        self.in_numpy = None if self.rows.is_cuda else self.rows.numpy()
        self.position = 0
        self.size = 0
        self.n_step = n_step

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


def draw_std(args):
    """The size of an environment's exploration noise, for one episode."""
    return np.random.uniform(args.std_min, args.std_max)


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
    in_envpool = args.env_id.startswith("envpool/")
    utils.check(not (in_envpool and args.async_envs), "--async-envs is not for envpool")
    envs = utils.Envs(args, EnvPool(args)) if in_envpool else utils.make_envs(args, make_env)
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

    scale = agent.action_scale.cpu().numpy()
    steps = np.zeros(args.num_envs)  # of the episodes under way
    stds = np.array([draw_std(args) for _ in range(args.num_envs)])  # of their noise
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
            actions = actions + stds[:, None] * noise
            actions = actions.clip(action_space.low, action_space.high)

        agent.obs_stats.update(torch.from_numpy(obs).to(device))

        # learn from the steps so far (a GPU does so while the environments step)
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                rows, stored = replay.sample(args.batch_size)
                noise = torch.randn((args.batch_size, *action_space.shape), device=device)
                metrics.update(update_critic(rows, stored, noise))
                updates += 1
                if updates % args.policy_frequency == 0:
                    metrics.update(update_actor(rows))

        # step, store
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        # terminations only: a truncated episode bootstraps from next_obs
        replay.add(obs, actions, rewards, next_obs, terminations, steps)
        steps = (steps + 1) * ~(terminations | truncations)
        for n, info in enumerate(infos):
            run.step += 1
            if "episode" in info:
                stds[n] = draw_std(args)
                writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # log, evaluate, save
        if times_due(100) or run.step >= args.total_timesteps:
            run.log(writer, metrics)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
