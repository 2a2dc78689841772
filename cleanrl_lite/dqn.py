"""Deep Q-Network (DQN) for discrete actions and vector observations.

Paper:    Mnih et al. 2015 (Nature 518, 529-533).
Run:      python cleanrl_lite/dqn.py --env-id CartPole-v1
Differs:  A truncated episode bootstraps from its true last observation. Adam and the squared error replace RMSProp and
          the clipped one. The network acts in numpy; the update is one compiled graph.
Expected: CartPole-v1 494.4, Acrobot-v1 -89.9 (500,000 steps, mean of the last 100 training episodes, 5 seeds, 63f1a14).
Details:  docs/dqn.md
"""

import atexit
import copy
import math
import multiprocessing
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from torch import nn
from torch.utils.tensorboard import SummaryWriter

from cleanrl_lite import buffers, utils


# === arguments
@dataclass
class Args:
    # run flags, the same in every script
    exp_name: str = Path(__file__).stem  # name of the experiment, part of the run directory's name
    seed: int = 1  # seed of the environments, the networks and the sampling
    torch_deterministic: bool = True  # let cuDNN use deterministic algorithms only
    cuda: bool = True  # train on a GPU when there is one
    threads: int = 1  # CPU threads of torch (0: torch's own choice)
    compile: bool = True  # compile the update: some 30 s at the first start, 6 to 14 later, then faster
    cuda_graph: bool = False  # replay the update as one CUDA graph (needs a GPU)
    track: bool = False  # log to Weights & Biases too (WANDB_MODE=offline works)
    wandb_project_name: str = "cleanrl_lite"  # project of Weights & Biases
    wandb_entity: str | None = None  # entity (team) of Weights & Biases
    runs_dir: str = "runs"  # where the run directory is created
    save_every: int = 100_000  # environment steps between checkpoints (0: only at the end)
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
    target_network_frequency: int = 500  # environment steps between updates of the target network
    tau: float = 1.0  # weight of a network in an update of its target (1: a copy)
    start_e: float = 1.0  # epsilon, the probability of a random action, at the start
    end_e: float = 0.05  # epsilon in the end
    exploration_fraction: float = 0.5  # part of total_timesteps in which epsilon falls


# === environment
def make_env(args, render_mode=None):
    if multiprocessing.parent_process():  # in a worker process; Ctrl-C is for the main one, which saves first
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    env = utils.make(args.env_id, render_mode=render_mode)
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
    def __init__(self, obs_dim, num_actions):
        super().__init__()
        self.q_network = mlp(obs_dim, num_actions)
        self.target_network = copy.deepcopy(self.q_network).requires_grad_(False)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.q_network(obs.float()).argmax(-1)


# === pure functions
def linear_schedule(start, end, duration, step):
    """From start at step 0 to end at step `duration`, where it stays."""
    return start + (end - start) * min(step / duration, 1.0)


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
    sizes = "num_envs batch_size train_frequency gradient_steps target_network_frequency eval_episodes learning_rate"
    check(all(getattr(args, name) > 0 for name in sizes.split()), f"these must be positive: {sizes.replace(' ', ', ')}")
    check(0 <= args.end_e <= args.start_e <= 1, "0 <= --end-e <= --start-e <= 1 must hold")
    check(0 < args.exploration_fraction <= 1, "--exploration-fraction must be above 0 and at most 1")
    check(0 <= args.learning_starts < args.total_timesteps, "0 <= --learning-starts < --total-timesteps must hold")
    check(0 < args.tau <= 1, "0 < --tau <= 1 must hold")
    check(args.total_timesteps % args.num_envs == 0, "--total-timesteps must be a multiple of --num-envs")
    device = utils.setup_torch(args)
    check(device.type == "cuda" or not args.cuda_graph, "--cuda-graph needs a GPU")

    vector_env = AsyncVectorEnv if args.async_envs else utils.VectorEnv
    env_fns = [lambda: make_env(args)] * args.num_envs
    envs = vector_env(env_fns, copy=False, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.action_space.seed(args.seed)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    check(len(obs_space.shape) == 1, f"{args.env_id} has observations {obs_space}; dqn_atari.py takes Atari's images")
    check(isinstance(action_space, Discrete), f"{args.env_id} has actions {action_space}; ddpg.py takes Box")
    check(action_space.start == 0, f"{args.env_id} counts its actions from {action_space.start}, not from 0")

    agent = Agent(obs_space.shape[0], int(action_space.n)).to(device)
    params = list(agent.q_network.parameters())
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())
    shapes = obs_space.shape, (), (), obs_space.shape, ()  # obs, actions, rewards, next_obs, terminations
    replay = None if args.evaluate else buffers.ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    check(not (replay and args.cuda_graph) or replay.rows.is_cuda, "--cuda-graph needs a smaller --buffer-size")
    global_step = 0

    script = Path(__file__).stem
    if args.resume or args.evaluate:
        checkpoint = utils.load_checkpoint(args.resume or args.evaluate, script, args.env_id, agent)
        global_step, run_dir = checkpoint["global_step"], checkpoint["run_dir"]
        check(global_step % args.num_envs == 0, f"step {global_step} is no multiple of --num-envs {args.num_envs}")
    else:
        run_dir = utils.make_run_dir(args, __file__)
    video_dir = run_dir / "videos" if args.capture_video and utils.can_record(make_env, args) else None
    if args.evaluate:
        path = run_dir / f"eval_{int(time.time())}.json"
        return utils.evaluate(agent.act, make_env, args, device, global_step, path, video_dir)[0]
    if args.resume:
        for name, tensor in adam.items():
            tensor.copy_(checkpoint["adam"][name])
        replay.load_state_dict(checkpoint["replay"])
        utils.set_rng_state(checkpoint["rng"])
        del checkpoint  # or the file behind it stays on the disk when the next one replaces it

    if args.track:
        import wandb

        names = dict(project=args.wandb_project_name, entity=args.wandb_entity, name=run_dir.name, id=run_dir.name)
        wandb.init(**names, config=vars(args), resume="allow", sync_tensorboard=True, dir=run_dir.parent)
        wandb.save(run_dir / f"{script}.py", base_path=run_dir, policy="now")
    writer = SummaryWriter(run_dir, purge_step=global_step + 1 if args.resume else None)
    atexit.register(writer.close)  # whatever ends the run, what it measured is on disk
    writer.add_text("arguments", "\n".join(f"    {name}: {value}" for name, value in vars(args).items()))

    def evaluate():
        """An evaluation of the agent as it is now, logged and, with --capture-video, filmed."""
        path = run_dir / "eval.json"
        returns, lengths = utils.evaluate(agent.act, make_env, args, device, global_step, path, video_dir)
        writer.add_scalar("eval/episodic_return", np.mean(returns), global_step)
        writer.add_scalar("eval/episodic_length", np.mean(lengths), global_step)
        if args.track and video_dir:
            film = next((video_dir / f"step-{global_step}").glob("*.mp4"))
            wandb.log({"eval/video": wandb.Video(str(film), format="mp4")})
        return returns

    # === update
    def update(*batch):
        """A step of Adam on the squared error of the Bellman equation (algorithm 1) on a minibatch of the replay."""
        obs, actions, rewards, next_obs, terminations = replay.unpack(*batch)
        with torch.no_grad():
            next_values = agent.target_network(next_obs).max(-1).values
            td_target = rewards + args.gamma * next_values * (1 - terminations)
        q_values = agent.q_network(obs).gather(1, actions.long()[:, None]).squeeze(1)
        td_loss = (td_target - q_values).square().mean()
        grads = torch.autograd.grad(td_loss, params)
        with torch.no_grad():
            adam_step(params, grads, adam, args.learning_rate)
        metrics = dict(td_loss=td_loss, q_values=q_values.mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = utils.compile_update(update, args.compile, cuda_graph=False)

    def learn():
        """One gradient step, sampling included, so that a CUDA graph replays the whole of it."""
        return update(*replay.sample(args.batch_size))

    learn = utils.CudaGraph(learn) if args.cuda_graph else learn
    target_params = list(agent.target_network.parameters())

    # === training
    def passed(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return global_step // every - (global_step - args.num_envs) // every

    q_network = utils.numpy_forward(agent.q_network, device, live=True)
    save_every, eval_every = args.save_every or math.inf, args.eval_every or math.inf
    progress, stop = utils.Progress(args.total_timesteps, global_step), utils.stop_signals()
    metrics, log_step, log_time = {}, global_step, time.perf_counter()
    obs, _ = envs.reset(seed=args.seed + global_step)  # a resumed run does not play the same episodes again
    obs = obs.astype(np.float32)
    while global_step < args.total_timesteps and not stop:
        # act
        epsilon_steps = args.exploration_fraction * args.total_timesteps
        epsilon = linear_schedule(args.start_e, args.end_e, epsilon_steps, global_step)
        explore, random_actions = np.random.random((2, args.num_envs))  # each environment its own
        actions = (random_actions * action_space.n).astype(np.int64)
        if (explore >= epsilon).any():
            actions = np.where(explore < epsilon, actions, q_network(obs).argmax(-1))

        # learn, from the steps so far: on a GPU while the environments take the next one
        if global_step > args.learning_starts:
            for _ in range(passed(args.train_frequency) * args.gradient_steps):
                metrics = learn()
            if passed(args.target_network_frequency):
                with torch.no_grad():
                    torch._foreach_lerp_(target_params, params, args.tau)

        # step, store
        new_obs, rewards, terminations, _, infos = envs.step(actions)
        global_step += args.num_envs
        new_obs = new_obs.astype(np.float32)  # a copy: the environments write into the same array again
        next_obs = new_obs.copy()
        for n, episodic_return, episodic_length in utils.finished_episodes(infos):
            next_obs[n] = infos["final_obs"][n]  # new_obs[n] is the first observation of the next episode already
            writer.add_scalar("charts/episodic_return", episodic_return, global_step)
            writer.add_scalar("charts/episodic_length", episodic_length, global_step)
            progress.returns.append(episodic_return)
        replay.add(obs, actions, rewards, next_obs, terminations)  # a truncation is no termination
        obs = new_obs

        # log
        finished = global_step >= args.total_timesteps
        due = passed(100) or passed(eval_every) or passed(save_every) or finished or stop
        if due:
            for name, value in metrics.items():
                value = value.item()
                check(math.isfinite(value), f"{name} is {value} at step {global_step}; the last checkpoint is older")
                writer.add_scalar(name, value, global_step)
            writer.add_scalar("charts/epsilon", epsilon, global_step)
            writer.add_scalar("charts/SPS", (global_step - log_step) / (time.perf_counter() - log_time), global_step)
            progress.update(global_step)

        # evaluate, save
        if passed(eval_every) and not finished:
            evaluate()
        if finished or stop or passed(save_every):
            state = dict(script=script, args=vars(args), global_step=global_step, agent=agent.state_dict(), adam=adam)
            writer.flush()
            state |= dict(replay=replay.state_dict(), rng=utils.rng_state())
            utils.save_checkpoint(run_dir / "checkpoint.pt", state)
        if due:
            log_step, log_time = global_step, time.perf_counter()  # the speed is that of learning

    envs.close()

    # === evaluation
    returns = evaluate() if not stop else None
    print(f"the run is in {run_dir}")
    writer.close()
    if args.track:
        wandb.finish()
    if stop:
        raise SystemExit(128 + stop[0])
    return returns


if __name__ == "__main__":
    main(tyro.cli(Args, default=utils.saved_args(Args)))
