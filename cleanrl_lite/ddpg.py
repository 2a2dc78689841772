"""Deep Deterministic Policy Gradient (DDPG) for Box (continuous) actions.

Paper:    Lillicrap et al. 2016 (arXiv:1509.02971).
Run:      python cleanrl_lite/ddpg.py --env-id Hopper-v4
Differs:  Uncorrelated Gaussian noise instead of an Ornstein-Uhlenbeck process; the actor and the
          targets learn at every second step of the critic, as in TD3. A truncated episode
          bootstraps from its true last observation.
Expected: HalfCheetah-v4 9,962, Hopper-v4 1,314, Walker2d-v4 1,580 (3 seeds each;
          1,000,000 steps, mean of the last 100 training episodes, commits f8b1baa, bd758e1,
          3d87523).
Details:  docs/ddpg.md
"""

import copy
from dataclasses import dataclass
from pathlib import Path

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
    torch_deterministic: bool = True  # use deterministic algorithms of cuDNN
    cuda: bool = True  # train on a GPU if there is one
    threads: int = 1  # CPU threads of torch and numpy (0: their choice)
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
    env_id: str = "Hopper-v4"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 25_000  # environment steps before training starts
    train_frequency: int = 1  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 256  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # step size of the target: target += tau * (network - target)
    policy_frequency: int = 2  # gradient steps of the critic between updates of the actor
    exploration_noise: float = 0.1  # std of the exploration noise, in half action ranges
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args, render_mode, max_episode_steps=args.max_episode_steps)
    return utils.flatten(env)


# === networks
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


class Agent(nn.Module):
    def __init__(self, obs_dim, action_space, bf16=False):
        super().__init__()
        # (action_dim,): each dimension has its own bounds
        low = torch.tensor(action_space.low, dtype=torch.float32)
        high = torch.tensor(action_space.high, dtype=torch.float32)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)
        self.actor = MLP(obs_dim, len(low), bf16)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.qf1 = MLP(obs_dim + len(low), 1, bf16)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)

    def policy(self, actor, obs):
        """The actor's actions (batch, action_dim), within the bounds."""
        return actor(obs).tanh() * self.action_scale + self.action_bias

    def value(self, critic, obs, actions):
        """The critic's Q-values (batch,)."""
        return critic(torch.cat([obs, actions], dim=1)).squeeze(1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.policy(self.actor, obs.float())


# === replay
class ReplayBuffer:
    """The last `buffer_size` transitions, one row of a matrix each.

    `shapes` are those of a transition's parts, in the order in which `add` takes them.
    """

    def __init__(self, buffer_size, num_envs, shapes, device):
        self.shapes = shapes
        self.widths = [int(np.prod(shape)) for shape in shapes]
        self.num_envs = num_envs
        self.capacity = buffer_size // num_envs * num_envs
        self.rows = utils.allocate((self.capacity, sum(self.widths)), torch.float32, device)
        # The same memory: writing through numpy takes half the time.
        self.in_numpy = None if self.rows.is_cuda else self.rows.numpy()
        self.position = 0
        self.filled = 0
        # `filled` as a tensor, which a CUDA graph can read
        self.size = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, *parts):
        """Stores a transition of each environment: arrays (num_envs, *shape)."""
        if self.filled == 0:
            found = tuple(part.shape[1:] for part in parts)
            utils.check(found == self.shapes, f"replay.add got {found}, not {self.shapes}")
        rows = np.column_stack(parts)
        end = self.position + self.num_envs
        if self.in_numpy is not None:
            self.in_numpy[self.position : end] = rows
        else:
            self.rows[self.position : end] = torch.from_numpy(rows)
        self.position = end % self.capacity
        if self.filled < self.capacity:
            self.filled = end
            self.size.fill_(end)

    def sample(self, batch_size):
        """A minibatch of rows, drawn with replacement."""
        draws = torch.rand(batch_size, dtype=torch.float64, device=self.rows.device)
        return self.rows.index_select(0, (draws * self.size).long())

    def unpack(self, rows):
        """The parts of a minibatch: tensors (batch_size, *shape)."""
        parts = zip(rows.split(self.widths, dim=1), self.shapes, strict=True)
        return [part.reshape(-1, *shape) for part, shape in parts]

    def state_dict(self):
        # By way of numpy, torch.save writes this part only, and needs no memory for a copy.
        rows = torch.from_numpy(self.rows[: self.filled].cpu().numpy())
        return {"position": self.position, "rows": rows}

    def load_state_dict(self, state):
        self.position = state["position"]
        self.filled = len(state["rows"])
        self.rows[: self.filled] = state["rows"]
        self.size.fill_(self.filled)


# === pure functions
@torch.no_grad()
def update_target(target, network, tau):
    """target += tau * (network - target), weight by weight; buffers are copied."""
    for old, new in zip(target.parameters(), network.parameters(), strict=True):
        old.lerp_(new, tau)
    for old, new in zip(target.buffers(), network.buffers(), strict=True):
        old.copy_(new)


class Adam(nn.Module):
    """Adam (Kingma & Ba 2015, algorithm 1).

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
    def update(self, grads, learning_rate, beta1=0.9, beta2=0.999, eps=1e-8):
        """Takes a step, in place."""
        grad = torch.cat([g.flatten() for g in grads])
        self.step.add_(1)
        self.exp_avg.lerp_(grad, 1 - beta1)
        self.exp_avg_sq.lerp_(grad.square(), 1 - beta2)
        denominator = (self.exp_avg_sq / (1 - beta2**self.step)).sqrt() + eps
        delta = learning_rate * self.exp_avg / (1 - beta1**self.step) / denominator
        parts = delta.split([param.numel() for param in self.params])
        for param, part in zip(self.params, parts, strict=True):
            param.sub_(part.view_as(param))


@utils.with_cleanup
def main(args: Args):
    # === setup
    check = utils.check
    device = utils.setup(args)
    min_size = max(args.batch_size, 8 * args.num_envs)
    check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")

    env_fns = [lambda: make_env(args)] * args.num_envs
    envs = utils.vector_env(env_fns, args.async_envs)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    real = isinstance(action_space, Box) and action_space.dtype.kind == "f"
    vectors = real and len(action_space.shape) == 1
    check(vectors, f"actions must be a 1-D Box of floats, not {action_space}. Discrete: dqn.py")

    agent = Agent(obs_space.shape[0], action_space, args.bf16).to(device)
    bounded = agent.action_scale.isfinite().all()  # high - low must not overflow float32
    check(bounded, f"--env-id {args.env_id} has unbounded actions. Use ppo_continuous.py")
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    critic_adam = Adam(agent.qf1.parameters())
    actor_adam = Adam(agent.actor.parameters())
    # obs, action, reward, next_obs, terminated
    shapes = obs_space.shape, action_space.shape, (), obs_space.shape, ()
    replay = ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    run = utils.Run(
        args,
        __file__,
        make_env,
        envs,
        agent,
        critic_adam=critic_adam,
        actor_adam=actor_adam,
        replay=replay,
    )

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
    # A number that changes during the run must be a tensor. A Python number is a constant of
    # the graph: a new value compiles it again (--cuda-graph ignores it).
    def update_critic(rows):
        """A step of Adam on the squared error of the Bellman equation (eq. 4 and 5)."""
        obs, actions, rewards, next_obs, terminations = replay.unpack(rows)
        with torch.no_grad():
            next_actions = agent.policy(agent.target_actor, next_obs)
            next_values = agent.value(agent.qf1_target, next_obs, next_actions)
            td_target = rewards + args.gamma * next_values * (1 - terminations)
        qf1_values = agent.value(agent.qf1, obs, actions)
        qf1_loss = (qf1_values - td_target).square().mean()
        grads = torch.autograd.grad(qf1_loss, critic_adam.params)
        critic_adam.update(grads, args.learning_rate)
        metrics = {
            "losses/qf1_loss": qf1_loss,
            "losses/qf1_values": qf1_values.mean(),
        }
        return {tag: metric.detach() for tag, metric in metrics.items()}

    def update_actor(rows):
        """A step of Adam along the deterministic policy gradient (eq. 6), then of the targets."""
        obs, *_ = replay.unpack(rows)
        actor_loss = -agent.value(agent.qf1, obs, agent.policy(agent.actor, obs)).mean()
        grads = torch.autograd.grad(actor_loss, actor_adam.params)
        actor_adam.update(grads, args.learning_rate)
        update_target(agent.target_actor, agent.actor, args.tau)
        update_target(agent.qf1_target, agent.qf1, args.tau)
        return {"losses/actor_loss": actor_loss.detach()}

    # Two graphs compile faster than one.
    update_critic = run.compile(update_critic)
    update_actor = run.compile(update_actor)

    def learn(train_actor):
        rows = replay.sample(args.batch_size)
        metrics = update_critic(rows)
        if train_actor:
            metrics.update(update_actor(rows))
        return metrics

    # One CUDA graph each, sampling included.
    learn_critic = run.cuda_graph(lambda: learn(train_actor=False))
    learn_both = run.cuda_graph(lambda: learn(train_actor=True))
    # Acting as a graph: otherwise a GPU waits for Python before each of its kernels.
    act = run.cuda_graph(lambda obs: {"actions": agent.policy(agent.actor, obs)})

    # === training
    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return global_step // every - (global_step - args.num_envs) // every

    scale = agent.action_scale.cpu().numpy()
    obs = run.obs.astype(np.float32)
    global_step = run.global_step
    updates = int(critic_adam.step)
    metrics = run.values.get("metrics", {})  # of the last update
    while run.goes_on(global_step, obs, metrics=metrics):
        # act
        if global_step < args.learning_starts:
            actions = envs.action_space.sample()
        else:
            with torch.no_grad():
                actions = act(torch.from_numpy(obs).to(device))["actions"]
            noise = np.random.standard_normal(actions.shape) * scale
            actions = actions.cpu().numpy() + args.exploration_noise * noise
            actions = actions.clip(action_space.low, action_space.high)
            actions = actions.astype(action_space.dtype)

        # learn from the steps so far (a GPU does so while the environments step)
        if global_step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                updates += 1
                train_actor = updates % args.policy_frequency == 0
                metrics.update(learn_both() if train_actor else learn_critic())

        # step, store
        new_obs, rewards, terminations, _, infos = envs.step(actions)
        global_step += args.num_envs
        new_obs = new_obs.astype(np.float32)
        next_obs = new_obs.copy()
        for n, episodic_return, episodic_length in run.finished_episodes(infos):
            # new_obs[n] is already the first observation of the next episode
            next_obs[n] = infos["final_obs"][n]
            writer.add_scalar("charts/episodic_return", episodic_return, global_step)
            writer.add_scalar("charts/episodic_length", episodic_length, global_step)
            info = infos["final_info"][n]
            if "is_success" in info:
                success = info["is_success"]
                writer.add_scalar("charts/success_rate", success, global_step)
        # terminations only: a truncated episode bootstraps from next_obs
        replay.add(obs, actions, rewards, next_obs, terminations)
        obs = new_obs

        # log
        if times_due(100) or global_step >= args.total_timesteps:
            run.log(metrics, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
