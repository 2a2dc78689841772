"""fast_td3.py's windows, distributions, noise and statistics, and its losses, by loops of their
own."""

import numpy as np
import pytest
import torch

from cleanrl_lite import fast_td3, rainbow
from tests import helpers, probe_envs
from tests.probe_envs import probe
from tests.test_off_policy import (
    BIAS,
    HIGH,
    LOW,
    SCALE,
    actions_of,
    assert_loss,
    assert_metrics,
    assert_standard_normal,
    logged,
    project_by_hand,
)

CPU = torch.device("cpu")

# --- windows of n steps


class Journal:
    """Steps of episodes that end by termination or truncation, in a buffer and in a list for each
    environment. The action numbers the transition, so that a drawn one is known again."""

    SHAPES = (2,), (1,), (), (2,), (), ()  # obs, action, reward, next_obs, terminated, step

    def __init__(self, num_envs, buffer_size, n_step, module=fast_td3):
        self.rng = np.random.default_rng(1)
        self.n_step_returns = module.n_step_returns
        self.buffer = module.ReplayBuffer(buffer_size, num_envs, self.SHAPES, CPU, n_step)
        self.lists = [[] for _ in range(num_envs)]
        self.drawn = set()
        self.ages = np.zeros(num_envs, dtype=np.int64)
        self.obs = self.rng.normal(size=(num_envs, 2)).astype(np.float32)

    def step(self):
        num_envs = len(self.lists)
        length = len(self.lists[0])
        numbers = num_envs * length + np.arange(num_envs)
        rewards = self.rng.normal(size=num_envs).astype(np.float32)
        next_obs = self.rng.normal(size=(num_envs, 2)).astype(np.float32)
        terminated, truncated = self.rng.random((2, num_envs)) < 0.15
        over = terminated | truncated
        parts = self.obs, numbers[:, None], rewards, next_obs, terminated
        self.buffer.add(*parts, self.ages)
        columns = self.obs, rewards, next_obs, terminated, over
        for env, row in zip(self.lists, zip(*columns, strict=True), strict=True):
            env.append(row)
        self.ages = (self.ages + 1) * ~over
        new = self.rng.normal(size=(num_envs, 2)).astype(np.float32)
        self.obs = np.where(over[:, None], new, next_obs)

    def expected(self, number, gamma):
        """obs, return, length, last next_obs, terminated of the window from this transition on."""
        env = self.lists[number % len(self.lists)]
        first = number // len(self.lists)
        total = 0.0
        length = 0
        window = env[first : first + self.buffer.n_step]
        for _, reward, next_obs, terminated, over in window:
            total += gamma**length * float(reward)
            length += 1
            if over:
                break
        return env[first][0], total, length, next_obs, terminated

    def check(self, gamma=0.9, draws=100):
        """Every window that can be drawn; returns their lengths."""
        rows, stored, *_ = self.buffer.sample(draws)
        obs, actions, rewards, next_obs, terminations, steps = self.buffer.unpack(rows)
        returns, lengths = self.n_step_returns(rewards, steps, stored, gamma)
        numbers = actions[:, 0, 0].long().tolist()
        for k, number in enumerate(numbers):
            first, total, length, last_obs, terminated = self.expected(number, gamma)
            last = lengths[k] - 1
            assert (obs[k, 0].numpy() == first).all()
            assert lengths[k] == length
            assert returns[k].item() == pytest.approx(total, rel=1e-4, abs=1e-5)
            assert (next_obs[k, last].numpy() == last_obs).all()
            assert terminations[k, last] == terminated
        newest = len(self.lists) * len(self.lists[0])
        kept = min(newest, self.buffer.capacity)
        assert set(numbers) <= set(range(newest - kept, newest))
        self.drawn.update(numbers)
        return lengths.tolist()


@pytest.mark.parametrize("num_envs, buffer_size, n_step", [(1, 24, 3), (3, 61, 5), (8, 40, 1)])
@pytest.mark.parametrize("module", [fast_td3, rainbow])
def test_windows(module, num_envs, buffer_size, n_step):
    """At every fill, before and after the wrap-around, in each environment by itself: windows end
    with episodes and at the newest transition, and bootstrap from the last observation there."""
    journal = Journal(num_envs, buffer_size, n_step, module)
    lengths = set()
    for _ in range(3 * buffer_size // num_envs):
        journal.step()
        lengths.update(journal.check(draws=40))
    assert lengths == set(range(1, n_step + 1))
    journal.drawn.clear()
    journal.check(draws=2000)
    newest = num_envs * len(journal.lists[0])
    assert journal.drawn == set(range(newest - journal.buffer.capacity, newest))


# --- losses


def windows_of(script, n_step, rows=64, **flags):
    """args, agent, and a minibatch of windows: (Batch, stored). They end with an episode after 1 to
    n_step steps, or are not known further."""
    flags = dict(env_id=probe("Logged", script), gamma=0.9, n_step=n_step, n_atoms=11, **flags)
    args, agent = helpers.agent_of(script, v_min=-3.0, v_max=7.0, **flags)
    windows = [helpers.random_batch(script, args, agent, rows=rows) for _ in range(n_step)]
    batch = helpers.module(script).Batch(*map(lambda *x: torch.stack(x, 1), *windows))
    lengths = torch.randint(1, n_step + 1, (rows, 1))
    ahead = torch.arange(n_step)
    known = torch.rand(rows, 1) < 0.5  # where the episode ended; else the newest is reached
    steps = 5.0 + torch.where((ahead >= lengths) & known, ahead - 5 - lengths, ahead)
    stored = (ahead < lengths) | known
    ends = torch.randint(2, (rows, n_step)).float()
    batch = batch._replace(steps=steps, terminations=ends)
    return args, agent, batch, stored, lengths[:, 0].tolist()


def returns_by_hand(batch, lengths):
    """Return, discount, last observation and termination of each window, one by one."""
    returns = []
    for rewards, length in zip(batch.rewards.tolist(), lengths, strict=True):
        returns.append(sum(0.9**k * rewards[k] for k in range(length)))
    last = [length - 1 for length in lengths]
    rows = range(len(lengths))
    discounts = [0.9**length for length in lengths]
    return np.array(returns), discounts, batch.next_obs[rows, last], batch.terminations[rows, last]


def project_each(probs, returns, discounts, terminations, atoms):
    """project_by_hand, with a discount for each."""
    each = zip(probs, returns, discounts, terminations.tolist(), strict=True)
    rows = [project_by_hand(p[None], [r], [end], d, atoms) for p, r, d, end in each]
    return torch.from_numpy(np.concatenate(rows))


@pytest.mark.parametrize("n_step", [1, 3])
def test_losses(n_step):
    """With statistics of observations that are not 0 and 1."""
    args, agent, batch, stored, lengths = windows_of(
        "fast_td3", n_step, policy_noise=1.0, noise_clip=0.9
    )
    agent.obs_stats.update(torch.randn(30, 2) * 3 + 1)
    for one, two in (agent.qf1, agent.qf2), (agent.qf1_target, agent.qf2_target):
        two.load_state_dict(one.state_dict())
        two.fc1.weight.data.neg_()  # so that each is the smaller one for some rows
    noise = torch.randn(64, 3)
    loss, metrics = fast_td3.critic_loss(args, agent, batch, stored, noise)
    mean, std = agent.obs_stats.mean, torch.sqrt(agent.obs_stats.var + 1e-8)
    atoms = torch.linspace(-3, 7, 11, dtype=torch.float64)

    def normal(obs):
        return torch.clamp((obs.double() - mean) / std, -10, 10).float()

    def policy(obs):
        return torch.tanh(agent.actor(normal(obs))) * SCALE + BIAS

    def probs(critic, obs, actions):
        return critic(torch.cat([normal(obs), actions], 1)).softmax(1)

    returns, discounts, next_obs, terminations = returns_by_hand(batch, lengths)
    with torch.no_grad():
        smoothing = torch.clamp(noise, -0.9, 0.9) * SCALE
        actions = policy(next_obs) + smoothing
        actions = torch.maximum(torch.minimum(actions, HIGH), LOW)
        critics = agent.qf1_target, agent.qf2_target
        pair = [probs(critic, next_obs, actions).numpy() for critic in critics]
    moved = [project_each(probs, returns, discounts, terminations, atoms) for probs in pair]
    first = moved[0] @ atoms < moved[1] @ atoms
    assert first.any() and not first.all()
    targets = torch.where(first[:, None], *moved)
    found = {"mass_at_v_min": targets[:, 0].mean(), "mass_at_v_max": targets[:, -1].mean()}
    for name in ("qf1", "qf2"):
        own = probs(agent.get_submodule(name), batch.obs[:, 0], batch.actions[:, 0]).double()
        found[f"{name}_loss"] = -(targets * own.log()).sum(1).mean()
        found[f"{name}_values"] = (own @ atoms).mean()
    found["qf_loss"] = found["qf1_loss"] + found["qf2_loss"]
    assert_loss(loss, found["qf_loss"], agent)
    assert_metrics(metrics, found)

    loss, metrics = fast_td3.actor_loss(args, agent, batch)
    actions = policy(batch.obs[:, 0])
    critics = agent.qf1, agent.qf2
    values = [probs(critic, batch.obs[:, 0], actions).double() @ atoms for critic in critics]
    assert (values[0] < values[1]).unique().numel() == 2
    by_hand = -torch.minimum(*values).mean()
    assert_loss(loss, by_hand, agent)
    assert_metrics(metrics, dict(actor_loss=by_hand))


@pytest.mark.parametrize("gambler", ["qf1_target", "qf2_target"])
def test_the_smaller_mean_is_one_after_the_projection(gambler):
    """One critic expects -1 or 1 (mean 0.2), the other 0.1 for sure; after a reward of 1, they have
    0.4 at 0 and 0.6 at 1 (mean 0.6), and, since 1.1 is beyond the support, all at 1."""
    flags = dict(gamma=1.0, v_min=-1.0, v_max=1.0, n_atoms=21)
    args, agent = helpers.agent_of("fast_td3", env_id=probe("Logged", "fast_td3"), **flags)
    atoms = {0: 0.4, 20: 0.6}, {11: 1.0}
    for name in ("qf1_target", "qf2_target"):
        last = agent.get_submodule(name).fc3
        last.weight.data.zero_()
        last.bias.data.fill_(-1e9)
        for atom, prob in atoms[name != gambler].items():
            last.bias.data[atom] = np.log(prob)
    given = dict(rewards=torch.ones(8), terminations=torch.zeros(8))
    batch = helpers.random_batch("fast_td3", args, agent, rows=8, **given)
    batch = fast_td3.Batch(*[part[:, None] for part in batch])
    stored = torch.ones(8, 1, dtype=bool)
    _, metrics = fast_td3.critic_loss(args, agent, batch, stored, torch.zeros(8, 3))
    assert metrics["losses/mass_at_v_max"].item() == pytest.approx(0.6, abs=1e-5)


# --- statistics and noise


def test_statistics_are_those_of_all_observations(tmp_path):
    """That the policy was given in training; an evaluation leaves them as they are."""
    flags = dict(num_envs=3, total_timesteps=300, eval_every=100, learning_starts=240)
    state = helpers.load(logged("fast_td3", tmp_path, **flags))["agent"]
    # evaluations lie between the steps of training: their environments are others
    envs = [row[0] for row in probe_envs.TRANSITIONS]
    assert len(envs) > 300 == state["obs_stats.count"]
    training = {*envs[:3]}
    seen = np.array([row[1] for row in probe_envs.TRANSITIONS if row[0] in training])
    assert len(seen) == 300
    np.testing.assert_allclose(state["obs_stats.mean"], seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(state["obs_stats.var"], seen.var(0), rtol=1e-5)


def test_each_environment_has_noise_of_its_own_size(monkeypatch, tmp_path):
    """Drawn for each episode; in units of it, what is added to the policy is standard normal in
    every dimension."""
    drawn = []
    draw_std = fast_td3.draw_std

    def spy(args):
        drawn.append(draw_std(args))
        return drawn[-1]

    monkeypatch.setattr(fast_td3, "draw_std", spy)
    output = [0.3, -0.5, 0.1]
    flags = dict(learning_starts=0, std_min=0.02, std_max=0.1, steps=1000)
    actions = actions_of("fast_td3", monkeypatch, tmp_path, output, **flags)
    scaled = (actions - BIAS.numpy()) / SCALE.numpy()
    added = scaled - np.tanh(output)
    obs = np.array([row[1] for row in probe_envs.TRANSITIONS[:4000]]).reshape(1000, 4, 2)
    over = obs[..., 1] + 1 == np.rint(obs[..., 0] * 10) % 7 + 1
    sizes = iter(drawn)
    stds = np.zeros((1000, 4))
    now = [next(sizes) for _ in range(4)]
    for t in range(1000):
        stds[t] = now
        for n in np.flatnonzero(over[t]):
            now[n] = next(sizes)
    assert len(drawn) > 500
    assert min(drawn) >= 0.02 and max(drawn) <= 0.1 and (stds.std(0) > 0.01).all()
    assert_standard_normal(added / stds[..., None])
