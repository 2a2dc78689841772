"""Vanilla policy gradient, REINFORCE with a baseline; a variant of ppo_simple.py.

Paper:    Williams 1992 (Machine Learning 8, 229-256); Sutton et al. 1999 (NeurIPS 12).
Run:      python cleanrl_lite/vpg.py --env-id CartPole-v1
Differs:  The return of an episode that a rollout or a time limit cuts off ends with the value of
          its last observation. Policy and value learn from a rollout in one step.
Expected: CartPole-v1 500.0, Acrobot-v1 -224.5 (500,000 steps, mean of the last 100 training
          episodes, 3 seeds, 32f86a5; on Acrobot-v1 one of them collapsed).
Details:  docs/vpg.md
"""

from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

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
    return utils.flatten(utils.make(args, render_mode))


# === agent
def mlp(inputs, outputs):
    """Two hidden layers of 64 tanh units, initialised as PyTorch does."""
    hidden = [nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh()]
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        utils.check(
            isinstance(action_space, Discrete) and action_space.start == 0,
            f"actions must be Discrete, from 0, not {action_space}. Box: ppo_continuous.py",
        )
        obs_dim, num_actions = obs_space.shape[0], int(action_space.n)
        self.critic = mlp(obs_dim, 1)
        self.actor = mlp(obs_dim, num_actions)

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (..., obs_dim)."""
        dist = Categorical(logits=self.actor(obs), validate_args=False)
        return dist, self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs.float())
        return dist.logits.argmax(-1)


# === pure functions
# Samples of a rollout: tensors (num_steps, num_envs, ...)
Batch = namedtuple("Batch", "obs actions returns")


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


def policy_gradient_loss(args, agent, batch):
    """A loss whose gradient is the policy's, E[grad log pi(a|s) (G - V(s))]; metrics."""
    dist, values = agent(batch.obs)
    advantages = batch.returns - values  # G - V(s)
    # detach: V is a baseline here, and learns from the next line only
    policy_loss = -(dist.log_prob(batch.actions) * advantages.detach()).mean()
    value_loss = 0.5 * advantages.square().mean()
    loss = policy_loss + args.vf_coef * value_loss
    unexplained = advantages.var(correction=0) / (batch.returns.var(correction=0) + 1e-8)
    return loss, {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": dist.entropy().mean(),
        "losses/explained_variance": 1 - unexplained,
    }


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate)
    run = utils.Run(args, __file__, make_env, envs, agent, optimizer=optimizer)
    optimizer.param_groups[0]["lr"] = args.learning_rate  # a resumed run may have a new one
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
    shape = args.num_steps, args.num_envs
    obs = torch.zeros((*shape, *obs_space.shape), device=device)
    next_obs = torch.zeros_like(obs)
    actions = torch.zeros(shape, dtype=torch.int64, device=device)
    rewards = torch.zeros(shape, device=device)
    terminations = torch.zeros(shape, dtype=torch.bool, device=device)
    truncations = torch.zeros_like(terminations)
    while run.step < args.total_timesteps:
        # act, step, store
        for t in range(args.num_steps):
            obs[t] = torch.from_numpy(envs.obs)
            with torch.no_grad():
                dist, _ = agent(obs[t])
                actions[t] = dist.sample()
            *results, infos = envs.step(actions[t].cpu().numpy())
            next_obs[t], rewards[t], terminations[t], truncations[t] = map(torch.tensor, results)
            for info in infos:
                run.step += 1
                if "episode" in info:
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)
        dones = terminations | truncations

        # returns of the whole rollout
        with torch.no_grad():
            _, next_values = agent(next_obs)
        returns = compute_returns(rewards, next_values, terminations, dones, args.gamma)

        # learn
        loss, metrics = policy_gradient_loss(args, agent, Batch(obs, actions, returns))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # log, evaluate, save
        run.log(writer, {tag: metric.item() for tag, metric in metrics.items()})
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
