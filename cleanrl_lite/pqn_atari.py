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

import json
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
    q_lambda: float = 0.65  # lambda of the Q(lambda) returns
    num_minibatches: int = 4  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    max_grad_norm: float = 10.0  # maximum norm of the gradient
    start_e: float = 1.0  # initial epsilon, the probability of a random action
    end_e: float = 0.01  # final epsilon
    exploration_fraction: float = 0.1  # part of the run over which epsilon falls
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


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
    whole games, with unclipped rewards.
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
        obs, infos = self.env.reset(seed=np.array(seed))
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
        self.q_values = layer_init(nn.Linear(512, num_actions), gain=1.0)
        self.bf16 = bf16

    def forward(self, obs):
        """The value of each action in `obs`, uint8 (batch, 4, 84, 84)."""
        x = (obs / 255.0).contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.network(x).float()
        return self.q_values(hidden)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs).argmax(-1)


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

    envs = Games(args.num_envs, num_threads=args.threads, **game_settings(args))
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space

    agent = Agent(int(action_space.n), args.bf16)
    agent = agent.to(device, memory_format=torch.channels_last)
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
    b_obs = torch.zeros((batch_size, *obs_space.shape), dtype=torch.uint8, device=device)
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
    # Views of the batch: acting writes straight into it.
    rollout_obs = b_obs.view(*shape, *obs_space.shape)
    actions = b_actions.view(shape)
    values = torch.zeros(shape, device=device)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations = np.zeros(shape, dtype=bool)
    dones = np.zeros_like(terminations)
    epsilon_steps = args.exploration_fraction * args.total_timesteps
    obs = run.obs
    global_step = run.global_step
    while run.goes_on(global_step, obs):
        if args.anneal_lr:
            remaining = 1 - global_step / args.total_timesteps
            learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        truncated = []
        # separate draws for each environment
        draws = torch.rand(shape, device=device)
        random_actions = torch.randint(int(action_space.n), shape, device=device)
        for t in range(args.num_steps):
            rollout_obs[t] = torch.from_numpy(obs)
            epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, global_step)
            with torch.no_grad():
                values[t], greedy_actions = agent(rollout_obs[t]).max(-1)
            actions[t] = torch.where(draws[t] < epsilon, random_actions[t], greedy_actions)
            obs, reward, terminations[t], truncations, infos = envs.step(actions[t].cpu().numpy())
            rewards[t] = np.sign(reward)  # clipped, for learning only
            dones[t] = terminations[t] | truncations
            global_step += args.num_envs
            for _, episodic_return, episodic_length in run.finished_episodes(infos):
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
            for n in np.flatnonzero(truncations):
                # obs[n] is the first observation of the next game already
                final_obs = torch.tensor(infos["final_obs"][n], device=device)
                truncated.append((t, n, final_obs))

        # returns of the whole rollout
        with torch.no_grad():
            last_values = agent(torch.from_numpy(obs).to(device)).amax(-1)
            next_values = torch.cat([values[1:], last_values[None]])
            for t, n, final_obs in truncated:
                next_values[t, n] = agent(final_obs[None]).amax()
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
