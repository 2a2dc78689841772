"""Proximal Policy Optimization for Atari games, learning from pixels; a variant of ppo.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); network: Mnih et al. 2015 (Nature 518).
Run:      python cleanrl_lite/ppo_atari.py --env-id BreakoutNoFrameskip-v4
Differs:  The environments are ale-py's own C++ vector environment. A lost life ends an episode for
          the learner only: the game and its logged return continue. After a lost life, FIRE
          replaces the agent's action.
Expected: BreakoutNoFrameskip-v4 427.3, PongNoFrameskip-v4 20.94 (10,000,000 steps with --bf16,
          mean of the last 100 training episodes, 1 seed, bd758e1).
Details:  docs/ppo_atari.md
"""

from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import ale_py  # pip install "cleanrl_lite[atari]"
import gymnasium as gym
import numpy as np
import torch
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
    threads: int = 0  # CPU threads of torch and numpy (0: their choice)
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
    env_id: str = "BreakoutNoFrameskip-v4"  # game; ALE/Breakout-v5 has sticky actions
    env_kwargs: str = "{}"  # keyword arguments of the environment, as JSON
    total_timesteps: int = 10_000_000  # environment steps, summed over the environments
    learning_rate: float = 2.5e-4  # the optimizer's learning rate
    num_envs: int = 8  # environments stepped together
    num_steps: int = 128  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.1  # epsilon of the clipped surrogate objective
    clip_vloss: bool = True  # clip the value loss likewise
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)


# === environment
class Games(gym.vector.VectorWrapper):
    """ale-py's vector environment, in C++: stacks of 4 gray frames of 84 x 84, 4 frames a step.

    A lost life terminates the episode, and FIRE continues the game. infos[n]["episode"] is a
    whole game, with unclipped rewards.
    """

    def __init__(self, args):
        spec = utils.make(args).spec
        ok = spec.entry_point == "ale_py.env:AtariEnv" and "frameskip" not in args.env_kwargs
        utils.check(
            ok,
            f"--env-id {args.env_id} must be an Atari game, whose frameskip is always 4. Use a "
            "script without _atari in its name or, for images, ppo_image.py",
        )
        envs = ale_py.vector_env.AtariVectorEnv(
            num_envs=args.num_envs,
            num_threads=args.threads,
            noop_max=30,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
            # The trap: `episodic_life` would start a new game after each lost life.
            life_loss_info=True,
            reward_clipping=False,
            **{**spec.kwargs, "frameskip": 4},
        )
        super().__init__(envs)
        self.has_fire = ale_py.Action.FIRE in envs.ale.get_action_set()

    def reset(self, *, seed, options=None):
        obs, infos = self.env.reset(seed=np.array(seed))
        self.frames = infos["episode_frame_number"]
        self.lost_life = np.zeros(self.num_envs, bool)
        self.returns = np.zeros(self.num_envs)
        self.lengths = np.zeros(self.num_envs, np.int64)
        return obs, {}

    def step(self, actions):
        # Some games wait until FIRE is pressed: action 1, where it exists.
        actions = np.where(self.lost_life, 1, actions)
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        # Fewer frames than before: the next game has begun.
        over = truncations | (infos["episode_frame_number"] < self.frames)
        self.frames = infos["episode_frame_number"]
        self.lost_life = terminations & ~over & self.has_fire
        self.returns += rewards
        self.lengths += 1
        ended = {}
        for n in np.flatnonzero(over):
            episode = {"r": self.returns[n], "l": self.lengths[n]}
            ended[n] = {"episode": episode, "final_obs": infos["final_obs"][n]}
        self.returns *= ~over
        self.lengths *= ~over
        return obs, rewards, terminations, truncations, ended


class PressFire(gym.ActionWrapper):
    """Presses FIRE at the start of a game and after each lost life, as Games does."""

    def reset(self, **kwargs):
        super().reset(**kwargs)
        obs, _, _, _, info = self.env.step(1)
        self.lives = info["lives"]
        return obs, info

    def action(self, action):
        lives, self.lives = self.lives, self.unwrapped.ale.lives()
        return 1 if self.lives < lives else action


def make_env(args, render_mode=None):
    """The environment of evaluations and videos: whole games, unclipped rewards."""
    # AtariPreprocessing skips frames, so the game itself must not.
    env = utils.make(args, render_mode, frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = PressFire(env)
    return gym.wrappers.FrameStackObservation(env, 4, padding_type="zero")


# === agent
def layer_init(layer, gain=2**0.5):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        conv1 = nn.Conv2d(4, 32, 8, stride=4)
        conv2 = nn.Conv2d(32, 64, 4, stride=2)
        conv3 = nn.Conv2d(64, 64, 3, stride=1)
        self.network = nn.Sequential(
            layer_init(conv1),
            nn.ReLU(),
            layer_init(conv2),
            nn.ReLU(),
            layer_init(conv3),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(64 * 7 * 7, 512)),
            nn.ReLU(),
        )
        self.critic = layer_init(nn.Linear(512, 1), gain=1.0)
        # small weights: the policy starts out uniform
        self.actor = layer_init(nn.Linear(512, int(action_space.n)), gain=0.01)
        self.bf16 = args.bf16
        self.to(memory_format=torch.channels_last)

    def forward(self, obs):
        """The policy's distribution and the value of `obs`, uint8 (batch, 4, 84, 84)."""
        x = (obs / 255.0).contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.network(x).float()
        dist = Categorical(logits=self.actor(hidden), validate_args=False)
        return dist, self.critic(hidden).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs)
        return dist.logits.argmax(-1)


# === pure functions
# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions logprobs values advantages returns")


def compute_gae(args, rewards, values, next_values, terminations, dones):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation that
    step t truly led to. It counts where an episode is truncated; a terminated one has no rest.
    """
    deltas = rewards + args.gamma * next_values * ~terminations - values
    decays = args.gamma * args.gae_lambda * ~dones
    advantages = np.zeros_like(deltas)
    advantage = 0.0
    for t in reversed(range(len(deltas))):
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages


def ppo_loss(args, agent, batch):
    """The loss of a minibatch (eq. 9), and a dict of metrics."""
    dist, values = agent(batch.obs)
    logratio = dist.log_prob(batch.actions) - batch.logprobs
    ratio = logratio.exp()
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    advantages = batch.advantages
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7

    value_loss = (values - batch.returns).square()
    if args.clip_vloss:
        change = (values - batch.values).clamp(-args.clip_coef, args.clip_coef)
        value_loss = torch.max(value_loss, (batch.values + change - batch.returns).square())
    value_loss = 0.5 * value_loss.mean()

    entropy = dist.entropy().mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    return loss, {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": (ratio - 1 - logratio).mean(),  # http://joschu.net/blog/kl-approx.html
        "losses/old_approx_kl": -logratio.mean(),
        "losses/clipfrac": (clipped_ratio != ratio).float().mean(),
    }


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    batch_size = args.num_envs * args.num_steps
    fits = batch_size % args.num_minibatches == 0
    utils.check(fits, f"--num-minibatches must divide --num-envs x --num-steps = {batch_size}")
    envs = utils.Envs(args, Games(args))
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.parameters(), args.learning_rate, args.max_grad_norm, eps=1e-5)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
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
    # A number that changes during the run must be a tensor, as adam.learning_rate is.
    @utils.compiled(args)
    def update(inds, *batch):
        minibatch = Batch(*[x[inds] for x in batch])
        loss, metrics = ppo_loss(args, agent, minibatch)
        metrics["losses/grad_norm"] = adam.minimize(loss)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    shape = args.num_steps, args.num_envs
    obs = torch.zeros((*shape, *obs_space.shape), dtype=torch.uint8, device=device)
    actions = torch.zeros(shape, dtype=torch.int64, device=device)
    logprobs = torch.zeros(shape, device=device)
    values = torch.zeros(shape, device=device)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, bool)
    dones = np.zeros(shape, bool)
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            adam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        truncated = []
        for t in range(args.num_steps):
            obs[t] = torch.from_numpy(envs.obs)
            with torch.no_grad():
                dist, values[t] = agent(obs[t])
                actions[t] = dist.sample()
                logprobs[t] = dist.log_prob(actions[t])
            results = envs.step(actions[t].cpu().numpy())
            next_obs, reward, terminations[t], truncations, infos = results
            rewards[t] = np.sign(reward)  # clipped, for learning only
            dones[t] = terminations[t] | truncations
            truncated += [(t, n, next_obs[n]) for n in np.flatnonzero(truncations)]
            for info in infos:
                run.step += 1
                if "episode" in info:
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # values and advantages of the whole rollout
        with torch.no_grad():
            _, last_values = agent(torch.from_numpy(envs.obs).to(device))
            next_values = torch.cat([values[1:], last_values[None]])
            for t, n, last_obs in truncated:
                _, next_values[t, n] = agent(torch.from_numpy(last_obs[None]).to(device))
        old_values = values.cpu().numpy()
        next_values = next_values.cpu().numpy()
        advantages = compute_gae(args, rewards, old_values, next_values, terminations, dones)
        returns = advantages + old_values
        b_advantages = torch.from_numpy(advantages).to(device)
        b_returns = torch.from_numpy(returns).to(device)
        rollout = obs, actions, logprobs, values, b_advantages, b_returns
        batch = Batch(*[x.flatten(0, 1) for x in rollout])

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(batch_size).reshape(args.num_minibatches, -1)
            epoch = [update(inds, *batch) for inds in torch.from_numpy(order).to(device)]
            metrics += epoch
            kls = [m["losses/approx_kl"] for m in epoch]
            if args.target_kl and torch.stack(kls).mean() > args.target_kl:
                break

        # log, evaluate, save
        scalars = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        unexplained = (returns - old_values).var() / (returns.var() + 1e-8)
        scalars["losses/explained_variance"] = 1 - unexplained
        scalars["charts/learning_rate"] = adam.learning_rate
        run.log(writer, scalars)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
