"""Proximal Policy Optimization with LSTMs, for tasks that need memory; a variant of ppo.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); LSTM: Hochreiter & Schmidhuber 1997; Gers et al. 2000.
Run:      python cleanrl_lite/ppo_lstm.py --env-id CartPole-v1
Differs:  As ppo.py. Policy and value have an LSTM each. The update learns from short sequences, each from the state
          that was stored while acting. A flag in the observation clears the memory where an episode begins.
Expected: popgym:popgym-RepeatPreviousEasy-v0 1.0, benchmark.environments.memory:CartPoleHidden-v0 379.9 (greedy 500.0): 500,000
          steps, mean of the last 100 training episodes, 3 seeds, 8d3bc7e.
Details:  docs/ppo_lstm.md
"""

import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
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
    env_id: str = "CartPole-v1"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 500_000  # environment steps, summed over the environments
    learning_rate: float = 1e-3  # the optimizer's learning rate
    num_envs: int = 8  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 128  # steps per environment in each rollout
    seq_len: int = 16  # steps that the update goes back in time
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
class BeginFlag(gym.Wrapper):
    """Appends 1 to the first observation of an episode and 0 to the others: evaluations see it, checkpoints keep it."""

    def __init__(self, env):
        super().__init__(env)
        low, high = self.append(env.observation_space.low, 0), self.append(env.observation_space.high, 1)
        self.observation_space = Box(low, high)

    def append(self, obs, begins):
        return np.concatenate((obs, [begins]), dtype=np.float32)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self.append(obs, 1), info

    def step(self, action):
        obs, *results = self.env.step(action)
        return self.append(obs, 0), *results


def make_env(args, render_mode=None):
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    return gym.wrappers.RecordEpisodeStatistics(BeginFlag(utils.flatten(env)), stats_key="statistics")


# === networks
def lstm_step(gates, c, tanh):
    """One step of 64 LSTM cells, in torch or numpy: h and c (batch, 64) after it, from the gates (batch, 256)."""
    i, f, o = (0.5 + 0.5 * tanh(0.5 * gates[:, k : k + 64]) for k in (0, 64, 128))  # that is the sigmoid
    c = f * c + i * tanh(gates[:, 192:])
    return o * tanh(c), c


class LSTM(nn.Module):
    """A layer of 64 tanh units, 64 LSTM cells, the output layer; orthogonal weights, `last_gain` in the last layer."""

    def __init__(self, inputs, outputs, last_gain):
        super().__init__()
        self.encoder, self.inputs = nn.Linear(inputs, 64), nn.Linear(64, 256)
        self.recurrent, self.output = nn.Linear(64, 256), nn.Linear(64, outputs)
        for layer, gain in zip(self.children(), (math.sqrt(2), 1.0, 1.0, last_gain)):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, obs, states, loads=None):
        """The outputs for sequences `obs` (steps, batch, inputs).

        states (steps, batch, 2, 64) are h and c as they were stored before each step: the first step begins with them,
        and so does every step at which loads (steps, batch) is True.
        """
        inputs, hidden = self.inputs(self.encoder(obs).tanh()), []
        h, c = states[0].unbind(1)
        for t in range(len(obs)):
            if t:
                h, c = (torch.where(loads[t, :, None], states[t, :, k], x) for k, x in enumerate((h, c)))
            h, c = lstm_step(inputs[t] + self.recurrent(h), c, torch.tanh)
            hidden.append(h)
        return self.output(torch.stack(hidden))

    def in_numpy(self):
        """One step, with the weights of now, as a function of numpy arrays: the outputs and the state after it."""
        weights = [p.detach().cpu().numpy().T for p in self.parameters()]
        w_encoder, b_encoder, w_inputs, b_inputs, w_recurrent, b_recurrent, w_output, b_output = weights

        def step(obs, state):
            inputs = np.tanh(obs @ w_encoder + b_encoder) @ w_inputs + b_inputs
            h, c = lstm_step(inputs + state[:, 0] @ w_recurrent + b_recurrent, state[:, 1], np.tanh)
            return h @ w_output + b_output, np.stack((h, c), 1)

        return step


class Agent(nn.Module):
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.critic = LSTM(obs_dim, 1, last_gain=1.0)
        self.actor = LSTM(obs_dim, num_actions, last_gain=0.01)  # near zero: starts as the uniform policy
        self.memory = np.zeros((1, 2, 64), dtype=np.float32)  # of act()

    def policy(self, logits):
        return Categorical(logits=logits, validate_args=False)

    def forward(self, obs, states, loads):
        """The policy's distribution and the value of sequences `obs` (steps, batch, obs_dim)."""
        logits, value = self.actor(obs, states[:, :, :2], loads), self.critic(obs, states[:, :, 2:], loads)
        return self.policy(logits), value.squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation. It remembers: give it all observations of an episode, in order."""
        obs = obs.float().cpu().numpy()
        logits, self.memory = self.actor.in_numpy()(obs, self.memory * (1 - obs[:, -1:, None]))
        return torch.from_numpy(logits).argmax(-1)


# === pure functions
def linear_recurrence(inputs, decays, initial):
    """y[t] = inputs[t] + decays[t] * y[t - 1] for arrays (num_steps, num_envs), with y[-1] = initial (num_envs,)."""
    outputs = np.empty_like(inputs)
    # Python floats are faster than numpy rows for up to about ten environments.
    for n, y in enumerate(initial.tolist()):
        column = []
        for x, decay in zip(inputs[:, n].tolist(), decays[:, n].tolist()):
            y = x + decay * y
            column.append(y)
        outputs[:, n] = column
    return outputs


def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); all arrays are (num_steps, num_envs).

    next_values[t] is the value of the observation that step t truly led to: at the end of an episode the last one of
    that episode, not the first one of the next. A truncated episode would have gone on, so its value counts; a
    terminated one has none. Nothing flows back from one episode into the one before.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    return linear_recurrence(deltas[::-1], gamma * gae_lambda * ~dones[::-1], np.zeros(deltas.shape[1]))[::-1].copy()


def adam_step(params, grads, adam, learning_rate, max_grad_norm, beta1=0.9, beta2=0.999, eps=1e-5):
    """Clips the gradient's norm and takes one step of Adam (Kingma & Ba 2015, algorithm 1), in place.

    Written out, on one flat vector, because this compiles into the update's graph; torch.optim.Adam would not.
    """
    grad = torch.cat([g.flatten() for g in grads])
    grad_norm = grad.norm()
    grad = grad * (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
    adam["step"].add_(1)
    adam["exp_avg"].lerp_(grad, 1 - beta1)
    adam["exp_avg_sq"].lerp_(grad.square(), 1 - beta2)
    denominator = (adam["exp_avg_sq"] / (1 - beta2 ** adam["step"])).sqrt() + eps
    step = learning_rate * adam["exp_avg"] / (1 - beta1 ** adam["step"]) / denominator
    for param, delta in zip(params, step.split([p.numel() for p in params])):
        param.sub_(delta.view_as(param))
    return grad_norm


def main(args: Args):
    # === setup
    check, batch_size = utils.check, args.num_envs * args.num_steps
    device = utils.setup(args)
    minibatch_size, remainder = divmod(batch_size, args.num_minibatches)
    check(remainder == 0, f"--num-envs x --num-steps = {batch_size} must be a multiple of --num-minibatches")
    check(minibatch_size > 1 or not args.norm_adv, "minibatches of one sample need --no-norm-adv")
    check(args.total_timesteps >= batch_size, f"--total-timesteps must be at least one rollout, {batch_size}")

    envs = utils.vector_env([lambda: make_env(args)] * args.num_envs, args.async_envs, AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    others = "Box: ppo_continuous.py; MultiDiscrete: ppo_masked.py; Tuple: ppo_hybrid.py"
    check(isinstance(action_space, Discrete), f"actions must be Discrete, not {action_space}. {others}")
    check(action_space.start == 0, f"{args.env_id} has actions that start at {action_space.start}, not at 0")
    rest = args.num_steps % args.seq_len or minibatch_size % args.seq_len
    check(rest == 0, f"--num-steps and minibatches of {minibatch_size} must be multiples of --seq-len {args.seq_len}")

    agent = Agent(obs_space.shape[0], int(action_space.n)).to(device)
    params = [param for param in agent.parameters() if param.requires_grad]
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())
    learning_rate = torch.tensor(args.learning_rate, device=device)

    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
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
    # The batch is on the networks' device, in tensors allocated once: a CUDA graph needs fixed addresses.
    b_obs = torch.zeros((batch_size, *obs_space.shape), device=device)
    b_states = torch.zeros((batch_size, 4, 64), device=device)  # h and c of the actor, then of the critic
    b_loads = torch.zeros(batch_size, dtype=torch.bool, device=device)
    b_actions = torch.zeros(batch_size, dtype=torch.int64, device=device)
    b_logprobs, b_values, b_advantages, b_returns = torch.zeros((4, batch_size), device=device).unbind()

    def update(inds):
        """One minibatch, the sequences inds (seq_len, sequences) of the batch: PPO's loss (eq. 9), a step of Adam."""
        dist, value = agent(b_obs[inds], b_states[inds], b_loads[inds])
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
            clipped = b_values[inds] + (value - b_values[inds]).clamp(-args.clip_coef, args.clip_coef)
            value_loss = torch.max(value_loss, (clipped - b_returns[inds]).square())
        value_loss = 0.5 * value_loss.mean()

        entropy = dist.entropy().mean()
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            grad_norm = adam_step(params, grads, adam, learning_rate, args.max_grad_norm)
        metrics = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, grad_norm=grad_norm)
        metrics |= dict(approx_kl=approx_kl, old_approx_kl=-logratio.mean())
        metrics |= dict(clipfrac=(clipped_ratio != ratio).float().mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    rollout_obs, next_obs = np.zeros((2, *shape, *obs_space.shape), dtype=np.float32)
    states, next_states = np.zeros((2, *shape, 4, 64), dtype=np.float32)
    logits = np.zeros((*shape, action_space.n), dtype=np.float32)
    actions, rewards = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    terminations, dones = np.zeros((2, *shape), dtype=bool)
    obs, global_step = run.obs, run.global_step
    state = np.zeros((args.num_envs, 4, 64), dtype=np.float32)
    if run.episodes_go_on:
        state = run.values["state"].numpy()
    while run.goes_on(global_step, obs, state=torch.from_numpy(state)):
        if args.anneal_lr:
            learning_rate.fill_(args.learning_rate * (1 - global_step / args.total_timesteps))
        # The last rollout may be shorter.
        num_steps = min(args.num_steps, math.ceil((args.total_timesteps - global_step) / args.num_envs))
        size = num_steps * args.num_envs

        # act, step, store
        actor, critic = agent.actor.in_numpy(), agent.critic.in_numpy()
        gumbel = np.random.gumbel(size=logits[:num_steps].shape).astype(np.float32)
        for t in range(num_steps):
            rollout_obs[t] = obs
            states[t] = state * (1 - rollout_obs[t, :, -1:, None])  # an episode begins with zeros
            logits[t], next_states[t, :, :2] = actor(rollout_obs[t], states[t, :, :2])
            _, next_states[t, :, 2:] = critic(rollout_obs[t], states[t, :, 2:])
            actions[t] = (logits[t] + gumbel[t]).argmax(-1)  # the Gumbel-max trick: a sample from softmax(logits)
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            next_obs[t], state, dones[t] = obs, next_states[t], terminations[t] | truncations
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                next_obs[t, n] = infos["final_obs"][n]  # obs[n] is the first observation of the next episode already
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            b_obs[:size] = torch.from_numpy(rollout_obs[:num_steps]).flatten(0, 1)
            b_states[:size] = torch.from_numpy(states[:num_steps]).flatten(0, 1)
            b_loads[:size] = b_obs[:size, -1] > 0  # where an episode begins
            b_loads[: args.num_envs] = True
            b_actions[:size] = torch.from_numpy(actions[:num_steps]).flatten()
            behaviour = agent.policy(torch.from_numpy(logits[:num_steps]).to(device).flatten(0, 1))
            b_logprobs[:size] = behaviour.log_prob(b_actions[:size])
            b_values[:size] = agent.critic(b_obs[None, :size], b_states[None, :size, 2:]).flatten()
            b_next = [torch.from_numpy(x[:num_steps]).to(device).flatten(0, 1)[None] for x in (next_obs, next_states)]
            next_values = agent.critic(b_next[0], b_next[1][:, :, 2:]).reshape(num_steps, -1).cpu().numpy()
        values = b_values[:size].reshape(num_steps, args.num_envs).cpu().numpy()
        rollout = rewards[:num_steps], values, next_values, terminations[:num_steps], dones[:num_steps]
        advantages = compute_gae(*rollout, args.gamma, args.gae_lambda)
        returns = advantages + values
        b_advantages[:size] = torch.from_numpy(advantages).flatten()
        b_returns[:size] = torch.from_numpy(returns).flatten()

        # The samples of each sequence. A short rollout's last one goes on with the rollout's first step and its state.
        steps = np.resize(np.arange(num_steps), (math.ceil(num_steps / args.seq_len), args.seq_len))
        sequences = (steps[:, None] * args.num_envs + np.arange(args.num_envs)[:, None]).reshape(-1, args.seq_len)

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            # A short rollout's last minibatch is filled up from the front of the permutation.
            shape_of_all = (math.ceil(sequences.size / minibatch_size), minibatch_size // args.seq_len, args.seq_len)
            inds = np.resize(np.random.permutation(sequences), shape_of_all).swapaxes(1, 2)
            epoch = [update(minibatch) for minibatch in torch.from_numpy(inds).to(device)]
            metrics += epoch
            if args.target_kl and torch.stack([m["losses/approx_kl"] for m in epoch]).mean() > args.target_kl:
                break

        # log
        losses = {name: torch.stack([m[name] for m in metrics]).mean().item() for name in metrics[0]}
        losses["losses/explained_variance"] = 1 - (returns - values).var() / (returns.var() + 1e-8)
        run.log(losses | {"charts/learning_rate": learning_rate}, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
