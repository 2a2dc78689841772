"""rainbow.py and rainbow_atari.py: the sum tree, priorities, noise, and the loss, against
definitions. (Windows: test_fast_td3.py, test_replay.py.)"""

import numpy as np
import pytest
import torch
from scipy.special import rel_entr

from cleanrl_lite import rainbow, rainbow_atari
from cleanrl_lite.rainbow import NoisyLinear, ReplayBuffer, SumTree
from tests import helpers, test_replay
from tests.probe_envs import probe
from tests.test_fast_td3 import project_each, returns_by_hand, windows_of
from tests.test_off_policy import assert_loss, assert_metrics, logged

CPU = torch.device("cpu")
SHAPES = (2,), (), (), (2,), (), ()
OFF = {"double": False, "dueling": False, "noisy": False, "n_step": 1, "priority_alpha": 0.0}


# --- the sum tree


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
def test_tree(size):
    """Against one long cumulated sum: the place that each point falls on, among priorities of very
    different sizes, some of them 0, set anew many times; the ends of the line too."""
    rng = np.random.default_rng(size)
    tree = SumTree(size, CPU)
    priorities = np.zeros(size)
    for _ in range(30):
        some = rng.permutation(size)[: rng.integers(1, size + 1)]
        new = 10 ** rng.uniform(-6, 3, len(some))
        new[rng.random(len(some)) < 0.2] = 0
        new[0] = 1.0
        priorities[some] = new
        tree.set(torch.from_numpy(some), torch.from_numpy(new))
        ends = priorities.cumsum()
        points = rng.random(200)
        expected = np.searchsorted(ends, points * ends[-1], side="right")
        # and the ends of the line
        positive = np.flatnonzero(priorities)
        points = np.append(points, [0.0, np.nextafter(1.0, 0.0)])
        expected = np.append(expected, positive[[0, -1]])
        found = tree.draw(torch.from_numpy(points))
        np.testing.assert_array_equal(found, expected)


def transition(num_envs, value=0.0):
    """A transition of each environment, of this value in all its parts."""
    return [np.full((num_envs, *shape), value, dtype=np.float32) for shape in SHAPES]


def filled(priorities):
    """A buffer of as many transitions, with these priorities."""
    size = len(priorities)
    buffer = ReplayBuffer(size, 1, SHAPES, CPU, n_step=1)
    for _ in range(size):
        buffer.add(*transition(1))
    buffer.tree.set(torch.arange(size), torch.as_tensor(priorities))
    return buffer


def draw(buffer, batch_size):
    """The places of a minibatch."""
    _, _, index = buffer.sample(batch_size)
    return index


def counts(buffer, batch_size, batches):
    index = torch.cat([draw(buffer, batch_size) for _ in range(batches)])
    return np.bincount(index, minlength=buffer.capacity)


def test_draws_are_proportional_and_stratified():
    """As often as the priority says, and one from each part of a minibatch: so its count differs
    from the expected one by less than 1, or 2 where both ends of its stretch lie within parts."""
    priorities = np.random.default_rng(1).uniform(0.1, 3, 40)
    buffer = filled(priorities)
    expected = 64 * priorities / priorities.sum()
    for _ in range(50):
        errors = counts(buffer, 64, 1) - expected
        assert np.abs(errors).max() < 2
    errors = counts(buffer, 64, 2000) / 2000 - expected
    assert np.abs(errors).max() < 5 * (0.5 / 2000) ** 0.5
    minibatches = {tuple(draw(buffer, 8).tolist()) for _ in range(20)}
    assert len(minibatches) > 10


# --- priorities


def test_new_transitions_get_the_largest_priority_so_far(tmp_path):
    """Also after that one was overwritten, or has got a smaller one, or after a resume. NaN is no
    priority."""
    buffer = ReplayBuffer(10, 2, SHAPES, CPU, 1)

    def set_priorities(places, priorities):
        buffer.set_priorities(torch.tensor(places), torch.tensor(priorities))

    def first(count):
        return buffer.tree.leaves[:count].tolist()

    buffer.add(*transition(2))
    assert first(4) == [1, 1, 0, 0]
    set_priorities([0, 1], [7.0, 0.5])
    set_priorities([0], [0.25])
    buffer.add(*transition(2))
    assert first(6) == [0.25, 0.5, 7, 7, 0, 0]
    new = ReplayBuffer(10, 2, SHAPES, CPU, 1)
    buffer = test_replay.saved_and_loaded(buffer, new, tmp_path / "checkpoint.pt")
    assert first(6) == [0.25, 0.5, 7, 7, 0, 0]
    set_priorities([2, 3], [np.nan, np.inf])
    for _ in range(7):
        buffer.add(*transition(2))
    assert first(10) == [7] * 10
    assert buffer.tree.sums.sum() == 70
    assert buffer.max_priority == 7


def test_priorities_and_weights_of_a_run(monkeypatch, tmp_path):
    """A window counts (N P)^-beta over the largest of a minibatch (section 3.4), and beta rises to
    1; then it gets the priority of its divergence, and no other window does."""
    drawn, divergences, betas = [], [], []
    sample, set_priorities = ReplayBuffer.sample, ReplayBuffer.set_priorities
    loss = rainbow.rainbow_loss

    def sampled(replay, batch_size):
        rows, stored, index = sample(replay, batch_size)
        drawn.append((index, replay.tree.leaves[index] / replay.tree.leaves.sum(), replay.size))
        return rows, stored, index

    def lossy(args, agent, batch, stored, weights, noise):
        _, probs, size = drawn[-1]
        step = 130 + 2 * (len(drawn) - 1)
        betas.append(0.4 + 0.6 * step / 512)
        expected = (size * probs) ** -betas[-1]
        torch.testing.assert_close(weights.double(), expected / expected.max(), rtol=1e-4, atol=0)
        results = loss(args, agent, batch, stored, weights, noise)
        divergences.append(results[1])
        return results

    def prioritised(replay, index, priorities):
        assert torch.equal(index, drawn[-1][0])
        torch.testing.assert_close(priorities, (divergences[-1] + 1e-6) ** 0.6)
        before = replay.tree.leaves.clone()
        set_priorities(replay, index, priorities)
        others = torch.ones_like(before, dtype=torch.bool)
        others[index] = False
        assert torch.equal(replay.tree.leaves[others], before[others])
        assert replay.max_priority == max(1.0, *[float(d.max() + 1e-6) ** 0.6 for d in divergences])
        sums = replay.tree.leaves.view(-1, replay.tree.width).sum(1)
        torch.testing.assert_close(replay.tree.sums, sums)

    monkeypatch.setattr(ReplayBuffer, "sample", sampled)
    monkeypatch.setattr(ReplayBuffer, "set_priorities", prioritised)
    monkeypatch.setattr(rainbow, "rainbow_loss", lossy)
    flags = dict(learning_rate=1e-2, train_frequency=2, priority_alpha=0.6, priority_beta=0.4)
    logged("rainbow", tmp_path, **flags)
    # 130 is the first of 512 steps that learns, 510 the last
    assert len(betas) == 191


# --- windows of n steps


def test_a_window_that_straddles_the_write_position():
    """The trap: behind the newest transition of an endless episode lies its oldest, whose step may
    seem to go on."""
    buffer = ReplayBuffer(8, 2, SHAPES, CPU, 3)
    for t in range(6):
        parts = transition(2, t)
        # after the fifth step a new episode: the fourth row, then the first, have steps 0, 1
        parts[-1][:] = t if t < 5 else 0
        buffer.add(*parts)
    # places 2, 3 hold the newest transitions, of step 0; behind them those of step 2
    buffer.rows[4:6, -1] = 1
    rows, stored, index = buffer.sample(64)
    *_, steps = buffer.unpack(rows)
    _, lengths = rainbow.n_step_returns(torch.ones_like(steps), steps, stored, 0.9)
    newest = (index == 2) | (index == 3)
    assert set(lengths[newest].tolist()) == {1}
    assert {2, 3} <= set(index.tolist())


# --- noise


def noisy_by_hand(layer, noise):
    """Equations 10 and 11: the layer's weight and bias with this noise."""
    noise_in = noise[: layer.in_features]
    noise_out = noise[layer.in_features :]
    weight = layer.weight + layer.weight_sigma * torch.outer(noise_out, noise_in)
    bias = layer.bias + layer.bias_sigma * noise_out
    return weight, bias


def test_noise_and_evaluations():
    """Another noise, other logits, row by row where each has its own; without, the greedy actions
    of the mean weights. sigma starts at a part of 1 / sqrt(inputs)."""
    layer = NoisyLinear(4, 2, True, 0.5)
    assert layer.weight_sigma.eq(0.25).all() and layer.bias_sigma.eq(0.25).all()
    flags = dict(env_id=probe("Scripted", "rainbow"), n_atoms=5, v_min=-1.0, v_max=1.0)
    _, noisy = helpers.agent_of("rainbow", noisy_sigma=30.0, **flags)
    obs = torch.randn(500, 2)
    one, other = noisy.draw_noise(2)
    assert one.shape == (2 * (120 + 84) + 84 + 10 + 84 + 5,)
    logits = noisy.q_network(obs, one)
    assert torch.equal(noisy.q_network(obs, one), logits)
    others = noisy.q_network(obs, other)
    assert not torch.equal(others, logits)
    own = noisy.q_network(obs[:2], torch.stack([one, other]))
    torch.testing.assert_close(own, torch.stack([logits[0], others[1]]), rtol=1e-4, atol=1e-3)
    greedy = (noisy.q_network(obs).softmax(2) * noisy.atoms).sum(2).argmax(1)
    assert torch.equal(noisy.act(obs), greedy)
    assert not torch.equal(noisy.act(obs, one), greedy)

    _, quiet = helpers.agent_of("rainbow", noisy=False, **flags)
    assert quiet.draw_noise(3).shape == (3, 0)
    assert not any("sigma" in name for name in quiet.state_dict())


def test_noise_is_drawn_for_each_step_environment_and_update(monkeypatch, tmp_path):
    """And in an update for each of its three networks; epsilon is 0."""
    acted, learned = [], []
    act, loss = rainbow.Agent.act, rainbow.rainbow_loss

    def acting(agent, obs, noise=None):
        acted.append(noise)
        return act(agent, obs, noise)

    def learning(*inputs):
        learned.append(inputs[-1])
        return loss(*inputs)

    monkeypatch.setattr(rainbow.Agent, "act", acting)
    monkeypatch.setattr(rainbow, "rainbow_loss", learning)
    flags = dict(num_envs=3, total_timesteps=300, train_frequency=2)
    run_dir, _ = helpers.train("rainbow", tmp_path, **flags)
    training = acted[:100]
    evaluation = acted[100:]
    assert evaluation
    assert all(noise is None for noise in evaluation)
    assert len(learned) > 50
    rows = torch.cat([*training, *learned])
    assert len(rows) == 300 + 3 * len(learned)
    assert len(torch.unique(rows[:, 0])) == len(rows)
    normal = rows * rows.abs()  # f(x) |f(x)| = x
    assert abs(normal.mean()) < 5 / rows.numel() ** 0.5
    assert abs(normal.std() - 1) < 0.01
    epsilons = helpers.scalars(run_dir)["charts/epsilon"]
    assert {value for _, value in epsilons} == {0}


# --- the loss


def logits_by_hand(network, obs, noise, args):
    """The network's logits with weights written out, layer by layer."""

    def layer(name, x):
        nonlocal noise
        linear = network.get_submodule(name)
        weight = linear.weight
        bias = linear.bias
        if args.noisy:
            size = sum(weight.shape)
            weight, bias = noisy_by_hand(linear, noise[:size])
            noise = noise[size:]  # what is left for the next layers
        return x @ weight.T + bias

    x = torch.relu(obs @ network.fc1.weight.T + network.fc1.bias)
    advantages = layer("fc3", torch.relu(layer("fc2", x)))
    advantages = advantages.reshape(len(obs), -1, args.n_atoms)
    if not args.dueling:
        return advantages
    values = layer("value_fc3", torch.relu(layer("value_fc2", x)))
    return values[:, None, :] + advantages - advantages.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("off", [None, *OFF])
def test_loss(off):
    """Its number, gradients, divergences and metrics; with each of the five parts turned off."""
    flags = {off: OFF[off]} if off else {}
    n_step = flags.pop("n_step", 3)
    args, agent, batch, stored, lengths = windows_of("rainbow", n_step, **flags)
    weights = torch.rand(64)
    noise = agent.draw_noise(3)
    loss, divergence, metrics = rainbow.rainbow_loss(args, agent, batch, stored, weights, noise)
    atoms = np.linspace(-3, 7, 11)
    returns, discounts, next_obs, terminations = returns_by_hand(batch, lengths)
    target = logits_by_hand(agent.target_network, next_obs, noise[1], args)
    chooser = logits_by_hand(agent.q_network, next_obs, noise[2], args) if args.double else target
    best = (chooser.softmax(2) * torch.tensor(atoms)).sum(2).argmax(1)
    probs = target.softmax(2)[range(64), best].detach().numpy()
    target = project_each(probs, returns, discounts, terminations, atoms)
    logits = logits_by_hand(agent.q_network, batch.obs[:, 0], noise[0], args)
    log_probs = logits[range(64), batch.actions[:, 0].tolist()].double().log_softmax(1)
    by_hand = -(weights * (target * log_probs).sum(1)).mean()
    assert_loss(loss, by_hand, agent)
    q_values = (log_probs.exp() @ torch.tensor(atoms)).mean()
    assert_metrics(metrics, dict(loss=by_hand, q_values=q_values))
    expected = rel_entr(target.numpy(), log_probs.exp().detach().numpy()).sum(1)
    np.testing.assert_allclose(divergence, expected, rtol=1e-3, atol=1e-4)
    assert not divergence.requires_grad


def test_loss_on_games():
    """rainbow_atari's, on windows that unpack has summed up; double, with noise."""
    args, agent = helpers.agent_of("rainbow_atari", n_atoms=11, v_min=-3.0, v_max=7.0)
    obs, next_obs = torch.randint(256, (2, 8, 4, 84, 84), dtype=torch.uint8)
    discounts, terminations = 0.9 ** torch.randint(1, 4, (8,)), torch.arange(8) % 2.0
    batch = rainbow_atari.Batch(
        obs, torch.randint(4, (8,)), torch.randn(8), next_obs, terminations, discounts
    )
    weights, noise = torch.rand(8), agent.draw_noise(3)
    loss, divergence, _ = rainbow_atari.rainbow_loss(args, agent, batch, weights, noise)
    atoms = torch.linspace(-3, 7, 11)
    with torch.no_grad():
        best = (agent.q_network(next_obs, noise[2]).softmax(2) @ atoms).argmax(1)
        probs = agent.target_network(next_obs, noise[1]).softmax(2)[range(8), best]
    numbers = batch.rewards.numpy(), discounts.tolist(), terminations
    target = project_each(probs.numpy(), *numbers, atoms.numpy())
    logits = agent.q_network(obs, noise[0])[range(8), batch.actions.tolist()]
    log_probs = logits.double().log_softmax(1)
    by_hand = -(weights * (target * log_probs).sum(1)).mean()
    assert_loss(loss, by_hand, agent)
    expected = rel_entr(target.numpy(), log_probs.exp().detach().numpy()).sum(1)
    np.testing.assert_allclose(divergence, expected, rtol=1e-3, atol=1e-3)
