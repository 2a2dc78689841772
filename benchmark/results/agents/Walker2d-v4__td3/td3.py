"""Twin Delayed DDPG (TD3) for Box (continuous) actions and vector observations; a variant of ddpg.py.

Paper:    Fujimoto et al. 2018 (arXiv:1802.09477).
Run:      python cleanrl_lite/td3.py --env-id Hopper-v4
Differs:  Noise is in units of half the action's range, in each dimension its own. A truncated episode bootstraps from
          its true last observation. The actor acts in numpy; the updates are compiled graphs.
Expected: HalfCheetah-v4 9,965 (1 seed); HalfCheetah-v4 8,250 with --bf16 (2 seeds, 6,938 and 9,562); 1,000,000 steps,
          mean of the last 100 training episodes, commits 57548cc, 6d5d448, c17942a.
Details:  docs/td3.md
"""

import atexit
import copy
import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
import tyro
from gymnasium.spaces import Box
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
    env_id: str = "Hopper-v4"  # environment, also as module:Env-v0
    total_timesteps: int = 1_000_000  # environment steps, summed over the environments
    learning_rate: float = 3e-4  # learning rate of Adam
    num_envs: int = 1  # environments stepped together
    async_envs: bool = False  # run each environment in a process of its own
    buffer_size: int = 1_000_000  # transitions in the replay buffer
    learning_starts: int = 25_000  # environment steps before the first gradient step
    train_frequency: int = 1  # environment steps, summed over the environments, from one training to the next
    gradient_steps: int = 1  # gradient steps of a training
    batch_size: int = 256  # transitions in a minibatch
    gamma: float = 0.99  # discount factor
    tau: float = 0.005  # weight of a network in an update of its target (1: a copy)
    policy_frequency: int = 2  # gradient steps of the critic from one training of the actor to the next
    policy_noise: float = 0.2  # standard deviation of the target policy's noise, as a part of half the action's range
    noise_clip: float = 0.5  # largest size of the target policy's noise, as a part of half the action's range
    exploration_noise: float = 0.1  # standard deviation of the exploration noise, as a part of half the action's range
    bf16: bool = False  # compute the largest layers in bfloat16: faster, less exact


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
    """Two hidden layers of 256 ReLU units, initialised as PyTorch does."""
    layers = nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)
    return nn.Sequential(*layers)


class Agent(nn.Module):
    def __init__(self, obs_dim, action_space, bf16=False):
        super().__init__()
        bounds = action_space.low, action_space.high  # (action_dim,), each dimension has its own
        low, high = (torch.tensor(bound, dtype=torch.float32) for bound in bounds)
        self.register_buffer("action_scale", (high - low) / 2)
        self.register_buffer("action_bias", (high + low) / 2)
        self.bf16 = bf16
        self.actor = mlp(obs_dim, len(low))
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.qf1 = mlp(obs_dim + len(low), 1)
        self.qf2 = mlp(obs_dim + len(low), 1)
        self.qf1_target = copy.deepcopy(self.qf1).requires_grad_(False)
        self.qf2_target = copy.deepcopy(self.qf2).requires_grad_(False)

    def forward(self, network, inputs):
        """A network's outputs. bf16 is for the product between the hidden layers, where nearly all of the time goes;
        observations and values keep float32's digits."""
        first, relu, middle, _, last = network
        hidden = relu(first(inputs))
        with torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = middle(hidden)
        return last(relu(hidden.float()))

    def policy(self, actor, obs):
        """The actor's actions (batch, action_dim), within the bounds."""
        return self(actor, obs).tanh() * self.action_scale + self.action_bias

    def value(self, critic, obs, actions):
        """The critic's Q-values (batch,)."""
        return self(critic, torch.cat([obs, actions], dim=1)).squeeze(1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self.policy(self.actor, obs.float())


# === pure functions
def adam_state(params):
    """What Adam remembers of `params`, at the start."""
    zeros = torch.cat([torch.zeros_like(param).flatten() for param in params])
    return dict(step=zeros.new_zeros(()), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())


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
    positive = "num_envs batch_size train_frequency gradient_steps policy_frequency learning_rate eval_episodes"
    utils.check_ranges(args, positive, unit="gamma")
    noises = args.exploration_noise, args.policy_noise, args.noise_clip
    check(min(noises) >= 0, "--exploration-noise, --policy-noise and --noise-clip must not be negative")
    check(0 <= args.learning_starts < args.total_timesteps, "0 <= --learning-starts < --total-timesteps must hold")
    check(0 < args.tau <= 1, "0 < --tau <= 1 must hold")
    check(args.batch_size <= args.buffer_size, "--batch-size must be at most --buffer-size")
    check(args.total_timesteps % args.num_envs == 0, "--total-timesteps must be a multiple of --num-envs")
    device = utils.setup_torch(args)
    check(device.type == "cuda" or args.evaluate or not args.cuda_graph, "--cuda-graph needs a GPU, or --no-cuda-graph")

    vector_env = environments.AsyncVectorEnv if args.async_envs else environments.VectorEnv
    envs = vector_env([lambda: make_env(args)] * args.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    check(len(obs_space.shape) == 1, f"{args.env_id} has observations {obs_space}; td3.py takes vectors")
    check(isinstance(action_space, Box), f"{args.env_id} has actions {action_space}; dqn.py takes Discrete ones")
    real_vectors = len(action_space.shape) == 1 and np.issubdtype(action_space.dtype, np.floating)
    check(real_vectors, f"{args.env_id} has actions {action_space}, not vectors of real numbers")

    agent = Agent(obs_space.shape[0], action_space, args.bf16).to(device)
    bounded = agent.action_scale.isfinite().all()  # their distance must be finite in float32, too
    check(bounded, f"{args.env_id} has unbounded actions; ppo_continuous.py takes them")
    critic_params, actor_params = [*agent.qf1.parameters(), *agent.qf2.parameters()], list(agent.actor.parameters())
    adams = dict(critic=adam_state(critic_params), actor=adam_state(actor_params))
    # obs, actions, rewards, next_obs, terminations
    shapes = obs_space.shape, action_space.shape, (), obs_space.shape, ()
    replay = None if args.evaluate else buffers.ReplayBuffer(args.buffer_size, args.num_envs, shapes, device)
    check(args.evaluate or not args.cuda_graph or replay.rows.is_cuda, "--cuda-graph needs a smaller --buffer-size")
    updates = 0

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
        for name, adam in adams.items():
            for key, tensor in adam.items():
                tensor.copy_(checkpoint["adams"][name][key])
        updates = checkpoint["updates"]
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
    def update_critic(noise, *batch):
        """A step of Adam on the squared errors of the Bellman equation on a minibatch of the replay; noise is
        standard normal (batch_size, action_dim)."""
        obs, actions, rewards, next_obs, terminations = replay.unpack(*batch)
        with torch.no_grad():
            noise = (args.policy_noise * noise).clamp(-args.noise_clip, args.noise_clip) * agent.action_scale
            next_actions = agent.policy(agent.target_actor, next_obs) + noise  # target policy smoothing (section 5.3)
            next_actions = next_actions.clamp(low, high)
            next_qf1_values = agent.value(agent.qf1_target, next_obs, next_actions)
            next_qf2_values = agent.value(agent.qf2_target, next_obs, next_actions)
            next_values = torch.min(next_qf1_values, next_qf2_values)  # clipped double Q-learning (section 4.2)
            td_target = rewards + args.gamma * next_values * (1 - terminations)
        qf1_values = agent.value(agent.qf1, obs, actions)
        qf2_values = agent.value(agent.qf2, obs, actions)
        qf1_loss = (qf1_values - td_target).square().mean()
        qf2_loss = (qf2_values - td_target).square().mean()
        qf_loss = qf1_loss + qf2_loss
        grads = torch.autograd.grad(qf_loss, critic_params)
        with torch.no_grad():
            adam_step(critic_params, grads, adams["critic"], args.learning_rate)
        metrics = dict(qf1_loss=qf1_loss, qf2_loss=qf2_loss, qf_loss=qf_loss)
        metrics |= dict(qf1_values=qf1_values.mean(), qf2_values=qf2_values.mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    def update_actor(*batch):
        """A step of Adam up the deterministic policy gradient (algorithm 1), and a step of the targets (tau)."""
        obs, *_ = replay.unpack(*batch)
        actor_loss = -agent.value(agent.qf1, obs, agent.policy(agent.actor, obs)).mean()
        grads = torch.autograd.grad(actor_loss, actor_params)
        with torch.no_grad():
            adam_step(actor_params, grads, adams["actor"], args.learning_rate)
            for target, param in zip(target_params, actor_params + critic_params):
                target.lerp_(param, args.tau)
        return {"losses/actor_loss": actor_loss.detach()}

    low, high = agent.action_bias - agent.action_scale, agent.action_bias + agent.action_scale
    target_params = [*agent.target_actor.parameters(), *agent.qf1_target.parameters(), *agent.qf2_target.parameters()]
    update_critic, update_actor = (  # one graph of both would take much longer to compile
        utils.compile_update(update, args.compile, cuda_graph=False) for update in (update_critic, update_actor)
    )

    def learn(train_actor):
        """One gradient step of the critics and, in its turn, the actor: with the sampling what a CUDA graph replays."""
        batch = replay.sample(args.batch_size)
        noise = torch.randn((args.batch_size, *action_space.shape), device=device)
        metrics = update_critic(noise, *batch)
        return metrics | update_actor(*batch) if train_actor else metrics

    learners = [partial(learn, train_actor) for train_actor in (False, True)]
    learners = [utils.CudaGraph(learner) for learner in learners] if args.cuda_graph else learners

    # === training
    def save():
        state = dict(script=script, args=vars(args), global_step=global_step, agent=agent.state_dict(), adams=adams)
        state |= dict(updates=updates, last_eval=last_eval, replay=replay.state_dict(), rng=utils.rng_state())
        state |= dict(metrics={name: float(value) for name, value in metrics.items()}, envs=envs.snapshot(obs))
        return checkpoints.save(run_dir, state, writer)

    def passed(every):
        """How many multiples of `every` the last step of the environments has passed."""
        return global_step // every - (global_step - args.num_envs) // every

    actor = utils.numpy_forward(agent.actor, device, live=True)
    scale, bias = agent.action_scale.cpu().numpy(), agent.action_bias.cpu().numpy()
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
        if global_step < args.learning_starts:
            actions = envs.action_space.sample()
        else:
            noise = args.exploration_noise * np.random.standard_normal((args.num_envs, len(scale)))
            actions = (np.tanh(actor(obs)) + noise) * scale + bias
            actions = np.clip(actions, action_space.low, action_space.high).astype(action_space.dtype)

        # learn, from the steps so far: on a GPU while the environments take the next one
        if global_step > args.learning_starts:
            for _ in range(passed(args.train_frequency) * args.gradient_steps):
                updates += 1
                metrics |= learners[updates % args.policy_frequency == 0]()

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
