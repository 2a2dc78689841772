"""Proximal Policy Optimization for Atari games, with videos of the policy; a variant of ppo_atari.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); network and preprocessing: Mnih et al. 2015 (Nature 518).
Run:      python cleanrl_lite/ppo_atari_visual.py --env-id BreakoutNoFrameskip-v4 --capture-video
Differs:  From ppo_atari.py only in its videos, which show bars of the actions' probabilities beside the picture.
Expected: The run of ppo_atari.py, bit for bit. Drawing takes 2.5 ms of CPU time for each frame of a video.
Details:  docs/ppo_atari_visual.md
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import ale_py  # pip install "cleanrl_lite[atari]"
import cv2  # pip install "cleanrl_lite[atari]"
import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
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
    """What the id stands for and --env-kwargs change, as ale-py's vector environment takes it."""
    gym.register_envs(ale_py)
    spec = utils.make(args.env_id, args.env_kwargs).spec
    vectors = Path(__file__).name.replace("_atari_visual", "") + " or, for images, ppo_image.py"
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


class WatchedFrames(gym.wrappers.FrameStackObservation):  # main() gives it the agent
    def render(self):
        """The picture and, beside it, a bar for each action, as long as its probability."""
        obs = torch.as_tensor(self.stacked_obs[None], device=next(self.agent.parameters()).device)
        probs = self.agent(obs)[0].probs[0].tolist()
        panel = np.zeros((420 // len(probs) * len(probs), 320), np.uint8)
        for name, p, row in zip(self.unwrapped.get_action_meanings(), probs, np.array_split(panel, len(probs))):
            cv2.rectangle(row, (0, 0), (int(319 * p), len(row) - 3), 50, cv2.FILLED)
            cv2.putText(row, f"{name} {p:.2f}", (4, 15), cv2.FONT_HERSHEY_PLAIN, 1, 127)
            row *= 1 + int(p == max(probs))  # brighter: the action that the policy takes
        return np.hstack([cv2.resize(super().render(), panel.shape[::-1]), cv2.merge([panel] * 3)])


def make_env(args, render_mode=None):
    """The environment of evaluations and videos: gymnasium's preprocessing, whole games, unclipped rewards."""
    env = utils.make(args.env_id, args.env_kwargs, render_mode, frameskip=1)  # AtariPreprocessing skips frames
    env = gym.wrappers.AtariPreprocessing(env, noop_max=30)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = PressFire(env)
    return WatchedFrames(env, 4, padding_type="zero")


# === networks
def layer_init(layer, gain=2**0.5):
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self, num_actions, bf16=False):
        super().__init__()
        convolutions = nn.Conv2d(4, 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2), nn.Conv2d(64, 64, 3, stride=1)
        conv1, conv2, conv3 = (layer_init(layer) for layer in convolutions)
        linear, relu = layer_init(nn.Linear(64 * 7 * 7, 512)), nn.ReLU()
        self.network = nn.Sequential(conv1, relu, conv2, relu, conv3, relu, nn.Flatten(), linear, relu)
        self.critic = layer_init(nn.Linear(512, 1), gain=1.0)
        self.actor = layer_init(nn.Linear(512, num_actions), gain=0.01)  # near zero: starts as the uniform policy
        self.bf16 = bf16

    def forward(self, obs):
        """The policy's distribution and the value of `obs`, uint8 (batch, 4, 84, 84)."""
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.bf16):
            hidden = self.network((obs / 255.0).contiguous(memory_format=torch.channels_last)).float()
        return Categorical(logits=self.actor(hidden), validate_args=False), self.critic(hidden).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs)[0].logits.argmax(-1)


# === pure functions
def linear_recurrence(inputs, decays, initial):
    """y[t] = inputs[t] + decays[t] * y[t - 1] for arrays (num_steps, num_envs), with y[-1] = initial (num_envs,)."""
    outputs = np.empty_like(inputs)
    # Python floats are faster than numpy rows for up to about ten environments.
    for n, y in enumerate(initial.tolist()):
        column = []
        for x, decay in zip(inputs[:, n].tolist(), decays[:, n].tolist()):
            y = x + decay * y
            column.append(y)
        outputs[:, n] = column
    return outputs


def compute_gae(rewards, values, next_values, terminations, dones, gamma, gae_lambda):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16); all arrays are (num_steps, num_envs).

    next_values[t] is the value of the observation that step t truly led to: at the end of an episode the last one of
    that episode, not the first one of the next. A truncated episode would have gone on, so its value counts; a
    terminated one has none. Nothing flows back from one episode into the one before.
    """
    deltas = rewards + gamma * next_values * ~terminations - values
    return linear_recurrence(deltas[::-1], gamma * gae_lambda * ~dones[::-1], np.zeros(deltas.shape[1]))[::-1].copy()


def adam_step(params, grads, adam, learning_rate, max_grad_norm, beta1=0.9, beta2=0.999, eps=1e-5):
    """Clips the gradient's norm and takes one step of Adam (Kingma & Ba 2015, algorithm 1), in place.

    Written out, on one flat vector, because this compiles into the update's graph; torch.optim.Adam would not.
    """
    grad = torch.cat([g.flatten() for g in grads])
    grad_norm = grad.norm()
    grad = grad * (max_grad_norm / (grad_norm + 1e-6)).clamp(max=1.0)
    adam["step"].add_(1)
    adam["exp_avg"].lerp_(grad, 1 - beta1)
    adam["exp_avg_sq"].lerp_(grad.square(), 1 - beta2)
    denominator = (adam["exp_avg_sq"] / (1 - beta2 ** adam["step"])).sqrt() + eps
    step = learning_rate * adam["exp_avg"] / (1 - beta1 ** adam["step"]) / denominator
    for param, delta in zip(params, step.split([p.numel() for p in params])):
        param.sub_(delta.view_as(param))
    return grad_norm


def main(args: Args):
    # === setup
    check, batch_size = utils.check, args.num_envs * args.num_steps
    device = utils.setup(args)
    minibatch_size, remainder = divmod(batch_size, args.num_minibatches)
    check(remainder == 0, f"--num-envs x --num-steps = {batch_size} must be a multiple of --num-minibatches")
    check(minibatch_size > 1 or not args.norm_adv, "minibatches of one sample need --no-norm-adv")
    check(args.total_timesteps >= batch_size, f"--total-timesteps must be at least one rollout, {batch_size}")

    envs = Games(args.num_envs, num_threads=args.threads, **game_settings(args))
    obs_space, action_space = envs.single_observation_space, envs.single_action_space

    agent = WatchedFrames.agent = Agent(int(action_space.n), args.bf16).to(device, memory_format=torch.channels_last)
    params = [param for param in agent.parameters() if param.requires_grad]
    zeros = torch.zeros(sum(p.numel() for p in params), device=device)
    adam = dict(step=torch.zeros((), device=device), exp_avg=zeros.clone(), exp_avg_sq=zeros.clone())
    learning_rate = torch.tensor(args.learning_rate, device=device)

    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
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
    # The batch is on the networks' device, in tensors allocated once: a CUDA graph needs fixed addresses.
    b_obs = torch.zeros((batch_size, *obs_space.shape), dtype=torch.uint8, device=device)
    b_actions = torch.zeros(batch_size, dtype=torch.int64, device=device)
    b_logprobs, b_values, b_advantages, b_returns = torch.zeros((4, batch_size), device=device).unbind()

    def update(inds):
        """One minibatch, the samples inds (minibatch_size,) of the batch: PPO's loss (eq. 9) and a step of Adam."""
        dist, value = agent(b_obs[inds])
        logratio = dist.log_prob(b_actions[inds]) - b_logprobs[inds]
        ratio = logratio.exp()
        approx_kl = ((ratio - 1) - logratio).mean()  # http://joschu.net/blog/kl-approx.html

        advantages = b_advantages[inds]
        if args.norm_adv:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
        policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7

        value_loss = (value - b_returns[inds]).square()
        if args.clip_vloss:
            clipped = b_values[inds] + (value - b_values[inds]).clamp(-args.clip_coef, args.clip_coef)
            value_loss = torch.max(value_loss, (clipped - b_returns[inds]).square())
        value_loss = 0.5 * value_loss.mean()

        entropy = dist.entropy().mean()
        loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            grad_norm = adam_step(params, grads, adam, learning_rate, args.max_grad_norm)
        metrics = dict(policy_loss=policy_loss, value_loss=value_loss, entropy=entropy, grad_norm=grad_norm)
        metrics |= dict(approx_kl=approx_kl, old_approx_kl=-logratio.mean())
        metrics |= dict(clipfrac=(clipped_ratio != ratio).float().mean())
        return {f"losses/{name}": metric.detach() for name, metric in metrics.items()}

    update = run.cuda_graph(run.compile(update))

    # === training
    shape = (args.num_steps, args.num_envs)
    # Views of the batch as (num_steps, num_envs, ...): acting writes values and log-probabilities straight into it.
    rollout_obs, actions = b_obs.view(*shape, *obs_space.shape), b_actions.view(shape)
    rollout_values, logprobs = b_values.view(shape), b_logprobs.view(shape)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations, dones = np.zeros((2, *shape), dtype=bool)
    obs, global_step = run.obs, run.global_step
    while run.goes_on(global_step, obs):
        if args.anneal_lr:
            learning_rate.fill_(args.learning_rate * (1 - global_step / args.total_timesteps))
        # The last rollout may be shorter.
        num_steps = min(args.num_steps, math.ceil((args.total_timesteps - global_step) / args.num_envs))
        size = num_steps * args.num_envs

        # act, step, store
        truncated = []
        for t in range(num_steps):
            rollout_obs[t] = torch.from_numpy(obs)
            with torch.no_grad():
                dist, rollout_values[t] = agent(rollout_obs[t])
                actions[t] = dist.sample()
                logprobs[t] = dist.log_prob(actions[t])
            obs, reward, terminations[t], truncations, infos = envs.step(actions[t].cpu().numpy())
            rewards[t], dones[t] = np.sign(reward), terminations[t] | truncations  # clipped rewards, for learning only
            global_step += args.num_envs
            for n, episodic_return, episodic_length in run.finished_episodes(infos):
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
            truncated += [(t, n, infos["final_obs"][n].copy()) for n in np.flatnonzero(truncations)]

        # values and advantages of the whole rollout
        with torch.no_grad():
            next_values = torch.cat([rollout_values[1:num_steps], agent(torch.from_numpy(obs).to(device))[1][None]])
            for t, n, final_obs in truncated:  # the value of a truncated game's last observation, not of the next game
                next_values[t, n] = agent(torch.from_numpy(final_obs[None]).to(device))[1]
        values, next_values = rollout_values[:num_steps].cpu().numpy(), next_values.cpu().numpy()
        rollout = rewards[:num_steps], values, next_values, terminations[:num_steps], dones[:num_steps]
        advantages = compute_gae(*rollout, args.gamma, args.gae_lambda)
        returns = advantages + values
        b_advantages[:size] = torch.from_numpy(advantages).flatten()
        b_returns[:size] = torch.from_numpy(returns).flatten()

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            # A short rollout's last minibatch is filled up from the front of the permutation.
            inds = np.resize(np.random.permutation(size), (math.ceil(size / minibatch_size), minibatch_size))
            epoch = [update(minibatch) for minibatch in torch.from_numpy(inds).to(device)]
            metrics += epoch
            if args.target_kl and torch.stack([m["losses/approx_kl"] for m in epoch]).mean() > args.target_kl:
                break

        # log
        losses = {name: torch.stack([m[name] for m in metrics]).mean().item() for name in metrics[0]}
        losses["losses/explained_variance"] = 1 - (returns - values).var() / (returns.var() + 1e-8)
        run.log(losses | {"charts/learning_rate": learning_rate}, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
