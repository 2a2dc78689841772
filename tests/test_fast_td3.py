"""fast_td3.py's windows, distributions, noise and statistics, and whole updates, by loops of their
own."""

import copy

import numpy as np
import pytest
import torch

from cleanrl_lite import fast_td3, rainbow, utils
from tests import helpers, probe_envs
from tests.test_off_policy import (
    BIAS,
    BOX,
    SCALE,
    actions_of,
    assert_metrics,
    assert_standard_normal,
    assert_unchanged,
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
        lengths.update(journal.check())
    assert lengths == set(range(1, n_step + 1))
    journal.drawn.clear()
    journal.check(draws=2000)
    newest = num_envs * len(journal.lists[0])
    assert journal.drawn == set(range(newest - journal.buffer.capacity, newest))


# --- distributions


def test_the_smaller_distribution():
    """Row by row, the whole distribution of one critic: not the smaller of each atom."""
    atoms = torch.linspace(-3, 7, 11)
    probs = torch.randn(2, 50, 11).softmax(-1)
    chosen = fast_td3.smaller_distribution(probs[0], probs[1], atoms)
    firsts = 0
    for row, one, other in zip(chosen, *probs, strict=True):
        first = (one * atoms).sum() < (other * atoms).sum()
        assert torch.equal(row, one if first else other)
        firsts += first.item()
    assert 10 < firsts < 40


# --- updates


def act_by_hand(agent, actor, obs):
    output = actor(normal(agent, obs))
    return torch.tanh(output) * SCALE + BIAS


def normal(agent, obs):
    """Observations normalised with the statistics of this moment."""
    mean = agent.obs_stats.mean
    var = agent.obs_stats.var
    normalised = (obs.double() - mean) / torch.sqrt(var + 1e-8)
    return torch.clamp(normalised, -10, 10).float()


def probs_by_hand(agent, critic, obs, actions):
    inputs = torch.cat([normal(agent, obs), actions], 1)
    return critic(inputs).softmax(1)


def windows_by_hand(replay, gamma, rows, stored):
    """obs, action, return, discount, last next_obs, terminated of each window, one by one."""
    for row, is_stored in zip(rows, stored, strict=True):
        obs, actions, rewards, next_obs, terminations, steps = (
            part[0] for part in replay.unpack(row[None])
        )
        total = 0.0
        length = 0
        for k in range(replay.n_step):
            follows = steps[k] == steps[0] + k
            if k > 0 and not (is_stored[k] and follows):
                break
            total += gamma**k * rewards[k].item()
            length += 1
        last = length - 1
        yield (obs[0], actions[0], total, gamma**length, next_obs[last], terminations[last])


def critic_losses(reference, args, windows, noise):
    obs, actions, returns, discounts, next_obs, terminations = zip(*windows, strict=True)
    obs = torch.stack(obs)
    actions = torch.stack(actions)
    next_obs = torch.stack(next_obs)
    atoms = np.linspace(args.v_min, args.v_max, args.n_atoms)
    with torch.no_grad():
        smoothing = noise * args.policy_noise
        smoothing = torch.clamp(smoothing, -args.noise_clip, args.noise_clip)
        next_actions = act_by_hand(reference, reference.target_actor, next_obs)
        next_actions = next_actions + smoothing * SCALE
        high = torch.tensor(BOX.high)
        low = torch.tensor(BOX.low)
        next_actions = torch.maximum(torch.minimum(next_actions, high), low)
        pair = [
            probs_by_hand(reference, critic, next_obs, next_actions).numpy()
            for critic in (reference.qf1_target, reference.qf2_target)
        ]
    targets = []
    for k, end in enumerate(terminations):
        one = pair[0][k]
        other = pair[1][k]
        first = (one * atoms).sum() < (other * atoms).sum()
        chosen = one if first else other
        projected = project_by_hand(chosen[None], [returns[k]], [bool(end)], discounts[k], atoms)
        targets.append(projected[0])
    targets = torch.tensor(np.array(targets))
    found = {"mass_at_v_min": targets[:, 0].mean(), "mass_at_v_max": targets[:, -1].mean()}
    for name in ("qf1", "qf2"):
        critic = reference.get_submodule(name)
        probs = probs_by_hand(reference, critic, obs, actions)
        losses = -(targets * probs.log()).sum(1)
        found[f"{name}_loss"] = losses.mean()
        values = (probs * torch.tensor(atoms)).sum(1)
        found[f"{name}_values"] = values.mean()
    return found | {"qf_loss": found["qf1_loss"] + found["qf2_loss"]}


@pytest.mark.parametrize("n_step", [1, 3])
def test_updates(n_step, monkeypatch, tmp_path):
    """Every update's metrics, every parameter after it, and the targets' step, by hand with
    torch.optim.Adam, while the statistics move: old observations are normalised as new ones."""
    state = {}
    terminated = []
    means = set()
    targets = {"qf1_target": "qf1", "qf2_target": "qf2", "target_actor": "actor"}

    def check(update, main, tensors):
        agent = main["agent"]
        args = main["args"]
        if not state:
            state["agent"] = reference = copy.deepcopy(agent)
            critics = [*reference.qf1.parameters(), *reference.qf2.parameters()]
            state["critic"] = torch.optim.Adam(critics, lr=args.learning_rate)
            state["actor"] = torch.optim.Adam(reference.actor.parameters(), lr=args.learning_rate)
        reference = state["agent"]
        before = copy.deepcopy(agent.state_dict())
        reference.load_state_dict(before)
        means.add(agent.obs_stats.mean[0].item())
        critic = update.__name__ == "update_critic"
        if critic:
            rows, stored, noise = tensors
            state["rows"] = rows
            windows = [*windows_by_hand(main["replay"], args.gamma, rows, stored)]
            expected = critic_losses(reference, args, windows, noise)
            terminated.append(sum(window[5] for window in windows))
            optimizer = state["critic"]
            loss = expected["qf_loss"]
        else:
            (rows,) = tensors
            assert torch.equal(rows, state["rows"])
            obs = main["replay"].unpack(rows)[0][:, 0]
            actions = act_by_hand(reference, reference.actor, obs)
            probs = probs_by_hand(reference, reference.qf1, obs, actions)
            atoms = torch.linspace(args.v_min, args.v_max, args.n_atoms)
            loss = -(probs * atoms).sum(1).mean()
            expected = {"actor_loss": loss}
            optimizer = state["actor"]
        optimizer.zero_grad()
        loss.backward(inputs=optimizer.param_groups[0]["params"])
        optimizer.step()
        metrics = update(*tensors)
        assert_metrics(metrics, expected)
        stepped = {"qf1", "qf2"} if critic else {"actor"}
        helpers.assert_mostly_stepped(agent, reference, args.learning_rate, stepped)
        changed = stepped if critic else {*stepped, *targets}
        assert_unchanged(agent, before, {name.split(".")[0] for name in before} - changed)
        after = agent.state_dict()
        for key in before:
            head, _, rest = key.partition(".")
            if critic or head not in targets:
                continue
            source = after[f"{targets[head]}.{rest}"]
            expected = 0.9 * before[key] + 0.1 * source
            torch.testing.assert_close(after[key], expected)
        return metrics

    calls = helpers.spy_on_updates(monkeypatch, check)
    flags = dict(
        v_min=-3.0,
        v_max=7.0,
        n_atoms=11,
        gradient_steps=1,
        n_step=n_step,
        policy_noise=0.3,
        noise_clip=0.35,
        learning_rate=3e-3,
        tau=0.1,
        gamma=0.9,
    )
    logged("fast_td3", tmp_path, total_timesteps=230, **flags)
    assert calls.count("update_critic") > 20
    assert calls.count("update_actor") > 10
    assert sum(terminated) > 0
    assert len(means) > 20


# --- statistics


def test_statistics_are_those_of_all_observations(tmp_path):
    """That the policy was given in training; an evaluation leaves them as they are."""
    probe_envs.TRANSITIONS.clear()
    flags = dict(num_envs=3, total_timesteps=300, eval_every=100, learning_starts=240)
    state = logged("fast_td3", tmp_path, **flags)["agent"]
    evaluations = len(probe_envs.TRANSITIONS) - 300
    assert evaluations > 0
    assert state["obs_stats.count"] == 300
    seen = np.array([row[1] for row in probe_envs.TRANSITIONS])
    kept = state["obs_stats.mean"], state["obs_stats.var"]
    # evaluations lie between the steps of training: their environments have other numbers
    training = np.isin([row[0] for row in probe_envs.TRANSITIONS], training_envs())
    seen = seen[training]
    assert len(seen) == 300
    np.testing.assert_allclose(kept[0], seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(kept[1], seen.var(0), rtol=1e-5)


def training_envs():
    """The environments that stepped most."""
    envs = [row[0] for row in probe_envs.TRANSITIONS]
    return sorted(set(envs), key=envs.count)[-3:]


# --- exploration noise


def test_each_environment_has_noise_of_its_own_size(monkeypatch, tmp_path):
    """Drawn for each episode; in units of it, what is added to the policy is standard normal in
    every dimension."""
    drawn = []
    draw_std = fast_td3.draw_std

    def spy(args):
        drawn.append(draw_std(args))
        return drawn[-1]

    ended = []
    monkeypatch.setattr(fast_td3, "draw_std", spy)
    helpers.spy_on_steps(
        monkeypatch, "fast_td3", lambda envs, actions, result: ended.append(result[2] | result[3])
    )
    output = [0.3, -0.5, 0.1]
    flags = dict(learning_starts=0, std_min=0.02, std_max=0.1, steps=3000)
    actions = actions_of("fast_td3", monkeypatch, tmp_path, output, **flags)
    scaled = (actions - BIAS.numpy()) / SCALE.numpy()
    added = scaled - np.tanh(output)
    sizes = iter(drawn)
    stds = np.zeros((3000, 4))
    now = [next(sizes) for _ in range(4)]
    for t, over in enumerate(ended[:3000]):
        stds[t] = now
        for n in np.flatnonzero(over):
            now[n] = next(sizes)
    assert len(drawn) > 1000
    assert (stds.std(0) > 0.01).all()
    # but not the first random action
    assert_standard_normal((added / stds[..., None])[1:])


# --- flags


def test_a_support_that_is_too_narrow(capfd, tmp_path):
    """One warning, which names the end where the targets pile up."""
    utils.say_once.cache_clear()
    flags = dict(v_min=-50.0, v_max=0.2, n_atoms=51, total_timesteps=400, gamma=0.9)
    helpers.train("fast_td3", tmp_path, env_id="tests.probe_envs:ProbeTruncatedBox-v0", **flags)
    found = [line for line in capfd.readouterr().out.splitlines() if "warning: --v-" in line]
    assert [" ".join(line.split()[1:3]) for line in found] == ["--v-max 0.2"]
