"""Proximal Policy Optimization in its plainest form, the paper's; a variant of ppo.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); GAE: Schulman et al. 2016 (arXiv:1506.02438).
Run:      python cleanrl_lite/ppo_simple.py --env-id CartPole-v1
Differs:  From ppo.py: no orthogonal initialisation, no annealed learning rate, no normalised
          advantages, no clipping of the value loss or the gradient, no entropy bonus, Adam's
          usual epsilon; nothing is compiled. Episodes end as in ppo.py.
Expected: CartPole-v1 500.0, Acrobot-v1 -166.0, LunarLander-v3 -49.0 (500,000 steps, mean of the
          last 100 training episodes, 5 seeds, 32f86a5; on Acrobot-v1 one never gets to the goal).
Details:  docs/ppo_simple.md
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
            f"actions must be Discrete, from 0, not {action_space}. Box: ppo_simple_continuous.py",
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
# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions logprobs advantages returns")


def compute_gae(args, rewards, values, next_values, terminations, dones):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All tensors are (num_steps, num_envs). next_values[t] is the value of the observation that
    step t truly led to. It counts where an episode is truncated; a terminated one has no rest.
    """
    advantages = rewards + args.gamma * next_values * ~terminations - values  # delta_t
    # A_t = delta_t + gamma * lambda * A_(t+1); nothing flows from one episode into another
    for t in reversed(range(len(advantages) - 1)):
        advantages[t] += args.gamma * args.gae_lambda * ~dones[t] * advantages[t + 1]
    return advantages


def ppo_loss(args, agent, batch):
    """The loss of a minibatch (eq. 7), and of values, not clipped; a dict of metrics."""
    dist, values = agent(batch.obs)
    logratio = dist.log_prob(batch.actions) - batch.logprobs
    ratio = logratio.exp()
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    advantages = batch.advantages
    policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7
    value_loss = 0.5 * (values - batch.returns).square().mean()
    loss = policy_loss + args.vf_coef * value_loss
    return loss, {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": dist.entropy().mean(),
        "losses/approx_kl": (ratio - 1 - logratio).mean(),  # http://joschu.net/blog/kl-approx.html
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

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            dist, values = agent(obs)
            logprobs = dist.log_prob(actions)
            _, next_values = agent(next_obs)
        advantages = compute_gae(args, rewards, values, next_values, terminations, dones)
        returns = advantages + values
        batch = [x.flatten(0, 1) for x in (obs, actions, logprobs, advantages, returns)]

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = torch.randperm(returns.numel(), device=device)
            for inds in order.tensor_split(args.num_minibatches):
                loss, losses = ppo_loss(args, agent, Batch(*[x[inds] for x in batch]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                metrics.append({tag: metric.item() for tag, metric in losses.items()})

        # log, evaluate, save
        scalars = {tag: sum(m[tag] for m in metrics) / len(metrics) for tag in metrics[0]}
        unexplained = advantages.var(correction=0) / (returns.var(correction=0) + 1e-8)
        scalars["losses/explained_variance"] = 1 - unexplained
        run.log(writer, scalars)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
