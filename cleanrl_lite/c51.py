"""Categorical DQN (C51) for discrete actions and vector observations; a variant of dqn.py.

Paper:    Bellemare et al. 2017 (arXiv:1707.06887).
Run:      python cleanrl_lite/c51.py --env-id CartPole-v1
Differs:  A truncated episode bootstraps from its true last observation. The projection loses no probability when an
          atom falls on a fixed one or outside the support. The network acts in numpy; the update is one compiled graph.
Expected: CartPole-v1 467.8 (10 seeds), Acrobot-v1 -88.4 (5): 500,000 steps, last 100 training episodes, 63f1a14.
Details:  docs/c51.md
"""

import copy
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode
from torch import nn
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
    env_id: str = "CartPole-v1"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 500_000  # environment steps, summed over the environments
    learning_rate: float = 2.5e-4  # the optimizer's learning rate
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 10_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 10_000  # environment steps before training starts
    train_frequency: int = 10  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 128  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    n_atoms: int = 101  # atoms of the return distribution
    v_min: float = -100.0  # lower end of the return distribution's support
    v_max: float = 100.0  # upper end of the return distribution's support
    target_network_frequency: int = 500  # environment steps between target network updates
    tau: float = 1.0  # step size of the target: target += tau * (network - target)
    start_e: float = 1.0  # initial epsilon, the probability of a random action
    end_e: float = 0.05  # final epsilon
    exploration_fraction: float = 0.5  # part of the run over which epsilon falls


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    return gym.wrappers.RecordEpisodeStatistics(utils.flatten(env), stats_key="statistics")


# === networks
def mlp(inputs, outputs):
    """Two hidden layers of 120 and 84 ReLU units, initialised as PyTorch does."""
    layers = nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, obs_dim, num_actions, n_atoms, v_min, v_max):
        super().__init__()
        self.register_buffer("atoms", torch.linspace(v_min, v_max, n_atoms), persistent=False)
        self.q_network = mlp(obs_dim, num_actions * n_atoms)
        self.target_network = copy.deepcopy(self.q_network).requires_grad_(False)

    def logits(self, network, obs):
        """Logits of the return distributions (batch, num_actions, n_atoms)."""
        return network(obs).unflatten(1, (-1, len(self.atoms)))

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return (self.logits(self.q_network, obs.float()).softmax(-1) @ self.atoms).argmax(-1)


# === replay
class ReplayBuffer:
    """The last `buffer_size` transitions, one row of a matrix each. `shapes`: those of a transition's parts."""

    def __init__(self, buffer_size, num_envs, shapes, device):
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes]).tolist()
        self.rows = utils.allocate((buffer_size // num_envs * num_envs, ends[-1]), torch.float32, device)
        self.shapes, self.ends, self.num_envs, self.device = shapes, ends, num_envs, device
        # The rows that `add` writes to.
        self.host = self.rows[:num_envs].cpu().numpy() if self.rows.is_cuda else self.rows.numpy()
        ranges = zip(shapes, [0, *ends], ends)
        self.columns = [self.host[:, begin:end] if shape else self.host[:, begin] for shape, begin, end in ranges]
        self.length, self.position, self.filled = len(self.rows), 0, 0  # len() of a tensor takes a microsecond
        self.size = torch.zeros((), dtype=torch.float64, device=self.rows.device)  # `filled`, for a CUDA graph to read

    def add(self, *parts):
        """Stores a transition of each environment: arrays (num_envs, *shape)."""
        start, stop = self.position, self.position + self.num_envs
        place = slice(None) if self.rows.is_cuda else slice(start, stop)
        for column, part in zip(self.columns, parts, strict=True):
            column[place] = part
        if self.rows.is_cuda:
            self.rows[start:stop].copy_(torch.from_numpy(self.host), non_blocking=True)
        self.position = stop % self.length
        if self.filled < self.length:
            self.filled = stop
            self.size.fill_(stop)

    def sample(self, batch_size):
        """A minibatch, drawn with replacement, on the training device, as `unpack` takes it."""
        indices = (torch.rand(batch_size, dtype=torch.float64, device=self.rows.device) * self.size).long()
        return (self.rows.index_select(0, indices).to(self.device),)

    def unpack(self, rows):
        """The parts of a minibatch: tensors (batch_size, *shape)."""
        parts = rows.tensor_split(self.ends[:-1], dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes)]

    def state_dict(self):
        rows = torch.from_numpy(self.rows[: self.filled].cpu().numpy())  # torch.save writes only this part
        return dict(position=self.position, rows=rows)

    def load_state_dict(self, state):
        self.position, self.filled = state["position"], len(state["rows"])
        self.rows[: self.filled] = state["rows"]
        self.size.fill_(self.filled)


# === pure functions
def linear_schedule(start, end, duration, step):
    """Linear from `start` at step 0 to `end` at step `duration`, then constant."""
    return start + (end - start) * min(step / duration, 1.0)


def project_distribution(next_probs, rewards, terminations, gamma, atoms):
    """The distribution of rewards + gamma * next return on the atoms (algorithm 1); probabilities (batch, n_atoms).

    An atom's probability goes to its two neighbours on the support, in proportion to their nearness. The trap: with the
    neighbours floor(b) and ceil(b), an atom that falls exactly on the support has weight 0 for both, and is lost.
    """
    last = len(atoms) - 1
    next_atoms = rewards[:, None] + gamma * (1 - terminations)[:, None] * atoms
    b = (next_atoms - atoms[0]) * (last / (atoms[last] - atoms[0]))  # (batch, n_atoms), in units of the spacing
    b = b.clamp(0, last)
    lower = b.nan_to_num().floor().clamp(max=last - 1)  # NaN cannot be an index; the weights and the loss stay NaN
    projected = torch.zeros_like(next_probs)
    projected.scatter_add_(1, lower.long(), next_probs * (lower + 1 - b))
    projected.scatter_add_(1, lower.long() + 1, next_probs * (b - lower))
    return projected


def adam_step(params, grads, adam, learning_rate, beta1=0.9, beta2=0.999, eps=1e-8):
    """One step of Adam (Kingma & Ba 2015, algorithm 1), in place.

    Written out, on one flat vector, because this compiles into the update's graph; torch.optim.Adam would not.
    """
    grad = torch.cat([g.flatten() for g in grads])
    adam["step"].add_(1)
    adam["exp_avg"].lerp_(grad, 1 - beta1)
    adam["exp_avg_sq"].lerp_(grad.square(), 1 - beta2)
    denominator = (adam["exp_avg_sq"] / (1 - beta2 ** adam["step"])).sqrt() + eps
    step = learning_rate * adam["exp_avg"] / (1 - beta1 ** adam["step"]) / denominator
    for param, delta in zip(params, step.split([p.numel() for p in params])):
        param.sub_(delta.view_as(param))


def main(args: Args):
    # === setup
    check = utils.check
    device = utils.setup(args)
    check(args.n_atoms > 1 and args.v_min < args.v_max, "--n-atoms must be above 1 and --v-min below --v-max")
    check(args.learning_starts < args.total_timesteps, "--learning-starts must be less than --total-timesteps")
    check(args.buffer_size >= max(args.batch_size, 8 * args.num_envs), "--buffer-size must hold at least one batch")

    envs = utils.vector_env([lambda: make_env(args)] * args.num_envs, args.async_envs, AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    others = "Box: sac.py; MultiDiscrete: ppo_masked.py"
    check(isinstance(action_space, Discrete), f"actions must be Discrete, not {action_space}. {others}")
    check(action_space.start == 0, f"{args.env_id} has actions that start at {action_space.start}, not at 0")

    agent = Agent(obs_space.shape[0], int(action_space.n), args.n_atoms, args.v_min, args.v_max).to(device)
    params = [param for param in agent.q_network.parameters() if param.requires_grad]
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())
    shapes = obs_space.shape, (), (), obs_space.shape, ()  # obs, action, reward, next_obs, terminated
    replay = None if args.evaluate else ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    check(args.evaluate or not args.cuda_graph or replay.rows.is_cuda, "--cuda-graph needs a smaller --buffer-size")

    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam, replay=replay)
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
    def update(*batch):
        """A step of Adam on the cross-entropy with the projected distribution on a minibatch of the replay."""
        obs, actions, rewards, next_obs, terminations = replay.unpack(*batch)
        with torch.no_grad():
            next_probs = agent.logits(agent.target_network, next_obs).softmax(-1)
            next_actions = (next_probs @ agent.atoms).argmax(-1)
            next_probs = next_probs[rows, next_actions]
            target_probs = project_distribution(next_probs, rewards, terminations, args.gamma, agent.atoms)
        log_probs = agent.logits(agent.q_network, obs)[rows, actions.long()].log_softmax(-1)
        loss = -(target_probs * log_probs).sum(-1).mean()
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            adam_step(params, grads, adam, args.learning_rate, eps=0.01 / args.batch_size)
        metrics = dict(loss=loss, q_values=(log_probs.exp() @ agent.atoms).mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = run.compile(update)
    learn = run.cuda_graph(lambda: update(*replay.sample(args.batch_size)))  # one graph, sampling included
    target_params = list(agent.target_network.parameters())
    rows = torch.arange(args.batch_size, device=device)

    # === training
    def passed(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return global_step // every - (global_step - args.num_envs) // every

    q_network = utils.numpy_forward(agent.q_network, device, live=True)
    atoms = agent.atoms.cpu().numpy()
    obs, global_step, metrics = run.obs.astype(np.float32), run.global_step, run.values.get("metrics", {})
    while run.goes_on(global_step, obs, metrics=metrics):
        # act
        epsilon_steps = args.exploration_fraction * args.total_timesteps
        epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, global_step)
        explore, random_actions = np.random.random((2, args.num_envs))  # separate draws for each environment
        actions = (random_actions * action_space.n).astype(np.int64)
        if (explore >= epsilon).any():
            logits = q_network(obs).reshape(args.num_envs, action_space.n, args.n_atoms)
            probs = np.exp(logits - logits.max(-1, keepdims=True))
            q_values = (probs @ atoms) / probs.sum(-1)
            actions = np.where(explore < epsilon, actions, q_values.argmax(-1))

        # learn from the steps so far (a GPU does so while the environments step)
        if global_step > args.learning_starts:
            for _ in range(passed(args.train_frequency) * args.gradient_steps):
                metrics = learn()
            if target_updates := passed(args.target_network_frequency):
                with torch.no_grad():  # this many updates in a row equal one with this weight
                    torch._foreach_lerp_(target_params, params, 1 - (1 - args.tau) ** target_updates)

        # step, store
        new_obs, rewards, terminations, _, infos = envs.step(actions)
        global_step += args.num_envs
        new_obs = new_obs.astype(np.float32)  # a copy: the environments write into the same array again
        next_obs = new_obs.copy()
        for n, episodic_return, episodic_length in run.finished_episodes(infos):
            next_obs[n] = infos["final_obs"][n]  # new_obs[n] is the first observation of the next episode already
            writer.add_scalar("charts/episodic_return", episodic_return, global_step)
            writer.add_scalar("charts/episodic_length", episodic_length, global_step)
        replay.add(obs, actions, rewards, next_obs, terminations)  # a truncated episode bootstraps
        obs = new_obs

        # log
        if passed(100) or global_step >= args.total_timesteps:
            run.log(metrics | {"charts/epsilon": epsilon}, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
