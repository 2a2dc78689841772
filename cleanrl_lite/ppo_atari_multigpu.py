"""PPO for Atari games on several GPUs; a variant of ppo_atari.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); network: Mnih et al. 2015 (Nature 518).
Run:      torchrun --standalone --nproc_per_node=2 cleanrl_lite/ppo_atari_multigpu.py
Differs:  torchrun starts N processes, each with a GPU (or CPU cores) and 1/N of --num-envs. They
          average gradients and the statistics that normalise advantages. Flags mean the same for
          any N; with python in place of torchrun, N is 1.
Expected: BreakoutNoFrameskip-v4 4.14 after 150,000 steps, two processes, --bf16, 1 seed (the
          first 100 games: 1.42).
Details:  docs/ppo_atari_multigpu.md
"""

import atexit
import json
import os
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from io import StringIO
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import ale_py  # pip install "cleanrl_lite[atari]"
import gymnasium as gym
import numpy as np
import torch
from torch import distributed, nn
from torch.distributions import Categorical
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
def game_settings(args):
    """What --env-id and --env-kwargs say of the game, as ale-py's vector environment takes it."""
    gym.register_envs(ale_py)
    spec = utils.make(args).spec
    is_game = spec.entry_point == "ale_py.env:AtariEnv"
    others = "Use a script without _atari in its name or, for images, ppo_image.py"
    utils.check(is_game, f"--env-id {args.env_id} is not an Atari game. {others}")
    names = "repeat_action_probability", "full_action_space", "max_num_frames_per_episode"
    accepted = json.loads(args.env_kwargs).keys() <= set(names)
    utils.check(accepted, f"--env-kwargs {args.env_kwargs}: games take only {', '.join(names)}")
    return {name: spec.kwargs[name] for name in ("game", *names)}


class Games(gym.vector.VectorWrapper):
    """ale-py's vector environment, in C++: stacks of 4 gray frames of 84 x 84, 4 frames a step.

    A lost life terminates the episode, and FIRE continues the game. infos["episodes"] are
    whole games, with unclipped rewards. Each process has its share of the environments.
    """

    def __init__(self, num_envs, **settings):
        envs = ale_py.vector_env.AtariVectorEnv(
            num_envs=num_envs,
            noop_max=30,
            autoreset_mode=gym.vector.AutoresetMode.SAME_STEP,
            # The trap: `episodic_life` would start a new game after each lost life.
            life_loss_info=True,
            reward_clipping=False,
            **settings,
        )
        super().__init__(envs)
        buttons = list(envs.ale.get_action_set())
        self.has_fire = ale_py.Action.FIRE in buttons
        self.fire = buttons.index(ale_py.Action.FIRE) if self.has_fire else 0

    def reset(self, seed):
        # The first process knows the step from which a resumed run goes on, and so its seeds.
        shares = np.split(np.array(gather(seed)[0]), distributed.get_world_size())
        obs, infos = self.env.reset(seed=shares[distributed.get_rank()])
        self.frames = infos["episode_frame_number"]
        self.lost_life = np.zeros(self.num_envs, dtype=bool)
        self.returns = np.zeros(self.num_envs)
        self.lengths = np.zeros(self.num_envs, dtype=np.int64)
        return obs, infos

    def step(self, actions):
        # Some games wait until FIRE is pressed.
        actions = np.where(self.lost_life, self.fire, actions)
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        # Fewer frames than before: the next game has begun.
        restarted = infos["episode_frame_number"] < self.frames
        over = truncations | restarted
        self.frames = infos["episode_frame_number"]
        self.lost_life = terminations & ~over & self.has_fire
        returns = self.returns + rewards
        lengths = self.lengths + 1
        infos["_final_info"] = over
        ended = np.flatnonzero(over)
        infos["episodes"] = [(n, returns[n], lengths[n]) for n in ended]
        self.returns = returns * ~over
        self.lengths = lengths * ~over
        return obs, rewards, terminations, truncations, infos


class PressFire(gym.Wrapper):
    """Presses FIRE at the start of a game and after each lost life, as Games does."""

    def reset(self, **kwargs):
        super().reset(**kwargs)
        obs, _, _, _, info = self.env.step(1)
        self.lives = info["lives"]
        self.lost_life = False
        return obs, info

    def step(self, action):
        fire_or_action = 1 if self.lost_life else action
        obs, reward, terminated, truncated, info = self.env.step(fire_or_action)
        self.lost_life = info["lives"] < self.lives
        self.lives = info["lives"]
        return obs, reward, terminated, truncated, info


def make_env(args, render_mode=None):
    """The environment of evaluations and videos: whole games, unclipped rewards."""
    # AtariPreprocessing skips frames, so the game itself must not.
    env = utils.make(args, render_mode, frameskip=1)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = PressFire(env)
    return gym.wrappers.FrameStackObservation(env, 4, padding_type="zero")


# === networks
def layer_init(layer, gain=2**0.5):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, num_actions, bf16=False):
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
        self.actor = layer_init(nn.Linear(512, num_actions), gain=0.01)
        self.bf16 = bf16

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
def join_processes(device):
    """Joins the processes that torchrun has started, if any. Returns rank and number."""
    if not distributed.is_initialized():
        store, rank, world_size = distributed.HashStore(), 0, 1
        if "RANK" in os.environ:
            store, rank, world_size = next(distributed.rendezvous("env://"))
            # The trap: after a restart, torchrun's store still holds the dead group's addresses.
            restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = distributed.PrefixStore(restarts, store)
        # the longest that the others wait for the first process, while it evaluates
        wait = timedelta(days=1)
        distributed.init_process_group(store=store, rank=rank, world_size=world_size, timeout=wait)
        atexit.register(distributed.destroy_process_group)
    if device.type == "cuda":
        gpu = int(os.environ.get("LOCAL_RANK", 0))
        gpus = torch.cuda.device_count()
        most = f"--nproc_per_node must be at most {gpus}, the number of GPUs (or --no-cuda)"
        utils.check(gpu < gpus, most)
        torch.cuda.set_device(gpu)
    return distributed.get_rank(), distributed.get_world_size()


def average(tensor):
    """The mean over the processes of `tensor`, which it overwrites."""
    distributed.all_reduce(tensor)
    return tensor / distributed.get_world_size()


def gather(thing):
    """Every process's `thing`, in a list that begins with the first one's."""
    things = [None] * distributed.get_world_size()
    distributed.all_gather_object(things, thing)
    return things


class Follower(utils.Run):
    """The run of a process other than the first, which evaluates for all."""

    def evaluate(self):
        return None


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


def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation
    that step t truly led to: at an episode's end its last one, not the first one of the
    next. A truncated episode would have gone on, so its value counts; a terminated one
    has none. Nothing flows back from one episode into the one before.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    decays = gamma * gae_lambda * ~dones
    initial = np.zeros(deltas.shape[1])
    backwards = linear_recurrence(deltas[::-1], decays[::-1], initial)
    return backwards[::-1].copy()  # no negative strides in torch


class Adam(nn.Module):
    """Adam (Kingma & Ba 2015, algorithm 1) with a limit on the gradient's norm.

    Written out, on one flat vector, because this compiles into the update's graph;
    torch.optim.Adam would not. The processes' gradients are averaged before they are clipped.
    """

    def __init__(self, params):
        super().__init__()
        self.params = [param for param in params if param.requires_grad]
        flat = torch.cat([param.detach().flatten() for param in self.params])
        self.register_buffer("step", flat.new_zeros(()))
        self.register_buffer("exp_avg", torch.zeros_like(flat))
        self.register_buffer("exp_avg_sq", torch.zeros_like(flat))

    @torch.no_grad()
    def update(self, grads, learning_rate, max_grad_norm, beta1=0.9, beta2=0.999, eps=1e-5):
        """Takes a step, in place; returns the gradient's norm before it is clipped."""
        grad = average(torch.cat([g.flatten() for g in grads]))
        grad_norm = grad.norm()
        grad = grad * (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
        self.step.add_(1)
        self.exp_avg.lerp_(grad, 1 - beta1)
        self.exp_avg_sq.lerp_(grad.square(), 1 - beta2)
        denominator = (self.exp_avg_sq / (1 - beta2**self.step)).sqrt() + eps
        delta = learning_rate * self.exp_avg / (1 - beta1**self.step) / denominator
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
    several = minibatch_size > 1 or not args.norm_adv
    check(several, "minibatches of one sample need --no-norm-adv")

    rank, world_size = join_processes(device)
    multiple = f"must be a multiple of the {world_size} processes"
    check(args.num_envs % world_size == 0, f"--num-envs = {args.num_envs} {multiple}")
    number = f"--num-envs x --num-steps / --num-minibatches = {minibatch_size}"
    check(minibatch_size % world_size == 0, f"{number} {multiple}")
    alone = world_size == 1 or not args.evaluate
    check(alone, "--evaluate takes one process: start it with python, not torchrun")
    # this process's share
    num_envs = args.num_envs // world_size
    batch_size = batch_size // world_size
    minibatch_size = minibatch_size // world_size
    if rank > 0:
        # The first process loads, saves and reports. What the others write will vanish.
        folder = TemporaryDirectory()
        sys.stdout = StringIO()
        args = replace(
            args,
            runs_dir=folder.name,
            resume=None,
            track=False,
            save_every=0,
            eval_every=0,
        )

    envs = Games(num_envs, num_threads=args.threads, **game_settings(args))
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space

    agent = Agent(int(action_space.n), args.bf16)
    agent = agent.to(device, memory_format=torch.channels_last)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    adam = Adam(agent.parameters())
    learning_rate = torch.tensor(args.learning_rate, device=device)
    Run = Follower if rank > 0 else utils.Run
    run = Run(args, __file__, make_env, envs, agent, adam=adam)
    # All begin where the first one does.
    run.global_step = gather(run.global_step)[0]
    for part in run.parts.values():
        for tensor in part.state_dict().values():
            distributed.broadcast(tensor, src=0)
    if rank > 0:
        # Each one draws its own actions, with torch. The trap: numpy draws the same in all.
        seed = np.random.SeedSequence([args.seed, run.global_step, rank])
        torch.manual_seed(int(seed.generate_state(1)[0]))

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
    b_obs = torch.zeros((batch_size, *obs_space.shape), dtype=torch.uint8, device=device)
    b_actions = torch.zeros(batch_size, dtype=torch.int64, device=device)
    b_logprobs = torch.zeros(batch_size, device=device)
    b_values = torch.zeros_like(b_logprobs)
    b_advantages = torch.zeros_like(b_logprobs)
    b_returns = torch.zeros_like(b_logprobs)

    # A number that changes during the run must be a tensor, as learning_rate is. A Python
    # number is a constant of the graph: a new value compiles it again (--cuda-graph ignores it).
    def update(inds):
        """PPO's loss (eq. 9) and a step of Adam on the samples inds of the batch."""
        dist, value = agent(b_obs[inds])
        logratio = dist.log_prob(b_actions[inds]) - b_logprobs[inds]
        ratio = logratio.exp()
        approx_kl = ((ratio - 1) - logratio).mean()  # http://joschu.net/blog/kl-approx.html

        advantages = b_advantages[inds]
        if args.norm_adv:
            # with the mean and the standard deviation of all processes' samples
            advantages = advantages - average(advantages.mean())
            total = average(advantages.square().sum()) * world_size
            std = (total / (world_size * minibatch_size - 1)).sqrt()
            advantages = advantages / (std + 1e-8)
        clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7

        value_loss = (value - b_returns[inds]).square()
        if args.clip_vloss:
            change = (value - b_values[inds]).clamp(-args.clip_coef, args.clip_coef)
            clipped_value = b_values[inds] + change
            value_loss = torch.max(value_loss, (clipped_value - b_returns[inds]).square())
        value_loss = 0.5 * value_loss.mean()

        entropy = dist.entropy().mean()
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
        grads = torch.autograd.grad(loss, adam.params)
        grad_norm = adam.update(grads, learning_rate, args.max_grad_norm)
        metrics = {
            "losses/policy_loss": policy_loss,
            "losses/value_loss": value_loss,
            "losses/entropy": entropy,
            "losses/grad_norm": grad_norm,
            "losses/approx_kl": approx_kl,
            "losses/old_approx_kl": -logratio.mean(),
            "losses/clipfrac": (clipped_ratio != ratio).float().mean(),
        }
        return {tag: metric.detach() for tag, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, num_envs)
    # Views of the batch: acting writes straight into it.
    rollout_obs = b_obs.view(*shape, *obs_space.shape)
    actions = b_actions.view(shape)
    logprobs = b_logprobs.view(shape)
    rollout_values = b_values.view(shape)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations = np.zeros(shape, dtype=bool)
    dones = np.zeros_like(terminations)
    obs = run.obs
    global_step = run.global_step
    while gather(run.goes_on(global_step, obs))[0]:  # the first process decides for all
        if args.anneal_lr:
            remaining = 1 - global_step / args.total_timesteps
            learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        truncated = []
        episodes = []
        for t in range(args.num_steps):
            rollout_obs[t] = torch.from_numpy(obs)
            with torch.no_grad():
                dist, rollout_values[t] = agent(rollout_obs[t])
                actions[t] = dist.sample()
                logprobs[t] = dist.log_prob(actions[t])
            obs, reward, terminations[t], truncations, infos = envs.step(actions[t].cpu().numpy())
            rewards[t] = np.sign(reward)  # clipped, for learning only
            dones[t] = terminations[t] | truncations
            global_step += args.num_envs
            for _, episodic_return, episodic_length in run.finished_episodes(infos):
                episodes.append((global_step, episodic_return, episodic_length))
            for n in np.flatnonzero(truncations):
                # obs[n] is the first observation of the next game already
                final_obs = torch.tensor(infos["final_obs"][n], device=device)
                truncated.append((t, n, final_obs))

        # values and advantages of the whole rollout
        with torch.no_grad():
            _, last_values = agent(torch.from_numpy(obs).to(device))
            next_values = torch.cat([rollout_values[1:], last_values[None]])
            for t, n, final_obs in truncated:
                _, next_values[t, n] = agent(final_obs[None])
        values = rollout_values.cpu().numpy()
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
            epoch = [update(inds) for inds in torch.from_numpy(order).to(device)]
            metrics += epoch
            kls = [m["losses/approx_kl"] for m in epoch]
            if args.target_kl and average(torch.stack(kls).mean()) > args.target_kl:
                break

        # log, for all processes
        reports = gather((run.stop, episodes, values, returns))
        stops, episodes, values, returns = zip(*reports, strict=True)
        run.stop = max(run.stop, *stops)
        in_order = sorted(chain(*episodes), key=lambda episode: episode[0])
        for step, episodic_return, episodic_length in in_order:
            writer.add_scalar("charts/episodic_return", episodic_return, step)
            writer.add_scalar("charts/episodic_length", episodic_length, step)
        losses = {tag: average(torch.stack([m[tag] for m in metrics]).mean()) for tag in metrics[0]}
        values = np.concatenate(values)
        returns = np.concatenate(returns)
        unexplained = (returns - values).var() / (returns.var() + 1e-8)
        losses["losses/explained_variance"] = 1 - unexplained
        losses["charts/learning_rate"] = learning_rate
        run.log(losses, global_step)

    # A signal may have come to one process only.
    run.stop = max(gather(run.stop))

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
