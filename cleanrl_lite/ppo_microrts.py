"""Proximal Policy Optimization for the strategy game microRTS; a variant of ppo_masked.py.

Paper:    Schulman et al. 2017 (arXiv:1707.06347); units: Huang et al. 2021 (arXiv:2105.13807).
Run:      python cleanrl_lite/ppo_microrts.py --opponents randomBiasedAI
Differs:  All units act at once. The log-probability only counts what a unit carries out: its action
          and the parts that this action needs. The script keeps each game's last observation. A
          small network runs at the cells of waiting units only, in torch.
Expected: 8x8/basesWorkers8x8 0.93 (100,000 steps, last 100 training games, 1 is a win and -1 a
          loss, against the random and the passive bot in turn, 3 seeds, d1a5eb7); the greedy
          policy then won 299 of 300 games.
Details:  docs/ppo_microrts.md
"""

import math
from dataclasses import dataclass
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, MultiDiscrete
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
    opponents: str = "randomBiasedAI,passiveAI"  # bots of gym_microrts.microrts_ai, in turn
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
# one-hot planes of a cell's hit points, resources, owner, kind of unit and current action
PLANES = 5, 5, 3, 8, 6
# choices of a unit's action, its directions to move, harvest, return and produce, what it
# produces, and where it attacks
PARTS = 6, 4, 4, 4, 4, 7, 49
# the action (choice of part 0) that needs each part; part 0 itself always counts
NEEDED_BY = [0, 1, 2, 3, 4, 4, 5]
# rewards, in the order of --reward-weights
REWARDS = (
    "WinLoss",
    "ResourceGather",
    "ProduceWorker",
    "ProduceBuilding",
    "Attack",
    "ProduceCombatUnit",
)


def start_java():
    """jpype and gym_microrts, with all games in the one Java machine that a process can have."""
    try:
        import gym_microrts.microrts_ai
        import jpype.imports

        if not jpype.isJVMStarted():
            # The bots' jars have older copies of the game's classes: its own are found first.
            folder = Path(gym_microrts.__file__).parent / "microrts"
            jars = [folder / "microrts.jar", *folder.glob("*.jar")]
            jpype.startJVM(
                "-Xrs",  # leaves signals to Python
                "-XX:+UseSerialGC",
                "-Djava.awt.headless=true",
                classpath=[str(jar) for jar in jars],
            )
            jpype.imports.registerDomain("ai")
            # Each game would print two lines.
            nowhere = jpype.java.io.OutputStream.nullOutputStream()
            jpype.java.lang.System.setOut(jpype.java.io.PrintStream(nowhere))
    except (ImportError, ValueError) as error:  # ValueError: there is no Java
        package = "pip install --no-deps gym_microrts==0.4.3"
        packages = f'pip install "cleanrl_lite[microrts]"; {package}'
        utils.check(False, f"{error}. Install: {packages}; apt-get install default-jre-headless")
    return jpype, gym_microrts


class MicroRTS(gym.Env):
    """A game against scripted opponents, who take turns: 1 for a win, -1 for a loss or a draw.

    An observation is planes and behind them the masks of PARTS, uint8 (height, width, 27 + 78);
    an action is (cells, parts).
    """

    def __init__(self, map_name, opponents, render_mode=None):
        self.render_mode = render_mode
        self.jpype, package = start_java()
        java = self.jpype.JClass
        folder = Path(package.__file__).parent / "microrts"
        path = f"maps/{map_name}.xml"
        exists = (folder / path).is_file()
        utils.check(exists, f"--env-id {map_name}: no such map in {folder}/maps")
        bots = {name: bot for name, bot in vars(package.microrts_ai).items() if callable(bot)}
        names = opponents.split(",")
        exist = bots.keys() >= set(names)
        utils.check(exist, f"--opponents {opponents}: choose from {', '.join(bots)}")

        units = java("rts.units.UnitTypeTable")()
        self.opponents = [bots[name](units) for name in names]
        rewards = [java(f"ai.rewardfunction.{name}RewardFunction")() for name in REWARDS]
        self.client = java("tests.JNIGridnetClient")(
            rewards,
            str(folder),
            path,
            self.opponents[0],
            units,
            False,  # no fog of war
        )
        _, height, width = np.shape(self.client.reset(0).observation)
        shape = height, width, sum(PLANES) + sum(PARTS)
        self.observation_space = Box(0, 1, shape, np.uint8)
        self.action_space = MultiDiscrete(np.tile(PARTS, (height * width, 1)))

    def observe(self, response):
        mask = np.array(self.client.getMasks(0))  # (height, width, 1 + 78)
        self.waiting = np.flatnonzero(mask[..., 0])  # cells with a unit of ours that waits
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
        obs = self.observe(response)
        return obs, float(self.rewards[0]), bool(response.done[0]), False, {}

    def render(self):
        # The game's own drawing would open a window.
        field = self.client.getClass().getDeclaredField("gs")
        field.setAccessible(True)
        panel = self.jpype.JClass("gui.PhysicalGameStatePanel")(field.get(self.client))
        panel.setSize(640, 640)
        buffered = self.jpype.java.awt.image.BufferedImage
        image = buffered(640, 640, buffered.TYPE_3BYTE_BGR)
        panel.paint(image.getGraphics())
        numbers = np.array(image.getRaster().getDataBuffer().getData()).view(np.uint8)
        return numbers.reshape(640, 640, 3)[..., ::-1]  # from blue, green, red


def make_env(args, render_mode=None):
    utils.check(not args.render, "--render: microRTS has no window here. Use --capture-video")
    env = MicroRTS(args.env_id, args.opponents, render_mode)
    return gym.wrappers.TimeLimit(env, args.max_episode_steps or 2_000)


# === networks
class UnitActions:
    """Masked actions of all cells.

    What counts is the action of each waiting unit, part 0, and the parts that it needs.
    """

    def __init__(self, logits, mask, index, cells):
        """Of the units at index: logits and mask are (batch, orders, 78)."""
        self.index = index
        self.cells = cells
        logits = torch.where(mask > 0, logits, (mask.float() - 1) * 1e8)
        self.parts = [
            Categorical(logits=part, validate_args=False) for part in logits.split(PARTS, -1)
        ]
        self.waits = mask[..., :1]  # where a unit waits, no action is valid

    def sum(self, terms, action_probs):
        """The sum of a term (batch, orders) for each part, as probable as the part counts."""
        probs = action_probs[..., NEEDED_BY]
        probs[..., 0] = 1
        return (torch.stack(terms, -1) * probs * self.waits).sum((1, 2))

    def log_prob(self, actions):
        """Of actions (batch, cells, parts)."""
        choices = actions[self.index]
        logprobs = [part.log_prob(choices[..., k]) for k, part in enumerate(self.parts)]
        return self.sum(logprobs, nn.functional.one_hot(choices[..., 0], PARTS[0]))

    def entropy(self):
        return self.sum([part.entropy() for part in self.parts], self.parts[0].probs)

    def sample(self, greedy=False):
        """Actions (batch, cells, parts)."""
        choices = [part.logits.argmax(-1) if greedy else part.sample() for part in self.parts]
        choices = torch.stack(choices, -1) * self.waits  # 0, no action, where no unit waits
        actions = choices.new_zeros((len(choices), self.cells, len(PARTS)))
        actions[self.index] = choices
        return actions


class Agent(nn.Module):
    def __init__(self, height, width, orders):
        super().__init__()
        self.orders = orders
        # what is around each cell
        self.near = nn.Sequential(
            nn.Conv2d(sum(PLANES), 32, 3, padding=1),
            nn.ReLU(),
        )
        # what is further away, in half as many rows and columns
        self.far = nn.Sequential(
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.actor = nn.Sequential(
            nn.Linear(32 + 64, 128),
            nn.ReLU(),
            nn.Linear(128, sum(PARTS)),
        )
        half = math.ceil(height / 2) * math.ceil(width / 2)
        self.critic = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64 * half, 128),
            nn.ReLU(),
            nn.Linear(128, 1),
        )
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, math.sqrt(2))
                nn.init.zeros_(layer.bias)
        # small weights: the policy starts out uniform
        nn.init.orthogonal_(self.actor[-1].weight, 0.01)
        nn.init.orthogonal_(self.critic[-1].weight, 1.0)

    def forward(self, obs):
        """The policy's distribution and the value of `obs`, uint8 (batch, height, width, 105)."""
        planes, mask = obs.split((sum(PLANES), sum(PARTS)), -1)
        near = self.near(planes.permute(0, 3, 1, 2).float())
        far = self.far(near)
        up = nn.functional.interpolate(far, scale_factor=2)
        up = up[:, :, : obs.shape[1], : obs.shape[2]]
        features = torch.cat((near, up), 1).flatten(2).mT  # (batch, cells, 96)
        mask = mask.flatten(1, 2)  # (batch, cells, 78)
        # Only cells with a unit that waits: for it no action, choice 0 of part 0, is valid.
        units = mask[..., 0].topk(self.orders).indices
        index = torch.arange(len(obs), device=obs.device)[:, None], units
        dist = UnitActions(self.actor(features[index]), mask[index], index, mask.shape[1])
        return dist, self.critic(far).squeeze(-1)

    def act(self, obs):
        """The greedy policy, for evaluation."""
        dist, _ = self(obs)
        return dist.sample(greedy=True)


# === pure functions
def encode(observation, mask):
    """Planes of numbers (5, height, width) and a mask as one uint8 (height, width, 27 + 78)."""
    pairs = zip(observation, PLANES, strict=True)
    planes = [np.eye(n)[numbers.clip(0, n - 1)] for numbers, n in pairs]  # one-hot
    return np.concatenate((*planes, mask), axis=-1).astype(np.uint8)


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
    torch.optim.Adam would not.
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
        grad = torch.cat([g.flatten() for g in grads])
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

    weights = np.genfromtxt([args.reward_weights], delimiter=",")  # NaN for what is no number
    six = np.isfinite(weights).tolist() == [True] * 6
    check(six, f"--reward-weights must be six numbers, got {args.reward_weights}")

    env_fns = [lambda: make_env(args)] * args.num_envs
    envs = utils.vector_env(env_fns, False)
    obs_space = envs.single_observation_space
    action_space = envs.single_action_space
    orders = min(args.max_orders, len(action_space.nvec))

    agent = Agent(*obs_space.shape[:2], orders).to(device)
    if args.evaluate:
        envs.close()
        return utils.evaluate_saved(args, make_env, agent)
    adam = Adam(agent.parameters())
    learning_rate = torch.tensor(args.learning_rate, device=device)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)

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
    b_actions = torch.zeros(
        (batch_size, *action_space.shape),
        dtype=torch.int64,
        device=device,
    )
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
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
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
    shape = (args.num_steps, args.num_envs)
    # Views of the batch: acting writes straight into it.
    rollout_obs = b_obs.view(*shape, *obs_space.shape)
    actions = b_actions.view(*shape, *action_space.shape)
    logprobs = b_logprobs.view(shape)
    rollout_values = b_values.view(shape)
    rewards = np.zeros(shape, dtype=np.float32)
    terminations = np.zeros(shape, dtype=bool)
    dones = np.zeros_like(terminations)
    obs = run.obs
    global_step = run.global_step
    while run.goes_on(global_step, obs):
        if args.anneal_lr:
            remaining = 1 - global_step / args.total_timesteps
            learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        truncated = []
        for t in range(args.num_steps):
            rollout_obs[t] = torch.from_numpy(obs)
            with torch.no_grad():
                dist, rollout_values[t] = agent(rollout_obs[t])
                actions[t] = dist.sample()
                logprobs[t] = dist.log_prob(actions[t])
            obs, _, terminations[t], truncations, infos = envs.step(actions[t].cpu().numpy())
            # for learning only: returns count wins and losses
            rewards[t] = [weights @ env.unwrapped.rewards for env in envs.envs]
            dones[t] = terminations[t] | truncations
            global_step += args.num_envs
            for _, episodic_return, episodic_length in run.finished_episodes(infos):
                writer.add_scalar("charts/episodic_return", episodic_return, global_step)
                writer.add_scalar("charts/episodic_length", episodic_length, global_step)
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
            if args.target_kl and torch.stack(kls).mean() > args.target_kl:
                break

        # log
        losses = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        unexplained = (returns - values).var() / (returns.var() + 1e-8)
        losses["losses/explained_variance"] = 1 - unexplained
        losses["charts/learning_rate"] = learning_rate
        run.log(losses, global_step)

    # === evaluation
    return run.end()


if __name__ == "__main__":
    main(utils.parse(Args))
