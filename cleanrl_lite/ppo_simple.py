"""Proximal Policy Optimization in its plainest form: what its paper says and no more; a variant of ppo.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); advantages: Schulman et al. 2016 (arXiv:1506.02438).
Run:      python cleanrl_lite/ppo_simple.py --env-id CartPole-v1
Differs:  From ppo.py: no orthogonal initialisation, no annealed learning rate, no normalised advantages, no clipping of
          the value loss or the gradient, no entropy bonus, Adam's usual epsilon. Episodes end as in ppo.py.
Expected: CartPole-v1 491.3, Acrobot-v1 -82.1, LunarLander-v3 -60.5 (500k steps, last 100 episodes, 5 seeds, 5ed444d).
Details:  docs/ppo_simple.md
"""

import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Discrete
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
    learning_rate: float = 2.5e-4  # the optimizer's learning rate
    num_envs: int = 4  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 128  # steps per environment in each rollout
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    vf_coef: float = 0.5  # coefficient of the value loss


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    return gym.wrappers.RecordEpisodeStatistics(utils.flatten(env), stats_key="statistics")


# === networks
def mlp(inputs, outputs):
    """Two hidden layers of 64 tanh units."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


class Agent(nn.Module):
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.critic = mlp(obs_dim, 1)
        self.actor = mlp(obs_dim, num_actions)

    def policy(self, logits):
        return Categorical(logits=logits, validate_args=False)

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim)."""
        return self.policy(self.actor(obs)), self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.actor(obs.float()).argmax(-1)


# === pure functions
def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); all arrays are (num_steps, num_envs).

    next_values[t] is the value of the observation that step t truly led to: at the end of an episode the last one of
    that episode, not the first one of the next. A truncated episode would have gone on, so its value counts; a
    terminated one has none. Nothing flows back from one episode into the one before.
    """
    advantages = rewards + gamma * next_values * ~terminations - values
    for t in reversed(range(len(advantages) - 1)):
        advantages[t] += gamma * gae_lambda * ~dones[t] * advantages[t + 1]
    return advantages


def adam_step(params, grads, adam, learning_rate, beta1=0.9, beta2=0.999, eps=1e-8):
    """One step of Adam (Kingma & Ba 2015, algorithm 1), in place; written out, as this compiles into the update."""
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
    check, batch_size = utils.check, args.num_envs * args.num_steps
    device = utils.setup(args)
    minibatch_size, remainder = divmod(batch_size, args.num_minibatches)
    check(remainder == 0, f"--num-envs x --num-steps = {batch_size} must be a multiple of --num-minibatches")
    check(args.total_timesteps >= batch_size, f"--total-timesteps must be at least one rollout, {batch_size}")

    envs = utils.vector_env([lambda: make_env(args)] * args.num_envs, args.async_envs, AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    others = "Box: ppo_continuous.py; MultiDiscrete: ppo_masked.py; Tuple: ppo_hybrid.py"
    check(isinstance(action_space, Discrete), f"actions must be Discrete, not {action_space}. {others}")
    check(action_space.start == 0, f"{args.env_id} has actions that start at {action_space.start}, not at 0")

    agent = Agent(obs_space.shape[0], int(action_space.n)).to(device)
    params = [param for param in agent.parameters() if param.requires_grad]
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())

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
    b_logprobs, b_advantages, b_returns = torch.zeros((3, batch_size), device=device).unbind()

    def update(inds):
        """One minibatch, the samples inds (minibatch_size,) of the batch: PPO's loss (eq. 9) and a step of Adam."""
        dist, value = agent(b_obs[inds])
        logratio = dist.log_prob(b_actions[inds]) - b_logprobs[inds]
        ratio, advantages = logratio.exp(), b_advantages[inds]
        clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7
        value_loss = 0.5 * (value - b_returns[inds]).square().mean()
        grads = torch.autograd.grad(policy_loss + args.vf_coef * value_loss, params)
        with torch.no_grad():
            adam_step(params, grads, adam, args.learning_rate)
        approx_kl = ((ratio - 1) - logratio).mean()  # http://joschu.net/blog/kl-approx.html
        entropy = dist.entropy().mean()
        metrics = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, approx_kl=approx_kl)
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    rollout_obs, next_obs = np.zeros((2, *shape, *obs_space.shape), dtype=np.float32)
    logits = np.zeros((*shape, action_space.n), dtype=np.float32)
    actions, rewards = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    terminations, dones = np.zeros((2, *shape), dtype=bool)
    obs, global_step = run.obs, run.global_step
    while run.goes_on(global_step, obs):
        # The last rollout may be shorter.
        num_steps = min(args.num_steps, math.ceil((args.total_timesteps - global_step) / args.num_envs))
        size = num_steps * args.num_envs

        # act, step, store
        actor = utils.numpy_forward(agent.actor, device)
        gumbel = np.random.gumbel(size=logits[:num_steps].shape).astype(np.float32)
        for t in range(num_steps):
            rollout_obs[t] = obs
            logits[t] = actor(rollout_obs[t])
            actions[t] = (logits[t] + gumbel[t]).argmax(-1)  # the Gumbel-max trick: a sample from softmax(logits)
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            next_obs[t], dones[t] = obs, terminations[t] | truncations
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                next_obs[t, n] = infos["final_obs"][n]  # obs[n] is the first observation of the next episode already
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            b_obs[:size] = torch.from_numpy(rollout_obs[:num_steps]).flatten(0, 1)
            b_actions[:size] = torch.from_numpy(actions[:num_steps]).flatten()
            behaviour = agent.policy(torch.from_numpy(logits[:num_steps]).to(device).flatten(0, 1))
            b_logprobs[:size] = behaviour.log_prob(b_actions[:size])
            values = agent.critic(b_obs[:size]).reshape(num_steps, args.num_envs).cpu().numpy()
            next_values = agent.critic(torch.from_numpy(next_obs[:num_steps]).to(device)).squeeze(-1).cpu().numpy()
        rollout = rewards[:num_steps], values, next_values, terminations[:num_steps], dones[:num_steps]
        advantages = compute_gae(*rollout, args.gamma, args.gae_lambda)
        returns = advantages + values
        b_advantages[:size] = torch.from_numpy(advantages).flatten()
        b_returns[:size] = torch.from_numpy(returns).flatten()

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            # A short rollout's last minibatch is filled up from the front of the permutation.
            inds = np.resize(np.random.permutation(size), (math.ceil(size / minibatch_size), minibatch_size))
            metrics += [update(minibatch) for minibatch in torch.from_numpy(inds).to(device)]

        # log
        losses = {name: torch.stack([m[name] for m in metrics]).mean().item() for name in metrics[0]}
        losses["losses/explained_variance"] = 1 - (returns - values).var() / (returns.var() + 1e-8)
        run.log(losses, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
