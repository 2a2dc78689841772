"""Proximal Policy Optimization for two-player games, by self-play; a variant of ppo_masked.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); one network: Silver et al. 2017 (Nature 550).
Run:      python cleanrl_lite/ppo_selfplay.py
Differs:  One network plays both sides: an observation is the view of the player whose turn it is.
          Next values and the advantages that flow back change sign at every step, as one's gain is
          the other's loss. Training games begin with random moves. Evaluations play against
          --opponent. 256 ReLU units: 64 tanh units hardly learn to block.
Expected: benchmark.environments.board_games:ConnectFour-v1 0.96 (1,000,000 moves, mean result of
          200 games against random moves, 1 is a win and -1 a loss, 3 seeds, f47efd0).
Details:  docs/ppo_selfplay.md
"""

import math
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, flatdim
from torch import nn
from torch.distributions import Categorical, Independent
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
    env_id: str = "benchmark.environments.board_games:ConnectFour-v1"  # a game of two players
    opponent: str = "random"  # in evaluations: random, builtin or a run directory
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 1e-3  # the optimizer's learning rate
    num_envs: int = 32  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 128  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 16  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    clip_vloss: bool = True  # clip the value loss likewise
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)
    random_moves: int = 20  # maximum number of random moves at the start of a training game
    mask: bool = True  # never take an action that the environment's mask marks as invalid


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
            utils.check(
                isinstance(space, MultiDiscrete),
                f"actions must be discrete, not {space}. Box: ppo_continuous.py",
            )
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


def random_move(obs, shape, rng=np.random):
    """A valid choice in each part; `obs` ends with the mask, of this shape (parts, choices)."""
    mask = obs[-math.prod(shape) :].reshape(shape)
    return (2 * mask + rng.random(shape)).argmax(-1)


class RandomOpening(gym.Wrapper):
    """Begins games with up to `moves` random ones.

    Without them a policy meets only positions that it likes.
    """

    def __init__(self, env, moves):
        super().__init__(env)
        self.moves = moves

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        left = np.random.randint(self.moves + 1)
        while left > 0:
            left -= 1
            move = random_move(obs, self.env.exists.shape)
            obs, _, terminated, truncated, info = self.env.step(move)
            if terminated or truncated:
                obs, info = self.env.reset()
                left = np.random.randint(self.moves + 1)
        return obs, info


class Against(gym.Wrapper):
    """The game against `opponent`, as a player sees it who begins every second time."""

    def __init__(self, env, opponent):
        super().__init__(env)
        self.opponent = opponent
        self.begins = False

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.begins = not self.begins
        if not self.begins:
            obs, *_, info = self.env.step(self.opponent(obs))
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            obs, loss, terminated, truncated, info = self.env.step(self.opponent(obs))
            reward -= loss
        return obs, reward, terminated, truncated, info


def find_opponent(args, game):
    """--opponent, as a function that gives its move for an observation."""
    shape = game.exists.shape  # (parts, choices)
    rng = np.random.default_rng(args.seed)
    if args.opponent == "random":
        return lambda obs: random_move(obs, shape, rng)
    if args.opponent == "builtin":
        utils.check(
            game.has_wrapper_attr("builtin_action"), f"{args.env_id} has no builtin opponent"
        )
        return game.get_wrapper_attr("builtin_action")
    agent = Agent(args, game.observation_space, game.action_space).requires_grad_(False).eval()
    utils.load(args.opponent, agent=agent)

    def sample(obs):
        dist, _ = agent(torch.from_numpy(obs))
        logits = dist.base_dist.logits.numpy()
        return (logits + rng.gumbel(size=shape)).argmax(-1)

    return sample


def make_game(args):
    """For training: each step is a move of the player whose turn it is."""
    return RandomOpening(ActionMask(utils.make(args), args.mask), args.random_moves)


def make_env(args, render_mode=None):
    """For evaluations: each step is a move and the answer of --opponent."""
    game = ActionMask(utils.make(args, render_mode), args.mask)
    return Against(game, find_opponent(args, game))


# === agent
def mlp(inputs, outputs, last_gain):
    """Two hidden layers of 256 ReLU units, with orthogonal weights."""
    network = nn.Sequential(
        nn.Linear(inputs, 256),
        nn.ReLU(),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, outputs),
    )
    gains = math.sqrt(2), math.sqrt(2), last_gain
    for layer, gain in zip(network[::2], gains, strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return network


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        self.shape = len(action_space), int(action_space.nvec.max())  # (parts, choices)
        size = math.prod(self.shape)
        self.obs_dim = obs_space.shape[0] - size  # the networks do not see the mask
        self.critic = mlp(self.obs_dim, 1, last_gain=1.0)
        # small weights: the policy starts out uniform
        self.actor = mlp(self.obs_dim, size, last_gain=0.01)

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim + size of the mask)."""
        mask = obs[..., self.obs_dim :]
        obs = obs[..., : self.obs_dim]
        # Replaced: adding -1e8 would round logits away but let their gradient through.
        logits = torch.where(mask > 0, self.actor(obs), (mask - 1) * 1e8)
        parts = Categorical(logits=logits.unflatten(-1, self.shape), validate_args=False)
        dist = Independent(parts, 1, validate_args=False)  # sums over the parts
        return dist, self.critic(obs).squeeze(-1)

    def sampler(self):
        """The same policy as a function from obs to random actions, in numpy: it is faster."""
        actor = utils.in_numpy(self.actor)

        def sample(obs):
            mask = obs[:, self.obs_dim :]
            logits = np.where(mask > 0, actor(obs[:, : self.obs_dim]), (mask - 1) * 1e8)
            logits = logits.reshape(-1, *self.shape)
            # float64: float32 would round gumbel away beside -1e8, where no choice is valid
            gumbel = np.random.gumbel(size=logits.shape)
            # the Gumbel-max trick: a sample from softmax(logits)
            return (logits + gumbel).argmax(-1)

        return sample

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs)
        return dist.base_dist.logits.argmax(-1)


# === pure functions
# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions logprobs values advantages returns")


def compute_gae(args, rewards, values, next_values, terminations, dones):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation that
    step t truly led to. It counts where an episode is truncated; a terminated one has no rest.
    """
    # The next value and advantage are the other player's, whose gain is one's loss.
    deltas = rewards - args.gamma * next_values * ~terminations - values
    decays = -args.gamma * args.gae_lambda * ~dones
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
    utils.check(args.random_moves <= 1000, "--random-moves must be at most 1,000")
    envs = utils.make_envs(args, make_game)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    make_env(args)  # refuses a wrong --opponent at once
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
    obs = np.zeros((*shape, *obs_space.shape), np.float32)
    next_obs = np.zeros_like(obs)
    actions = np.zeros((*shape, *action_space.shape), np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, bool)
    dones = np.zeros(shape, bool)
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            adam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        sample = agent.sampler()
        for t in range(args.num_steps):
            obs[t] = envs.obs
            actions[t] = sample(obs[t])
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
        advantages = compute_gae(args, rewards, values, next_values, terminations, dones)
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

        # log, evaluate, save
        scalars = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        unexplained = (returns - values).var() / (returns.var() + 1e-8)
        scalars["losses/explained_variance"] = 1 - unexplained
        scalars["charts/learning_rate"] = adam.learning_rate
        run.log(writer, scalars)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
