"""Advantage actor-critic (A2C) for Box (continuous) actions; a variant of a2c.py.

Paper:    Mnih et al. 2016 (arXiv:1602.01783), with environments stepped together.
Run:      python cleanrl_lite/a2c_continuous.py --env-id Hopper-v4
Differs:  From a2c.py: the only change is the Gaussian policy. Observations and rewards
          are as the environment gives them, unlike in ppo_continuous.py.
Expected: InvertedPendulum-v4 786.9, Hopper-v4 261.0 (1,000,000 steps, mean of the last 100
          training episodes, 5 seeds, commits fa36f85 to bd2934a).
Details:  docs/a2c_continuous.md
"""

from dataclasses import dataclass
from pathlib import Path

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
    return nn.Sequential(
        nn.Linear(inputs, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, outputs),
    )


class Agent(nn.Module):
    def __init__(self, obs_dim, action_dim):
        super().__init__()
        self.critic = mlp(obs_dim, 1)
        self.actor = mlp(obs_dim, action_dim)
        self.actor_logstd = nn.Parameter(torch.zeros(action_dim))

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim)."""
        mean = self.actor(obs)
        std = self.actor_logstd.exp().expand_as(mean)
        dist = Independent(Normal(mean, std, validate_args=False), 1, validate_args=False)
        return dist, self.critic(obs).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs.float())
        return dist.mean


# === pure functions
def compute_returns(rewards, next_values, terminations, dones, gamma):
    """Discounted sums of the rewards from each step on.

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation
    that step t truly led to. It stands for the rest of an episode that was truncated, and
    of one that goes on after the last step; after a termination there is no rest.
    """
    returns = rewards + gamma * next_values * ~terminations
    for t in reversed(range(len(returns) - 1)):
        returns[t] = np.where(dones[t], returns[t], rewards[t] + gamma * returns[t + 1])
    return returns


class RMSprop(nn.Module):
    """RMSprop (Tieleman & Hinton 2012) with a limit on the gradient's norm.

    Written out, on one flat vector, because this compiles into the update's graph;
    torch.optim.RMSprop would not.
    """

    def __init__(self, params):
        super().__init__()
        self.params = [param for param in params if param.requires_grad]
        flat = torch.cat([param.detach().flatten() for param in self.params])
        self.register_buffer("square_avg", torch.zeros_like(flat))

    @torch.no_grad()
    def update(self, grads, learning_rate, max_grad_norm, decay=0.99, eps=1e-5):
        """Takes a step, in place; returns the gradient's norm before it is clipped."""
        grad = torch.cat([g.flatten() for g in grads])
        grad_norm = grad.norm()
        grad = grad * (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        self.square_avg.lerp_(grad.square(), 1 - decay)
        delta = learning_rate * grad / (self.square_avg.sqrt() + eps)
        parts = delta.split([param.numel() for param in self.params])
        for param, part in zip(self.params, parts, strict=True):
            param.sub_(part.view_as(param))
        return grad_norm


@utils.with_cleanup
def main(args: Args):
    # === setup
    check = utils.check
    device = utils.setup(args)
    batch_size = args.num_envs * args.num_steps

    envs = utils.vector_env([lambda: make_env(args)] * args.num_envs, args.async_envs)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    real = isinstance(action_space, Box) and action_space.dtype.kind == "f"
    vectors = real and len(action_space.shape) == 1
    check(
        vectors,
        f"actions must be a 1-D Box of floats, not {action_space}. Discrete: a2c.py",
    )

    agent = Agent(obs_space.shape[0], action_space.shape[0]).to(device)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    rmsprop = RMSprop(agent.parameters())
    run = utils.Run(args, __file__, make_env, envs, agent, rmsprop=rmsprop)

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
    writer = run.writer = SummaryWriter(run.dir, flush_secs=10, purge_step=run.global_step + 1)
    writer.add_text("arguments", str(args))

    # === update
    # The batch, allocated once: a CUDA graph needs fixed addresses.
    b_obs = torch.zeros((batch_size, *obs_space.shape), device=device)
    b_actions = torch.zeros((batch_size, *action_space.shape), device=device)
    b_returns = torch.zeros(batch_size, device=device)

    # A number that changes during the run must be a tensor. A Python number is a constant of
    # the graph: a new value compiles it again (--cuda-graph ignores it).
    def update():
        """A step of RMSprop along the policy gradient, with an entropy bonus."""
        dist, value = agent(b_obs)
        advantages = b_returns - value  # G - V(s)
        policy_loss = -(dist.log_prob(b_actions) * advantages.detach()).mean()
        value_loss = 0.5 * advantages.square().mean()
        entropy = dist.entropy().mean()
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
        grads = torch.autograd.grad(loss, rmsprop.params)
        grad_norm = rmsprop.update(grads, args.learning_rate, args.max_grad_norm)
        metrics = {
            "losses/policy_loss": policy_loss,
            "losses/value_loss": value_loss,
            "losses/entropy": entropy,
            "losses/grad_norm": grad_norm,
        }
        return {tag: metric.detach() for tag, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    rollout_obs = np.zeros((*shape, *obs_space.shape), dtype=np.float32)
    next_obs = np.zeros_like(rollout_obs)
    actions = np.zeros((*shape, *action_space.shape), dtype=np.float32)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations = np.zeros(shape, dtype=bool)
    dones = np.zeros_like(terminations)
    # once, not for each rollout: they are short
    actor = utils.numpy_forward(lambda: agent.actor, device)
    obs = run.obs
    global_step = run.global_step
    while run.goes_on(global_step, obs):
        # act, step, store
        std = agent.actor_logstd.detach().exp().cpu().numpy()
        noise = np.random.standard_normal(actions.shape).astype(np.float32)
        for t in range(args.num_steps):
            rollout_obs[t] = obs  # now float32: MuJoCo's own are float64
            actions[t] = actor(rollout_obs[t]) + std * noise[t]
            # The policy is a Gaussian: its samples may lie outside the bounds.
            clipped = actions[t].clip(action_space.low, action_space.high)
            obs, rewards[t], terminations[t], truncations, infos = envs.step(
                clipped.astype(action_space.dtype)
            )
            next_obs[t] = obs
            dones[t] = terminations[t] | truncations
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                # obs[n] is already the first observation of the next episode
                next_obs[t, n] = infos["final_obs"][n]
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
                if "is_success" in infos["final_info"][n]:
                    success = infos["final_info"][n]["is_success"]
                    writer.add_scalar("charts/success_rate", success, global_step)

        # values and returns of the whole rollout
        with torch.no_grad():
            b_obs[:] = torch.from_numpy(rollout_obs).flatten(0, 1)
            b_actions[:] = torch.from_numpy(actions).flatten(0, 1)
            dist, values = agent(b_obs)
            _, next_values = agent(torch.from_numpy(next_obs).to(device))
            # The policy that learns must be the one that acted.
            b_noise = torch.from_numpy(noise).to(device).flatten(0, 1)
            utils.check_actions(b_actions, dist.mean + dist.stddev * b_noise)
        values = values.reshape(shape).cpu().numpy()
        next_values = next_values.cpu().numpy()
        returns = compute_returns(rewards, next_values, terminations, dones, args.gamma)
        b_returns[:] = torch.from_numpy(returns).flatten()

        # learn
        losses = update()

        # log
        unexplained = (returns - values).var() / (returns.var() + 1e-8)
        losses["losses/explained_variance"] = 1 - unexplained
        run.log(losses, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
