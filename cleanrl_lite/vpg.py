"""Vanilla policy gradient, REINFORCE with a baseline: where policy gradients begin; a variant of ppo_simple.py.

Paper:    Williams 1992 (Machine Learning 8, 229-256); Sutton et al. 1999 (NeurIPS 12): policy gradient, baseline.
Run:      python cleanrl_lite/vpg.py --env-id CartPole-v1
Differs:  The return of an episode that a rollout or a time limit cuts off ends with the value of its last observation.
          Policy and value learn from a rollout in one step.
Expected: CartPole-v1 499.6, Acrobot-v1 -82.9 (500,000 steps, mean of the last 100 training episodes, 3 seeds, 5ed444d).
Details:  docs/vpg.md
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
    learning_rate: float = 3e-3  # the optimizer's learning rate
    num_envs: int = 8  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 64  # steps per environment in each rollout
    gamma: float = 0.99  # discount factor
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

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim)."""
        return Categorical(logits=self.actor(obs), validate_args=False), self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.actor(obs.float()).argmax(-1)


# === pure functions
def compute_returns(rewards, next_values, terminations, dones, gamma):
    """Discounted sums of the rewards from each step on; all arrays are (num_steps, num_envs).

    next_values[t] is the value of the observation that step t truly led to. It stands for the rest of an episode that
    was truncated, and of one that goes on after the last step; after a termination there is no rest.
    """
    returns = rewards + gamma * next_values * ~terminations
    for t in reversed(range(len(returns) - 1)):
        returns[t] = np.where(dones[t], returns[t], rewards[t] + gamma * returns[t + 1])
    return returns


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
    b_returns = torch.zeros(batch_size, device=device)

    def update(inds):
        """A step of Adam along the policy gradient, E[grad log pi(a|s) (G - V(s))]; inds (batch_size,) of the batch."""
        dist, value = agent(b_obs[inds])
        advantages = b_returns[inds] - value
        policy_loss = -(dist.log_prob(b_actions[inds]) * advantages.detach()).mean()
        value_loss = 0.5 * advantages.square().mean()
        grads = torch.autograd.grad(policy_loss + args.vf_coef * value_loss, params)
        with torch.no_grad():
            adam_step(params, grads, adam, args.learning_rate)
        metrics = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=dist.entropy().mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    rollout_obs, next_obs = np.zeros((2, *shape, *obs_space.shape), dtype=np.float32)
    actions, rewards = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    terminations, dones = np.zeros((2, *shape), dtype=bool)
    obs, global_step = run.obs, run.global_step
    while run.goes_on(global_step, obs):
        # The last rollout may be shorter.
        num_steps = min(args.num_steps, math.ceil((args.total_timesteps - global_step) / args.num_envs))
        size = num_steps * args.num_envs

        # act, step, store
        actor = utils.numpy_forward(agent.actor, device)
        gumbel = np.random.gumbel(size=(num_steps, args.num_envs, action_space.n)).astype(np.float32)
        for t in range(num_steps):
            rollout_obs[t] = obs
            logits = actor(rollout_obs[t])
            actions[t] = (logits + gumbel[t]).argmax(-1)  # the Gumbel-max trick: a sample from softmax(logits)
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            next_obs[t], dones[t] = obs, terminations[t] | truncations
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                next_obs[t, n] = infos["final_obs"][n]  # obs[n] is the first observation of the next episode already
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)

        # returns of the whole rollout
        b_obs[:size] = torch.from_numpy(rollout_obs[:num_steps]).flatten(0, 1)
        b_actions[:size] = torch.from_numpy(actions[:num_steps]).flatten()
        with torch.no_grad():
            values = agent.critic(b_obs[:size]).reshape(num_steps, args.num_envs).cpu().numpy()
            next_values = agent.critic(torch.from_numpy(next_obs[:num_steps]).to(device)).squeeze(-1).cpu().numpy()
        rollout = rewards[:num_steps], next_values, terminations[:num_steps], dones[:num_steps]
        returns = compute_returns(*rollout, args.gamma)
        b_returns[:size] = torch.from_numpy(returns).flatten()

        # learn
        # The last rollout may be shorter: it is repeated until it fills the batch.
        metrics = update(torch.from_numpy(np.resize(np.arange(size), batch_size)).to(device))

        # log
        explained_variance = 1 - (returns - values).var() / (returns.var() + 1e-8)
        run.log(metrics | {"losses/explained_variance": explained_variance}, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
