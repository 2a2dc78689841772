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

from collections import namedtuple
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
    cuda: bool = True  # train on a GPU if there is one
    threads: int = 1  # CPU threads of torch and numpy (0: their choice)
    compile: bool = True  # compile the update: a slow start, then faster
    cuda_graph: bool = False  # replay the update as one CUDA graph (needs a GPU)
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
    env = utils.make(args, render_mode)
    return utils.flatten(env)


# === agent
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
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        utils.check(
            isinstance(action_space, Discrete) and action_space.start == 0,
            f"actions must be Discrete, from 0, not {action_space}. "
            "Box: ppo_continuous.py; MultiDiscrete: ppo_masked.py; Tuple: ppo_hybrid.py",
        )
        self.q_network = mlp(obs_space.shape[0], int(action_space.n))

    def forward(self, obs):
        """The values of all actions in `obs` (batch, obs_dim)."""
        return self.q_network(obs)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs.float()).argmax(-1)


# === pure functions
# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions returns")


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
    returns = np.zeros_like(rewards)
    # Python floats are faster than numpy rows for up to about ten environments.
    for n, future in enumerate(next_values[-1].tolist()):
        backwards = []
        for x, decay in zip(inputs[::-1, n].tolist(), decays[::-1, n].tolist(), strict=True):
            future = x + decay * future
            backwards.append(future)
        returns[::-1, n] = backwards
    return returns


def linear_schedule(start, end, duration, step):
    """Linear from `start` at step 0 to `end` at step `duration`, then constant."""
    return start + (end - start) * min(step / duration, 1.0)


def q_lambda_loss(args, agent, batch):
    """The squared error of the returns of a minibatch, and a dict of metrics."""
    q_values = agent(batch.obs).gather(1, batch.actions[:, None]).squeeze(1)
    loss = (batch.returns - q_values).square().mean()
    return loss, {"losses/td_loss": loss, "losses/q_values": q_values.mean()}


# === training
class RAdam(utils.Adam):
    """RAdam (Liu et al. 2020, algorithm 2).

    Where rho <= 5 a step is the momentum alone, not divided by the root of exp_avg_sq, as in
    torch; the paper's bound is 4.
    """

    def change(self, grad):
        self.step.add_(1)
        self.exp_avg.lerp_(grad, 1 - self.beta1)
        self.exp_avg_sq.lerp_(grad.square(), 1 - self.beta2)
        # The trap: in float32, rho is wrong by 0.1 in the first steps, where 5 decides.
        step = self.step.double()
        bias_correction = 1 - self.beta2**step
        rho_inf = 2 / (1 - self.beta2) - 1
        rho = utils.once(rho_inf - 2 * step * self.beta2**step / bias_correction)
        # how sure the variance is; the first five steps do without it
        known = rho.clamp(min=5)
        numerator = (known - 4) * (known - 2) * rho_inf
        rectification = (numerator / ((rho_inf - 4) * (rho_inf - 2) * known)).sqrt()
        correction = utils.once(rectification * bias_correction.sqrt())
        adaptive = correction / (self.exp_avg_sq.sqrt() + self.eps)
        scale = torch.where(rho > 5, adaptive, 1.0)
        return self.learning_rate * self.exp_avg / utils.once(1 - self.beta1**step) * scale


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    batch_size = args.num_envs * args.num_steps
    fits = batch_size % args.num_minibatches == 0
    utils.check(fits, f"--num-minibatches must divide --num-envs x --num-steps = {batch_size}")
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    radam = RAdam(agent.parameters(), args.learning_rate, args.max_grad_norm)
    run = utils.Run(args, __file__, make_env, envs, agent, radam=radam)
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
    # A number that changes during the run must be a tensor, as radam.learning_rate is.
    @utils.compiled(args)
    def update(inds, *batch):
        minibatch = Batch(*[x[inds] for x in batch])
        loss, metrics = q_lambda_loss(args, agent, minibatch)
        metrics["losses/grad_norm"] = radam.minimize(loss)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    shape = args.num_steps, args.num_envs
    obs = np.zeros((*shape, *obs_space.shape), np.float32)
    next_obs = np.zeros_like(obs)
    actions = np.zeros(shape, np.int64)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, bool)
    dones = np.zeros(shape, bool)
    epsilon_steps = args.exploration_fraction * args.total_timesteps
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            radam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        # separate draws for each environment
        draws, uniform = np.random.random((2, *shape))
        actions[:] = uniform * action_space.n
        for t in range(args.num_steps):
            obs[t] = envs.obs
            epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, run.step)
            with torch.no_grad():
                greedy = agent.act(torch.from_numpy(obs[t]).to(device)).cpu().numpy()
            actions[t] = np.where(draws[t] >= epsilon, greedy, actions[t])
            next_obs[t], rewards[t], terminations[t], truncations, infos = envs.step(actions[t])
            dones[t] = terminations[t] | truncations
            for info in infos:
                run.step += 1
                if "episode" in info:
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # returns of the whole rollout
        with torch.no_grad():
            next_values = agent(torch.from_numpy(next_obs).to(device)).amax(-1).cpu().numpy()
        returns = compute_q_lambda(
            rewards, next_values, terminations, dones, args.gamma, args.q_lambda
        )
        arrays = obs, actions, returns
        batch = Batch(*[torch.from_numpy(x).to(device).flatten(0, 1) for x in arrays])

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(batch_size).reshape(args.num_minibatches, -1)
            metrics += [update(inds, *batch) for inds in torch.from_numpy(order).to(device)]

        # log, evaluate, save
        scalars = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        scalars["charts/epsilon"] = epsilon
        scalars["charts/learning_rate"] = radam.learning_rate
        run.log(writer, scalars)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
