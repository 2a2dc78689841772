"""Twin Delayed DDPG (TD3) for Box (continuous) actions and vector observations; a variant of ddpg.py.

Paper:    Fujimoto et al. 2018 (arXiv:1802.09477).
Run:      python cleanrl_lite/td3.py --env-id Hopper-v4
Differs:  Noise is relative to half the action's range in each dimension. A truncated episode bootstraps from
          its true last observation. The actor acts in numpy; the updates are compiled graphs.
Expected: HalfCheetah-v4 9,965, Walker2d-v4 3,565, Hopper-v4 2,517 (1,000,000 steps, mean of the last 100 training
          episodes, one seed each, commits 57548cc, f8b1baa).
Details:  docs/td3.md
"""

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from torch import nn
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
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 25_000  # environment steps before training starts
    train_frequency: int = 1  # train every this many environment steps, summed over the environments
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 256  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # step size of the target updates: target += tau * (network - target)
    policy_frequency: int = 2  # gradient steps of the critic between updates of the actor
    policy_noise: float = 0.2  # std of the target policy's noise, relative to half the action range
    noise_clip: float = 0.5  # limit of the target policy's noise, relative to half the action range
    exploration_noise: float = 0.1  # std of the exploration noise, relative to half the action range
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    return gym.wrappers.RecordEpisodeStatistics(utils.flatten(env), stats_key="statistics")


# === networks
def mlp(inputs, outputs):
    """Two hidden layers of 256 ReLU units, initialised as PyTorch does."""
    layers = nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, obs_dim, action_space, bf16=False):
        super().__init__()
        bounds = action_space.low, action_space.high  # (action_dim,), each dimension has its own
        low, high = (torch.tensor(bound, dtype=torch.float32) for bound in bounds)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)
        self.bf16 = bf16
        self.actor = mlp(obs_dim, len(low))
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.qf1 = mlp(obs_dim + len(low), 1)
        self.qf2 = mlp(obs_dim + len(low), 1)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)
        self.qf2_target = copy.deepcopy(self.qf2).requires_grad_(False)

    def forward(self, network, inputs):
        """A network's outputs. bf16 is for the product between the hidden layers, which takes most of the time."""
        first, relu, middle, _, last = network
        hidden = relu(first(inputs))
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = middle(hidden)
        return last(relu(hidden.float()))

    def policy(self, actor, obs):
        """The actor's actions (batch, action_dim), within the bounds."""
        return self(actor, obs).tanh() * self.action_scale + self.action_bias

    def value(self, critic, obs, actions):
        """The critic's Q-values (batch,)."""
        return self(critic, torch.cat([obs, actions], dim=1)).squeeze(1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.policy(self.actor, obs.float())


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
def adam_state(params):
    """Adam's initial state for `params`."""
    zeros = torch.cat([torch.zeros_like(param).flatten() for param in params])
    return dict(step=zeros.new_zeros(()), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())


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
    check(args.learning_starts < args.total_timesteps, "--learning-starts must be less than --total-timesteps")
    check(args.buffer_size >= max(args.batch_size, 8 * args.num_envs), "--buffer-size must hold at least one batch")

    envs = utils.vector_env([lambda: make_env(args)] * args.num_envs, args.async_envs, AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    check(isinstance(action_space, Box), f"actions must be Box, not {action_space}. Discrete: dqn.py")
    real_vectors = len(action_space.shape) == 1 and np.issubdtype(action_space.dtype, np.floating)
    check(real_vectors, f"{args.env_id} has actions {action_space}, not vectors of real numbers")

    agent = Agent(obs_space.shape[0], action_space, args.bf16).to(device)
    bounded = agent.action_scale.isfinite().all()  # high - low must not overflow float32
    check(bounded, f"{args.env_id} has unbounded actions. Use ppo_continuous.py")
    critic_params, actor_params = [*agent.qf1.parameters(), *agent.qf2.parameters()], list(agent.actor.parameters())
    adams = dict(critic=adam_state(critic_params), actor=adam_state(actor_params))
    shapes = obs_space.shape, action_space.shape, (), obs_space.shape, ()  # obs, action, reward, next_obs, terminated
    replay = None if args.evaluate else ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    check(args.evaluate or not args.cuda_graph or replay.rows.is_cuda, "--cuda-graph needs a smaller --buffer-size")

    run = utils.Run(args, __file__, make_env, envs, agent, adams=adams, replay=replay)
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
    def update_critic(noise, *batch):
        """A step of Adam on the squared errors of the Bellman equation on a minibatch of the replay; noise is
        standard normal (batch_size, action_dim)."""
        obs, actions, rewards, next_obs, terminations = replay.unpack(*batch)
        with torch.no_grad():
            noise = (args.policy_noise * noise).clamp(-args.noise_clip, args.noise_clip) * agent.action_scale
            next_actions = agent.policy(agent.target_actor, next_obs) + noise  # target policy smoothing (section 5.3)
            next_actions = next_actions.clamp(low, high)
            next_qf1_values = agent.value(agent.qf1_target, next_obs, next_actions)
            next_qf2_values = agent.value(agent.qf2_target, next_obs, next_actions)
            next_values = torch.min(next_qf1_values, next_qf2_values)  # clipped double Q-learning (section 4.2)
            td_target = rewards + args.gamma * next_values * (1 - terminations)
        qf1_values = agent.value(agent.qf1, obs, actions)
        qf2_values = agent.value(agent.qf2, obs, actions)
        qf1_loss = (qf1_values - td_target).square().mean()
        qf2_loss = (qf2_values - td_target).square().mean()
        qf_loss = qf1_loss + qf2_loss
        grads = torch.autograd.grad(qf_loss, critic_params)
        with torch.no_grad():
            adam_step(critic_params, grads, adams["critic"], args.learning_rate)
        metrics = dict(qf1_loss=qf1_loss, qf2_loss=qf2_loss, qf_loss=qf_loss)
        metrics |= dict(qf1_values=qf1_values.mean(), qf2_values=qf2_values.mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    def update_actor(*batch):
        """One Adam step along the deterministic policy gradient (algorithm 1), and a step of the targets (tau)."""
        obs, *_ = replay.unpack(*batch)
        actor_loss = -agent.value(agent.qf1, obs, agent.policy(agent.actor, obs)).mean()
        grads = torch.autograd.grad(actor_loss, actor_params)
        with torch.no_grad():
            adam_step(actor_params, grads, adams["actor"], args.learning_rate)
            for target, param in zip(target_params, actor_params + critic_params):
                target.lerp_(param, args.tau)
        return {"losses/actor_loss": actor_loss.detach()}

    low, high = agent.action_bias - agent.action_scale, agent.action_bias + agent.action_scale
    target_params = [*agent.target_actor.parameters(), *agent.qf1_target.parameters(), *agent.qf2_target.parameters()]
    update_critic, update_actor = run.compile(update_critic), run.compile(update_actor)  # two: faster to compile

    def learn(train_actor):
        """One gradient step of the critics and, when it is due, of the actor; one CUDA graph, sampling included."""
        batch = replay.sample(args.batch_size)
        noise = torch.randn((args.batch_size, *action_space.shape), device=device)
        metrics = update_critic(noise, *batch)
        return metrics | update_actor(*batch) if train_actor else metrics

    learners = [run.cuda_graph(partial(learn, train_actor)) for train_actor in (False, True)]

    # === training
    def passed(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return global_step // every - (global_step - args.num_envs) // every

    actor = utils.numpy_forward(agent.actor, device, live=True)
    scale, bias = agent.action_scale.cpu().numpy(), agent.action_bias.cpu().numpy()
    obs, global_step = run.obs.astype(np.float32), run.global_step
    updates, metrics = run.values.get("updates", 0), run.values.get("metrics", {})
    while run.goes_on(global_step, obs, updates=updates, metrics=metrics):
        # act
        if global_step < args.learning_starts:
            actions = envs.action_space.sample()
        else:
            noise = args.exploration_noise * np.random.standard_normal((args.num_envs, len(scale)))
            actions = (np.tanh(actor(obs)) + noise) * scale + bias
            actions = np.clip(actions, action_space.low, action_space.high).astype(action_space.dtype)

        # learn from the steps so far (a GPU does so while the environments step)
        if global_step > args.learning_starts:
            for _ in range(passed(args.train_frequency) * args.gradient_steps):
                updates += 1
                metrics |= learners[updates % args.policy_frequency == 0]()

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
            run.log(metrics, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
