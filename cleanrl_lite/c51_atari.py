"""Categorical DQN (C51) for Atari games, learning from pixels; a variant of c51.py.

Paper:    Bellemare et al. 2017 (arXiv:1707.06887); network and preprocessing: Mnih et al. 2015 (Nature 518).
Run:      python cleanrl_lite/c51_atari.py --env-id BreakoutNoFrameskip-v4
Differs:  The projection loses no probability. The replay buffer stores each frame once. The environments are ale-py's
          C++ vector environment. After a lost life, the script presses FIRE; the buffer stores the agent's action.
Expected: PongNoFrameskip-v4 -16.1 after 1.91 of 10 million steps, mean of 100 games, --num-envs 8, one seed, 0dd5ec7.
Details:  docs/c51_atari.md
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path

import ale_py  # pip install "cleanrl_lite[atari]"
import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
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
    threads: int = 0  # CPU threads of torch and numpy (0: their choice)
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
def game_settings(args):
    """What the id stands for and --env-kwargs change, as ale-py's vector environment takes it."""
    gym.register_envs(ale_py)
    spec = utils.make(args.env_id, args.env_kwargs).spec
    vectors = Path(__file__).name.replace("_atari", "") + " or, for images, ppo_image.py"
    utils.check(spec.entry_point == "ale_py.env:AtariEnv", f"{args.env_id} is not an Atari game. Use {vectors}")
    names = "game", "repeat_action_probability", "full_action_space", "max_num_frames_per_episode"
    utils.check({*json.loads(args.env_kwargs)} < {*names}, f"--env-kwargs of games: {', '.join(names[1:])}")
    return {name: spec.kwargs[name] for name in names}


class Games(gym.vector.VectorWrapper):
    """ale-py's vector environment: no-op start, 4 frames a step, 84 x 84 gray, stacks of 4, a lost life terminates.

    The trap: its `episodic_life` starts a new game after each lost life. `life_loss_info` ends the episode and
    continues the game, as is common. final_info in infos is about whole games, with unclipped rewards.
    """

    def __init__(self, num_envs, **settings):
        same_step = dict(autoreset_mode=AutoresetMode.SAME_STEP, life_loss_info=True, reward_clipping=False)
        super().__init__(ale_py.vector_env.AtariVectorEnv(num_envs=num_envs, noop_max=30, **same_step, **settings))
        self.fire = dict(zip(self.env.ale.get_action_set(), range(18))).get(ale_py.Action.FIRE, 0)  # 0: no such button

    def reset(self, seed):
        obs, infos = self.env.reset(seed=np.array(seed))
        self.frames, self.lost_life = infos["episode_frame_number"], np.zeros(self.num_envs, dtype=bool)
        self.returns, self.lengths = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=np.int64)
        return obs, infos

    def step(self, actions):
        actions = np.where(self.lost_life, self.fire, actions)  # some games wait until FIRE is pressed
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        self.returns, self.lengths = self.returns + rewards, self.lengths + 1
        over = infos["episode_frame_number"] < self.frames  # this game ended and the next one has begun
        self.frames, self.lost_life = infos["episode_frame_number"], terminations & ~over & (self.fire > 0)
        if over.any():
            infos |= dict(final_info=dict(statistics=dict(r=self.returns, l=self.lengths)), _final_info=over)
            self.returns, self.lengths = self.returns * ~over, self.lengths * ~over
        return obs, rewards, terminations, truncations, infos


class PressFire(gym.Wrapper):
    """Presses FIRE at the start of a game and after each lost life, like Games, in an ordinary environment."""

    def reset(self, **kwargs):
        super().reset(**kwargs)
        obs, _, _, _, info = self.env.step(1)
        self.lives, self.lost_life = info["lives"], False
        return obs, info

    def step(self, action):
        obs, reward, terminated, truncated, info = self.env.step(1 if self.lost_life else action)
        self.lives, self.lost_life = info["lives"], info["lives"] < self.lives
        return obs, reward, terminated, truncated, info


def make_env(args, render_mode=None):
    """The environment of evaluations and videos: gymnasium's preprocessing, whole games, unclipped rewards."""
    env = utils.make(args.env_id, args.env_kwargs, render_mode, frameskip=1)  # AtariPreprocessing skips frames
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = PressFire(env)
    return gym.wrappers.FrameStackObservation(env, 4, padding_type="zero")


# === networks
class QNetwork(nn.Module):
    def __init__(self, outputs, bf16=False):
        super().__init__()
        conv1, conv2 = nn.Conv2d(4, 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2)
        conv3, linear, relu = nn.Conv2d(64, 64, 3, stride=1), nn.Linear(64 * 7 * 7, 512), nn.ReLU()
        self.network = nn.Sequential(conv1, relu, conv2, relu, conv3, relu, nn.Flatten(), linear, relu)
        self.head = nn.Linear(512, outputs)
        self.bf16 = bf16

    def forward(self, obs):
        """The outputs (batch, outputs) for `obs`, uint8 (batch, 4, 84, 84)."""
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.network((obs / 255.0).contiguous(memory_format=torch.channels_last)).float()
        return self.head(hidden)


class Agent(nn.Module):
    def __init__(self, num_actions, n_atoms, v_min, v_max, bf16=False):
        super().__init__()
        self.register_buffer("atoms", torch.linspace(v_min, v_max, n_atoms), persistent=False)
        self.q_network = QNetwork(num_actions * n_atoms, bf16)
        self.target_network = copy.deepcopy(self.q_network).requires_grad_(False)

    def logits(self, network, obs):
        """Logits of the return distributions (batch, num_actions, n_atoms)."""
        return network(obs).unflatten(1, (-1, len(self.atoms)))

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return (self.logits(self.q_network, obs).softmax(-1) @ self.atoms).argmax(-1)


# === replay
class FrameReplayBuffer:
    """A replay buffer for stacks of 4 frames that stores every frame once: 7 KB a transition of Atari, not 56.

    Each environment has a ring of its own; they lie interleaved: first all slots 0, then all slots 1. Slot t holds the
    newest frame of the t-th observation and what came of it; slots t - 3 to t + 1 make that stack and the next one.
    At the start of a game the older frames are blank, as the agent saw them. The last frame of a truncated game has a
    slot too, with age 0, which no transition starts from.
    """

    def __init__(self, buffer_size, num_envs, frame_shape, device):
        slots = buffer_size // num_envs * num_envs
        self.frames = utils.allocate((slots, *frame_shape), torch.uint8, device)
        self.rows = torch.zeros((len(self.frames), 4), device=self.frames.device)  # action, reward, terminated, age
        self.num_envs, self.length, self.device = num_envs, len(self.frames) // num_envs, device
        self.age = np.ones(num_envs)  # how many frames of the next observation are of the game under way, 1 to 4
        self.written = np.zeros(num_envs, dtype=np.int64)  # slots so far; the newest one waits for its next frame
        # Slots to draw from.
        self.first, self.count = torch.zeros((2, num_envs), dtype=torch.int64, device=self.rows.device)

    def add(self, obs, actions, rewards, terminations, truncations, new_games, final_obs):
        """Stores a transition of each environment: stacks (num_envs, 4, *frame_shape), the others (num_envs,)."""
        for n in range(self.num_envs):
            self.write(n, obs[n][-1], (actions[n], rewards[n], terminations[n], self.age[n]))
            if truncations[n]:
                self.write(n, final_obs[n][-1], (0, 0, 0, 0))
        self.age = np.where(new_games, 1, np.minimum(self.age + 1, 4))
        self.publish()

    def write(self, n, frame, row):
        place = self.written[n] % self.length * self.num_envs + n
        self.frames[place].copy_(torch.from_numpy(frame), non_blocking=True)
        self.rows[place].copy_(torch.tensor(row, dtype=torch.float32), non_blocking=True)
        self.written[n] += 1

    def publish(self):
        # Three slots of a full ring lack frames of their stacks; to the fourth, `sample` may step back.
        first = np.where(self.written > self.length, self.written - self.length + 4, 0)
        self.first.copy_(torch.from_numpy(first), non_blocking=True)
        self.count.copy_(torch.from_numpy(self.written - 1 - first), non_blocking=True)

    def sample(self, batch_size):
        """A minibatch, drawn with replacement, on the training device, as `unpack` takes it."""
        env, slot = torch.rand((2, batch_size), dtype=torch.float64, device=self.rows.device)
        env = (env * self.num_envs).long()
        slot = self.first[env] + (slot * self.count[env]).long()
        age = self.rows[slot % self.length * self.num_envs + env, 3]
        slot = slot - (age == 0).long()  # no transition starts here: use the slot before it
        slots = slot[:, None] + torch.arange(-3, 2, device=slot.device)
        stack = slots % self.length * self.num_envs + env[:, None]
        frames = self.frames.index_select(0, stack.flatten()).unflatten(0, stack.shape)
        return frames.to(self.device), self.rows[stack[:, 3]].to(self.device)

    def unpack(self, frames, rows):
        """obs, actions, rewards, next_obs, terminations of a minibatch; frames (batch_size, 5, *frame_shape)."""
        actions, rewards, terminations, age = rows.unbind(1)
        frames = frames * (torch.arange(3, -2, -1, device=age.device) < age[:, None])[:, :, None, None]
        return frames[:, :4], actions, rewards, frames[:, 1:], terminations

    def state_dict(self):
        used = min(int(self.written.max()), self.length) * self.num_envs
        frames, rows = (torch.from_numpy(x[:used].cpu().numpy()) for x in (self.frames, self.rows))
        return dict(written=self.written.tolist(), frames=frames, rows=rows)

    def load_state_dict(self, state):
        self.frames[: len(state["frames"])], self.rows[: len(state["rows"])] = state["frames"], state["rows"]
        self.written[:] = state["written"]
        self.publish()
        # Games restart after a resume. The newest observation only completes the transition before it; if it begins a
        # game, not even that, and its slot is reused.
        newest = (self.written - 1) % self.length * self.num_envs + np.arange(self.num_envs)
        self.written -= self.rows[newest, 3].cpu().numpy() == 1
        self.rows[newest, 3] = 0


# === pure functions
def linear_schedule(start, end, duration, step):
    """Linear from `start` at step 0 to `end` at step `duration`, then constant."""
    return start + (end - start) * min(step / duration, 1.0)


def project_distribution(next_probs, rewards, terminations, gamma, atoms):
    """The distribution of rewards + gamma * next return on the atoms (algorithm 1); probabilities (batch, n_atoms).

    An atom's probability goes to its two neighbours on the support, in proportion to their nearness. The trap: with the
    neighbours floor(b) and ceil(b), an atom that falls exactly on the support has weight 0 for both, and is lost.
    """
    last = len(atoms) - 1
    next_atoms = rewards[:, None] + gamma * (1 - terminations)[:, None] * atoms
    b = (next_atoms - atoms[0]) * (last / (atoms[last] - atoms[0]))  # (batch, n_atoms), in units of the spacing
    b = b.clamp(0, last)
    lower = b.nan_to_num().floor().clamp(max=last - 1)  # NaN cannot be an index; the weights and the loss stay NaN
    projected = torch.zeros_like(next_probs)
    projected.scatter_add_(1, lower.long(), next_probs * (lower + 1 - b))
    projected.scatter_add_(1, lower.long() + 1, next_probs * (b - lower))
    return projected


def adam_step(params, grads, adam, learning_rate, beta1=0.9, beta2=0.999, eps=1e-8):
    """One step of Adam (Kingma & Ba 2015, algorithm 1), in place.

    Written out, on one flat vector, because this compiles into the update's graph; torch.optim.Adam would not.
    """
    grad = torch.cat([g.flatten() for g in grads])
    adam["step"].add_(1)
    adam["exp_avg"].lerp_(grad, 1 - beta1)
    adam["exp_avg_sq"].lerp_(grad.square(), 1 - beta2)
    denominator = (adam["exp_avg_sq"] / (1 - beta2 ** adam["step"])).sqrt() + eps
    step = learning_rate * adam["exp_avg"] / (1 - beta1 ** adam["step"]) / denominator
    for param, delta in zip(params, step.split([p.numel() for p in params])):
        param.sub_(delta.view_as(param))


def main(args: Args):
    # === setup
    check = utils.check
    device = utils.setup(args)
    check(args.n_atoms > 1 and args.v_min < args.v_max, "--n-atoms must be above 1 and --v-min below --v-max")
    check(args.learning_starts < args.total_timesteps, "--learning-starts must be less than --total-timesteps")
    check(args.learning_starts >= 2 * args.num_envs, "--learning-starts must be at least twice --num-envs")
    check(args.buffer_size >= max(args.batch_size, 8 * args.num_envs), "--buffer-size must hold at least one batch")

    envs = Games(args.num_envs, num_threads=args.threads, **game_settings(args))
    obs_space, action_space = envs.single_observation_space, envs.single_action_space

    agent = Agent(int(action_space.n), args.n_atoms, args.v_min, args.v_max, args.bf16)
    agent = agent.to(device, memory_format=torch.channels_last)
    params = [param for param in agent.q_network.parameters() if param.requires_grad]
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())
    replay = None if args.evaluate else FrameReplayBuffer(args.buffer_size, args.num_envs, obs_space.shape[1:], device)
    check(args.evaluate or not args.cuda_graph or replay.rows.is_cuda, "--cuda-graph needs a smaller --buffer-size")

    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam, replay=replay)
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
    def update(*batch):
        """A step of Adam on the cross-entropy with the projected distribution on a minibatch of the replay."""
        obs, actions, rewards, next_obs, terminations = replay.unpack(*batch)
        with torch.no_grad():
            next_probs = agent.logits(agent.target_network, next_obs).softmax(-1)
            next_actions = (next_probs @ agent.atoms).argmax(-1)
            next_probs = next_probs[rows, next_actions]
            target_probs = project_distribution(next_probs, rewards, terminations, args.gamma, agent.atoms)
        log_probs = agent.logits(agent.q_network, obs)[rows, actions.long()].log_softmax(-1)
        loss = -(target_probs * log_probs).sum(-1).mean()
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            adam_step(params, grads, adam, args.learning_rate, eps=0.01 / args.batch_size)
        metrics = dict(loss=loss, q_values=(log_probs.exp() @ agent.atoms).mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = run.compile(update)
    learn = run.cuda_graph(lambda: update(*replay.sample(args.batch_size)))  # one graph, sampling included
    target_params = list(agent.target_network.parameters())
    rows = torch.arange(args.batch_size, device=device)

    # === training
    def passed(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return global_step // every - (global_step - args.num_envs) // every

    q_network = utils.numpy_forward(agent.q_network, device, live=True)
    atoms = agent.atoms.cpu().numpy()
    obs, global_step, metrics = run.obs, run.global_step, run.values.get("metrics", {})
    while run.goes_on(global_step, obs, metrics=metrics):
        # act
        epsilon_steps = args.exploration_fraction * args.total_timesteps
        epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, global_step)
        explore, random_actions = np.random.random((2, args.num_envs))  # separate draws for each environment
        actions = (random_actions * action_space.n).astype(np.int64)
        if (explore >= epsilon).any():
            logits = q_network(obs).reshape(args.num_envs, action_space.n, args.n_atoms)
            probs = np.exp(logits - logits.max(-1, keepdims=True))
            q_values = (probs @ atoms) / probs.sum(-1)
            actions = np.where(explore < epsilon, actions, q_values.argmax(-1))

        # learn from the steps so far (a GPU does so while the environments step)
        if global_step > args.learning_starts:
            for _ in range(passed(args.train_frequency) * args.gradient_steps):
                metrics = learn()
            if target_updates := passed(args.target_network_frequency):
                with torch.no_grad():  # this many updates in a row equal one with this weight
                    torch._foreach_lerp_(target_params, params, 1 - (1 - args.tau) ** target_updates)

        # step, store
        new_obs, rewards, terminations, truncations, infos = envs.step(actions)
        global_step += args.num_envs
        for _, episodic_return, episodic_length in run.finished_episodes(infos):
            writer.add_scalar("charts/episodic_return", episodic_return, global_step)
            writer.add_scalar("charts/episodic_length", episodic_length, global_step)
        ended = infos.get("_final_info", np.zeros(args.num_envs, dtype=bool))  # the whole game ended, not only a life
        rewards = np.sign(rewards)  # clipped, for learning only
        replay.add(obs, actions, rewards, terminations, truncations, ended, infos.get("final_obs"))
        obs = new_obs

        # log
        if passed(100) or global_step >= args.total_timesteps:
            run.log(metrics | {"charts/epsilon": epsilon}, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
