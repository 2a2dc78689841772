"""Proximal Policy Optimization for the strategy game microRTS, whose units all act at once; a variant of ppo_masked.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); unit actions and masks: Huang et al. 2021 (arXiv:2105.13807).
Run:      python cleanrl_lite/ppo_microrts.py --opponents randomBiasedAI
Differs:  The log-probability only counts what a unit carries out: its action and the parts that this action needs.
          The script keeps each game's last observation. A small network runs at the cells of waiting units only.
Expected: 8x8/basesWorkers8x8 0.93 (100,000 steps, last 100 training games, 1 is a win and -1 a loss, against the random
          and the passive bot in turn, 3 seeds, d1a5eb7); the greedy policy then won 299 of 300 games.
Details:  docs/ppo_microrts.md
"""

import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete
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
    threads: int = 1  # CPU threads of torch and numpy (0: their choice)
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
    env_id: str = "8x8/basesWorkers8x8"  # map: a file of microRTS's folder maps, without .xml
    opponents: str = "randomBiasedAI,passiveAI"  # names in gym_microrts.microrts_ai, in turns
    reward_weights: str = "10,1,1,0.2,1,4"  # result, resources, workers, buildings, attacks, units
    max_episode_steps: int | None = None  # time limit (none: the environment's own)
    total_timesteps: int = 100_000  # environment steps, summed over the environments
    learning_rate: float = 1e-3  # the optimizer's learning rate
    num_envs: int = 8  # environments stepped together
    num_steps: int = 128  # steps per environment in each rollout
    anneal_lr: bool = True  # anneal the learning rate linearly to 0
    gamma: float = 0.99  # discount factor
    gae_lambda: float = 0.95  # lambda of generalised advantage estimation
    num_minibatches: int = 4  # minibatches per epoch
    update_epochs: int = 4  # epochs per rollout
    norm_adv: bool = True  # normalise the advantages of each minibatch
    clip_coef: float = 0.2  # epsilon of the clipped surrogate objective
    clip_vloss: bool = False  # clip the value loss likewise
    ent_coef: float = 0.01  # coefficient of the entropy bonus
    vf_coef: float = 0.5  # coefficient of the value loss
    max_grad_norm: float = 0.5  # maximum norm of the gradient
    target_kl: float | None = None  # stop the epochs beyond this KL divergence (0: never)
    max_orders: int = 16  # units that can get an order in one step; others wait for the next


# === environment
PLANES = 5, 5, 3, 8, 6  # hit points, resources, owner, kind of unit, current action: one-hot planes of each
PARTS = 6, 4, 4, 4, 4, 7, 49  # choices: action, directions to move, harvest, return, produce; what; where to attack
TYPES = 0, 1, 2, 3, 4, 4, 5  # a part matters if the action, part 0, is this one; part 0 always does


def start_java():
    """jpype with the game in its JVM: one for all games, the only one of a process. -Xrs leaves signals to Python."""
    try:
        import gym_microrts.microrts_ai
        import jpype.imports

        if not jpype.isJVMStarted():
            folder = Path(gym_microrts.__file__).parent / "microrts"
            jars = [folder / "microrts.jar", *folder.glob("*.jar")]  # the bots' jars have older copies of its classes
            jpype.startJVM("-Xrs", "-XX:+UseSerialGC", "-Djava.awt.headless=true", classpath=[*map(str, jars)])
            jpype.imports.registerDomain("ai")
            out = jpype.java.io.PrintStream(jpype.java.io.OutputStream.nullOutputStream())
            jpype.java.lang.System.setOut(out)  # each game would print two lines
    except (ImportError, ValueError) as error:  # jpype's "No JVM shared library file found" is a ValueError
        packages = 'pip install "cleanrl_lite[microrts]"; pip install --no-deps gym_microrts==0.4.3'
        utils.check(False, f"{error}. Install: {packages}; apt-get install default-jre-headless")
    return jpype, gym_microrts


class MicroRTS(gym.Env):
    """A game against scripted opponents, who take turns: reward 1 for a win, -1 for a loss or a draw.

    obs is planes and behind them the masks of PARTS, uint8 (height, width, 27 + 78); an action is (cells, parts).
    """

    def __init__(self, map_name, opponents, render_mode=None):
        self.jpype, package = start_java()
        self.render_mode, folder, java = render_mode, Path(package.__file__).parent / "microrts", self.jpype.JClass
        utils.check((folder / f"maps/{map_name}.xml").is_file(), f"--env-id {map_name}: no such map in {folder}/maps")
        bots = {name: bot for name, bot in vars(package.microrts_ai).items() if callable(bot)}
        utils.check({*opponents} <= {*bots}, f"--opponents {','.join(opponents)}: choose from {', '.join(bots)}")
        units = java("rts.units.UnitTypeTable")()
        self.opponents = [bots[name](units) for name in opponents]
        kinds = "WinLoss", "ResourceGather", "ProduceWorker", "ProduceBuilding", "Attack", "ProduceCombatUnit"
        rewards = [java(f"ai.rewardfunction.{kind}RewardFunction")() for kind in kinds]
        game = rewards, str(folder), f"maps/{map_name}.xml", self.opponents[0], units, False
        self.client = java("tests.JNIGridnetClient")(*game)
        height, width = np.shape(self.client.reset(0).observation)[1:]
        self.observation_space = Box(0, 1, (height, width, sum(PLANES) + sum(PARTS)), np.uint8)
        self.action_space = MultiDiscrete(np.tile(PARTS, (height * width, 1)))

    def observe(self, response):
        mask = np.array(self.client.getMasks(0))  # (height, width, 1 + 78), the first: a unit of ours waits here
        self.waiting = np.flatnonzero(mask[..., 0])
        return encode(np.array(response.observation), mask[..., 1:])

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.opponents.append(self.opponents.pop(0))
        self.client.ai2 = self.opponents[-1]
        return self.observe(self.client.reset(0)), {}

    def step(self, action):
        orders = np.column_stack((self.waiting, action[self.waiting])).tolist()
        response = self.client.gameStep(orders, 0)
        self.rewards = np.array(response.reward)  # the result, and five that training adds
        return self.observe(response), float(self.rewards[0]), bool(response.done[0]), False, {}

    def render(self):
        field = self.client.getClass().getDeclaredField("gs")
        field.setAccessible(True)  # the game's own drawing opens a window
        panel = self.jpype.JClass("gui.PhysicalGameStatePanel")(field.get(self.client))
        image = self.jpype.java.awt.image.BufferedImage(640, 640, 5)  # 5: a byte for each of blue, green, red
        panel.setSize(640, 640), panel.paint(image.getGraphics())
        return np.array(image.getRaster().getDataBuffer().getData()).view(np.uint8).reshape(640, 640, 3)[..., ::-1]


def make_env(args, render_mode=None):
    utils.check(not args.render, "microRTS has no window here. Use --capture-video")
    env = MicroRTS(args.env_id, args.opponents.split(","), render_mode)
    env = gym.wrappers.TimeLimit(env, args.max_episode_steps or 2_000)
    return gym.wrappers.RecordEpisodeStatistics(env, stats_key="statistics")


def make_shaped_env(args):
    """For learning only, a weighted sum of six rewards; returns and evaluations count wins and losses."""
    weights, env = np.genfromtxt([args.reward_weights], delimiter=","), make_env(args)
    utils.check(np.isfinite(weights).sum() == 6, f"--reward-weights must be six numbers, got {args.reward_weights}")
    return gym.wrappers.TransformReward(env, lambda _: float(weights @ env.unwrapped.rewards))


# === networks
class UnitActions:
    """Masked actions of all cells; what counts is the action of each waiting unit and the parts that belong to it."""

    def __init__(self, logits, mask, index, cells):  # (batch, orders, 78) twice; where the units are; number of cells
        self.index, self.cells = index, cells
        logits = torch.where(mask > 0, logits, (mask.float() - 1) * 1e8)
        self.parts = [Categorical(logits=part, validate_args=False) for part in logits.split(PARTS, -1)]
        self.any_valid = torch.stack([part.amax(-1) for part in mask.split(PARTS, -1)], -1)

    def sum(self, terms, probs):
        """Of terms, a list of (batch, orders) for each part, weighted with the probability of the part's action."""
        probs = torch.stack([probs[..., k] if k else torch.ones_like(probs[..., 0]) for k in TYPES], -1)
        return (torch.stack(terms, -1) * probs * self.any_valid).sum((1, 2))

    def log_prob(self, actions):
        terms = [part.log_prob(action) for part, action in zip(self.parts, actions[self.index].unbind(-1))]
        return self.sum(terms, nn.functional.one_hot(actions[self.index][..., 0], PARTS[0]))

    def entropy(self):
        return self.sum([part.entropy() for part in self.parts], self.parts[0].probs)

    def sample(self, greedy=False):
        choices = torch.stack([part.logits.argmax(-1) if greedy else part.sample() for part in self.parts], -1)
        actions = torch.zeros((len(choices), self.cells, len(PARTS)), dtype=torch.int64, device=choices.device)
        actions[self.index] = choices  # elsewhere 0: no action
        return actions


class Agent(nn.Module):
    def __init__(self, height, width, orders):
        super().__init__()
        self.orders, relu, half = orders, nn.ReLU(), math.ceil(height / 2) * math.ceil(width / 2)
        self.near = nn.Sequential(nn.Conv2d(sum(PLANES), 32, 3, 1, 1), relu)  # what is around each cell
        self.far = nn.Sequential(nn.Conv2d(32, 64, 3, 2, 1), relu, nn.Conv2d(64, 64, 3, 1, 1), relu)  # half as wide
        self.actor = nn.Sequential(nn.Linear(32 + 64, 128), relu, nn.Linear(128, sum(PARTS)))
        self.critic = nn.Sequential(nn.Flatten(), nn.Linear(64 * half, 128), relu, nn.Linear(128, 1))
        for layer in filter(lambda module: hasattr(module, "bias"), self.modules()):
            nn.init.orthogonal_(layer.weight, math.sqrt(2)), nn.init.zeros_(layer.bias)
        nn.init.orthogonal_(self.actor[-1].weight, 0.01)  # near zero: starts as the uniform policy
        nn.init.orthogonal_(self.critic[-1].weight, 1.0)

    def forward(self, obs):
        """The policy's distribution and the value of `obs`, uint8 (batch, height, width, 27 + 78)."""
        planes, mask = obs.split((sum(PLANES), sum(PARTS)), -1)
        near = self.near(planes.permute(0, 3, 1, 2).float())
        far = self.far(near)
        up = nn.functional.interpolate(far, scale_factor=2)[:, :, : obs.shape[1], : obs.shape[2]]
        features, mask = torch.cat((near, up), 1).flatten(2).mT, mask.flatten(1, 2)
        # Of all cells only those with a unit that waits: for it, no action (choice 0 of part 0) is valid.
        index = torch.arange(len(obs), device=obs.device)[:, None], mask[..., 0].topk(self.orders).indices
        return UnitActions(self.actor(features[index]), mask[index], index, mask.shape[1]), self.critic(far).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        return self(obs)[0].sample(greedy=True)


# === pure functions
def encode(observation, mask):
    """Planes and mask as one array, uint8 (height, width, 27 + 78), of numbers (5, height, width) and a mask."""
    planes = [numbers.clip(0, n - 1)[..., None] == np.arange(n) for numbers, n in zip(observation, PLANES)]
    return np.concatenate((*planes, mask), axis=-1, dtype=np.uint8, casting="unsafe")


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

    envs = utils.vector_env([lambda: make_shaped_env(args)] * args.num_envs, False, AutoresetMode.SAME_STEP)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space

    agent = Agent(*obs_space.shape[:2], min(args.max_orders, len(action_space.nvec))).to(device)
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
    b_actions = torch.zeros((batch_size, *action_space.shape), dtype=torch.int64, device=device)
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
    rollout_obs, actions = b_obs.view(*shape, *obs_space.shape), b_actions.view(*shape, *action_space.shape)
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
            obs, rewards[t], terminations[t], truncations, infos = envs.step(actions[t].cpu().numpy())
            dones[t] = terminations[t] | truncations
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
