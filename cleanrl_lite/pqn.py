"""Parallelised Q-network (PQN) for discrete actions and vector observations; a variant of ppo.py.

Paper:    Gallici et al. 2024 (arXiv:2407.04811); RAdam: Liu et al. 2020 (arXiv:1908.03265).
Run:      python cleanrl_lite/pqn.py --env-id CartPole-v1
Differs:  From ppo.py: no policy, only Q-values, with layer normalisation; Q(lambda) returns replace
          GAE; RAdam replaces Adam. From dqn.py: neither replay buffer nor target network. A
          truncated episode bootstraps from its true last observation.
Expected: CartPole-v1 494.8, Acrobot-v1 -88.6, MountainCar-v0 -200.0 (500,000 steps, mean of the
          last 100 training episodes, 10 seeds, commit e6fef65).
Details:  docs/pqn.md
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import nn
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
    learning_rate: float = 5e-4  # the optimizer's learning rate
    num_envs: int = 4  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 128  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    q_lambda: float = 0.9  # lambda of the Q(lambda) returns
    num_minibatches: int = 4  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    max_grad_norm: float = 10.0  # maximum norm of the gradient
    start_e: float = 1.0  # initial epsilon, the probability of a random action
    end_e: float = 0.05  # final epsilon
    exploration_fraction: float = 0.5  # part of the run over which epsilon falls


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args, render_mode, max_episode_steps=args.max_episode_steps)
    return utils.flatten(env)


# === networks
def mlp(inputs, outputs):
    """Two hidden layers of 120 and 84 ReLU units, normalised, initialised as PyTorch does."""
    return nn.Sequential(
        nn.Linear(inputs, 120),
        nn.LayerNorm(120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.LayerNorm(84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )


class Agent(nn.Module):
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.q_network = mlp(obs_dim, num_actions)

    def forward(self, obs):
        """The value of each action: (batch, num_actions)."""
        return self.q_network(obs)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs.float()).argmax(-1)


# === pure functions
def linear_recurrence(inputs, decays, initial):
    """y[t] = inputs[t] + decays[t] * y[t - 1], with y[-1] = initial.

    inputs and decays are (num_steps, num_envs), initial is (num_envs,).
    """
    outputs = np.empty_like(inputs)
    # Python floats are faster than numpy rows for up to about ten environments.
    for n, y in enumerate(initial.tolist()):
        column = []
        for x, decay in zip(inputs[:, n].tolist(), decays[:, n].tolist(), strict=True):
            y = x + decay * y
            column.append(y)
        outputs[:, n] = column
    return outputs


def compute_q_lambda(rewards, next_values, terminations, dones, gamma, q_lambda):
    """The returns of Q(lambda) (Gallici et al. 2024), backwards in time.

    All arrays are (num_steps, num_envs). next_values[t] is the largest Q-value of the
    observation that step t truly led to: at an episode's end its last one, not the first
    one of the next. A truncated episode would have gone on, so this value counts; a
    terminated one has none. No return reaches from one episode into the next.
    """
    # one step: what the return is where an episode or the rollout ends
    td_targets = rewards + gamma * next_values * ~terminations
    decays = gamma * q_lambda * ~dones
    # elsewhere lambda of next_values[t] is replaced by the return of step t + 1
    inputs = td_targets - decays * next_values
    backwards = linear_recurrence(inputs[::-1], decays[::-1], initial=next_values[-1])
    return backwards[::-1].copy()  # no negative strides in torch


def linear_schedule(start, end, duration, step):
    """Linear from `start` at step 0 to `end` at step `duration`, then constant."""
    return start + (end - start) * min(step / duration, 1.0)


class RAdam(nn.Module):
    """RAdam (Liu et al. 2020, algorithm 2) with a limit on the gradient's norm.

    Where rho <= 5 a step is the momentum alone, not divided by the root of exp_avg_sq, as in
    torch; the paper's bound is 4. Written out, on one flat vector, because this compiles into
    the update's graph; torch.optim.RAdam would not.
    """

    def __init__(self, params):
        super().__init__()
        self.params = [param for param in params if param.requires_grad]
        flat = torch.cat([param.detach().flatten() for param in self.params])
        self.register_buffer("step", flat.new_zeros(()))
        self.register_buffer("exp_avg", torch.zeros_like(flat))
        self.register_buffer("exp_avg_sq", torch.zeros_like(flat))

    @torch.no_grad()
    def update(self, grads, learning_rate, max_grad_norm, beta1=0.9, beta2=0.999, eps=1e-8):
        """Takes a step, in place; returns the gradient's norm before it is clipped."""
        grad = torch.cat([g.flatten() for g in grads])
        grad_norm = grad.norm()
        grad = grad * (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        self.step.add_(1)
        self.exp_avg.lerp_(grad, 1 - beta1)
        self.exp_avg_sq.lerp_(grad.square(), 1 - beta2)
        # The trap: in float32, rho is wrong by 0.1 in the first steps, where 5 decides.
        step = self.step.double()
        bias_correction = 1 - beta2**step
        rho_inf = 2 / (1 - beta2) - 1
        rho = rho_inf - 2 * step * beta2**step / bias_correction
        # how sure the variance is; the first five steps do without it
        known = rho.clamp(min=5)
        numerator = (known - 4) * (known - 2) * rho_inf
        rectification = (numerator / ((rho_inf - 4) * (rho_inf - 2) * known)).sqrt()
        adaptive = rectification * bias_correction.sqrt() / (self.exp_avg_sq.sqrt() + eps)
        scale = torch.where(rho > 5, adaptive, 1.0)
        delta = learning_rate * self.exp_avg / (1 - beta1**step) * scale
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
    minibatch_size = batch_size // args.num_minibatches
    divides = batch_size == minibatch_size * args.num_minibatches
    steps = f"--num-envs x --num-steps = {batch_size}"
    check(divides, f"{steps} must be a multiple of --num-minibatches {args.num_minibatches}")

    env_fns = [lambda: make_env(args)] * args.num_envs
    envs = utils.vector_env(env_fns, args.async_envs)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    from_zero = isinstance(action_space, Discrete) and action_space.start == 0
    check(
        from_zero,
        f"actions must be Discrete, from 0, not {action_space}. "
        "Box: ppo_continuous.py; MultiDiscrete: ppo_masked.py; Tuple: ppo_hybrid.py",
    )

    agent = Agent(obs_space.shape[0], int(action_space.n)).to(device)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    radam = RAdam(agent.parameters())
    learning_rate = torch.tensor(args.learning_rate, device=device)
    run = utils.Run(args, __file__, make_env, envs, agent, radam=radam)

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
    # The batch, allocated once: a CUDA graph needs fixed addresses.
    b_obs = torch.zeros((batch_size, *obs_space.shape), device=device)
    b_actions = torch.zeros(batch_size, dtype=torch.int64, device=device)
    b_returns = torch.zeros(batch_size, device=device)

    # A number that changes during the run must be a tensor, as learning_rate is. A Python
    # number is a constant of the graph: a new value compiles it again (--cuda-graph ignores it).
    def update(inds):
        """A step of RAdam on the squared error of the returns, on the samples inds of the batch."""
        q_values = agent(b_obs[inds]).gather(1, b_actions[inds][:, None]).squeeze(1)
        td_loss = (b_returns[inds] - q_values).square().mean()
        grads = torch.autograd.grad(td_loss, radam.params)
        grad_norm = radam.update(grads, learning_rate, args.max_grad_norm)
        metrics = {
            "losses/td_loss": td_loss,
            "losses/q_values": q_values.mean(),
            "losses/grad_norm": grad_norm,
        }
        return {tag: metric.detach() for tag, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    rollout_obs = np.zeros((*shape, *obs_space.shape), dtype=np.float32)
    next_obs = np.zeros_like(rollout_obs)
    actions = np.zeros(shape, dtype=np.int64)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations = np.zeros(shape, dtype=bool)
    dones = np.zeros_like(terminations)
    q_values = np.zeros((*shape, action_space.n), dtype=np.float32)
    epsilon_steps = args.exploration_fraction * args.total_timesteps
    obs = run.obs
    global_step = run.global_step
    while run.goes_on(global_step, obs):
        if args.anneal_lr:
            remaining = 1 - global_step / args.total_timesteps
            learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        q_network = utils.numpy_forward(agent.q_network, device)
        # separate draws for each environment
        draws, uniform = np.random.random((2, *shape))
        actions[:] = uniform * action_space.n
        for t in range(args.num_steps):
            rollout_obs[t] = obs
            epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, global_step)
            q_values[t] = q_network(rollout_obs[t])
            actions[t] = np.where(draws[t] >= epsilon, q_values[t].argmax(-1), actions[t])
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            next_obs[t] = obs
            dones[t] = terminations[t] | truncations
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                # obs[n] is already the first observation of the next episode
                next_obs[t, n] = infos["final_obs"][n]
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
                info = infos["final_info"][n]
                if "is_success" in info:
                    success = info["is_success"]
                    writer.add_scalar("charts/success_rate", success, global_step)

        # returns of the whole rollout
        with torch.no_grad():
            b_obs[:] = torch.from_numpy(rollout_obs).flatten(0, 1)
            b_actions[:] = torch.from_numpy(actions).flatten()
            next_values = agent(torch.from_numpy(next_obs).to(device)).amax(-1)
            # The network that learns must be the one that acted.
            b_q_values = torch.from_numpy(q_values).to(device).flatten(0, 1)
            utils.check_actions(b_q_values, agent(b_obs))
        returns = compute_q_lambda(
            rewards, next_values.cpu().numpy(), terminations, dones, args.gamma, args.q_lambda
        )
        b_returns[:] = torch.from_numpy(returns).flatten()

        # learn the returns
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(batch_size).reshape(-1, minibatch_size)
            metrics += [update(inds) for inds in torch.from_numpy(order).to(device)]

        # log
        losses = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        losses["charts/epsilon"] = epsilon
        losses["charts/learning_rate"] = learning_rate
        run.log(losses, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
