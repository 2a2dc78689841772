"""PPO in the C++ environments of envpool, for discrete actions; a variant of ppo.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); GAE: Schulman et al. 2016 (arXiv:1506.02438);
          envpool: Weng et al. 2022 (arXiv:2206.10558).
Run:      python cleanrl_lite/ppo_envpool.py --env-id CartPole-v1
Differs:  envpool steps all environments in C++. Evaluations play gymnasium's environment of the
          same id. Otherwise like ppo.py.
Expected: CartPole-v1 500.0, Acrobot-v1 -79.4 (1,000,000 steps, mean of the last 100 training
          episodes, 3 seeds, b2c541c).
Details:  docs/ppo_envpool.md
"""

import json
import math
import warnings
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Discrete
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
    env_id: str = "CartPole-v1"  # environment id that both envpool and gymnasium have
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 1e-3  # the optimizer's learning rate
    num_envs: int = 64  # environments stepped together
    env_threads: int = 1  # threads in which envpool steps the environments (0: one for each core)
    num_steps: int = 32  # steps per environment in each rollout
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


# === environment
def make_env(args, render_mode=None):
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
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        utils.check(
            isinstance(action_space, Discrete) and action_space.start == 0,
            f"actions must be Discrete, from 0, not {action_space}. "
            "Box: ppo_continuous_envpool.py; MultiDiscrete: ppo_masked.py",
        )
        obs_dim = obs_space.shape[0]
        self.critic = mlp(obs_dim, 1, last_gain=1.0)
        # small weights: the policy starts out uniform
        self.actor = mlp(obs_dim, int(action_space.n), last_gain=0.01)

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim)."""
        dist = Categorical(logits=self.actor(obs), validate_args=False)
        return dist, self.critic(obs).squeeze(-1)

    def sampler(self):
        """The same policy as a function from obs to random actions, in numpy: it is faster."""
        actor = utils.in_numpy(self.actor)

        def sample(obs):
            logits = actor(obs)
            # the Gumbel-max trick: a sample from softmax(logits)
            gumbel = np.random.gumbel(size=logits.shape).astype(np.float32)
            return (logits + gumbel).argmax(-1)

        return sample

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs.float())
        return dist.logits.argmax(-1)


# === pure functions
# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions logprobs values advantages returns")


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
    envs = utils.Envs(args, EnvPool(args))
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.parameters(), args.learning_rate, args.max_grad_norm, eps=1e-5)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
    utils.check_policy(agent, envs.obs.astype(np.float32))
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
    actions = np.zeros(shape, np.int64)
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
            b_actions = torch.from_numpy(actions).to(device).flatten()
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
