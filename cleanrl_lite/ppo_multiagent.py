"""Proximal Policy Optimization for teams of agents (MAPPO); a variant of ppo_masked.py.

Paper:    Yu et al. 2022 (arXiv:2103.01955); PPO: Schulman et al. 2017
          (arXiv:1707.06347).
Run:      python cleanrl_lite/ppo_multiagent.py --env-id benchmark.environments.cleaner:Cleaner-v0
Differs:  All agents share one actor, which sees each agent's own observation. The
          critic sees the state. Each agent has its own probability ratio; advantages
          are the team's. One stored vector holds own observations, state and masks.
          No recurrent networks, no value normalisation.
Expected: benchmark.environments.cleaner:Cleaner-v0 31.9, without a central critic
          31.6 (150,000 steps, mean of the last 100 training episodes, 3 seeds,
          0aa6b42).
Details:  docs/ppo_multiagent.md
"""

import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, flatdim
from torch import nn
from torch.distributions import Categorical
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
    env_id: str = "benchmark.environments.cleaner:Cleaner-v0"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 150_000  # environment steps, summed over the environments
    learning_rate: float = 1e-3  # the optimizer's learning rate
    num_envs: int = 8  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 128  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    clip_vloss: bool = True  # clip the value loss likewise
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)
    mask: bool = True  # never take an action that the environment's mask marks as invalid
    central_critic: bool = True  # the critic sees the state, not an agent's own observation


# === environment
class ActionMask(gym.Wrapper):
    """Actions are vectors, a number for each part; observations end with the mask.

    The mask is (parts, choices): 1 is valid, 0 invalid, -1 a choice that this part does
    not have. A Discrete action has one part.
    """

    def __init__(self, env, use_mask):
        super().__init__(utils.flatten(env))
        self.use_mask = use_mask
        space = env.action_space
        # nvec: how many choices each part has
        if isinstance(space, Discrete):
            nvec = np.array([space.n])
        elif isinstance(space, MultiBinary):
            nvec = np.full(space.shape, 2).ravel()
        else:
            discrete = isinstance(space, MultiDiscrete)
            utils.check(discrete, f"actions must be discrete, not {space}. Box: ppo_continuous.py")
            nvec = space.nvec.ravel()
        self.shape = space.shape
        self.start = getattr(space, "start", 0)
        self.exists = np.arange(nvec.max()) < nvec[:, None]  # (parts, choices)
        self.action_space = MultiDiscrete(nvec)

        # in_obs: which numbers of an observation are its action_mask
        obs_space = env.observation_space
        parts = obs_space if isinstance(obs_space, Dict) else {"all": obs_space}
        sizes = [flatdim(part) for part in parts.values()]
        self.in_obs = np.repeat([name == "action_mask" for name in parts], sizes)
        length = (~self.in_obs).sum() + self.exists.size
        self.observation_space = Box(-np.inf, np.inf, (length,), np.float32)

    def find_mask(self, obs, info):
        """An array, a list or a tuple of parts; empty where the environment has none."""
        if "action_mask" in info:
            return info["action_mask"]
        if self.env.has_wrapper_attr("action_masks"):
            return self.env.get_wrapper_attr("action_masks")()
        return obs[self.in_obs]

    def append_mask(self, obs, info):
        rectangle = np.where(self.exists, 1, -1)
        mask = self.find_mask(obs, info)
        if self.use_mask and len(mask):
            mask = np.ravel(mask) if isinstance(mask, np.ndarray) else np.hstack(mask)
            size = self.exists.sum()
            utils.check(len(mask) == size, f"a mask has {len(mask)} numbers, not {size}")
            rectangle[self.exists] = mask
        return np.concatenate((obs[~self.in_obs], rectangle.ravel()), dtype=np.float32)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self.append_mask(obs, info), info

    def step(self, action):
        action = action.reshape(self.shape) + self.start
        action = action.astype(self.env.action_space.dtype)
        obs, *results, info = self.env.step(action)
        return self.append_mask(obs, info), *results, info


def team_shape(space):
    """(n_agents, own_dim) of a team's observations; refuses others."""
    names = list(space) if isinstance(space, Dict) else []
    names = [name for name in names if name != "action_mask"]
    team = names == ["agents", "state"] and isinstance(space["agents"], Box | MultiBinary)
    team = team and len(space["agents"].shape) == 2
    layout = "Dict(agents=Box of shape (n_agents, own_dim), state=Box)"
    utils.check(team, f"observations must be {layout}, not {space}. One agent: ppo_masked.py")
    return space["agents"].shape


def make_env(args, render_mode=None):
    """Observations are one vector: the agents' own ones, the state, the masks."""
    env = utils.make(args, render_mode, max_episode_steps=args.max_episode_steps)
    n_agents, own_dim = team_shape(env.observation_space)
    env = ActionMask(env, args.mask)
    env.own_dim = own_dim
    parts = len(env.action_space)
    utils.check(
        n_agents == parts,
        f"actions must be MultiDiscrete, one for each of {n_agents} agents, not of {parts}",
    )
    return env


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


class Agent(nn.Module):
    def __init__(self, obs_dim, n_agents, choices, own_dim, central_critic):
        super().__init__()
        self.obs_dim = obs_dim
        self.shape = (n_agents, choices)
        self.own_dim = own_dim
        self.central_critic = central_critic
        state_dim = obs_dim - n_agents * own_dim
        self.critic = mlp(state_dim if central_critic else own_dim, 1, last_gain=1.0)
        # small weights: the policy starts out uniform
        self.actor = mlp(own_dim, choices, last_gain=0.01)

    def forward(self, obs):
        """The agents' distributions and the values of `obs` (batch, obs_dim + size of the mask).

        The values are the state's (batch, 1), with local critics the agents' (batch, n_agents).
        """
        n_agents, _ = self.shape
        own = obs[:, : n_agents * self.own_dim].reshape(-1, self.own_dim)
        state = obs[:, n_agents * self.own_dim : self.obs_dim]
        mask = obs[:, self.obs_dim :].unflatten(-1, self.shape)
        # Replaced: adding -1e8 would round logits away but let their gradient through.
        logits = torch.where(mask > 0, self.actor(own).view_as(mask), (mask - 1) * 1e8)
        # No sum over the agents: each has a ratio of its own.
        dist = Categorical(logits=logits, validate_args=False)
        values = self.critic(state if self.central_critic else own)
        return dist, values.reshape(len(obs), -1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs.float())
        return dist.logits.argmax(-1)


# === pure functions
def linear_recurrence(inputs, decays, initial):
    """y[t] = inputs[t] + decays[t] * y[t - 1], with y[-1] = initial.

    inputs and decays are (num_steps, num_envs), initial is (num_envs,).
    """
    outputs = np.empty_like(inputs)
    # Python floats are faster than numpy rows for up to about ten environments.
    for n, y in enumerate(initial.tolist()):
        column = []
        for x, decay in zip(inputs[:, n].tolist(), decays[:, n].tolist(), strict=True):
            y = x + decay * y
            column.append(y)
        outputs[:, n] = column
    return outputs


def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation
    that step t truly led to: at an episode's end its last one, not the first one of the
    next. A truncated episode would have gone on, so its value counts; a terminated one
    has none. Nothing flows back from one episode into the one before.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    decays = gamma * gae_lambda * ~dones
    initial = np.zeros(deltas.shape[1])
    backwards = linear_recurrence(deltas[::-1], decays[::-1], initial)
    return backwards[::-1].copy()  # no negative strides in torch


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

    env_fns = [lambda: make_env(args)] * args.num_envs
    envs = utils.vector_env(env_fns, args.async_envs)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    n_agents = len(action_space)
    choices = int(action_space.nvec.max())
    obs_dim = obs_space.shape[0] - n_agents * choices  # the networks do not see the mask

    own_dim = envs.get_attr("own_dim")[0]
    agent = Agent(obs_dim, n_agents, choices, own_dim, args.central_critic).to(device)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    adam = Adam(agent.parameters())
    learning_rate = torch.tensor(args.learning_rate, device=device)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)

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
    b_actions = torch.zeros((batch_size, n_agents), dtype=torch.int64, device=device)
    b_logprobs = torch.zeros((batch_size, n_agents), device=device)
    # one for the team, which update broadcasts; with local critics one for each agent
    # The trap: these times a ratio (batch,) is a square.
    columns = 1 if args.central_critic else n_agents
    b_values = torch.zeros((batch_size, columns), device=device)
    b_advantages = torch.zeros_like(b_values)
    b_returns = torch.zeros_like(b_values)

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
    rollout_obs = np.zeros((*shape, *obs_space.shape), dtype=np.float32)
    next_obs = np.zeros_like(rollout_obs)
    actions = np.zeros((*shape, n_agents), dtype=np.int64)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations = np.zeros(shape, dtype=bool)
    dones = np.zeros_like(terminations)
    obs = run.obs
    global_step = run.global_step
    while run.goes_on(global_step, obs):
        if args.anneal_lr:
            remaining = 1 - global_step / args.total_timesteps
            learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        actor = utils.numpy_forward(agent.actor, device)
        # float64: float32 would round gumbel away beside -1e8, where no choice is valid
        gumbel = np.random.gumbel(size=(*shape, n_agents, choices))
        for t in range(args.num_steps):
            rollout_obs[t] = obs
            own = rollout_obs[t, :, : n_agents * own_dim].reshape(-1, own_dim)
            mask = rollout_obs[t, :, obs_dim:].reshape(gumbel[t].shape)
            logits = np.where(mask > 0, actor(own).reshape(mask.shape), (mask - 1) * 1e8)
            # the Gumbel-max trick: a sample from softmax(logits)
            actions[t] = (logits + gumbel[t]).argmax(-1)
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            next_obs[t] = obs
            dones[t] = terminations[t] | truncations
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                # obs[n] is already the first observation of the next episode
                next_obs[t, n] = infos["final_obs"][n]
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
                info = infos["final_info"][n]
                if "is_success" in info:
                    success = info["is_success"]
                    writer.add_scalar("charts/success_rate", success, global_step)

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            b_obs[:] = torch.from_numpy(rollout_obs).flatten(0, 1)
            b_actions[:] = torch.from_numpy(actions).flatten(0, 1)
            dist, b_values[:] = agent(b_obs)
            b_logprobs[:] = dist.log_prob(b_actions)
            _, next_values = agent(torch.from_numpy(next_obs).to(device).flatten(0, 1))
            # The policy that learns must be the one that acted.
            scores = dist.logits + torch.from_numpy(gumbel).to(device).flatten(0, 1)
            utils.check_actions(b_actions, scores.argmax(-1))
        values = b_values.reshape(args.num_steps, -1).cpu().numpy()
        next_values = next_values.reshape(args.num_steps, -1).cpu().numpy()
        # The reward and the end of an episode are the same for all agents.
        advantages = compute_gae(
            rewards.repeat(columns, axis=1),
            values,  # (num_steps, num_envs * columns)
            next_values,
            terminations.repeat(columns, axis=1),
            dones.repeat(columns, axis=1),
            args.gamma,
            args.gae_lambda,
        )
        returns = advantages + values
        b_advantages[:] = torch.from_numpy(advantages).view_as(b_values)
        b_returns[:] = torch.from_numpy(returns).view_as(b_values)

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
