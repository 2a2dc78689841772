"""Soft Actor-Critic (SAC) with hindsight experience replay (HER) for goal environments; a variant of sac.py.

Paper:    Andrychowicz et al. 2017 (arXiv:1707.01495), strategy "future"; SAC: arXiv:1812.05905.
Run:      python cleanrl_lite/sac_her.py --env-id panda_gym:PandaReach-v3
Differs:  SAC in place of DDPG. Every minibatch draws new goals, also from running episodes. No normalisation.
Expected: panda_gym:PandaReach-v3 -1.84, mean of the last 100 training episodes, all of them successes; 20,000 steps,
          3 seeds, commit f482bdc.
Details:  docs/sac_her.md
"""

import copy
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode
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
    env_id: str = "panda_gym:PandaReach-v3"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 20_000  # environment steps, summed over the environments
    policy_lr: float = 3e-4  # Adam's learning rate for the actor
    q_lr: float = 1e-3  # Adam's learning rate for the critics and the temperature
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 1_000  # environment steps before training starts
    train_frequency: int = 1  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 256  # transitions per minibatch
    n_sampled_goals: int = 4  # relabelled transitions for each other one (0: none)
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # step size of the target: target += tau * (network - target)
    policy_frequency: int = 2  # gradient steps of the critic between updates of the actor
    alpha: float = 0.2  # temperature (weight of the entropy) with --no-autotune
    autotune: bool = True  # learn the temperature, with a target entropy of -1 per action dimension
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    return gym.wrappers.RecordEpisodeStatistics(utils.flatten(env), stats_key="statistics")


# === networks
LOG_STD_MIN, LOG_STD_MAX = -5, 2


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
        self.actor = mlp(obs_dim, 2 * len(low))  # mean and log sigma
        self.log_alpha = nn.Parameter(torch.zeros(()))
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

    def policy(self, obs, noise):
        """Actions (batch, action_dim), within the bounds, and their log-probabilities (batch,); noise is standard
        normal, of the actions' shape."""
        mean, log_std = self(self.actor, obs).chunk(2, dim=1)
        log_std = LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (log_std.tanh() + 1)
        raw = mean + log_std.exp() * noise
        log_probs = -noise.square() / 2 - log_std - math.log(2 * math.pi) / 2
        # The actions are scale * tanh(raw) + bias (appendix C): log scale + log(1 - tanh^2), which must not be log(0).
        log_probs = log_probs - self.action_scale.log() - 2 * (math.log(2) - raw - F.softplus(-2 * raw))
        return raw.tanh() * self.action_scale + self.action_bias, log_probs.sum(1)

    def value(self, critic, obs, actions):
        """The critic's Q-values (batch,)."""
        return self(critic, torch.cat([obs, actions], dim=1)).squeeze(1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        mean, _ = self(self.actor, obs.float()).chunk(2, dim=1)
        return mean.tanh() * self.action_scale + self.action_bias


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


class HindsightBuffer(ReplayBuffer):
    """For goal environments. In a minibatch most transitions get another goal, one that was reached later in the same
    episode, and the reward for it. The last part of a stored transition says how many steps its episode has left, this
    one included; 0 as long as the episode goes on."""

    def __init__(self, buffer_size, num_envs, shapes, device, space, compute_reward, n_sampled_goals):
        super().__init__(buffer_size, num_envs, shapes, device)
        self.compute_reward, self.share, end = compute_reward, n_sampled_goals / (n_sampled_goals + 1), 0
        sizes = {name: gym.spaces.flatdim(part) for name, part in space.items()}
        places = {name: slice(end, end := end + size) for name, size in sizes.items()}  # in a flattened observation
        self.achieved, self.desired = places["achieved_goal"], places["desired_goal"]

    def check_rewards(self, rewards, next_obs):
        """Refuses rewards of a step that compute_reward does not give: relabelled ones would be of another kind."""
        if self.share == 0:
            return
        achieved, desired = next_obs[:, self.achieved], next_obs[:, self.desired]
        expected = np.ravel(self.compute_reward(achieved, desired, {}))
        for reward, other in zip(rewards, expected, strict=True):
            differ = f"a step gave reward {reward:.6g}, but compute_reward gives {other:.6g}"
            mend = "Change compute_reward in the same wrapper, or use --n-sampled-goals 0"
            utils.check(np.isclose(reward, other, rtol=1e-3, atol=1e-5), f"{differ}. {mend}")

    def finish(self, env, length):
        """The last `length` steps of environment number `env` were an episode."""
        age = torch.arange(min(length, self.length // self.num_envs), device=self.rows.device)  # 0: the newest step
        newest = self.position - self.num_envs + env
        self.rows[(newest - age * self.num_envs) % self.length, -1] = age + 1.0

    def steps_left(self, indices):
        """As stored; in an episode that goes on, up to the newest step."""
        left, age = self.rows[indices, -1], (self.position - 1 - indices) % self.length // self.num_envs
        return torch.where(left > 0, left, age + 1)

    def sample(self, batch_size):
        """A minibatch like ReplayBuffer's, whose first part has other goals."""
        indices = (torch.rand(batch_size, dtype=torch.float64, device=self.rows.device) * self.size).long()
        rows = self.rows.index_select(0, indices)
        if relabelled := round(batch_size * self.share):
            indices, (obs, _, rewards, next_obs, *_) = indices[:relabelled], self.unpack(rows[:relabelled])  # views
            steps = torch.rand_like(rewards, dtype=torch.float64) * self.steps_left(indices)
            later = (indices + steps.long() * self.num_envs) % self.length  # after 0 steps: what it reached itself
            goals = self.unpack(self.rows.index_select(0, later))[3][:, self.achieved]
            obs[:, self.desired] = next_obs[:, self.desired] = goals
            new_rewards = self.compute_reward(next_obs[:, self.achieved].cpu().numpy(), goals.cpu().numpy(), {})
            rewards.copy_(torch.as_tensor(new_rewards).view_as(rewards))
        return (rows.to(self.device),)

    def load_state_dict(self, state):
        super().load_state_dict(state)  # a resumed run starts new episodes: those that went on end here
        self.rows[: self.filled, -1] = self.steps_left(torch.arange(self.filled, device=self.rows.device))


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
    check((agent.action_scale > 0).all(), f"{args.env_id} has actions {action_space}, where low < high must hold")
    critic_params, actor_params = [*agent.qf1.parameters(), *agent.qf2.parameters()], list(agent.actor.parameters())
    adams = dict(critic=adam_state(critic_params), actor=adam_state(actor_params), alpha=adam_state([agent.log_alpha]))
    goal_env = make_env(args)  # computes rewards in this process, with --async-envs too
    while isinstance(goal_env, gym.Wrapper) and not isinstance(goal_env, gym.ObservationWrapper):
        goal_env = goal_env.env
    flat = isinstance(goal_env, gym.wrappers.FlattenObservation) and goal_env.observation_space == obs_space
    space = goal_env.env.observation_space if flat else None  # what utils.flatten was given, with its wrappers
    goals = isinstance(space, Dict) and all(isinstance(space.get(x), Box) for x in ("achieved_goal", "desired_goal"))
    goals = goals and goal_env.has_wrapper_attr("compute_reward")
    check(goals, f"{args.env_id} is not a goal environment. Use sac.py")
    compute_reward = goal_env.get_wrapper_attr("compute_reward")
    # obs, action, reward, next_obs, terminated, steps left
    shapes = obs_space.shape, action_space.shape, (), obs_space.shape, (), ()
    sizes = args.buffer_size, args.num_envs, shapes, device
    replay = None if args.evaluate else HindsightBuffer(*sizes, space, compute_reward, args.n_sampled_goals)
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
    def temperature():
        return agent.log_alpha.detach().exp() if args.autotune else args.alpha

    def update_critic(noise, *batch):
        """A step of Adam on the squared errors of the soft Bellman equation (eq. 5), and a step of the targets, on a
        minibatch of the replay; noise is standard normal (batch_size, action_dim)."""
        obs, actions, rewards, next_obs, terminations, _ = replay.unpack(*batch)
        with torch.no_grad():
            next_actions, next_log_probs = agent.policy(next_obs, noise)
            next_qf1_values = agent.value(agent.qf1_target, next_obs, next_actions)
            next_qf2_values = agent.value(agent.qf2_target, next_obs, next_actions)
            next_values = torch.min(next_qf1_values, next_qf2_values) - temperature() * next_log_probs  # eq. 3
            td_target = rewards + args.gamma * next_values * (1 - terminations)
        qf1_values = agent.value(agent.qf1, obs, actions)
        qf2_values = agent.value(agent.qf2, obs, actions)
        qf1_loss = (qf1_values - td_target).square().mean()
        qf2_loss = (qf2_values - td_target).square().mean()
        qf_loss = qf1_loss + qf2_loss
        grads = torch.autograd.grad(qf_loss, critic_params)
        with torch.no_grad():
            adam_step(critic_params, grads, adams["critic"], args.q_lr)
            for target, param in zip(target_params, critic_params):
                target.lerp_(param, args.tau)
        metrics = dict(qf1_loss=qf1_loss, qf2_loss=qf2_loss, qf_loss=qf_loss)
        metrics |= dict(qf1_values=qf1_values.mean(), qf2_values=qf2_values.mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    def update_actor(noise, *batch):
        """A step of Adam of the actor (eq. 7) and, with --autotune, one of the temperature (eq. 18)."""
        obs, *_ = replay.unpack(*batch)
        actions, log_probs = agent.policy(obs, noise)
        qf_values = torch.min(agent.value(agent.qf1, obs, actions), agent.value(agent.qf2, obs, actions))
        actor_loss = (temperature() * log_probs - qf_values).mean()
        grads = torch.autograd.grad(actor_loss, actor_params)
        with torch.no_grad():
            adam_step(actor_params, grads, adams["actor"], args.policy_lr)
        metrics = dict(actor_loss=actor_loss, entropy=-log_probs.mean())
        if args.autotune:
            alpha_loss = -(agent.log_alpha.exp() * (log_probs.detach() + target_entropy)).mean()
            grads = torch.autograd.grad(alpha_loss, [agent.log_alpha])
            with torch.no_grad():
                adam_step([agent.log_alpha], grads, adams["alpha"], args.q_lr)
            metrics |= dict(alpha_loss=alpha_loss, alpha=agent.log_alpha.exp())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    target_entropy = -float(np.prod(action_space.shape))
    target_params = [*agent.qf1_target.parameters(), *agent.qf2_target.parameters()]
    update_critic, update_actor = run.compile(update_critic), run.compile(update_actor)  # two: faster to compile

    def learn(train_actor, *batch):
        """One gradient step of the critics and, when it is due, of the actor; one CUDA graph."""
        noise = torch.randn((1 + args.policy_frequency, args.batch_size, *action_space.shape), device=device)
        metrics = update_critic(noise[0], *batch)
        for actor_noise in noise[1:] if train_actor else ():
            metrics |= update_actor(actor_noise, *batch)
        return metrics

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
            mean, log_std = np.split(actor(obs), 2, axis=1)
            std = np.exp(LOG_STD_MIN + (LOG_STD_MAX - LOG_STD_MIN) / 2 * (np.tanh(log_std) + 1))
            actions = np.tanh(mean + std * np.random.standard_normal(std.shape)) * scale + bias
            actions = np.clip(actions, action_space.low, action_space.high).astype(action_space.dtype)  # rounding

        # learn from the steps so far (a GPU does so while the environments step)
        if global_step > args.learning_starts:
            for _ in range(passed(args.train_frequency) * args.gradient_steps):
                updates += 1
                metrics |= learners[updates % args.policy_frequency == 0](*replay.sample(args.batch_size))

        # step, store
        new_obs, rewards, terminations, _, infos = envs.step(actions)
        global_step += args.num_envs
        new_obs = new_obs.astype(np.float32)  # a copy: the environments write into the same array again
        next_obs = new_obs.copy()
        finished = run.finished_episodes(infos)
        for n, episodic_return, episodic_length in finished:
            next_obs[n] = infos["final_obs"][n]  # new_obs[n] is the first observation of the next episode already
            writer.add_scalar("charts/episodic_return", episodic_return, global_step)
            writer.add_scalar("charts/episodic_length", episodic_length, global_step)
            if "is_success" in infos["final_info"]:  # at the episode's last step
                writer.add_scalar("charts/success_rate", infos["final_info"]["is_success"][n], global_step)
        if global_step <= args.learning_starts + 1_000:
            replay.check_rewards(rewards, next_obs)
        replay.add(obs, actions, rewards, next_obs, terminations, 0)  # a truncated episode bootstraps
        for n, _, episodic_length in finished:
            replay.finish(n, episodic_length)
        obs = new_obs

        # log
        if passed(100) or global_step >= args.total_timesteps:
            run.log(metrics, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
