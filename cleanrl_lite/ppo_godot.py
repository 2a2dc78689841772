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
import json
import math
import os
import signal
import socket
from collections import namedtuple
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import TimeoutExpired

import gymnasium as gym
import numpy as np
import torch
import tyro
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
    env_id: str = "Godot"  # name of the game
    env_path: str | None = None  # the exported game (none: press PLAY in the Godot editor)
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    speedup: int = 8  # how much faster than real time the game may run
    viz: bool = False  # show the games in windows
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

    def __init__(self, args, seed):
        atexit.register(self._close)  # what follows may fail after it has launched the game
        reasons = {IndexError: "the game has no agents", TimeoutError: "the game does not connect"}
        options = {"speedup": args.speedup, "show_window": args.viz, "seed": seed}
        try:
            self.start(args.env_path, options | json.loads(args.env_kwargs))
        except (AssertionError, IndexError, OSError, TypeError, ValueError) as error:
            reason = reasons.get(type(error)) or str(error) or "there is no such game"
            flags = f"--env-path {args.env_path} --env-kwargs {args.env_kwargs}"
            utils.check(False, f"{flags}: {reason}")

    def start(self, path, options):
        if path is None:
            super().__init__(None, **options)  # a checkpoint's options start no program
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


class Games(gym.vector.VectorEnv):
    """The agents of as many games as --num-envs needs."""

    def __init__(self, args):
        missing = GodotEnv is object
        utils.check(not missing, "godot-rl is missing: pip install --no-deps godot-rl==0.8.2")
        self.args = args
        self.seed = args.seed
        game = Game(args, args.seed)
        self.games = [game]
        self.num_envs = args.num_envs
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

    def reset(self, *, seed, options=None):
        seeds = seed[:: self.num_agents]
        # A game takes its seed when it starts, and a resumed run plays other episodes.
        if seeds[0] != self.seed:
            self.close_extras()
        self.games += [Game(self.args, each) for each in seeds[len(self.games) :]]
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
        infos = {}
        for n in np.flatnonzero(dones):
            episode = {"r": self.returns[n], "l": self.lengths[n]}
            # A game only gives the first one of the next episode.
            infos[n] = {"episode": episode, "final_obs": obs[n]}
        self.returns[dones] = 0
        self.lengths[dones] = 0
        # All ends are terminations: games do not say which episodes they cut.
        return obs, rewards, dones, np.zeros_like(dones), infos

    def close_extras(self, **kwargs):
        while self.games:
            self.games.pop()._close()


class OneGame(gym.Env):
    """For evaluations: all agents of one game play, the first one counts."""

    def __init__(self, args):
        self.games = Games(args)
        num_agents = self.games.num_agents
        self.observation_space = batch_space(self.games.single_observation_space, num_agents)
        self.action_space = batch_space(self.games.single_action_space, num_agents)

    def reset(self, seed=None, options=None):
        return self.games.reset(seed=[self.games.seed])

    def step(self, actions):
        obs, rewards, dones, _, _ = self.games.step(actions)
        return obs, rewards[0], dones[0], False, {}

    def close(self):
        self.games.close()


def make_env(args, render_mode=None):
    if render_mode:
        print("--capture-video: godot-rl's client gets no pictures. Watch with --viz")
    return OneGame(args)


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
        obs_dim, action_dim = obs_space.shape[-1], action_space.shape[-1]
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

    def sampler(self):
        """The same policy as a function from obs to random actions, in numpy: it is faster."""
        actor = utils.in_numpy(self.actor)
        obs_mean = self.obs_stats.mean.cpu().numpy().copy()
        obs_std = self.obs_stats.std.cpu().numpy()
        std = self.actor_logstd.detach().exp().cpu().numpy()

        def sample(obs):
            obs = ((obs - obs_mean) / obs_std).clip(-10, 10)
            mean = actor(obs.astype(np.float32))
            return mean + std * np.random.standard_normal(mean.shape).astype(np.float32)

        return sample

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs)
        return dist.mean


# === pure functions
# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions logprobs values advantages returns")


def discounted_returns(args, rewards, dones, so_far):
    """Those of each episode until step t, (num_steps, num_envs); so_far is what step 0 adds to."""
    discounted = np.zeros_like(rewards)
    decays = args.gamma * ~dones
    for t in range(len(rewards)):
        discounted_return = rewards[t] + so_far
        discounted[t] = discounted_return
        so_far = decays[t] * discounted_return
    return discounted


def compute_gae(args, rewards, values, next_values, terminations, dones):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation that
    step t truly led to. It counts where an episode is truncated; a terminated one has no rest.
    """
    deltas = rewards + args.gamma * next_values * ~terminations - values
    decays = args.gamma * args.gae_lambda * ~dones
    advantages = np.zeros_like(deltas)
    advantage = 0.0
    for t in reversed(range(len(deltas))):
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages


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
    games = Games(args)
    multiple = f"must be a multiple of the game's {games.num_agents} agents"
    utils.check(args.num_envs % games.num_agents == 0, f"--num-envs {args.num_envs} {multiple}")
    envs = utils.Envs(args, games)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.parameters(), args.learning_rate, args.max_grad_norm, eps=1e-5)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
    utils.check_policy(agent, envs.obs)
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
    obs = np.zeros((*shape, *obs_space.shape), obs_space.dtype)
    next_obs = np.zeros_like(obs)
    actions = np.zeros((*shape, *action_space.shape), np.float32)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, bool)
    dones = np.zeros(shape, bool)
    so_far = np.zeros(args.num_envs)  # the discounted returns of the episodes under way
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            adam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        sample = agent.sampler()
        for t in range(args.num_steps):
            obs[t] = envs.obs
            actions[t] = sample(obs[t])
            # At an episode's end next_obs is of the next one, unused: every end is a termination.
            next_obs[t], rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            dones[t] = terminations[t] | truncations
            for info in infos:
                run.step += 1
                if "episode" in info:
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            b_obs = torch.from_numpy(obs).to(device).flatten(0, 1)
            b_actions = torch.from_numpy(actions).to(device).flatten(0, 1)
            dist, b_values = agent(b_obs)
            _, next_values = agent(torch.from_numpy(next_obs).to(device))
            logprobs = dist.log_prob(b_actions)
        values = b_values.reshape(shape).cpu().numpy()
        next_values = next_values.cpu().numpy()
        discounted = discounted_returns(args, rewards, dones, so_far)
        so_far = args.gamma * ~dones[-1] * discounted[-1]
        agent.return_stats.update(torch.from_numpy(discounted).to(device).flatten())
        scaled = (rewards / agent.return_stats.std.item()).clip(-10, 10)
        advantages = compute_gae(args, scaled, values, next_values, terminations, dones)
        returns = advantages + values
        b_advantages = torch.from_numpy(advantages).to(device).flatten()
        b_returns = torch.from_numpy(returns).to(device).flatten()
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
    args = utils.parse(Args)
    # A checkpoint of others starts no program: the command line itself names it.
    named = args.env_path == tyro.cli(Args).env_path
    utils.check(named, f"this run starts a program. To allow it: --env-path {args.env_path}")
    main(args)
