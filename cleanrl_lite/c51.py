"""Categorical DQN (C51) for discrete actions and vector observations; a variant of dqn.py.

Paper:    Bellemare et al. 2017 (arXiv:1707.06887).
Run:      python cleanrl_lite/c51.py --env-id CartPole-v1
Differs:  A truncated episode bootstraps from its true last observation. The projection loses no probability where an
          atom falls on the support or outside of it. The network acts in numpy; the update is one compiled graph.
Expected: CartPole-v1 467.7 (15 seeds), Acrobot-v1 -88.4 (5): 500,000 steps, last 100 training episodes, 63f1a14.
Details:  docs/c51.md
"""

import atexit
import copy
import math
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from cleanrl_lite import buffers, checkpoints, environments, tracking, utils


# === arguments
@dataclass
class Args:
    # run flags, the same in every script
    exp_name: str = Path(__file__).stem  # name of the experiment, part of the run directory's name
    seed: int = 1  # seed of the environments, the networks and the sampling
    torch_deterministic: bool = True  # let cuDNN use deterministic algorithms only
    cuda: bool = True  # train on a GPU when there is one
    threads: int = 1  # CPU threads (0: the libraries' own choice)
    compile: bool = True  # compile the update: some 30 s at the first start, 6 to 14 later, then faster
    cuda_graph: bool = False  # replay the update as one CUDA graph (needs a GPU)
    track: bool = False  # log to Weights & Biases too (WANDB_MODE=offline works)
    wandb_project_name: str = "cleanrl_lite"  # project of Weights & Biases
    wandb_entity: str | None = None  # entity (team) of Weights & Biases
    runs_dir: str = "runs"  # where the run directory is created
    save_every: int = 100_000  # environment steps between checkpoints (0: only at start and end)
    resume: str | None = None  # go on from this run directory or checkpoint, with its arguments
    evaluate: str | None = None  # evaluate this run directory or checkpoint instead of training
    eval_episodes: int = 10  # episodes of an evaluation (deterministic policy)
    eval_every: int = 0  # environment steps between evaluations (0: only at the end)
    capture_video: bool = False  # record the first episode of every evaluation

    # algorithm flags
    env_id: str = "CartPole-v1"  # environment, also as module:Env-v0
    total_timesteps: int = 500_000  # environment steps, summed over the environments
    learning_rate: float = 2.5e-4  # learning rate of Adam
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 10_000  # transitions in the replay buffer
    learning_starts: int = 10_000  # environment steps before the first gradient step
    train_frequency: int = 10  # environment steps, summed over the environments, from one training to the next
    gradient_steps: int = 1  # gradient steps of a training
    batch_size: int = 128  # transitions in a minibatch
    gamma: float = 0.99  # discount factor
    n_atoms: int = 101  # atoms of the distribution of returns
    v_min: float = -100.0  # smallest return that the distribution can express
    v_max: float = 100.0  # largest return that the distribution can express
    target_network_frequency: int = 500  # environment steps between updates of the target network
    tau: float = 1.0  # weight of a network in an update of its target (1: a copy)
    start_e: float = 1.0  # epsilon, the probability of a random action, at the start
    end_e: float = 0.05  # epsilon in the end
    exploration_fraction: float = 0.5  # part of total_timesteps in which epsilon falls


# === environment
def make_env(args, render_mode=None):
    env = environments.make(args.env_id, render_mode=render_mode)
    if not isinstance(env.observation_space, Box):  # Dict, Tuple, Discrete (one-hot) ...
        flattens = env.observation_space.is_np_flattenable
        utils.check(flattens, f"{args.env_id} has observations that do not flatten: {env.observation_space}")
        env = gym.wrappers.FlattenObservation(env)
    return gym.wrappers.RecordEpisodeStatistics(env)


# === networks
def mlp(inputs, outputs):
    """Two hidden layers of 120 and 84 ReLU units, initialised as PyTorch does."""
    layers = nn.Linear(inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, outputs)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, obs_dim, num_actions, n_atoms, v_min, v_max):
        super().__init__()
        self.register_buffer("atoms", torch.linspace(v_min, v_max, n_atoms), persistent=False)
        self.q_network = mlp(obs_dim, num_actions * n_atoms)
        self.target_network = copy.deepcopy(self.q_network).requires_grad_(False)

    def logits(self, network, obs):
        """Of the returns' distributions (batch, num_actions, n_atoms)."""
        return network(obs).unflatten(1, (-1, len(self.atoms)))

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return (self.logits(self.q_network, obs.float()).softmax(-1) @ self.atoms).argmax(-1)


# === pure functions
def linear_schedule(start, end, duration, step):
    """From start at step 0 to end at step `duration`, where it stays."""
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
    lower = b.nan_to_num().floor().clamp(max=last - 1)  # NaN is no index; the weights, and so the loss, stay NaN
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
    positive = "num_envs batch_size train_frequency gradient_steps target_network_frequency learning_rate eval_episodes"
    utils.check_ranges(args, positive, unit="gamma")
    check(0 <= args.end_e <= args.start_e <= 1, "0 <= --end-e <= --start-e <= 1 must hold")
    check(0 < args.exploration_fraction <= 1, "--exploration-fraction must be above 0 and at most 1")
    check(args.n_atoms > 1 and args.v_min < args.v_max, "--n-atoms must be above 1 and --v-min below --v-max")
    check(0 <= args.learning_starts < args.total_timesteps, "0 <= --learning-starts < --total-timesteps must hold")
    check(0 < args.tau <= 1, "0 < --tau <= 1 must hold")
    check(args.batch_size <= args.buffer_size, "--batch-size must be at most --buffer-size")
    check(args.total_timesteps % args.num_envs == 0, "--total-timesteps must be a multiple of --num-envs")
    device = utils.setup_torch(args)
    check(device.type == "cuda" or args.evaluate or not args.cuda_graph, "--cuda-graph needs a GPU, or --no-cuda-graph")

    vector_env = environments.AsyncVectorEnv if args.async_envs else environments.VectorEnv
    envs = vector_env([lambda: make_env(args)] * args.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    check(len(obs_space.shape) == 1, f"{args.env_id} has observations {obs_space}; c51_atari.py takes Atari's images")
    check(isinstance(action_space, Discrete), f"{args.env_id} has actions {action_space}; ddpg.py takes Box")
    check(action_space.start == 0, f"{args.env_id} counts its actions from {action_space.start}, not from 0")

    agent = Agent(obs_space.shape[0], int(action_space.n), args.n_atoms, args.v_min, args.v_max).to(device)
    params = list(agent.q_network.parameters())
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())
    shapes = obs_space.shape, (), (), obs_space.shape, ()  # obs, actions, rewards, next_obs, terminations
    replay = None if args.evaluate else buffers.ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    check(args.evaluate or not args.cuda_graph or replay.rows.is_cuda, "--cuda-graph needs a smaller --buffer-size")

    script, stop = Path(__file__).stem, [] if args.evaluate else utils.stop_signals()
    resume = checkpoints.find_run(args, script)
    if resume or args.evaluate:
        checkpoint = checkpoints.load(resume or args.evaluate, script, args.env_id, agent)
        global_step, run_dir = checkpoint["global_step"], checkpoint["run_dir"]
    else:
        global_step, checkpoint, run_dir = 0, {}, checkpoints.make_run_dir(args, __file__)
    last_eval = checkpoint.get("last_eval", dict(global_step=0, returns=None))
    video_dir = run_dir / "videos" if args.capture_video and utils.can_record(make_env, args) else None
    if args.evaluate:
        path = run_dir / f"eval_{int(time.time())}.json"
        return utils.evaluate(agent.act, make_env, args, device, global_step, path, video_dir)[0]
    if resume:
        if checkpoints.is_finished(checkpoint, args):
            return last_eval["returns"]
        for name, tensor in adam.items():
            tensor.copy_(checkpoint["adam"][name])
        replay.load_state_dict(checkpoint["replay"])
        checkpoints.reopen(run_dir, checkpoint, args.num_envs)
        utils.set_rng_state(checkpoint["rng"])

    tracking.start(args, run_dir, script)
    writer = SummaryWriter(run_dir)
    atexit.register(utils.quietly, writer.close)  # whatever ends the run, what it measured is on disk
    if not resume:
        writer.add_text("arguments", "\n".join(f"    {name}: {value}" for name, value in vars(args).items()))

    def evaluate():
        """An evaluation of the agent as it is now, logged and, with --capture-video, filmed; a signal breaks it off."""
        played = utils.evaluate(agent.act, make_env, args, device, global_step, run_dir / "eval.json", video_dir, stop)
        if played:
            writer.add_scalar("eval/episodic_return", np.mean(played[0]), global_step)
            writer.add_scalar("eval/episodic_length", np.mean(played[1]), global_step)
            last_eval.update(global_step=global_step, returns=played[0])

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

    update = utils.compile_update(update, args.compile, cuda_graph=False)

    def learn():
        """One gradient step, sampling included, so that a CUDA graph replays the whole of it."""
        return update(*replay.sample(args.batch_size))

    learn = utils.CudaGraph(learn) if args.cuda_graph else learn
    target_params = list(agent.target_network.parameters())
    rows = torch.arange(args.batch_size, device=device)

    # === training
    def save():
        state = dict(script=script, args=vars(args), global_step=global_step, agent=agent.state_dict(), adam=adam)
        state |= dict(last_eval=last_eval, replay=replay.state_dict(), rng=utils.rng_state())
        state |= dict(metrics={name: float(value) for name, value in metrics.items()}, envs=envs.snapshot(obs))
        return checkpoints.save(run_dir, state, writer)

    def passed(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return global_step // every - (global_step - args.num_envs) // every

    q_network = utils.numpy_forward(agent.q_network, device, live=True)
    atoms = agent.atoms.cpu().numpy()
    save_every, eval_every = args.save_every or math.inf, args.eval_every or math.inf
    progress, saved = utils.Progress(args.total_timesteps, global_step), global_step if resume else -1  # -1: at once
    metrics, log_step, log_time = checkpoint.get("metrics", {}), global_step, time.perf_counter()
    obs = envs.start(args, run_dir, global_step, checkpoint.get("envs")).astype(np.float32)
    del checkpoint  # or the file behind its tensors stays on the disk when the next one replaces it
    while True:
        # evaluate, save
        finished, pause = global_step >= args.total_timesteps, time.perf_counter()
        if global_step // eval_every > last_eval["global_step"] // eval_every and not finished:
            evaluate()
        if finished or stop:
            break
        if global_step // save_every > saved // save_every:
            saved = save()
        log_time += time.perf_counter() - pause  # the speed is that of learning

        # act
        epsilon_steps = args.exploration_fraction * args.total_timesteps
        epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, global_step)
        explore, random_actions = np.random.random((2, args.num_envs))  # each environment its own
        actions = (random_actions * action_space.n).astype(np.int64)
        if (explore >= epsilon).any():
            logits = q_network(obs).reshape(args.num_envs, action_space.n, args.n_atoms)
            probs = np.exp(logits - logits.max(-1, keepdims=True))
            q_values = (probs @ atoms) / probs.sum(-1)
            actions = np.where(explore < epsilon, actions, q_values.argmax(-1))

        # learn, from the steps so far: on a GPU while the environments take the next one
        if global_step > args.learning_starts:
            for _ in range(passed(args.train_frequency) * args.gradient_steps):
                metrics = learn()
            if target_updates := passed(args.target_network_frequency):
                with torch.no_grad():  # so many in a row, as one step with this weight
                    torch._foreach_lerp_(target_params, params, 1 - (1 - args.tau) ** target_updates)

        # step, store
        new_obs, rewards, terminations, _, infos = envs.step(actions)
        global_step += args.num_envs
        new_obs = new_obs.astype(np.float32)  # a copy: the environments write into the same array again
        next_obs = new_obs.copy()
        for n, episodic_return, episodic_length in environments.finished_episodes(infos):
            next_obs[n] = infos["final_obs"][n]  # new_obs[n] is the first observation of the next episode already
            writer.add_scalar("charts/episodic_return", episodic_return, global_step)
            writer.add_scalar("charts/episodic_length", episodic_length, global_step)
            progress.returns.append(episodic_return)
        replay.add(obs, actions, rewards, next_obs, terminations)  # a truncation is no termination
        obs = new_obs

        # log
        if passed(100) or global_step >= args.total_timesteps:
            losses = {name: float(value) for name, value in metrics.items()}
            checkpoints.check_finite(losses, global_step, run_dir)
            for name, value in losses.items():
                writer.add_scalar(name, value, global_step)
            writer.add_scalar("charts/epsilon", epsilon, global_step)
            writer.add_scalar("charts/SPS", (global_step - log_step) / (time.perf_counter() - log_time), global_step)
            progress.update(global_step)
            log_step, log_time = global_step, time.perf_counter()

    # === evaluation
    save()  # first: a failing evaluation must not cost the training
    if finished:
        evaluate()
    checkpoints.end(run_dir, last_eval, writer)
    envs.close()
    utils.end_run(args, stop)
    return last_eval["returns"]


if __name__ == "__main__":
    with utils.short_errors():
        main(tyro.cli(Args, default=checkpoints.saved_args(Args)))
