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
from collections import namedtuple
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
        rewards = np.array(response.reward)  # the result, and five that training adds
        info = {"rewards": rewards}
        return self.observe(response), rewards[0], bool(response.done[0]), False, info

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
    env = MicroRTS(args.env_id, args.opponents, render_mode)
    return gym.wrappers.TimeLimit(env, args.max_episode_steps or 2_000)


# === agent
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
    def __init__(self, args, obs_space, action_space):
        super().__init__()
        height, width, _ = obs_space.shape
        self.orders = min(args.max_orders, len(action_space.nvec))
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


# Samples of a rollout: tensors (samples, ...)
Batch = namedtuple("Batch", "obs actions logprobs values advantages returns")


def compute_gae(args, rewards, values, next_values, terminations, dones):
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16).

    All arrays are (num_steps, num_envs). next_values[t] is the value of the observation that
    step t truly led to. It counts where an episode is truncated; a terminated one has no rest.
    """
    deltas = rewards + args.gamma * next_values * ~terminations - values
    decays = args.gamma * args.gae_lambda * ~dones
    advantages = np.zeros_like(deltas)
    advantage = 0.0
    for t in reversed(range(len(deltas))):
        advantage = deltas[t] + decays[t] * advantage
        advantages[t] = advantage
    return advantages


def ppo_loss(args, agent, batch):
    """The loss of a minibatch (eq. 9), and a dict of metrics."""
    dist, values = agent(batch.obs)
    logratio = dist.log_prob(batch.actions) - batch.logprobs
    ratio = logratio.exp()
    clipped_ratio = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    advantages = batch.advantages
    if args.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = -torch.min(ratio * advantages, clipped_ratio * advantages).mean()  # eq. 7

    value_loss = (values - batch.returns).square()
    if args.clip_vloss:
        change = (values - batch.values).clamp(-args.clip_coef, args.clip_coef)
        value_loss = torch.max(value_loss, (batch.values + change - batch.returns).square())
    value_loss = 0.5 * value_loss.mean()

    entropy = dist.entropy().mean()
    loss = policy_loss - args.ent_coef * entropy + args.vf_coef * value_loss
    return loss, {
        "losses/policy_loss": policy_loss,
        "losses/value_loss": value_loss,
        "losses/entropy": entropy,
        "losses/approx_kl": (ratio - 1 - logratio).mean(),  # http://joschu.net/blog/kl-approx.html
        "losses/old_approx_kl": -logratio.mean(),
        "losses/clipfrac": (clipped_ratio != ratio).float().mean(),
    }


def main(args: Args):
    # === set-up
    if args.evaluate:
        return utils.evaluate_saved(args, make_env, Agent)
    device = utils.setup(args)
    batch_size = args.num_envs * args.num_steps
    fits = batch_size % args.num_minibatches == 0
    utils.check(fits, f"--num-minibatches must divide --num-envs x --num-steps = {batch_size}")
    weights = np.genfromtxt([args.reward_weights], delimiter=",")  # NaN for what is no number
    utils.check(
        np.isfinite(weights).tolist() == [True] * 6,
        f"--reward-weights must be six numbers, got {args.reward_weights}",
    )
    envs = utils.make_envs(args, make_env)
    obs_space, action_space = envs.single_observation_space, envs.single_action_space
    agent = Agent(args, obs_space, action_space).to(device)
    adam = utils.Adam(agent.parameters(), args.learning_rate, args.max_grad_norm, eps=1e-5)
    run = utils.Run(args, __file__, make_env, envs, agent, adam=adam)
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
    def update(inds, *batch):
        minibatch = Batch(*[x[inds] for x in batch])
        loss, metrics = ppo_loss(args, agent, minibatch)
        metrics["losses/grad_norm"] = adam.minimize(loss)
        return {tag: metric.detach() for tag, metric in metrics.items()}

    shape = args.num_steps, args.num_envs
    obs = torch.zeros((*shape, *obs_space.shape), dtype=torch.uint8, device=device)
    actions = torch.zeros((*shape, *action_space.shape), dtype=torch.int64, device=device)
    logprobs = torch.zeros(shape, device=device)
    values = torch.zeros(shape, device=device)
    rewards = np.zeros(shape, np.float32)
    terminations = np.zeros(shape, bool)
    dones = np.zeros(shape, bool)
    while run.step < args.total_timesteps:
        if args.anneal_lr:
            remaining = 1 - run.step / args.total_timesteps
            adam.learning_rate.fill_(args.learning_rate * remaining)

        # act, step, store
        truncated = []
        for t in range(args.num_steps):
            obs[t] = torch.from_numpy(envs.obs)
            with torch.no_grad():
                dist, values[t] = agent(obs[t])
                actions[t] = dist.sample()
                logprobs[t] = dist.log_prob(actions[t])
            results = envs.step(actions[t].cpu().numpy())
            next_obs, _, terminations[t], truncations, infos = results
            # for learning only: returns count wins and losses
            rewards[t] = [weights @ info["rewards"] for info in infos]
            dones[t] = terminations[t] | truncations
            truncated += [(t, n, next_obs[n]) for n in np.flatnonzero(truncations)]
            for info in infos:
                run.step += 1
                if "episode" in info:
                    writer.add_scalar("charts/episodic_return", info["episode"]["r"], run.step)
                    writer.add_scalar("charts/episodic_length", info["episode"]["l"], run.step)

        # values and advantages of the whole rollout
        with torch.no_grad():
            _, last_values = agent(torch.from_numpy(envs.obs).to(device))
            next_values = torch.cat([values[1:], last_values[None]])
            for t, n, last_obs in truncated:
                _, next_values[t, n] = agent(torch.from_numpy(last_obs[None]).to(device))
        old_values = values.cpu().numpy()
        next_values = next_values.cpu().numpy()
        advantages = compute_gae(args, rewards, old_values, next_values, terminations, dones)
        returns = advantages + old_values
        b_advantages = torch.from_numpy(advantages).to(device)
        b_returns = torch.from_numpy(returns).to(device)
        rollout = obs, actions, logprobs, values, b_advantages, b_returns
        batch = Batch(*[x.flatten(0, 1) for x in rollout])

        # learn
        metrics = []
        for _ in range(args.update_epochs):
            order = np.random.permutation(batch_size).reshape(args.num_minibatches, -1)
            epoch = [update(inds, *batch) for inds in torch.from_numpy(order).to(device)]
            metrics += epoch
            kls = [m["losses/approx_kl"] for m in epoch]
            if args.target_kl and torch.stack(kls).mean() > args.target_kl:
                break

        # log, evaluate, save
        scalars = {tag: torch.stack([m[tag] for m in metrics]).mean() for tag in metrics[0]}
        unexplained = (returns - old_values).var() / (returns.var() + 1e-8)
        scalars["losses/explained_variance"] = 1 - unexplained
        scalars["charts/learning_rate"] = adam.learning_rate
        run.log(writer, scalars)
        run.checkpoint(writer)

    return run.finish(writer)


if __name__ == "__main__":
    main(utils.parse(Args))
