"""Categorical DQN (C51) for Atari, with videos of the distributions; a variant of c51_atari.py.

Paper:    Bellemare et al. 2017 (arXiv:1707.06887), with the network of Mnih et al. 2015 (Nature).
Run:      python cleanrl_lite/c51_atari_visual.py --env-id BreakoutNoFrameskip-v4 --capture-video
Differs:  From c51_atari.py only in its videos, which show the actions' return distributions beside
          the picture.
Expected: The run of c51_atari.py, bit for bit. Drawing takes 2.7 ms of CPU time for each frame of a
          video.
Details:  docs/c51_atari_visual.md
"""

import copy
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

import ale_py  # pip install "cleanrl_lite[atari]"
import cv2  # pip install "cleanrl_lite[atari]"
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
    num_envs: int = 1  # environments stepped together
    buffer_size: int = 1_000_000  # capacity of the replay buffer, in transitions
    learning_starts: int = 80_000  # environment steps before training starts
    train_frequency: int = 4  # environment steps, of all environments, between trainings
    gradient_steps: int = 1  # gradient steps each time it trains
    batch_size: int = 32  # transitions per minibatch
    gamma: float = 0.99  # discount factor
    n_atoms: int = 51  # atoms of the return distribution
    v_min: float = -10.0  # lower end of the return distribution's support
    v_max: float = 10.0  # upper end of the return distribution's support
    target_network_frequency: int = 10_000  # environment steps between target network updates
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


class WatchedFrames(gym.wrappers.FrameStackObservation):
    """Shows the actions' return distributions beside the game. Agent() gives it the agent."""

    def render(self):
        agent = self.agent
        obs = torch.as_tensor(self.stacked_obs[None], device=agent.atoms.device)
        probs = agent.logits(agent.q_network, obs)[0].softmax(-1)
        names = self.unwrapped.get_action_meanings()
        bars = draw_distributions(names, probs.cpu(), agent.atoms.cpu())
        height, width, _ = bars.shape
        game = cv2.resize(super().render(), (width, height))
        return np.hstack([game, bars])


def draw_distributions(names, probs, atoms):
    """A gray image with the distribution (n_atoms,) of each action and its mean."""
    pictures = []
    means = probs @ atoms
    height = 420 // len(probs)
    levels = probs.max() * torch.linspace(1.25, 0, height)
    for name, prob, mean in zip(names, probs, means, strict=True):
        brightness = 2 if mean == means.max() else 1  # brighter: the action that the policy takes
        bars = 50 * brightness * (prob >= levels[:, None]).byte().numpy()  # (height, n_atoms)
        picture = cv2.resize(bars, (320, height), interpolation=cv2.INTER_NEAREST)
        text = f"{name} {mean:.2f}"
        cv2.putText(picture, text, (4, 15), cv2.FONT_HERSHEY_PLAIN, 1, 127 * brightness)
        pictures.append(picture)
    return cv2.merge([np.vstack(pictures)] * 3)


def make_env(args, render_mode=None):
    """The environment of evaluations and videos: whole games, unclipped rewards."""
    # AtariPreprocessing skips frames, so the game itself must not.
    env = utils.make(args, render_mode, frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = PressFire(env)
    return WatchedFrames(env, 4, padding_type="zero")


# === agent
class QNetwork(nn.Module):
    def __init__(self, outputs, bf16):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
        )
        self.head = nn.Linear(512, outputs)
        self.bf16 = bf16

    def forward(self, obs):
        """The outputs (batch, outputs) for `obs`, uint8 (batch, 4, 84, 84)."""
        x = (obs / 255.0).contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            x = self.network(x)
        return self.head(x.float())


class Agent(nn.Module):
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
        self.register_buffer("atoms", atoms, persistent=False)
        self.q_network = QNetwork(int(action_space.n) * args.n_atoms, args.bf16)
        self.target_network = copy.deepcopy(self.q_network).requires_grad_(False)
        self.to(memory_format=torch.channels_last)
        WatchedFrames.agent = self

    def logits(self, network, obs):
        """Logits of the return distributions (batch, num_actions, n_atoms)."""
        return network(obs).unflatten(1, (-1, len(self.atoms)))

    def forward(self, obs):
        """The values of all actions in `obs`, uint8 (batch, 4, 84, 84): expected returns."""
        return self.logits(self.q_network, obs).softmax(-1) @ self.atoms

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs).argmax(-1)


# === replay
# Transitions: tensors (batch_size, ...). terminations are 0 or 1
Batch = namedtuple("Batch", "obs actions rewards next_obs terminations")


class FrameReplayBuffer:
    """The last transitions of stacks of 4 frames, with every frame stored once: 7 KB, not 56.

    Each environment has a ring of slots. Slot t holds the newest frame of its t-th observation
    and what came of it; slots t - 3 to t + 1 make that stack and the next one. `age` says how
    many frames of a stack are of the game under way, 1 to 4; the older ones are blank, as the
    agent saw them. The last frame of a truncated game has a slot too, of age 0: no transition
    starts from it.
    """

    def __init__(self, buffer_size, num_envs, frame_shape, device):
        self.num_envs = num_envs
        self.length = buffer_size // num_envs
        slots = self.length * num_envs
        # numpy's zeros take memory only when they are written.
        self.frames = torch.from_numpy(np.zeros((slots, *frame_shape), np.uint8)).to(device)
        # action, reward, terminated; in the last column, age
        self.rows = torch.zeros((slots, 4), device=device)
        self.age = np.ones(num_envs)  # of the next observation
        # slots so far; the newest one waits for its next frame
        self.written = np.zeros(num_envs, np.int64)
        self.ends = np.zeros(num_envs, np.int64)  # the same, but for a slot that is used again

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
        self.written[n] += 1
        self.ends[n] = self.written[n]

    def sample(self, batch_size):
        """A minibatch, with replacement: frames (batch_size, 5, *frame_shape) and rows."""
        draws = torch.rand((2, batch_size), dtype=torch.float64, device=self.rows.device)
        env = (draws[0] * self.num_envs).long()
        end = torch.from_numpy(self.ends).to(env.device)[env]
        # Three slots of a full ring lack frames of their stacks; to the fourth we may step back.
        first = torch.where(end > self.length, end - self.length + 4, 0)
        slot = first + (draws[1] * (end - 1 - first)).long()
        # No transition starts from a slot of age 0: use the one before it.
        age = self.rows[self.place(slot, env), -1]
        slot = slot - (age == 0).long()
        slots = slot[:, None] + torch.arange(-3, 2, device=slot.device)
        places = self.place(slots, env[:, None])
        # index_select copies frames 16 times as fast as frames[places].
        frames = self.frames.index_select(0, places.flatten()).unflatten(0, places.shape)
        return frames, self.rows[places[:, 3]]

    def unpack(self, frames, rows):
        """The parts of a minibatch."""
        actions, rewards, terminations, age = rows.unbind(1)
        # how much older than the newest frame of obs each of the five is
        older = torch.arange(3, -2, -1, device=age.device)
        in_game = older < age[:, None]
        frames = frames * in_game[:, :, None, None]
        return Batch(frames[:, :4], actions, rewards, frames[:, 1:], terminations)

    def state_dict(self):
        used = min(int(self.written.max()), self.length) * self.num_envs
        # By way of numpy, torch.save writes this part only, and needs no memory for a copy.
        frames = self.frames[:used].cpu().numpy()
        rows = self.rows[:used].cpu().numpy()
        return {
            "written": self.written.tolist(),
            "frames": torch.from_numpy(frames),
            "rows": torch.from_numpy(rows),
        }

    def load_state_dict(self, state):
        self.frames[: len(state["frames"])] = state["frames"]
        self.rows[: len(state["rows"])] = state["rows"]
        self.written[:] = state["written"]
        self.ends[:] = self.written
        # Games restart after a resume. The newest observation only completes the transition
        # before it; if it begins a game, not even that, and its slot is used again.
        newest = self.place(self.written - 1, np.arange(self.num_envs))
        self.written -= self.rows[newest, -1].cpu().numpy() == 1
        self.rows[newest, -1] = 0


# === pure functions
def linear_schedule(start, end, duration, step):
    """Linear from `start` at step 0 to `end` at step `duration`, then constant."""
    return start + (end - start) * min(step / duration, 1.0)


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


def c51_loss(args, agent, batch):
    """The cross-entropy with the projected distribution, and a dict of metrics."""
    index = torch.arange(len(batch.obs), device=batch.obs.device)
    with torch.no_grad():
        next_probs = agent.logits(agent.target_network, batch.next_obs).softmax(-1)
        next_actions = (next_probs @ agent.atoms).argmax(-1)
        next_probs = next_probs[index, next_actions]
        target_probs = project_distribution(
            next_probs, batch.rewards, batch.terminations, args.gamma, agent.atoms
        )
    logits = agent.logits(agent.q_network, batch.obs)[index, batch.actions.long()]
    log_probs = logits.log_softmax(-1)
    loss = -(target_probs * log_probs).sum(-1).mean()
    q_values = log_probs.exp() @ agent.atoms
    return loss, {"losses/loss": loss, "losses/q_values": q_values.mean()}


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
    min_size = max(args.batch_size, 8 * args.num_envs)
    utils.check(args.buffer_size >= min_size, f"--buffer-size must be at least {min_size}")
    enough = args.learning_starts >= 2 * args.num_envs
    utils.check(enough, "--learning-starts must be at least twice --num-envs")
    envs = utils.Envs(args, Games(args))
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.q_network.parameters(), args.learning_rate, eps=0.01 / args.batch_size)
    replay = FrameReplayBuffer(args.buffer_size, args.num_envs, obs_space.shape[1:], device)
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
    # A number that changes during the run must be a tensor, as adam.learning_rate is.
    @utils.compiled(args)
    def update(frames, rows):
        loss, metrics = c51_loss(args, agent, replay.unpack(frames, rows))
        adam.minimize(loss)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    def times_due(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return run.step // every - (run.step - args.num_envs) // every

    metrics = {}
    while run.step < args.total_timesteps:
        # act
        epsilon_steps = args.exploration_fraction * args.total_timesteps
        epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, run.step)
        obs = envs.obs
        # separate draws for each environment
        draws, uniform = np.random.random((2, args.num_envs))
        actions = (uniform * action_space.n).astype(np.int64)
        if (draws >= epsilon).any():
            with torch.no_grad():
                greedy = agent.act(torch.from_numpy(obs).to(device)).cpu().numpy()
            actions = np.where(draws < epsilon, actions, greedy)

        # learn from the steps so far (a GPU does so while the environments step)
        if run.step > args.learning_starts:
            for _ in range(times_due(args.train_frequency) * args.gradient_steps):
                metrics = update(*replay.sample(args.batch_size))
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
