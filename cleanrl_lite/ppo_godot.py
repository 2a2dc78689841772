"""Proximal Policy Optimization for games of the Godot engine; a variant of ppo_continuous.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); Godot RL Agents: Beeching et al. 2021
          (arXiv:2112.03636).
Run:      python cleanrl_lite/ppo_godot.py --env-path ./my_game.x86_64 --num-envs 16 --speedup 40
Differs:  A game's agents are the environments; every end of an episode counts as a termination.
          Discrete and mixed actions also come from one Gaussian: a choice takes the option with
          the largest number.
Expected: Reach-v0 1.93, ReachDiscrete-v0 1.97, ReachMixed-v0 1.93 (100,000 steps, last 100
          episodes, 3 seeds, cb048e0).
Details:  docs/ppo_godot.md
"""

import atexit
import functools
import json
import math
import os
import signal
import socket
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, flatdim, flatten, flatten_space
from gymnasium.vector.utils import batch_space
from torch import nn
from torch.distributions import Independent, Normal
from torch.utils.tensorboard import SummaryWriter

from cleanrl_lite import utils

if find_spec("godot_rl"):
    from godot_rl.core.godot_env import GodotEnv
else:
    GodotEnv = object  # --help works without it


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
    env_id: str = "Godot"  # name of the game
    env_path: str | None = None  # the exported game (none: press PLAY in the Godot editor)
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    speedup: int = 8  # how much faster than real time the game may run
    viz: bool = False  # show the games in windows while they train
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 16  # environments stepped together
    num_steps: int = 128  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 32  # minibatches per epoch
    update_epochs: int = 10  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    clip_vloss: bool = True  # clip the value loss likewise
    ent_coef: float = 0.0  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)


# === environment
class Game(GodotEnv):
    """A game and godot-rl's client, which alone would wait forever for a game that has ended."""

    def __init__(self, args, window, seed):
        atexit.register(self._close)  # what follows may fail after it has launched the game
        reasons = {IndexError: "the game has no agents", TimeoutError: "the game does not connect"}
        options = {"speedup": args.speedup, "show_window": window, "seed": seed}
        try:
            self.start(args.env_path, options | json.loads(args.env_kwargs))
        except (AssertionError, IndexError, OSError, TypeError, ValueError) as error:
            reason = reasons.get(type(error)) or str(error) or "there is no such game"
            flags = f"--env-path {args.env_path} --env-kwargs {args.env_kwargs}"
            utils.check(False, f"{flags}: {reason}")

    def start(self, path, options):
        if path is None:
            super().__init__(**options)
        else:
            path = os.path.abspath(path)  # a bare name would be looked for in $PATH
            with socket.create_server(("127.0.0.1", 0)) as server:
                free_port = server.getsockname()[1]
            with redirect_stdout(None):  # it prints ports and spaces
                super().__init__(path, free_port, **options)

    def _get_json_dict(self):
        if not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionError("the game has ended")
        return super()._get_json_dict()

    def flatten(self, obs):
        """Observations of all agents as an array (num_agents, obs_dim)."""
        return np.stack([flatten(self.observation_space, each) for each in obs])

    def send(self, actions):
        """Takes a step with actions (num_agents, action_dim).

        A choice has a column for each option, and takes the one with the largest number.
        """
        parts = []
        for space in self.action_spaces[0].values():
            numbers, actions = np.split(actions, [flatdim(space)], axis=1)
            choice = isinstance(space, Discrete)
            parts.append(numbers.argmax(1) if choice else numbers.clip(-1, 1))
        self.step_send(parts)

    def receive(self):
        """Observations, rewards and dones of that step."""
        obs, rewards, dones, *_ = self.step_recv()
        return self.flatten(obs), rewards, dones

    def _close(self):
        """Ends a game, even one that hangs. godot-rl too has it called when Python ends."""
        atexit.unregister(self._close)
        # It may have ended already, or play in the editor.
        with suppress(OSError, AttributeError, TimeoutExpired):
            self._send_as_json({"type": "close"})
            self.proc.wait(5)
        with suppress(OSError, AttributeError):
            os.killpg(self.proc.pid, signal.SIGKILL)  # and what a launching script has started


class Games:
    """A vector environment: the agents of as many games as --num-envs needs."""

    def __init__(self, args, seed, window):
        missing = GodotEnv is object
        utils.check(not missing, "godot-rl is missing: pip install --no-deps godot-rl==0.8.2")
        self.seed = seed
        self.start = functools.partial(Game, args, window)
        game = self.start(seed)
        self.games = [game]
        self.num_agents = len(game.action_spaces)
        kinds = [game.agent_policy_names, game.observation_spaces, game.action_spaces]
        alike = all(kind == [kind[0]] * self.num_agents for kind in kinds)
        images = any("2d" in name for name in game.observation_space)
        supported = "agents of several policies or spaces, or with images, are not supported"
        utils.check(alike and not images, f"{supported}: {kinds}")
        self.single_observation_space = flatten_space(game.observation_space)
        action_dim = sum(flatdim(space) for space in game.action_spaces[0].values())
        self.single_action_space = Box(-np.inf, np.inf, (action_dim,))
        self.action_space = self.single_action_space

    def reset(self, seed):
        seeds = seed[:: self.num_agents]
        # A game takes its seed when it starts, and a resumed run plays other episodes.
        if seeds[0] != self.seed:
            self.close()
        self.games += [self.start(each) for each in seeds[len(self.games) :]]
        obs = np.concatenate([game.flatten(game.reset()[0]) for game in self.games])
        self.returns = np.zeros(len(obs))
        self.lengths = np.zeros(len(obs))
        return obs, {}

    def step(self, actions):
        for game, rows in zip(self.games, np.split(actions, len(self.games)), strict=True):
            game.send(rows)
        received = [game.receive() for game in self.games]
        obs, rewards, dones = [np.concatenate(parts) for parts in zip(*received, strict=True)]
        self.returns += rewards
        self.lengths += 1
        ended = np.flatnonzero(dones)
        infos = {"episodes": [(n, self.returns[n], self.lengths[n]) for n in ended]}
        self.returns[dones] = 0
        self.lengths[dones] = 0
        # All ends are terminations: games do not say which episodes they cut.
        return obs, rewards, dones, False, infos

    def close(self):
        while self.games:
            self.games.pop()._close()


class OneGame(Games, gym.Env):
    """For evaluations: all agents of one game play, the first one counts."""

    def __init__(self, args, seed, window):
        super().__init__(args, seed, window)
        self.observation_space = batch_space(self.single_observation_space, self.num_agents)
        self.action_space = batch_space(self.single_action_space, self.num_agents)

    def reset(self, seed=None, options=None):
        return super().reset([self.seed])

    def step(self, actions):
        obs, rewards, dones, _, _ = super().step(actions)
        return obs, rewards[0], dones[0], False, {}


def make_env(args, render_mode=None):
    if render_mode == "rgb_array":
        print("--capture-video: godot-rl's client gets no pictures. Watch with --render")
    return OneGame(args, args.seed + 10_000, render_mode == "human")


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

    envs = Games(args, args.seed, args.viz)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    multiple = f"must be a multiple of the game's {envs.num_agents} agents"
    check(args.num_envs % envs.num_agents == 0, f"--num-envs {args.num_envs} {multiple}")

    agent = Agent(obs_space.shape[0], action_space.shape[0]).to(device)
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
    rollout_obs = np.zeros((*shape, *obs_space.shape), dtype=obs_space.dtype)
    next_obs = np.zeros_like(rollout_obs)
    actions = np.zeros((*shape, *action_space.shape), dtype=np.float32)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations = np.zeros(shape, dtype=bool)
    dones = np.zeros_like(terminations)
    # discounted, of the episode under way
    return_so_far = np.array(run.values.get("return_so_far", [0.0] * args.num_envs))
    obs = run.obs
    global_step = run.global_step
    while run.goes_on(global_step, obs, return_so_far=return_so_far.tolist()):
        if args.anneal_lr:
            remaining = 1 - global_step / args.total_timesteps
            learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        actor = utils.numpy_forward(agent.actor, device)
        std = agent.actor_logstd.detach().exp().cpu().numpy()
        noise = np.random.standard_normal(actions.shape).astype(np.float32)
        obs_mean = agent.obs_stats.mean.cpu().numpy()
        obs_std = (agent.obs_stats.var + 1e-8).sqrt().cpu().numpy()
        for t in range(args.num_steps):
            rollout_obs[t] = obs  # in its own precision
            normalized = ((rollout_obs[t] - obs_mean) / obs_std).clip(-10, 10)
            actions[t] = actor(normalized.astype(np.float32)) + std * noise[t]
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            # After an episode's end: of the next one. Every end is a termination, so it is unused.
            next_obs[t] = obs
            dones[t] = terminations[t] | truncations
            global_step += args.num_envs
            for _, episodic_return, episodic_length in run.finished_episodes(infos):
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            raw_obs = torch.from_numpy(rollout_obs).to(device).flatten(0, 1)
            b_obs[:] = agent.normalize(raw_obs)
            b_actions[:] = torch.from_numpy(actions).flatten(0, 1)
            dist, b_values[:] = agent(b_obs)
            b_logprobs[:] = dist.log_prob(b_actions)
            _, next_values = agent(agent.normalize(torch.from_numpy(next_obs).to(device)))
            # The policy that learns must be the one that acted.
            b_noise = torch.from_numpy(noise).to(device).flatten(0, 1)
            utils.check_actions(b_actions, dist.mean + dist.stddev * b_noise)

            # statistics for the next rollout and for the scale of the rewards
            agent.obs_stats.update(raw_obs)
            under_way = np.concatenate([np.ones((1, args.num_envs)), ~dones[:-1]])
            discounted = linear_recurrence(rewards, args.gamma * under_way, return_so_far)
            return_so_far = discounted[-1] * ~dones[-1]
            agent.return_stats.update(torch.from_numpy(discounted).to(device).flatten())
            scale = (agent.return_stats.var + 1e-8).sqrt().item()
        values = b_values.reshape(shape).cpu().numpy()
        next_values = next_values.cpu().numpy()
        scaled = (rewards / scale).clip(-10, 10)
        advantages = compute_gae(
            scaled, values, next_values, terminations, dones, args.gamma, args.gae_lambda
        )
        returns = advantages + values
        b_advantages[:] = torch.from_numpy(advantages).flatten()
        b_returns[:] = torch.from_numpy(returns).flatten()

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
