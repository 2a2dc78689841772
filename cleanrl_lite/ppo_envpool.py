"""Proximal Policy Optimization in the C++ environments of envpool, for discrete actions; a variant of ppo.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); advantages: Schulman et al. 2016 (arXiv:1506.02438);
          envpool: Weng et al. 2022 (arXiv:2206.10558).
Run:      python cleanrl_lite/ppo_envpool.py --env-id CartPole-v1
Differs:  envpool steps all environments in C++. It resets each in the step after its episode ends: minibatches and
          statistics leave that step out. Evaluations play gymnasium's environment of the same id.
          Values bootstrap from the true last observation of a truncated episode. Values and log-probabilities are
          computed in one batch after the rollout. The networks act in numpy; the update is one compiled graph.
Expected: CartPole-v1 500.0, Acrobot-v1 -81.3 (1,000,000 steps, mean of the last 100 training episodes, 3 seeds,
          b589f0e).
Details:  docs/ppo_envpool.md
"""

import json
import math
import warnings
from dataclasses import dataclass
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
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    return gym.wrappers.RecordEpisodeStatistics(utils.flatten(env), stats_key="statistics")


class EnvPool:
    """envpool's environments as utils.Run and the loop want them, with the spaces of gymnasium's of the same id."""

    def __init__(self, args):
        utils.check(find_spec("envpool"), "envpool is missing: pip install 'cleanrl_lite[envpool]' (Python 3.11 on)")
        import envpool  # takes a second, which --help need not

        warnings.filterwarnings("ignore", ".*precision lowered")  # about the bounds of its float64 spaces
        ids = envpool.list_all_envs()
        both = ", ".join(sorted(gym.registry.keys() & ids))
        utils.check(args.env_id in ids, f"--env-id {args.env_id} is not in envpool. envpool and gymnasium have: {both}")
        env, options = make_env(args), json.loads(args.env_kwargs)
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.action_space, threads = env.action_space, min(args.env_threads, args.num_envs)
        options |= dict(num_envs=args.num_envs, num_threads=threads, max_episode_steps=env.spec.max_episode_steps)
        try:
            shape = tuple(envpool.make_spec(args.env_id, **options).state_array_spec["obs"].shape)
        except (TypeError, KeyError) as error:
            utils.check(False, f"--env-id {args.env_id} --env-kwargs {args.env_kwargs}: {error}".splitlines()[0])
        same = shape == env.observation_space.shape
        utils.check(same, f"--env-id {args.env_id}: observations {shape} in envpool are not the vectors of gymnasium")
        self.make = lambda seed: envpool.make_gymnasium(args.env_id, seed=seed, **options)

    def reset(self, seed):
        """Makes the environments, for envpool takes seeds only then."""
        self.pool = self.make(seed)
        self.ended, self.returns = np.zeros(len(seed), dtype=bool), np.zeros(len(seed))
        return self.pool.reset()

    def step(self, actions):
        """envpool's step; infos tell which episodes ended, as those of SAME_STEP autoreset do; refuses NaN."""
        obs, rewards, terminations, truncations, info = self.pool.step(actions)
        if not math.isfinite(float(np.add.reduce(obs, axis=None)) + float(rewards.sum())):
            i = int(np.isfinite(np.column_stack((obs, rewards))).all(1).argmin())
            raise FloatingPointError(f"environment {i}: observation {obs[i]} or reward {rewards[i]}")
        self.returns = self.returns * ~self.ended + rewards  # the step after the end, which only resets, has reward 0
        self.ended = terminations | truncations
        statistics = dict(r=self.returns, l=info["elapsed_step"])
        infos = dict(final_info=dict(statistics=statistics), _final_info=self.ended) if self.ended.any() else {}
        return obs, rewards, terminations, truncations, infos

    def close(self):
        self.pool = None  # which ends its threads


# === networks
def mlp(inputs, outputs, last_gain):
    """Two hidden layers of 64 tanh units; orthogonal weights of gain sqrt(2), `last_gain` in the last layer."""
    layers = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, gain in zip(layers[::2], (math.sqrt(2), math.sqrt(2), last_gain)):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.critic = mlp(obs_dim, 1, last_gain=1.0)
        self.actor = mlp(obs_dim, num_actions, last_gain=0.01)  # near zero: starts as the uniform policy

    def policy(self, logits):
        return Categorical(logits=logits, validate_args=False)

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim)."""
        return self.policy(self.actor(obs)), self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.actor(obs.float()).argmax(-1)


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

    envs = EnvPool(args)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    others = "Box: ppo_continuous_envpool.py; MultiDiscrete: ppo_masked.py"
    check(isinstance(action_space, Discrete), f"actions must be Discrete, not {action_space}. {others}")
    check(action_space.start == 0, f"{args.env_id} has actions that start at {action_space.start}, not at 0")

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
    b_actions = torch.zeros(batch_size, dtype=torch.int64, device=device)
    b_logprobs, b_values, b_advantages, b_returns = torch.zeros((4, batch_size), device=device).unbind()

    def update(inds):
        """One minibatch, the samples inds (minibatch_size,) of the batch: PPO's loss (eq. 9) and a step of Adam."""
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
    logits = np.zeros((*shape, action_space.n), dtype=np.float32)
    actions, rewards = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    terminations, dones, ignored = np.zeros((3, *shape), dtype=bool)
    obs, global_step = run.obs, run.global_step
    while run.goes_on(global_step, obs):
        if args.anneal_lr:
            learning_rate.fill_(args.learning_rate * (1 - global_step / args.total_timesteps))
        # The last rollout may be shorter.
        num_steps = min(args.num_steps, math.ceil((args.total_timesteps - global_step) / args.num_envs))
        size = num_steps * args.num_envs

        # act, step, store
        actor = utils.numpy_forward(agent.actor, device)
        gumbel = np.random.gumbel(size=logits[:num_steps].shape).astype(np.float32)
        for t in range(num_steps):
            rollout_obs[t], ignored[t] = obs, envs.ended  # after an episode's end, the next step only resets
            logits[t] = actor(rollout_obs[t])
            actions[t] = (logits[t] + gumbel[t]).argmax(-1)  # the Gumbel-max trick: a sample from softmax(logits)
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            next_obs[t], dones[t] = obs, terminations[t] | truncations
            global_step += args.num_envs
            for _, episodic_return, episodic_length in run.finished_episodes(infos):
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)

        kept = ~ignored[:num_steps]
        if not kept.any():  # each step only reset its environment
            continue

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            b_obs[:size] = torch.from_numpy(rollout_obs[:num_steps]).flatten(0, 1)
            b_actions[:size] = torch.from_numpy(actions[:num_steps]).flatten()
            behaviour = agent.policy(torch.from_numpy(logits[:num_steps]).to(device).flatten(0, 1))
            b_logprobs[:size] = behaviour.log_prob(b_actions[:size])
            b_values[:size] = agent.critic(b_obs[:size]).squeeze(-1)
            next_values = agent.critic(torch.from_numpy(next_obs[:num_steps]).to(device)).squeeze(-1).cpu().numpy()
        values = b_values[:size].reshape(num_steps, args.num_envs).cpu().numpy()
        rollout = rewards[:num_steps], values, next_values, terminations[:num_steps], dones[:num_steps]
        advantages = compute_gae(*rollout, args.gamma, args.gae_lambda)
        returns = advantages + values
        b_advantages[:size] = torch.from_numpy(advantages).flatten()
        b_returns[:size] = torch.from_numpy(returns).flatten()

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            # The last minibatch is filled up from the front of the permutation.
            inds = np.random.permutation(np.flatnonzero(kept))
            inds = np.resize(inds, (math.ceil(len(inds) / minibatch_size), minibatch_size))
            epoch = [update(minibatch) for minibatch in torch.from_numpy(inds).to(device)]
            metrics += epoch
            if args.target_kl and torch.stack([m["losses/approx_kl"] for m in epoch]).mean() > args.target_kl:
                break

        # log
        losses = {name: torch.stack([m[name] for m in metrics]).mean().item() for name in metrics[0]}
        losses["losses/explained_variance"] = 1 - (returns - values)[kept].var() / (returns[kept].var() + 1e-8)
        run.log(losses | {"charts/learning_rate": learning_rate}, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
