"""Parallelised Q-network (PQN) for Atari games, learning from pixels; a variant of ppo_atari.py.

Paper:    Gallici et al. 2024 (arXiv:2407.04811); network: Mnih et al. 2015 (Nature 518).
Run:      python cleanrl_lite/pqn_atari.py --env-id BreakoutNoFrameskip-v4
Differs:  From ppo_atari.py: Q-values with layer normalisation, Q(lambda) returns and RAdam, as in
          pqn.py. A lost life ends an episode for the learner only: the game and its logged return
          continue.
Expected: PongNoFrameskip-v4 -20.8 as pqn_atari_20k (20,000 steps, one seed, commit 841f75f), which
          shows only that it runs.
Details:  docs/pqn_atari.md
"""

from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import ale_py  # pip install "cleanrl_lite[atari]"
import gymnasium as gym
import numpy as np
import torch
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
    q_lambda: float = 0.65  # lambda of the Q(lambda) returns
    num_minibatches: int = 4  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    max_grad_norm: float = 10.0  # maximum norm of the gradient
    start_e: float = 1.0  # initial epsilon, the probability of a random action
    end_e: float = 0.01  # final epsilon
    exploration_fraction: float = 0.1  # part of the run over which epsilon falls
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


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
            nn.LayerNorm((32, 20, 20)),
            nn.ReLU(),
            layer_init(conv2),
            nn.LayerNorm((64, 9, 9)),
            nn.ReLU(),
            layer_init(conv3),
            nn.LayerNorm((64, 7, 7)),
            nn.ReLU(),
            nn.Flatten(),
            layer_init(nn.Linear(64 * 7 * 7, 512)),
            nn.LayerNorm(512),
            nn.ReLU(),
        )
        self.q_values = layer_init(nn.Linear(512, int(action_space.n)), gain=1.0)
        self.bf16 = args.bf16
        self.to(memory_format=torch.channels_last)

    def forward(self, obs):
        """The values of all actions in `obs`, uint8 (batch, 4, 84, 84)."""
        x = (obs / 255.0).contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.network(x).float()
        return self.q_values(hidden)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs).argmax(-1)


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
    envs = utils.Envs(args, Games(args))
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
    obs = torch.zeros((*shape, *obs_space.shape), dtype=torch.uint8, device=device)
    actions = torch.zeros(shape, dtype=torch.int64, device=device)
    values = torch.zeros(shape, device=device)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, bool)
    dones = np.zeros(shape, bool)
    epsilon_steps = args.exploration_fraction * args.total_timesteps
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            radam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        truncated = []
        # separate draws for each environment
        draws = torch.rand(shape, device=device)
        random_actions = torch.randint(int(action_space.n), shape, device=device)
        for t in range(args.num_steps):
            obs[t] = torch.from_numpy(envs.obs)
            epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, run.step)
            with torch.no_grad():
                values[t], greedy_actions = agent(obs[t]).max(-1)
            actions[t] = torch.where(draws[t] < epsilon, random_actions[t], greedy_actions)
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

        # returns of the whole rollout
        with torch.no_grad():
            last_values = agent(torch.from_numpy(envs.obs).to(device)).amax(-1)
            next_values = torch.cat([values[1:], last_values[None]])
            for t, n, last_obs in truncated:
                next_values[t, n] = agent(torch.from_numpy(last_obs[None]).to(device)).amax()
        returns = compute_q_lambda(
            rewards, next_values.cpu().numpy(), terminations, dones, args.gamma, args.q_lambda
        )
        rollout = obs, actions, torch.from_numpy(returns).to(device)
        batch = Batch(*[x.flatten(0, 1) for x in rollout])

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
