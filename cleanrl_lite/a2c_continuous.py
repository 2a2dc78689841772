"""Advantage actor-critic (A2C) for Box (continuous) actions; a variant of a2c.py.

Paper:    Mnih et al. 2016 (arXiv:1602.01783), with environments stepped together.
Run:      python cleanrl_lite/a2c_continuous.py --env-id Hopper-v4
Differs:  From a2c.py: the only change is the Gaussian policy. Observations and rewards
          are as the environment gives them, unlike in ppo_continuous.py.
Expected: InvertedPendulum-v4 695.9, Hopper-v4 344.2 (1,000,000 steps, mean of the last 100
          training episodes, 5 seeds, 32f86a5).
Details:  docs/a2c_continuous.md
"""

from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import torch
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
    torch_deterministic: bool = True  # use deterministic algorithms of cuDNN
    cuda: bool = True  # train on a GPU if there is one
    threads: int = 1  # CPU threads of torch and numpy (0: their choice)
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
    env_id: str = "Hopper-v4"  # environment id, or module:Env-v0
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 3e-3  # the optimizer's learning rate
    num_envs: int = 16  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 5  # steps per environment in each rollout
    gamma: float = 0.99  # discount factor
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args, render_mode, max_episode_steps=args.max_episode_steps)
    return utils.flatten(env)


# === networks
def mlp(inputs, outputs):
    """Two hidden layers of 64 tanh units, initialised as PyTorch does."""
    hidden = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


class Agent(nn.Module):
    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.critic = mlp(obs_dim, 1)
        self.actor = mlp(obs_dim, action_dim)
        self.actor_logstd = nn.Parameter(torch.zeros(action_dim))

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (..., obs_dim)."""
        normal = Normal(self.actor(obs), self.actor_logstd.exp(), validate_args=False)
        dist = Independent(normal, 1, validate_args=False)
        return dist, self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs.float())
        return dist.mean


# === pure functions
def compute_returns(rewards, next_values, terminations, dones, gamma):
    """Discounted sums of the rewards from each step on: G_t = r_t + gamma G_(t+1).

    All tensors are (num_steps, num_envs). next_values[t] is the value of the observation that
    step t truly led to. It stands for the rest of an episode that is truncated, or that goes
    on after the rollout; a terminated one has no rest.
    """
    returns = rewards + gamma * next_values * ~terminations
    for t in reversed(range(len(returns) - 1)):
        returns[t] = torch.where(dones[t], returns[t], rewards[t] + gamma * returns[t + 1])
    return returns


@utils.with_cleanup
def main(args: Args):
    # === setup
    device = utils.setup(args)

    env_fns = [lambda: make_env(args)] * args.num_envs
    envs = utils.vector_env(env_fns, args.async_envs)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    real = isinstance(action_space, gym.spaces.Box) and action_space.dtype.kind == "f"
    vectors = real and len(action_space.shape) == 1
    message = f"actions must be a 1-D Box of floats, not {action_space}. Discrete: a2c.py"
    utils.check(vectors, message)

    agent = Agent(obs_space.shape[0], action_space.shape[0]).to(device)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=args.learning_rate, alpha=0.99, eps=1e-5)
    run = utils.Run(args, __file__, make_env, envs, agent, optimizer=optimizer)
    optimizer.param_groups[0]["lr"] = args.learning_rate  # a resumed run may have a new one

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
    def update(obs, actions, returns):
        """A step of RMSprop along the policy gradient, with an entropy bonus."""
        dist, values = agent(obs)
        advantages = returns - values  # G - V(s)
        # detach: V is a baseline here, and learns from the next line only
        policy_loss = -(dist.log_prob(actions) * advantages.detach()).mean()
        value_loss = 0.5 * advantages.square().mean()
        entropy = dist.entropy().mean()
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss

        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
        optimizer.step()
        unexplained = advantages.var(correction=0) / (returns.var(correction=0) + 1e-8)
        return {
            "losses/policy_loss": policy_loss.item(),
            "losses/value_loss": value_loss.item(),
            "losses/entropy": entropy.item(),
            "losses/grad_norm": grad_norm.item(),
            "losses/explained_variance": 1 - unexplained.item(),
        }

    # === training
    rewards = torch.zeros((args.num_steps, args.num_envs), device=device)
    terminations = torch.zeros_like(rewards, dtype=torch.bool)
    dones = torch.zeros_like(terminations)
    actions = torch.zeros((*rewards.shape, *action_space.shape), device=device)
    rollout_obs = torch.zeros((*rewards.shape, *obs_space.shape), device=device)
    next_obs = torch.zeros_like(rollout_obs)
    obs = run.obs
    global_step = run.global_step
    while run.goes_on(global_step, obs):
        # act, step, store
        for t in range(args.num_steps):
            rollout_obs[t] = torch.from_numpy(obs)
            with torch.no_grad():
                dist, _ = agent(rollout_obs[t])
                actions[t] = dist.sample()
            # The policy is a Gaussian: its samples may lie outside the bounds.
            clipped = actions[t].cpu().numpy().clip(action_space.low, action_space.high)
            obs, reward, terminated, truncated, infos = envs.step(clipped)
            next_obs[t] = torch.from_numpy(obs)
            rewards[t] = torch.from_numpy(reward)
            terminations[t] = torch.from_numpy(terminated)
            dones[t] = torch.from_numpy(terminated | truncated)
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                # obs[n] is already the first observation of the next episode
                next_obs[t, n] = torch.from_numpy(infos["final_obs"][n])
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
                info = infos["final_info"][n]
                if "is_success" in info:
                    success = info["is_success"]
                    writer.add_scalar("charts/success_rate", success, global_step)

        # returns of the whole rollout
        with torch.no_grad():
            _, next_values = agent(next_obs)
        returns = compute_returns(rewards, next_values, terminations, dones, args.gamma)

        # learn
        losses = update(rollout_obs, actions, returns)

        # log
        run.log(losses, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
