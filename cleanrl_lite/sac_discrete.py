"""Soft Actor-Critic (SAC) for discrete actions and vector observations; a variant of dqn.py.

Paper:    Christodoulou 2019 (arXiv:1910.07207).
Run:      python cleanrl_lite/sac_discrete.py --env-id CartPole-v1
Differs:  The target entropy is a smaller part of the largest one: with the paper's 0.98 the
          temperature grows without end on small action sets. The actor learns from the critics'
          values before their step, which saves two passes. The policy acts in torch. A truncated
          episode bootstraps from its true last observation.
Expected: CartPole-v1 499.4 (100,000 steps, mean of the last 100 training episodes, 10 seeds,
          commit 9223f37), LunarLander-v3 236.8 as sac_discrete_tuned (300,000 steps with the flags
          of its docs page, 3 seeds, commit bd2934a).
Details:  docs/sac_discrete.md
"""

import copy
import math
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
    total_timesteps: int = 100_000  # environment steps, summed over the environments
    policy_lr: float = 3e-4  # Adam's learning rate for the actor
    q_lr: float = 3e-4  # Adam's learning rate for the critics and the temperature
    num_envs: int = 4  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 10_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 1_000  # environment steps before training starts
    train_frequency: int = 4  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 128  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    target_network_frequency: int = 100  # environment steps between target network updates
    tau: float = 1.0  # step size of the target: target += tau * (network - target)
    alpha: float = 0.2  # temperature (weight of the entropy) with --no-autotune
    autotune: bool = True  # learn the temperature, so that the entropy nears its target
    target_entropy_scale: float = 0.3  # target entropy, as a fraction of log(actions)


# === environment
def make_env(args, render_mode=None):
    env = utils.make(args, render_mode, max_episode_steps=args.max_episode_steps)
    return utils.flatten(env)


# === networks
def mlp(inputs, outputs):
    """Two hidden layers of 120 and 84 ReLU units, initialised as PyTorch does."""
    return nn.Sequential(
        nn.Linear(inputs, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, outputs),
    )


class Agent(nn.Module):
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.actor = mlp(obs_dim, num_actions)  # logits
        self.log_alpha = nn.Parameter(torch.zeros(()))
        self.qf1 = mlp(obs_dim, num_actions)
        self.qf2 = mlp(obs_dim, num_actions)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)
        self.qf2_target = copy.deepcopy(self.qf2).requires_grad_(False)

    def policy(self, obs):
        """The actions' log-probabilities (batch, num_actions)."""
        return self.actor(obs).log_softmax(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.policy(obs.float()).argmax(-1)


# === replay
class ReplayBuffer:
    """The last `buffer_size` transitions, one row of a matrix each.

    `shapes` are those of a transition's parts, in the order in which `add` takes them.
    """

    def __init__(self, buffer_size, num_envs, shapes, device):
        self.shapes = shapes
        self.widths = [int(np.prod(shape)) for shape in shapes]
        self.num_envs = num_envs
        self.capacity = buffer_size // num_envs * num_envs
        self.rows = utils.allocate((self.capacity, sum(self.widths)), torch.float32, device)
        # The same memory: writing through numpy takes half the time.
        self.in_numpy = None if self.rows.is_cuda else self.rows.numpy()
        self.position = 0
        self.filled = 0
        # `filled` as a tensor, which a CUDA graph can read
        self.size = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, *parts):
        """Stores a transition of each environment: arrays (num_envs, *shape)."""
        if self.filled == 0:
            found = tuple(part.shape[1:] for part in parts)
            utils.check(found == self.shapes, f"replay.add got {found}, not {self.shapes}")
        rows = np.column_stack(parts)
        end = self.position + self.num_envs
        if self.in_numpy is not None:
            self.in_numpy[self.position : end] = rows
        else:
            self.rows[self.position : end] = torch.from_numpy(rows)
        self.position = end % self.capacity
        if self.filled < self.capacity:
            self.filled = end
            self.size.fill_(end)

    def sample(self, batch_size):
        """A minibatch of rows, drawn with replacement."""
        draws = torch.rand(batch_size, dtype=torch.float64, device=self.rows.device)
        return self.rows.index_select(0, (draws * self.size).long())

    def unpack(self, rows):
        """The parts of a minibatch: tensors (batch_size, *shape)."""
        parts = zip(rows.split(self.widths, dim=1), self.shapes, strict=True)
        return [part.reshape(-1, *shape) for part, shape in parts]

    def state_dict(self):
        # By way of numpy, torch.save writes this part only, and needs no memory for a copy.
        rows = torch.from_numpy(self.rows[: self.filled].cpu().numpy())
        return {"position": self.position, "rows": rows}

    def load_state_dict(self, state):
        self.position = state["position"]
        self.filled = len(state["rows"])
        self.rows[: self.filled] = state["rows"]
        self.size.fill_(self.filled)


# === pure functions
@torch.no_grad()
def update_target(target, network, tau):
    """target += tau * (network - target), weight by weight; buffers are copied."""
    for old, new in zip(target.parameters(), network.parameters(), strict=True):
        old.lerp_(new, tau)
    for old, new in zip(target.buffers(), network.buffers(), strict=True):
        old.copy_(new)


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
    min_size = max(args.batch_size, 8 * args.num_envs)
    check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")
    scale = args.target_entropy_scale
    check(scale <= 1, f"--target-entropy-scale must be at most 1, got {scale}")

    env_fns = [lambda: make_env(args)] * args.num_envs
    envs = utils.vector_env(env_fns, args.async_envs)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    from_zero = isinstance(action_space, Discrete) and action_space.start == 0
    check(
        from_zero,
        f"actions must be Discrete, from 0, not {action_space}. "
        "Box: sac.py; MultiDiscrete: ppo_masked.py",
    )

    num_actions = int(action_space.n)
    agent = Agent(obs_space.shape[0], num_actions).to(device)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    critic_adam = Adam([*agent.qf1.parameters(), *agent.qf2.parameters()])
    actor_adam = Adam(agent.actor.parameters())
    alpha_adam = Adam([agent.log_alpha])
    target_entropy = args.target_entropy_scale * math.log(num_actions)
    # obs, action, reward, next_obs, terminated
    shapes = obs_space.shape, (), (), obs_space.shape, ()
    replay = ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    run = utils.Run(
        args,
        __file__,
        make_env,
        envs,
        agent,
        critic_adam=critic_adam,
        actor_adam=actor_adam,
        alpha_adam=alpha_adam,
        replay=replay,
    )

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
    # A number that changes during the run must be a tensor. A Python number is a constant of
    # the graph: a new value compiles it again (--cuda-graph ignores it).
    def temperature():
        return agent.log_alpha.detach().exp() if args.autotune else args.alpha

    def update(rows):
        """A step of Adam for the critics, the actor and, with --autotune, the temperature.

        With few actions, expectations over the policy are sums; nothing is sampled. Tensors are
        (batch_size, num_actions), or (batch_size,) after a sum or gather.
        """
        obs, actions, rewards, next_obs, terminations = replay.unpack(rows)
        alpha = temperature()
        with torch.no_grad():
            next_log_probs = agent.policy(next_obs)
            next_q_values = torch.min(agent.qf1_target(next_obs), agent.qf2_target(next_obs))
            soft_values = next_q_values - alpha * next_log_probs
            next_values = (next_log_probs.exp() * soft_values).sum(1)  # eq. 10
            td_target = rewards + args.gamma * next_values * (1 - terminations)
        taken = actions.long()[:, None]
        qf1_all = agent.qf1(obs)
        qf2_all = agent.qf2(obs)
        qf1_values = qf1_all.gather(1, taken).squeeze(1)
        qf2_values = qf2_all.gather(1, taken).squeeze(1)
        qf1_loss = (qf1_values - td_target).square().mean()
        qf2_loss = (qf2_values - td_target).square().mean()
        qf_loss = qf1_loss + qf2_loss
        grads = torch.autograd.grad(qf_loss, critic_adam.params)
        critic_adam.update(grads, args.q_lr)

        log_probs = agent.policy(obs)
        probs = log_probs.exp()
        # The actor's loss has no gradient in the critics: their values from above serve.
        min_q_values = torch.min(qf1_all, qf2_all).detach()
        actor_loss = (probs * (alpha * log_probs - min_q_values)).sum(1).mean()  # eq. 12
        entropy = -(probs * log_probs).sum(1).mean()
        grads = torch.autograd.grad(actor_loss, actor_adam.params)
        actor_adam.update(grads, args.policy_lr)
        metrics = {
            "losses/qf1_loss": qf1_loss,
            "losses/qf2_loss": qf2_loss,
            "losses/qf_loss": qf_loss,
            "losses/qf1_values": qf1_values.mean(),
            "losses/qf2_values": qf2_values.mean(),
            "losses/actor_loss": actor_loss,
            "losses/entropy": entropy,
        }
        if args.autotune:
            # eq. 11: the temperature grows while the entropy is below its target
            alpha_loss = agent.log_alpha.exp() * (entropy.detach() - target_entropy)
            grads = torch.autograd.grad(alpha_loss, alpha_adam.params)
            alpha_adam.update(grads, args.q_lr)
            metrics["losses/alpha_loss"] = alpha_loss
            metrics["losses/alpha"] = agent.log_alpha.exp()
        return {tag: metric.detach() for tag, metric in metrics.items()}

    update = run.compile(update)
    # One CUDA graph, sampling included.
    learn = run.cuda_graph(lambda: update(replay.sample(args.batch_size)))

    # === training
    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return global_step // every - (global_step - args.num_envs) // every

    obs = run.obs.astype(np.float32)
    global_step = run.global_step
    metrics = run.values.get("metrics", {})  # of the last update
    while run.goes_on(global_step, obs, metrics=metrics):
        # act
        if global_step < args.learning_starts:
            actions = np.random.randint(num_actions, size=args.num_envs)
        else:
            with torch.no_grad():
                log_probs = agent.policy(torch.from_numpy(obs).to(device))
            # the Gumbel-max trick: a sample from the policy
            gumbel = -torch.empty_like(log_probs).exponential_().log()
            actions = (log_probs + gumbel).argmax(-1).cpu().numpy()

        # learn from the steps so far (a GPU does so while the environments step)
        if global_step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                metrics = learn()
            for _ in range(times_due(args.target_network_frequency)):
                update_target(agent.qf1_target, agent.qf1, args.tau)
                update_target(agent.qf2_target, agent.qf2, args.tau)

        # step, store
        new_obs, rewards, terminations, _, infos = envs.step(actions)
        global_step += args.num_envs
        new_obs = new_obs.astype(np.float32)
        next_obs = new_obs.copy()
        for n, episodic_return, episodic_length in run.finished_episodes(infos):
            # new_obs[n] is already the first observation of the next episode
            next_obs[n] = infos["final_obs"][n]
            writer.add_scalar("charts/episodic_return", episodic_return, global_step)
            writer.add_scalar("charts/episodic_length", episodic_length, global_step)
            info = infos["final_info"][n]
            if "is_success" in info:
                success = info["is_success"]
                writer.add_scalar("charts/success_rate", success, global_step)
        # terminations only: a truncated episode bootstraps from next_obs
        replay.add(obs, actions, rewards, next_obs, terminations)
        obs = new_obs

        # log
        if times_due(100) or global_step >= args.total_timesteps:
            run.log(metrics, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
