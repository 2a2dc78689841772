"""PPO with LSTMs for Box (continuous) actions; a variant of ppo_lstm.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); LSTM:
          Hochreiter & Schmidhuber 1997; Gers et al. 2000.
Run:      python cleanrl_lite/ppo_continuous_lstm.py --env-id Hopper-v4
Differs:  As ppo_lstm.py. The policy is a Gaussian, observations
          are normalised and rewards scaled, as in
          ppo_continuous.py. The flag that clears the memory is
          not normalised.
Expected: benchmark.environments.memory:PendulumHidden-v0 -197.7
          (greedy -200.5; ppo_continuous.py with these flags:
          -1,062): 300,000 steps with the flags of its docs page,
          mean of the last 100 training episodes, 3 seeds,
          0a7ab71.
Details:  docs/ppo_continuous_lstm.md
"""

import math
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn
from torch.distributions import Independent, Normal
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
    env_id: str = "Hopper-v4"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 8  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 256  # steps per environment in each rollout
    seq_len: int = 16  # steps that the update goes back in time
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
class BeginFlag(gym.Wrapper):
    """Appends 1 to the first observation of an episode and 0 to the others.

    In the observation, evaluations see it and checkpoints keep it.
    """

    def __init__(self, env):
        super().__init__(env)
        low = self.append(env.observation_space.low, 0)
        high = self.append(env.observation_space.high, 1)
        self.observation_space = Box(low, high, dtype=low.dtype)

    def append(self, obs, begins):
        return np.append(obs, begins).astype(obs.dtype)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self.append(obs, 1), info

    def step(self, action):
        obs, *results = self.env.step(action)
        return self.append(obs, 0), *results


def make_env(args, render_mode=None):
    return BeginFlag(utils.flatten(utils.make(args, render_mode)))


# === agent
def lstm_step(gates, c, tanh):
    """One step of 64 LSTM cells, in torch or numpy: h and c (batch, 64) after it.

    gates are (batch, 256): input, forget and output gate, new contents.
    """
    sigmoids = 0.5 + 0.5 * tanh(0.5 * gates[:, :192])
    c = sigmoids[:, 64:128] * c + sigmoids[:, :64] * tanh(gates[:, 192:])
    return sigmoids[:, 128:] * tanh(c), c


class LSTM(nn.Module):
    """A layer of 64 tanh units, 64 LSTM cells and the output layer, with orthogonal weights."""

    def __init__(self, inputs, outputs, last_gain):
        super().__init__()
        self.encoder = nn.Linear(inputs, 64)
        self.inputs = nn.Linear(64, 256)
        self.recurrent = nn.Linear(64, 256)
        self.output = nn.Linear(64, outputs)
        gains = math.sqrt(2), 1.0, 1.0, last_gain
        for layer, gain in zip(self.children(), gains, strict=True):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, obs, state):
        """The outputs for sequences `obs` (steps, batch, inputs), and the state after them.

        state is h and c (batch, 2, 64) before them.
        """
        inputs = self.inputs(self.encoder(obs).tanh())
        h, c = state.unbind(1)
        hidden = []
        for t in range(len(obs)):
            goes_on = 1 - obs[t, :, -1:]  # an episode begins with zeros
            gates = inputs[t] + self.recurrent(h * goes_on)
            h, c = lstm_step(gates, c * goes_on, torch.tanh)
            hidden.append(h)
        return self.output(torch.stack(hidden)), torch.stack((h, c), 1)

    def in_numpy(self):
        """One step with the weights of now: the outputs and the state after it, in numpy."""
        weights = [param.detach().cpu().numpy().T for param in self.parameters()]
        w_encoder, b_encoder, *lstm, w_out, b_out = weights
        w_inputs, b_inputs, w_recurrent, b_recurrent = lstm

        def step(obs, state):
            h, c = (state * (1 - obs[:, -1:, None])).swapaxes(0, 1)
            inputs = np.tanh(obs @ w_encoder + b_encoder) @ w_inputs + b_inputs
            gates = inputs + h @ w_recurrent + b_recurrent
            h, c = lstm_step(gates, c, np.tanh)
            return h @ w_out + b_out, np.stack((h, c), 1)

        return step


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
        utils.check(
            isinstance(action_space, Box)
            and action_space.dtype.kind == "f"
            and len(action_space.shape) == 1,
            f"actions must be a 1-D float Box, not {action_space}. "
            "Discrete: ppo_lstm.py; Tuple: ppo_hybrid.py",
        )
        obs_dim, action_dim = obs_space.shape[0], action_space.shape[0]
        self.obs_stats = RunningMeanStd(obs_dim)
        self.return_stats = RunningMeanStd()  # of discounted returns, to scale the rewards
        self.critic = LSTM(obs_dim, 1, last_gain=1.0)
        # small weights: the mean starts at 0
        self.actor = LSTM(obs_dim, action_dim, last_gain=0.01)
        self.actor_logstd = nn.Parameter(torch.zeros(action_dim))
        # the actor's state in act()
        self.register_buffer("memory", torch.zeros(1, 2, 64), persistent=False)

    def normalize(self, obs):
        """Observations with mean 0 and variance 1 over the training so far."""
        obs = (obs.double() - self.obs_stats.mean) / self.obs_stats.std
        return obs.clamp(-10, 10).float()

    def forward(self, obs, state):
        """The policy's distribution and the value of sequences `obs` (steps, batch, obs_dim).

        state is h and c of the actor, then of the critic, (batch, 4, 64) before them.
        """
        obs = self.normalize(obs)
        mean, _ = self.actor(obs, state[:, :2])
        std = self.actor_logstd.exp().expand_as(mean)
        dist = Independent(Normal(mean, std, validate_args=False), 1, validate_args=False)
        value, _ = self.critic(obs, state[:, 2:])
        return dist, value.squeeze(-1)

    def sampler(self):
        """A function from obs and state to random actions and the next state, in numpy."""
        actor = self.actor.in_numpy()
        critic = self.critic.in_numpy()
        obs_mean = self.obs_stats.mean.cpu().numpy().copy()
        obs_std = self.obs_stats.std.cpu().numpy()
        std = self.actor_logstd.detach().exp().cpu().numpy()

        def sample(obs, state):
            obs = ((obs - obs_mean) / obs_std).clip(-10, 10).astype(np.float32)
            mean, actor_state = actor(obs, state[:, :2])
            # The critic steps along, so that its memory holds the same observations.
            _, critic_state = critic(obs, state[:, 2:])
            noise = np.random.standard_normal(mean.shape).astype(np.float32)
            return mean + std * noise, np.concatenate([actor_state, critic_state], 1)

        return sample

    def act(self, obs):
        """The greedy policy, for evaluation.

        It remembers: give it all observations of an episode, in order.
        """
        mean, self.memory = self.actor(self.normalize(obs[None]), self.memory)
        return mean[0]


class OneStep(nn.Module):
    """One step of an agent that remembers something: utils.check_policy compares its policies."""

    def __init__(self, agent):
        super().__init__()
        self.agent = agent

    def forward(self, obs):
        return self.agent(obs[None], torch.full((len(obs), 4, 64), 0.5, device=obs.device))

    def sampler(self):
        sample = self.agent.sampler()
        return lambda obs: sample(obs, np.full((len(obs), 4, 64), 0.5, np.float32))[0]

    def act(self, obs):
        self.agent.memory = torch.full((len(obs), 2, 64), 0.5, device=obs.device)
        return self.agent.act(obs)


# === pure functions
# Samples of a rollout: tensors (samples, ...). states are those before each step
Batch = namedtuple("Batch", "obs states actions logprobs values advantages returns")


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
    """The loss of sequences (seq_len, sequences, ...) (eq. 9), and a dict of metrics."""
    dist, values = agent(batch.obs, batch.states[0])
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
    utils.check(
        args.num_steps % args.seq_len == 0
        and batch_size // args.num_minibatches % args.seq_len == 0,
        f"--num-steps and minibatches must be multiples of --seq-len {args.seq_len}",
    )
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.parameters(), args.learning_rate, args.max_grad_norm, eps=1e-5)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
    utils.check_policy(OneStep(agent), envs.obs)
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
    # before each step and after the last; an episode begins with zeros, whatever they are
    states = np.zeros((args.num_steps + 1, args.num_envs, 4, 64), np.float32)
    # sequences of consecutive samples of one environment: (number, seq_len)
    sequences = np.arange(batch_size).reshape(-1, args.seq_len, args.num_envs)
    sequences = sequences.swapaxes(1, 2).reshape(-1, args.seq_len)
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            adam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        sample = agent.sampler()
        states[0] = states[-1]
        for t in range(args.num_steps):
            obs[t] = envs.obs
            actions[t], states[t + 1] = sample(obs[t], states[t])
            # envs clip what lies outside the bounds
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
            b_states = torch.from_numpy(states[:-1].copy()).to(device).flatten(0, 1)
            b_actions = torch.from_numpy(actions).to(device).flatten(0, 1)
            dist, b_values = agent(b_obs[None], b_states)  # sequences of one step
            logprobs = dist.log_prob(b_actions)[0]
            b_values = b_values[0]
            b_next_obs = torch.from_numpy(next_obs).to(device).flatten(0, 1)
            b_next_states = torch.from_numpy(states[1:]).to(device).flatten(0, 1)
            # at an episode's end: the last observation, with the memory of that episode
            _, next_values = agent(b_next_obs[None], b_next_states)
        values = b_values.reshape(shape).cpu().numpy()
        next_values = next_values.reshape(shape).cpu().numpy()
        discounted = discounted_returns(args, rewards, dones, so_far)
        so_far = args.gamma * ~dones[-1] * discounted[-1]
        agent.return_stats.update(torch.from_numpy(discounted).to(device).flatten())
        scaled = (rewards / agent.return_stats.std.item()).clip(-10, 10)
        advantages = compute_gae(args, scaled, values, next_values, terminations, dones)
        returns = advantages + values
        b_advantages = torch.from_numpy(advantages).to(device).flatten()
        b_returns = torch.from_numpy(returns).to(device).flatten()
        batch = Batch(b_obs, b_states, b_actions, logprobs, b_values, b_advantages, b_returns)

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(sequences)
            order = order.reshape(args.num_minibatches, -1, args.seq_len).swapaxes(1, 2)
            epoch = [update(inds, *batch) for inds in torch.from_numpy(order).to(device)]
            metrics += epoch
            kls = [m["losses/approx_kl"] for m in epoch]
            if args.target_kl and torch.stack(kls).mean() > args.target_kl:
                break

        agent.obs_stats.update(b_obs)  # for the next rollout
        # The trap: the flag must stay 0 or 1, or the networks forget at every step.
        agent.obs_stats.mean[-1] = 0
        agent.obs_stats.var[-1] = 1

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
