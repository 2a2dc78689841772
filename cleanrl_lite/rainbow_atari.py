"""Rainbow for Atari games, learning from pixels; a variant of c51_atari.py.

Paper:    Hessel et al. 2018 (arXiv:1710.02298), and those of its parts: double (1509.06461),
          dueling (1511.06581), prioritised replay (1511.05952), noisy layers (1706.10295).
Run:      python cleanrl_lite/rainbow_atari.py --env-id BreakoutNoFrameskip-v4
Differs:  What rainbow.py changes in c51.py, this script changes in c51_atari.py. A flag turns each
          part off. Windows of --n-step transitions end where a life is lost or the game ends, and
          at the newest frame. FrameReplayBuffer draws slots by priority; what cannot be drawn has
          priority 0. The convolutions have no noise. Adam's epsilon is c51_atari.py's.
Expected: PongNoFrameskip-v4 -20.4 as rainbow_atari_20k (20,000 steps, one seed, commit 288c42f),
          which shows only that it runs.
Details:  docs/rainbow_atari.md
"""

import copy
import math
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import ale_py  # pip install "cleanrl_lite[atari]"
import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
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
    learning_rate: float = 6.25e-5  # the optimizer's learning rate
    num_envs: int = 1  # environments stepped together
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 20_000  # environment steps before training starts
    train_frequency: int = 4  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 32  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    n_step: int = 3  # rewards that are summed before the target bootstraps (1: as c51)
    double: bool = True  # choose the next action by the network, value it by its target
    dueling: bool = True  # separate streams for the state's value and the actions' advantages
    noisy: bool = True  # explore by noise on the weights, not by epsilon (--start-e, --end-e)
    noisy_sigma: float = 0.5  # initial std of the noisy layers' noise, times 1 / sqrt(inputs)
    priority_alpha: float = 0.5  # exponent of the priorities, at most 1 (0: draw uniformly)
    priority_beta: float = 0.4  # initial exponent of the importance weights; rises to 1
    n_atoms: int = 51  # atoms of the return distribution
    v_min: float = -10.0  # lower end of the return distribution's support
    v_max: float = 10.0  # upper end of the return distribution's support
    target_network_frequency: int = 8_000  # environment steps between target network updates
    tau: float = 1.0  # step size of the target: target += tau * (network - target)
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
class NoisyLinear(nn.Linear):
    """A linear layer with learned, factorised Gaussian noise on its weights (section 3).

    `noise` is f(epsilon), (inputs + outputs,), or has a row for each row of x, and so weights
    for each.
    """

    def __init__(self, inputs, outputs, noisy, sigma):
        super().__init__(inputs, outputs)
        self.noise_sizes = [inputs, outputs] if noisy else [0, 0]
        if noisy:
            scale = sigma / inputs**0.5
            self.weight_sigma = nn.Parameter(torch.full_like(self.weight, scale))
            self.bias_sigma = nn.Parameter(torch.full_like(self.bias, scale))

    def forward(self, x, noise):
        if noise is None or sum(self.noise_sizes) == 0:
            return super().forward(x)
        noise_in, noise_out = noise.split(self.noise_sizes, dim=-1)
        # equations 10 and 11
        if noise.ndim == 1:
            weight = self.weight + self.weight_sigma * noise_out.outer(noise_in)
            bias = self.bias + self.bias_sigma * noise_out
            return x @ weight.T + bias
        # a row of noise for each row of x: the same, but no matrix for each is formed
        noisy = F.linear(x * noise_in, self.weight_sigma, self.bias_sigma)
        return super().forward(x) + noisy * noise_out


class QNetwork(nn.Module):
    """Convolutions, and a hidden layer of 512; with `dueling`, another 512 for the state."""

    def __init__(self, args, num_actions):
        super().__init__()
        self.shape = num_actions, args.n_atoms
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        noisy, sigma = args.noisy, args.noisy_sigma
        self.fc1 = NoisyLinear(64 * 7 * 7, 512, noisy, sigma)
        self.fc2 = NoisyLinear(512, num_actions * args.n_atoms, noisy, sigma)
        self.dueling = args.dueling
        if args.dueling:
            self.value_fc1 = NoisyLinear(64 * 7 * 7, 512, noisy, sigma)
            self.value_fc2 = NoisyLinear(512, args.n_atoms, noisy, sigma)
        layers = [layer for layer in self.modules() if isinstance(layer, NoisyLinear)]
        self.noise_sizes = [sum(layer.noise_sizes) for layer in layers]
        self.bf16 = args.bf16

    def forward(self, obs, noise=None):
        """Logits (batch, num_actions, n_atoms) for `obs`, uint8 (batch, 4, 84, 84).

        Without noise, those of the mean weights.
        """
        noises = [None] * 4 if noise is None else noise.split(self.noise_sizes, dim=-1)
        x = (obs / 255.0).contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            x = self.network(x)
        x = x.float()
        logits = self.fc2(F.relu(self.fc1(x, noises[0])), noises[1])
        logits = logits.unflatten(1, self.shape)
        if not self.dueling:
            return logits
        values = self.value_fc2(F.relu(self.value_fc1(x, noises[2])), noises[3])
        # equation 9 of the dueling paper, for each atom
        return values[:, None] + logits - logits.mean(1, keepdim=True)


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.register_buffer("atoms", atoms, persistent=False)
        self.q_network = QNetwork(args, int(action_space.n))
        self.target_network = copy.deepcopy(self.q_network).requires_grad_(False)
        self.to(memory_format=torch.channels_last)

    def values(self, logits):
        """Expected returns, of logits (..., n_atoms)."""
        return logits.softmax(-1) @ self.atoms

    def forward(self, obs, noise=None):
        """The values of all actions in `obs`, uint8 (batch, 4, 84, 84): expected returns."""
        return self.values(self.q_network(obs, noise))

    def draw_noise(self, count):
        """f(epsilon) for all noisy layers (count, number of their inputs and outputs)."""
        size = sum(self.q_network.noise_sizes)
        noise = torch.randn((count, size), device=self.atoms.device)
        return noise.sign() * noise.abs().sqrt()

    def act(self, obs, noise=None):
        """The greedy policy; without noise, for evaluation."""
        return self(obs, noise).argmax(-1)


# === replay
# Windows of up to n_step transitions: tensors (batch_size, ...).
# rewards are discounted sums, next_obs and terminations are those of the window's end, and
# discounts are gamma to the power of its length
Batch = namedtuple("Batch", "obs actions rewards next_obs terminations discounts")


class SumTree:
    """Priorities, drawn in proportion to their size (Schaul et al., appendix B.2.1).

    A tree of two levels: the priorities, in blocks, and the sum of each block. A draw looks
    for its block first and then for its place there. Both searches are short.
    """

    def __init__(self, size, device):
        self.width = math.ceil(size**0.5)
        blocks = math.ceil(size / self.width)
        self.leaves = torch.zeros(blocks * self.width, dtype=torch.float64, device=device)
        self.sums = torch.zeros(blocks, dtype=torch.float64, device=device)

    def set(self, index, priorities):
        self.leaves[index] = priorities.double()
        block = index // self.width
        self.sums[block] = self.leaves.view(-1, self.width)[block].sum(1)

    def draw(self, points):
        """The places of `points`, from 0 to 1, on the line of all priorities."""
        ends = self.sums.cumsum(0)
        points = points * ends[-1]
        block = first_beyond(ends, points)
        points = points - (ends - self.sums)[block]
        ends = self.leaves.view(-1, self.width)[block].cumsum(1)
        return block * self.width + first_beyond(ends, points[:, None])[:, 0]


def first_beyond(ends, points):
    """The first of `ends` beyond each point.

    The trap: rounding may lead to a priority of 0 at the start, or behind the last one.
    """
    inside = points.clamp(min=0).minimum(ends[..., -1:] * (1 - 1e-12))
    return torch.searchsorted(ends, inside, right=True)


class FrameReplayBuffer:
    """The last transitions of stacks of 4 frames, with every frame stored once: 7 KB, not 56.

    Each environment has a ring of slots. Slot t holds the newest frame of its t-th observation
    and what came of it; slots t - 3 to t + 1 make that stack and the next one. `age` says how
    many frames of a stack are of the game under way, 1 to 4; the older ones are blank, as the
    agent saw them. The last frame of a truncated game has a slot too, of age 0: no transition
    starts from it.

    Slots are drawn by priority. It is 0 for those from which no whole transition starts: of age
    0, the newest one, and the oldest ones, which lack frames of their stacks.
    """

    def __init__(self, buffer_size, num_envs, frame_shape, device, n_step):
        self.num_envs = num_envs
        self.n_step = n_step
        self.length = buffer_size // num_envs
        slots = self.length * num_envs
        # numpy's zeros take memory only when they are written.
        self.frames = torch.from_numpy(np.zeros((slots, *frame_shape), np.uint8)).to(device)
        # action, reward, terminated; in the last column, age
        self.rows = torch.zeros((slots, 4), device=device)
        self.age = np.ones(num_envs)  # of the next observation
        # slots so far; the newest one waits for its next frame
        self.written = np.zeros(num_envs, np.int64)
        self.newest_age = np.zeros(num_envs)  # of the newest slot; 0: no transition starts there
        self.tree = SumTree(slots, device)
        # The largest so far, which new transitions get. The trap: torch 2.13 loses what a
        # compiled update writes to a float64 tensor without dimensions.
        self.max_priority = torch.ones((), device=device)

    def place(self, slot, env):
        """Where a slot lies: first the slots 0 of all environments, then the slots 1, ..."""
        return slot % self.length * self.num_envs + env

    def add(self, obs, actions, rewards, next_obs, terminations, truncations, new_games):
        """Stores a transition of each environment: stacks (num_envs, 4, *frame_shape)."""
        utils.check(obs.dtype == np.uint8, f"replay.add got {obs.dtype}, not uint8")
        rows = np.column_stack((actions, rewards, terminations, self.age))
        for n in range(self.num_envs):
            self.write(n, obs[n], rows[n])
            if truncations[n]:
                self.write(n, next_obs[n], np.zeros(4))
        self.age = np.where(new_games, 1, np.minimum(self.age + 1, 4))

    def write(self, n, stack, row):
        place = self.place(self.written[n], n)
        self.frames[place] = torch.from_numpy(stack[-1])
        self.rows[place] = torch.from_numpy(row)
        # The transition before it is whole now. One of the oldest slots now lacks a frame.
        slots = self.written[n] + np.array([-1, 0, 3])
        priorities = torch.zeros(3, device=self.max_priority.device)
        if self.newest_age[n] > 0:
            priorities[0] = self.max_priority
        places = torch.from_numpy(self.place(slots, n))
        self.tree.set(places.to(priorities.device), priorities)
        self.newest_age[n] = row[-1]
        self.written[n] += 1

    def sample(self, batch_size):
        """A minibatch: frames (batch_size, n_step + 4, *frame_shape), rows from each window's
        start to behind its end (batch_size, n_step + 1, 4), which steps count, and its places.

        Drawn by priority, one from each of batch_size equal parts of the line of priorities.
        """
        device = self.rows.device
        draws = torch.rand(batch_size, dtype=torch.float64, device=device)
        parts = torch.arange(batch_size, device=device)
        index = self.tree.draw((parts + draws) / batch_size)
        env = index % self.num_envs
        slot = index // self.num_envs
        # The trap: behind an environment's newest slot lies its oldest.
        end = torch.from_numpy(self.written).to(device)[env]
        newer = (end - 1 - slot) % self.length
        slots = slot[:, None] + torch.arange(-3, self.n_step + 1, device=device)
        places = self.place(slots, env[:, None])
        # index_select copies frames 16 times as fast as frames[places].
        frames = self.frames.index_select(0, places.flatten()).unflatten(0, places.shape)
        steps = torch.arange(self.n_step, device=device)
        return frames, self.rows[places[:, 3:]], steps < newer[:, None], index

    def unpack(self, frames, rows, stored, gamma):
        """The parts of a minibatch."""
        actions, rewards, terminations, ages = rows.unbind(2)
        # how much older than the newest frame of obs each of them is
        older = torch.arange(3, -self.n_step - 1, -1, device=ages.device)
        in_game = older < ages[:, :1]
        frames = frames * in_game[:, :, None, None]
        rewards, lengths = n_step_returns(
            rewards[:, :-1], terminations[:, :-1], ages, stored, gamma
        )
        index = torch.arange(len(frames), device=ages.device)
        # the true last observation of the window, and whether the episode terminated there
        next_obs = frames[index[:, None], lengths[:, None] + torch.arange(4, device=ages.device)]
        terminations = terminations[index, lengths - 1]
        return Batch(frames[:, :4], actions[:, 0], rewards, next_obs, terminations, gamma**lengths)

    def set_priorities(self, index, priorities):
        """Gives drawn transitions new priorities; a small one where it is NaN or infinite."""
        priorities = priorities.nan_to_num(1e-6, 1e-6)
        self.tree.set(index, priorities)
        self.max_priority.copy_(self.max_priority.maximum(priorities.max()))

    def state_dict(self):
        used = min(int(self.written.max()), self.length) * self.num_envs
        # By way of numpy, torch.save writes this part only, and needs no memory for a copy.
        frames = self.frames[:used].cpu().numpy()
        rows = self.rows[:used].cpu().numpy()
        leaves = self.tree.leaves[:used].cpu().numpy()
        return {
            "written": self.written.tolist(),
            "frames": torch.from_numpy(frames),
            "rows": torch.from_numpy(rows),
            "leaves": torch.from_numpy(leaves),
            "sums": self.tree.sums,
            "max_priority": self.max_priority,
        }

    def load_state_dict(self, state):
        self.frames[: len(state["frames"])] = state["frames"]
        self.rows[: len(state["rows"])] = state["rows"]
        self.written[:] = state["written"]
        # Games restart after a resume. The newest observation only completes the transition
        # before it; if it begins a game, not even that, and its slot is used again.
        newest = self.place(self.written - 1, np.arange(self.num_envs))
        self.written -= self.rows[newest, -1].cpu().numpy() == 1
        self.rows[newest, -1] = 0
        newest = self.place(self.written - 1, np.arange(self.num_envs))
        self.newest_age = self.rows[newest, -1].cpu().numpy()
        self.tree.leaves[: len(state["leaves"])] = state["leaves"]
        self.tree.sums.copy_(state["sums"])
        self.max_priority.copy_(state["max_priority"])


# === pure functions
def linear_schedule(start, end, duration, step):
    """Linear from `start` at step 0 to `end` at step `duration`, then constant."""
    return start + (end - start) * min(step / duration, 1.0)


def n_step_returns(rewards, terminations, ages, stored, gamma):
    """The discounted sum of each window's rewards and its length, (batch,).

    All but gamma are (batch, n_step), but `ages` has another column. A window ends where its
    episode terminates, and before the last frame of a truncated game, which has age 0.
    """
    goes_on = stored[:, 1:] & (terminations[:, :-1] == 0) & (ages[:, 1:-1] > 0)
    in_window = torch.cat([torch.ones_like(stored[:, :1]), goes_on], 1).cumprod(1)
    ahead = torch.arange(rewards.shape[1], device=rewards.device)
    discounted = torch.where(in_window > 0, rewards * gamma**ahead, 0)
    return discounted.sum(1), in_window.sum(1)


def project_distribution(next_probs, rewards, terminations, gamma, atoms):
    """The distribution of rewards + gamma * next return on the atoms (algorithm 1).

    next_probs and the result are (batch, n_atoms). An atom's probability goes to its two
    neighbours on the support, in proportion to their nearness. The trap: with the neighbours
    floor(b) and ceil(b), an atom that falls exactly on the support has weight 0 for both, and
    is lost.
    """
    last = len(atoms) - 1
    next_atoms = rewards[:, None] + gamma * (1 - terminations)[:, None] * atoms
    # in units of the spacing, (batch, n_atoms)
    b = (next_atoms - atoms[0]) * (last / (atoms[last] - atoms[0]))
    b = b.clamp(0, last)
    # NaN cannot be an index; the weights and the loss stay NaN.
    lower = b.nan_to_num().floor().clamp(max=last - 1)
    index = lower.long()
    projected = torch.zeros_like(next_probs)
    projected.scatter_add_(1, index, next_probs * (lower + 1 - b))
    projected.scatter_add_(1, index + 1, next_probs * (b - lower))
    return projected


def rainbow_loss(args, agent, batch, weights, noise):
    """The weighted cross-entropy; each window's divergence (batch_size,); a dict of metrics.

    noise (3, ...) is for learning, for judging the next action, and for choosing it.
    """
    index = torch.arange(len(batch.obs), device=batch.obs.device)
    with torch.no_grad():
        next_logits = agent.target_network(batch.next_obs, noise[1])
        chooser = agent.q_network(batch.next_obs, noise[2]) if args.double else next_logits
        next_probs = next_logits.softmax(-1)[index, agent.values(chooser).argmax(-1)]
        discounts = batch.discounts[:, None]
        target_probs = project_distribution(
            next_probs, batch.rewards, batch.terminations, discounts, agent.atoms
        )
    logits = agent.q_network(batch.obs, noise[0])[index, batch.actions.long()]
    log_probs = logits.log_softmax(-1)
    losses = -(target_probs * log_probs).sum(-1)
    loss = (weights * losses).mean()
    # The Kullback-Leibler divergence is the loss without the target's entropy.
    entropy = -torch.xlogy(target_probs, target_probs).sum(-1)
    divergence = (losses.detach() - entropy).clamp(min=0)
    q_values = log_probs.exp() @ agent.atoms
    return loss, divergence, {"losses/loss": loss, "losses/q_values": q_values.mean()}


# === training
@torch.no_grad()
def update_target(target, network, tau):
    """target += tau * (network - target), weight by weight, in place; buffers are copied."""
    for old, new in zip(target.parameters(), network.parameters(), strict=True):
        old.lerp_(new, tau)
    for old, new in zip(target.buffers(), network.buffers(), strict=True):
        old.copy_(new)


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    utils.check(args.n_atoms > 1, f"--n-atoms must be > 1, got {args.n_atoms}")
    finite = -1e30 < args.v_min < args.v_max < 1e30
    utils.check(finite, "--v-min must be below --v-max, both finite")
    for name in "priority_alpha", "priority_beta":
        value = getattr(args, name)
        flag = name.replace("_", "-")
        utils.check(0 <= value <= 1, f"--{flag} must be from 0 to 1, got {value}")
    min_size = max(args.batch_size, max(8, args.n_step) * args.num_envs)
    utils.check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")
    enough = args.learning_starts >= 2 * args.num_envs
    utils.check(enough, "--learning-starts must be at least twice --num-envs")
    envs = utils.Envs(args, Games(args))
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.q_network.parameters(), args.learning_rate, eps=0.01 / args.batch_size)
    frame_shape = obs_space.shape[1:]
    replay = FrameReplayBuffer(args.buffer_size, args.num_envs, frame_shape, device, args.n_step)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam, replay=replay)
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
    # A number that changes during the run must be a tensor, as beta is.
    @utils.compiled(args)
    def update(frames, rows, stored, index, noise, beta):
        # prioritised replay, section 3.4, with the largest weight 1
        priorities = replay.tree.leaves[index]
        weights = ((priorities.min() / priorities) ** beta).float()
        batch = replay.unpack(frames, rows, stored, args.gamma)
        loss, divergence, metrics = rainbow_loss(args, agent, batch, weights, noise)
        adam.minimize(loss)
        replay.set_priorities(index, (divergence + 1e-6) ** args.priority_alpha)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return run.step // every - (run.step - args.num_envs) // every

    metrics = {}
    while run.step < args.total_timesteps:
        # act
        epsilon_steps = args.exploration_fraction * args.total_timesteps
        epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, run.step)
        if args.noisy:
            epsilon = 0.0  # the noise explores
        obs = envs.obs
        # separate draws for each environment
        draws, uniform = np.random.random((2, args.num_envs))
        actions = (uniform * action_space.n).astype(np.int64)
        if (draws >= epsilon).any():
            # noise of its own for each environment, and for each step
            noise = agent.draw_noise(args.num_envs)
            with torch.no_grad():
                greedy = agent.act(torch.from_numpy(obs).to(device), noise)
            actions = np.where(draws < epsilon, actions, greedy.cpu().numpy())

        # learn from the steps so far (a GPU does so while the environments step)
        if run.step > args.learning_starts:
            beta = linear_schedule(args.priority_beta, 1.0, args.total_timesteps, run.step)
            beta = torch.tensor(beta, device=device)
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                minibatch = replay.sample(args.batch_size)
                metrics = update(*minibatch, agent.draw_noise(3), beta)
            for _ in range(times_due(args.target_network_frequency)):
                update_target(agent.target_network, agent.q_network, args.tau)

        # step, store
        next_obs, rewards, terminations, truncations, infos = envs.step(actions)
        rewards = np.sign(rewards)  # clipped, for learning only
        new_games = ["episode" in info for info in infos]
        # a truncated game bootstraps from next_obs
        replay.add(obs, actions, rewards, next_obs, terminations, truncations, new_games)
        for info in infos:
            run.step += 1
            if "episode" in info:
                writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # log, evaluate, save
        if times_due(100) or run.step >= args.total_timesteps:
            run.log(writer, {**metrics, "charts/epsilon": epsilon})
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
