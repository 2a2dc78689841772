"""Proximal Policy Optimization that learns two-player games by playing against itself; a variant of ppo_masked.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); self-play with one network: Silver et al. 2017 (Nature 550).
Run:      python cleanrl_lite/ppo_selfplay.py --env-id benchmark.environments.board_games:ConnectFour-v1
Differs:  One network plays both sides: an observation is the view of the player whose turn it is. Next values and the
          advantages that flow back change sign at every step, as one's gain is the other's loss. Training games begin
          with random moves. Evaluations play against --opponent. 256 ReLU units: 64 tanh units hardly learn to block.
Expected: benchmark.environments.board_games:ConnectFour-v1 0.97 (1,000,000 moves, mean result of 200 games against random moves,
          1 is a win and -1 a loss, 3 seeds, 438d18c).
Details:  docs/ppo_selfplay.md
"""

import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, flatdim
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.distributions import Categorical, Independent
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
    env_id: str = "benchmark.environments.board_games:ConnectFour-v1"  # game of two players, module:Game-v0
    opponent: str = "random"  # in evaluations: random, builtin or a run directory
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 1e-3  # the optimizer's learning rate
    num_envs: int = 32  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    num_steps: int = 128  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 16  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    clip_vloss: bool = True  # clip the value loss likewise
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)
    random_moves: int = 20  # maximum number of random moves at the start of a training game
    mask: bool = True  # never take an action that the environment's mask marks as invalid


# === environment
class ActionMask(gym.Wrapper):
    """Takes actions as vectors, a number for each part, and appends the mask (parts, choices) to the observation.

    1 is valid, 0 invalid, -1 a choice that this part does not have. A Discrete action has one part.
    """

    def __init__(self, env, use_mask):
        super().__init__(utils.flatten(env))
        space, obs_space, self.use_mask = env.action_space, env.observation_space, use_mask
        supported = isinstance(space, Discrete | MultiDiscrete | MultiBinary)
        utils.check(supported, f"actions must be discrete, not {space}. Box: ppo_continuous.py")
        nvec = np.ravel(space.n if isinstance(space, Discrete) else getattr(space, "nvec", np.full(space.shape, 2)))
        self.shape, self.start = space.shape, getattr(space, "start", 0)
        self.exists = np.arange(nvec.max()) < nvec[:, None]  # (parts, choices)
        self.has_method = self.env.has_wrapper_attr("action_masks")
        names = obs_space.items() if isinstance(obs_space, Dict) else [("", obs_space)]
        self.in_obs = np.concatenate([np.full(flatdim(part), name == "action_mask") for name, part in names])
        self.action_space = MultiDiscrete(nvec)
        self.observation_space = Box(-np.inf, np.inf, (self.exists.size + (~self.in_obs).sum(),), np.float32)

    def append_mask(self, obs, info):
        mask = obs[self.in_obs]  # none, unless the observation is a Dict that has it
        if "action_mask" in info:
            mask = info["action_mask"]
        elif self.has_method:
            mask = self.env.get_wrapper_attr("action_masks")()
        rectangle = np.where(self.exists, 1, -1)
        if self.use_mask and len(mask):
            flat = mask.ravel() if isinstance(mask, np.ndarray) else np.hstack(mask)  # a list, or a tuple of parts
            utils.check(len(flat) == self.exists.sum(), f"a mask has {len(flat)} numbers, not {self.exists.sum()}")
            rectangle[self.exists] = flat
        return np.concatenate((obs[~self.in_obs], rectangle.ravel()), dtype=np.float32)

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        return self.append_mask(obs, info), info

    def step(self, action):
        action = action.reshape(self.shape) + self.start
        obs, *results, info = self.env.step(action.astype(self.env.action_space.dtype))
        return self.append_mask(obs, info), *results, info


def random_move(obs, shape, rng=np.random):
    """A valid choice in each part, each as likely as the others; `obs` ends with the mask, `shape` (parts, choices)."""
    return (obs[-math.prod(shape) :].reshape(shape) * 2 + rng.random(shape)).argmax(-1)


class RandomOpening(gym.Wrapper):
    """Begins games with up to `moves` random ones: without them a policy meets only positions that it likes."""

    def __init__(self, env, moves):
        super().__init__(env)
        self.moves = moves

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        for _ in range(np.random.randint(self.moves + 1)):
            obs, _, terminated, truncated, info = self.env.step(random_move(obs, self.env.exists.shape))
            if terminated or truncated:
                return self.reset()
        return obs, info


class Against(gym.Wrapper):
    """The game as one of the players sees it, who begins every second time; the other one is `opponent`."""

    def __init__(self, env, opponent):
        super().__init__(env)
        self.opponent, self.begins = opponent, False

    def reset(self, **kwargs):
        (obs, info), self.begins = self.env.reset(**kwargs), not self.begins
        return (obs, info) if self.begins else self.env.step(self.opponent(obs))[::4]

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not (terminated or truncated):
            obs, loss, terminated, truncated, info = self.env.step(self.opponent(obs))
            reward -= loss
        return obs, reward, terminated, truncated, info


def make_game(args, render_mode=None):
    """Each step is a move of the player whose turn it is."""
    env = utils.make(args.env_id, args.env_kwargs, render_mode, max_episode_steps=args.max_episode_steps)
    env = RandomOpening(ActionMask(env, args.mask), args.random_moves)
    return gym.wrappers.RecordEpisodeStatistics(env, stats_key="statistics")


def make_env(args, render_mode=None):
    """For evaluations: each step is a move, and the answer of --opponent."""
    game = make_game(args, render_mode)
    game.env.moves = 0  # no random opening
    shape, rng = game.get_wrapper_attr("exists").shape, np.random.default_rng(args.seed)  # shape: (parts, choices)
    if args.opponent == "random":
        return Against(game, lambda obs: random_move(obs, shape, rng))
    if args.opponent == "builtin":
        utils.check(game.has_wrapper_attr("builtin_action"), f"{args.env_id} has no builtin opponent")
        return Against(game, game.get_wrapper_attr("builtin_action"))
    agent = Agent(game.observation_space.shape[0] - math.prod(shape), *shape).requires_grad_(False)
    utils.load(args.opponent, Path(__file__).stem, args.env_id, agent)

    def sample(obs):  # the Gumbel-max trick, as below
        return (agent(torch.from_numpy(obs[None]))[0].base_dist.logits[0].numpy() + rng.gumbel(size=shape)).argmax(-1)

    return Against(game, sample)


# === networks
def mlp(inputs, outputs, last_gain):
    """Two hidden layers of 256 ReLU units; orthogonal weights of gain sqrt(2), `last_gain` in the last layer."""
    layers = [nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)]
    for layer, gain in zip(layers[::2], (math.sqrt(2), math.sqrt(2), last_gain)):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, obs_dim, parts, choices):
        super().__init__()
        self.obs_dim, self.shape = obs_dim, (parts, choices)
        self.critic = mlp(obs_dim, 1, last_gain=1.0)
        self.actor = mlp(obs_dim, parts * choices, last_gain=0.01)  # near zero: starts as the uniform policy

    def mask(self, logits, obs):
        """Logits (batch, parts, choices): what obs has behind the observation makes invalid ones impossible.

        They are replaced: adding -1e8 would round them away but let their gradient through.
        """
        mask = obs[:, self.obs_dim :]
        where = torch.where if torch.is_tensor(mask) else np.where
        return where(mask > 0, logits, (mask - 1) * 1e8).reshape(-1, *self.shape)

    def policy(self, logits):
        return Independent(Categorical(logits=logits, validate_args=False), 1, validate_args=False)  # sums over parts

    def forward(self, obs):
        """The policy's distribution and the value of `obs` (batch, obs_dim + parts * choices)."""
        seen = obs[:, : self.obs_dim]
        return self.policy(self.mask(self.actor(seen), obs)), self.critic(seen).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs.float())[0].base_dist.logits.argmax(-1)


# === pure functions
def linear_recurrence(inputs, decays, initial):
    """y[t] = inputs[t] + decays[t] * y[t - 1] for arrays (num_steps, num_envs), with y[-1] = initial (num_envs,)."""
    outputs = np.empty_like(inputs)
    # Python floats are faster than numpy rows for up to about ten environments.
    for n, y in enumerate(initial.tolist()):
        column = []
        for x, decay in zip(inputs[:, n].tolist(), decays[:, n].tolist()):
            y = x + decay * y
            column.append(y)
        outputs[:, n] = column
    return outputs


def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); all arrays are (num_steps, num_envs).

    next_values[t] is the value of the observation that step t truly led to: at the end of an episode the last one of
    that episode, not the first one of the next. A truncated episode would have gone on, so its value counts; a
    terminated one has none. Nothing flows back from one episode into the one before.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    return linear_recurrence(deltas[::-1], gamma * gae_lambda * ~dones[::-1], np.zeros(deltas.shape[1]))[::-1].copy()


def adam_step(params, grads, adam, learning_rate, max_grad_norm, beta1=0.9, beta2=0.999, eps=1e-5):
    """Clips the gradient's norm and takes one step of Adam (Kingma & Ba 2015, algorithm 1), in place.

    Written out, on one flat vector, because this compiles into the update's graph; torch.optim.Adam would not.
    """
    grad = torch.cat([g.flatten() for g in grads])
    grad_norm = grad.norm()
    grad = grad * (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
    adam["step"].add_(1)
    adam["exp_avg"].lerp_(grad, 1 - beta1)
    adam["exp_avg_sq"].lerp_(grad.square(), 1 - beta2)
    denominator = (adam["exp_avg_sq"] / (1 - beta2 ** adam["step"])).sqrt() + eps
    step = learning_rate * adam["exp_avg"] / (1 - beta1 ** adam["step"]) / denominator
    for param, delta in zip(params, step.split([p.numel() for p in params])):
        param.sub_(delta.view_as(param))
    return grad_norm


def main(args: Args):
    # === setup
    check, batch_size = utils.check, args.num_envs * args.num_steps
    device = utils.setup(args)
    minibatch_size, remainder = divmod(batch_size, args.num_minibatches)
    check(remainder == 0, f"--num-envs x --num-steps = {batch_size} must be a multiple of --num-minibatches")
    check(minibatch_size > 1 or not args.norm_adv, "minibatches of one sample need --no-norm-adv")
    check(args.total_timesteps >= batch_size, f"--total-timesteps must be at least one rollout, {batch_size}")

    envs = utils.vector_env([lambda: make_game(args)] * args.num_envs, args.async_envs, AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    parts, choices = len(action_space), int(action_space.nvec.max())
    obs_dim = obs_space.shape[0] - parts * choices  # the networks do not see the mask
    make_env(args)  # refuses a wrong --opponent at once

    agent = Agent(obs_dim, parts, choices).to(device)
    params = [param for param in agent.parameters() if param.requires_grad]
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())
    learning_rate = torch.tensor(args.learning_rate, device=device)

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
    b_actions = torch.zeros((batch_size, parts), dtype=torch.int64, device=device)
    b_logprobs, b_values, b_advantages, b_returns = torch.zeros((4, batch_size), device=device).unbind()

    def update(inds):
        """One minibatch, the samples inds (minibatch_size,) of the batch: PPO's loss (eq. 9) and a step of Adam."""
        dist, value = agent(b_obs[inds])
        logratio = dist.log_prob(b_actions[inds]) - b_logprobs[inds]
        ratio = logratio.exp()
        approx_kl = ((ratio - 1) - logratio).mean()  # http://joschu.net/blog/kl-approx.html

        advantages = b_advantages[inds]
        if args.norm_adv:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7

        value_loss = (value - b_returns[inds]).square()
        if args.clip_vloss:
            clipped = b_values[inds] + (value - b_values[inds]).clamp(-args.clip_coef, args.clip_coef)
            value_loss = torch.max(value_loss, (clipped - b_returns[inds]).square())
        value_loss = 0.5 * value_loss.mean()

        entropy = dist.entropy().mean()
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            grad_norm = adam_step(params, grads, adam, learning_rate, args.max_grad_norm)
        metrics = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, grad_norm=grad_norm)
        metrics |= dict(approx_kl=approx_kl, old_approx_kl=-logratio.mean())
        metrics |= dict(clipfrac=(clipped_ratio != ratio).float().mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    rollout_obs, next_obs = np.zeros((2, *shape, *obs_space.shape), dtype=np.float32)
    logits = np.zeros((*shape, parts, choices), dtype=np.float32)
    actions, rewards = np.zeros((*shape, parts), dtype=np.int64), np.zeros(shape, dtype=np.float32)
    terminations, dones = np.zeros((2, *shape), dtype=bool)
    obs, global_step = run.obs, run.global_step
    while run.goes_on(global_step, obs):
        if args.anneal_lr:
            learning_rate.fill_(args.learning_rate * (1 - global_step / args.total_timesteps))
        # The last rollout may be shorter.
        num_steps = min(args.num_steps, math.ceil((args.total_timesteps - global_step) / args.num_envs))
        size = num_steps * args.num_envs

        # act, step, store
        actor = utils.numpy_forward(agent.actor, device)
        gumbel = np.random.gumbel(size=logits[:num_steps].shape).astype(np.float32)
        for t in range(num_steps):
            rollout_obs[t] = obs
            logits[t] = agent.mask(actor(rollout_obs[t, :, :obs_dim]), rollout_obs[t])
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
            b_actions[:size] = torch.from_numpy(actions[:num_steps]).flatten(0, 1)
            behaviour = agent.policy(torch.from_numpy(logits[:num_steps]).to(device).flatten(0, 1))
            b_logprobs[:size] = behaviour.log_prob(b_actions[:size])
            b_values[:size] = agent.critic(b_obs[:size, :obs_dim]).squeeze(-1)
            next_values = agent.critic(torch.from_numpy(next_obs[:num_steps, :, :obs_dim]).to(device))
            next_values = next_values.squeeze(-1).cpu().numpy()
        values = b_values[:size].reshape(num_steps, args.num_envs).cpu().numpy()
        # The next value is the other player's, and so is the next advantage: one's gain is the other's loss.
        rollout = rewards[:num_steps], values, -next_values, terminations[:num_steps], dones[:num_steps]
        advantages = compute_gae(*rollout, args.gamma, -args.gae_lambda)
        returns = advantages + values
        b_advantages[:size] = torch.from_numpy(advantages).flatten()
        b_returns[:size] = torch.from_numpy(returns).flatten()

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            # A short rollout's last minibatch is filled up from the front of the permutation.
            inds = np.resize(np.random.permutation(size), (math.ceil(size / minibatch_size), minibatch_size))
            epoch = [update(minibatch) for minibatch in torch.from_numpy(inds).to(device)]
            metrics += epoch
            if args.target_kl and torch.stack([m["losses/approx_kl"] for m in epoch]).mean() > args.target_kl:
                break

        # log
        losses = {name: torch.stack([m[name] for m in metrics]).mean().item() for name in metrics[0]}
        losses["losses/explained_variance"] = 1 - (returns - values).var() / (returns.var() + 1e-8)
        run.log(losses | {"charts/learning_rate": learning_rate}, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
