"""PPO in its plainest form, for Box (continuous) actions; a variant of ppo_simple.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); GAE: Schulman et al. 2016 (arXiv:1506.02438).
Run:      python cleanrl_lite/ppo_simple_continuous.py --env-id Hopper-v4
Differs:  From ppo_simple.py: the policy is a Gaussian; the sizes of ppo_continuous.py. From
          ppo_continuous.py: what ppo_simple.py leaves out of ppo.py, and no normalised
          observations, no scaled rewards.
Expected: InvertedPendulum-v4 1,000, Hopper-v4 695.0 (1,000,000 steps, mean of the last 100
          training episodes, 5 seeds, commits fa36f85 to bd2934a).
Details:  docs/ppo_simple_continuous.md
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
    learning_rate: float = 3e-4  # the optimizer's learning rate
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 2048  # steps per environment in each rollout
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 32  # minibatches per epoch
    update_epochs: int = 10  # epochs per rollout
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    vf_coef: float = 0.5  # coefficient of the value loss


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
def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation
    that step t truly led to: at an episode's end its last one, not the first one of the
    next. A truncated episode would have gone on, so its value counts; a terminated one
    has none. Nothing flows back from one episode into the one before.
    """
    advantages = rewards + gamma * next_values * ~terminations - values
    # A_t = delta_t + gamma * lambda * A_(t+1)
    for t in reversed(range(len(advantages) - 1)):
        advantages[t] += gamma * gae_lambda * ~dones[t] * advantages[t + 1]
    return advantages


class Adam(nn.Module):
    """Adam (Kingma & Ba 2015, algorithm 1).

    Written out, on one flat vector, because this compiles into the update's graph;
    torch.optim.Adam would not.
    """

    def __init__(self, params):
        super().__init__()
        self.params = [param for param in params if param.requires_grad]
        flat = torch.cat([param.detach().flatten() for param in self.params])
        self.register_buffer("step", flat.new_zeros(()))
        self.register_buffer("exp_avg", torch.zeros_like(flat))
        self.register_buffer("exp_avg_sq", torch.zeros_like(flat))

    @torch.no_grad()
    def update(self, grads, learning_rate, beta1=0.9, beta2=0.999, eps=1e-8):
        """Takes a step, in place."""
        grad = torch.cat([g.flatten() for g in grads])
        self.step.add_(1)
        self.exp_avg.lerp_(grad, 1 - beta1)
        self.exp_avg_sq.lerp_(grad.square(), 1 - beta2)
        denominator = (self.exp_avg_sq / (1 - beta2**self.step)).sqrt() + eps
        delta = learning_rate * self.exp_avg / (1 - beta1**self.step) / denominator
        parts = delta.split([param.numel() for param in self.params])
        for param, part in zip(self.params, parts, strict=True):
            param.sub_(part.view_as(param))


@utils.with_cleanup
def main(args: Args):
    # === setup
    check = utils.check
    device = utils.setup(args)
    batch_size = args.num_envs * args.num_steps
    minibatch_size = batch_size // args.num_minibatches
    divides = batch_size == minibatch_size * args.num_minibatches
    steps = f"--num-envs x --num-steps = {batch_size}"
    check(divides, f"{steps} must be a multiple of --num-minibatches {args.num_minibatches}")

    envs = utils.vector_env([lambda: make_env(args)] * args.num_envs, args.async_envs)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    real = isinstance(action_space, Box) and action_space.dtype.kind == "f"
    vectors = real and len(action_space.shape) == 1
    check(
        vectors,
        f"actions must be a 1-D Box of floats, not {action_space}. Discrete: ppo_simple.py",
    )

    agent = Agent(obs_space.shape[0], action_space.shape[0]).to(device)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    adam = Adam(agent.parameters())
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)

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
    b_logprobs = torch.zeros(batch_size, device=device)
    b_advantages = torch.zeros_like(b_logprobs)
    b_returns = torch.zeros_like(b_logprobs)

    # A number that changes during the run must be a tensor. A Python number is a constant of
    # the graph: a new value compiles it again (--cuda-graph ignores it).
    def update(inds):
        """PPO's loss (eq. 9) and a step of Adam on the samples inds of the batch."""
        dist, value = agent(b_obs[inds])
        logratio = dist.log_prob(b_actions[inds]) - b_logprobs[inds]
        ratio = logratio.exp()
        approx_kl = ((ratio - 1) - logratio).mean()  # http://joschu.net/blog/kl-approx.html

        advantages = b_advantages[inds]
        clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7

        value_loss = 0.5 * (value - b_returns[inds]).square().mean()

        loss = policy_loss + args.vf_coef * value_loss
        grads = torch.autograd.grad(loss, adam.params)
        adam.update(grads, args.learning_rate)
        metrics = {
            "losses/policy_loss": policy_loss,
            "losses/value_loss": value_loss,
            "losses/entropy": dist.entropy().mean(),
            "losses/approx_kl": approx_kl,
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
    obs = run.obs
    global_step = run.global_step
    while run.goes_on(global_step, obs):
        # act, step, store
        actor = utils.numpy_forward(agent.actor, device)
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

        # values, log-probabilities and advantages of the whole rollout
        with torch.no_grad():
            b_obs[:] = torch.from_numpy(rollout_obs).flatten(0, 1)
            b_actions[:] = torch.from_numpy(actions).flatten(0, 1)
            dist, values = agent(b_obs)
            b_logprobs[:] = dist.log_prob(b_actions)
            _, next_values = agent(torch.from_numpy(next_obs).to(device))
            # The policy that learns must be the one that acted.
            b_noise = torch.from_numpy(noise).to(device).flatten(0, 1)
            utils.check_actions(b_actions, dist.mean + dist.stddev * b_noise)
        values = values.reshape(shape).cpu().numpy()
        next_values = next_values.cpu().numpy()
        advantages = compute_gae(
            rewards, values, next_values, terminations, dones, args.gamma, args.gae_lambda
        )
        returns = advantages + values
        b_advantages[:] = torch.from_numpy(advantages).flatten()
        b_returns[:] = torch.from_numpy(returns).flatten()

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(batch_size).reshape(-1, minibatch_size)
            metrics += [update(inds) for inds in torch.from_numpy(order).to(device)]

        # log
        losses = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        unexplained = (returns - values).var() / (returns.var() + 1e-8)
        losses["losses/explained_variance"] = 1 - unexplained
        run.log(losses, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
