"""What sbx computes. Its updates are compiled: plain gradient descent with a rate of 1 shows the
gradient as the change of the weights.

    python -m benchmark.measure.probes.sbx
"""

import contextlib
import inspect
import itertools
import math
from importlib import metadata
from unittest import mock

import gymnasium
import jax
import numpy as np
import optax
from flax.core import unfreeze
from sbx import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback

from benchmark.measure.probes import scripted

VERSIONS = {
    "sbx-rl": metadata.version("sbx-rl"),
    "jax": jax.__version__,
    "gymnasium": gymnasium.__version__,
}
DESCENT = {"optimizer_class": optax.sgd, "optimizer_kwargs": {}}


def env(**kwargs):
    return gymnasium.make("Ladder-v0", **kwargs)


def last_bias(params):
    """The bias of the last layer, whatever the network."""
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    found = [leaf for path, leaf in leaves if "bias" in jax.tree_util.keystr(path)]
    return np.array(found[-1])


def constant(params, *bias):
    """All weights 0, but for the last bias."""
    zeros = jax.tree.map(lambda leaf: np.zeros_like(leaf), unfreeze(params))
    leaves, structure = jax.tree_util.tree_flatten_with_path(zeros)
    paths = [jax.tree_util.keystr(path) for path, _ in leaves]
    last = max(n for n, path in enumerate(paths) if "bias" in path)
    values = [leaf for _, leaf in leaves]
    values[last] = np.broadcast_to(np.array(bias, np.float32), values[last].shape).copy()
    return jax.tree_util.tree_unflatten(structure, values)


def set_weight(params):
    """V = the step in the episode + the bias."""
    leaves, structure = jax.tree_util.tree_flatten(params)
    for leaf in leaves:
        if leaf.shape == (2, 1):
            leaf[0, 0] = 1
    return jax.tree_util.tree_unflatten(structure, leaves)


class AtRolloutsEnd(BaseCallback):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        self.function()


class AtSteps(AtRolloutsEnd):
    def _on_step(self):
        self.function()
        return True

    def _on_rollout_end(self):
        pass


# === PPO
def ppo(reward=1.0, descent=True, **kwargs):
    settings = {
        "n_steps": scripted.ROLLOUT,
        "batch_size": scripted.ROLLOUT,
        "n_epochs": 1,
        "gamma": scripted.GAMMA,
        "gae_lambda": scripted.LAMBDA,
        "max_grad_norm": 1e9,
        "learning_rate": 1.0 if descent else 3e-4,
        "seed": 1,
        **kwargs,
    }
    settings["policy_kwargs"] = {"net_arch": [], **(DESCENT if descent else {})}
    model = PPO("MlpPolicy", env(reward=reward), **settings)
    policy = model.policy
    values = set_weight(constant(policy.vf_state.params, 10.0))
    policy.vf_state = policy.vf_state.replace(params=values)
    logits = constant(policy.actor_state.params, 0.0, 0.0)
    policy.actor_state = policy.actor_state.replace(params=logits)
    return model


def value_gradient(shift, reward=1.0, **kwargs):
    model = ppo(reward, **kwargs)

    def move():
        state = model.policy.vf_state
        moved = set_weight(constant(state.params, 10.0 + shift))
        model.policy.vf_state = state.replace(params=moved)

    model.learn(scripted.ROLLOUT, callback=AtRolloutsEnd(move))
    after = last_bias(model.policy.vf_state.params)
    return model, float(10.0 + shift - after[0])


def clipping(**kwargs):
    _, away = value_gradient(1.0, -9.0, **kwargs)
    _, towards = value_gradient(1.0, 12.0, **kwargs)
    return scripted.clipping_words(away, towards)


def permuted(model, steps=scripted.ROLLOUT):
    """Trains, and keeps the orders that are drawn."""
    orders = []
    permutation = np.random.permutation

    def watched(size):
        orders.append(permutation(size).tolist())
        return np.array(orders[-1])

    with mock.patch.object(np.random, "permutation", watched):
        model.learn(steps)
    return orders


def advantage_cells():
    model = ppo(batch_size=4, n_epochs=4)
    one_update = model._one_update
    first = []

    def watched(**kwargs):
        found = one_update(**kwargs)
        if not first:
            (actor_state, _), _ = found
            first.append(-last_bias(actor_state.params)[0])
        return found

    model._one_update = watched
    orders = permuted(model)
    buffer = model.rollout_buffer
    half = orders[0][: scripted.ROLLOUT // 2]
    advantages = np.asarray(buffer.advantages).flatten()
    actions = np.asarray(buffer.actions).flatten()
    over, std = scripted.normalisation(float(first[0]), advantages, actions, half)
    yield "advantages_over", over
    yield "advantages_std", std
    yield "later_epochs", scripted.minibatch_words(orders)


def updates(model):
    """How many updates a rollout gets, and the sizes of their minibatches."""
    sizes = []
    one_update = model._one_update

    def watched(**kwargs):
        sizes.append(str(len(kwargs["observations"])))
        return one_update(**kwargs)

    model._one_update = watched
    model.learn(scripted.ROLLOUT)
    return sizes


def vf_coef_effect():
    """The largest difference between the critics that 0.5 and 50 train, with their own Adam."""
    found = []
    for coefficient in (0.5, 50.0):
        model = ppo(descent=False, vf_coef=coefficient)
        model.learn(10 * scripted.ROLLOUT)
        leaves = jax.tree_util.tree_leaves(model.policy.vf_state.params)
        found.append(np.concatenate([np.ravel(leaf) for leaf in leaves]))
    return float(np.abs(found[0] - found[1]).max())


def box_action():
    received = []
    for mean in (10.0, 0.5):
        space = env(actions="box")
        policy = {"net_arch": [], "log_std_init": -10.0}
        model = PPO("MlpPolicy", space, n_steps=8, batch_size=8, policy_kwargs=policy)
        state = model.policy.actor_state
        params = unfreeze(state.params)
        params["params"]["Dense_0"] = {
            "kernel": np.zeros((2, 1), np.float32),
            "bias": np.array([mean], np.float32),
        }
        model.policy.actor_state = state.replace(params=params)
        model.learn(8)
        received.append(space.unwrapped.received[0])
    return scripted.action_words(*received)


def ppo_cells():
    untouched = PPO("MlpPolicy", env())
    model, grad = value_gradient(0.0)
    advantages = np.asarray(model.rollout_buffer.advantages).flatten()
    last = advantages[scripted.EPISODE - 1]
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    yield "value_gradient", grad / -advantages.mean()
    yield "vf_coef_effect", vf_coef_effect()
    yield "value_clipping", clipping()
    yield "value_clipping_given", clipping(clip_range_vf=0.2)
    yield from advantage_cells()
    model = ppo(descent=False, batch_size=2, n_epochs=5, learning_rate=0.5, target_kl=1e-4)
    yield "kl_updates", len(updates(model))
    _, adam = untouched.policy.vf_state.opt_state
    yield "adam_eps", float(adam.hyperparams["eps"])
    yield "max_grad_norm", untouched.max_grad_norm
    yield "ent_coef", untouched.ent_coef
    yield "ent_coef_box", untouched.ent_coef
    yield "uneven_minibatches", ", ".join(updates(ppo(batch_size=3)))
    model = ppo(descent=False)
    model.learn(5 * scripted.ROLLOUT)
    _, adam = model.policy.vf_state.opt_state
    rate = float(adam.hyperparams["learning_rate"])
    yield "last_learning_rate", rate / untouched.learning_rate
    yield "box_action", box_action()
    yield "log_std", box_log_std()


def box_log_std():
    model = PPO("MlpPolicy", env(actions="box"), n_steps=8, batch_size=8)
    state = model.policy.actor_state
    found = []
    for log_std in (-30.0, 1.0, 30.0):
        params = unfreeze(state.params)
        params["params"]["log_std"] = np.array([log_std], np.float32)
        dist = state.apply_fn(params, np.zeros((1, 2), np.float32))
        found.append(float(np.log(np.ravel(dist.stddev())[0])))
    return scripted.log_std_words(*found, size=30)


# === SAC
def off_policy(algorithm, space, **kwargs):
    settings = {"gamma": 0.0, "learning_starts": 8, "buffer_size": 2_000, "seed": 1, **kwargs}
    return algorithm("MlpPolicy", space, **settings)


def with_descent(state):
    """The same weights, trained by gradient descent."""
    rule = optax.sgd(1.0)
    return state.replace(tx=rule, opt_state=rule.init(state.params))


def truncated_transition(model):
    sample = model.replay_buffer._get_samples(np.array([scripted.EPISODE - 1]))
    return scripted.stored_words(float(sample.next_observations[0, 0]), bool(sample.dones[0]))


def critic_gradient(model):
    """Of both critics, per unit of error: their values are 5.5, the reward is 1."""
    state = model.policy.qf_state
    state = with_descent(state.replace(params=constant(state.params, 5.5)))
    before = last_bias(state.params)
    size = 16
    ones = np.ones(size, np.float32)
    obs = np.zeros((size, 2), np.float32)
    actions = np.zeros((size, 1), np.float32)
    after, _, _ = SAC.update_critic(
        model.policy.actor_state,
        state,
        model.ent_coef_state,
        obs,
        actions,
        obs,
        ones,
        0 * ones,
        0 * ones,
        model.key,
    )
    change = before - last_bias(after.params)
    return float(change.flatten()[0]) / 4.5


def alpha_gradient():
    """Per unit of entropy - target, at alpha = 0.5."""
    model = off_policy(SAC, env(actions="box"), ent_coef="auto_0.5")
    state = with_descent(model.ent_coef_state)
    (before,) = jax.tree_util.tree_leaves(state.params)
    state, _ = SAC.update_temperature(-1.0, state, np.float32(0.7))
    (after,) = jax.tree_util.tree_leaves(state.params)
    return float(before - after) / 1.7


def policy(model, mean, log_std=0.0):
    """The distribution of its actions in [-1, 1]."""
    state = model.policy.actor_state
    params = constant(state.params, 0.0)
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    outputs = [n for n, (path, leaf) in enumerate(leaves) if leaf.shape == (1,)]
    values = [leaf for _, leaf in leaves]
    for n in outputs:
        values[n] = np.zeros_like(values[n])
    values[outputs[0]] += np.float32(mean)
    values[outputs[1]] += np.float32(log_std)
    params = jax.tree_util.tree_unflatten(structure, values)
    return state.apply_fn(params, np.zeros((1, 2), np.float32))


def log_prob(model):
    """Of the action 0, where the mean is 0."""
    dist = policy(model, 0.0)
    return float(np.ravel(dist.log_prob(np.zeros((1, 1), np.float32)))[0])


def tanh_slope(model):
    """At a mean of 10 against 0, of the same narrow noise: samples, as its updates take them."""

    def mean_log_prob(mean):
        dist = policy(model, mean, -5.0)

        @jax.jit
        def drawn(key):
            return dist.log_prob(dist.sample(1000, seed=key)).mean()

        return float(drawn(jax.random.PRNGKey(1)))

    return mean_log_prob(10.0) - mean_log_prob(0.0)


def log_std(model, output):
    dist = policy(model, 0.0, output).distribution
    return float(np.log(np.ravel(dist.stddev())[0]))


@contextlib.contextmanager
def ordered(algorithm, actor):
    """A list of letters, as the parts of its updates run; not compiled, so one after another."""
    letters = []
    names = {"update_critic": "C", actor: "A", "soft_update": "T"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        for name, letter in names.items():
            part = getattr(algorithm, name)

            def watched(*args, part=part, letter=letter, **kwargs):
                letters.append(letter)
                return part(*args, **kwargs)

            stack.enter_context(mock.patch.object(algorithm, name, staticmethod(watched)))
        yield letters


def order(algorithm, actor, updates):
    model = off_policy(algorithm, env(actions="box"))
    model.learn(8)  # no update yet
    with ordered(algorithm, actor) as letters:
        for _ in range(updates):
            model.train(1, 8)
    return " ".join(letters)


def log_prob_scale():
    """What bounds of -4 and 4 change against -1 and 1, at the middle."""
    wide = SAC("MlpPolicy", env(actions="box", low=-4.0, high=4.0))
    narrow = SAC("MlpPolicy", env(actions="box", low=-1.0, high=1.0))
    scale = log_prob(wide) - log_prob(narrow)
    return scripted.named(scale, {"yes": -math.log(4), "no": 0.0})


def sac_cells():
    untouched = SAC("MlpPolicy", env(actions="box"))
    model = off_policy(SAC, env(actions="box"))
    model.learn(13)
    yield "critic_gradient", critic_gradient(model)
    found = alpha_gradient()
    # Of alpha's logarithm; or of alpha itself, where that is the weight.
    yield "alpha_gradient", scripted.named(found, {"alpha": 0.5, "1": 1.0})
    yield "log_prob_scale", log_prob_scale()
    alpha = untouched.ent_coef.apply({"params": untouched.ent_coef_state.params})
    yield "initial_alpha", float(alpha)
    yield "tanh_slope", tanh_slope(untouched)
    stds = [log_std(untouched, output) for output in (-100.0, 1.0, 100.0)]
    yield "log_std", scripted.log_std_words(*stds)
    yield "order", order(SAC, "update_actor", 4)
    yield "truncated_transition", truncated_transition(model)
    yield "random_steps", untouched.learning_starts


# === TD3
def td3_update(output):
    """(target actions in [-1, 1], gradient of a critic): their values are 5.5, the reward is 1."""
    model = off_policy(TD3, env(actions="box"))
    policy = model.policy
    state = policy.qf_state
    state = with_descent(state.replace(params=constant(state.params, 5.5)))
    actor = policy.actor_state
    actor = actor.replace(target_params=constant(actor.target_params, output))
    before = last_bias(state.params)
    size = 2000
    ones = np.ones(size, np.float32)
    obs = np.zeros((size, 2), np.float32)
    actions = np.zeros((size, 1), np.float32)
    seen = []

    def watched(params, obs, actions, **kwargs):
        seen.append(np.asarray(actions))
        return policy.qf_state.apply_fn(params, obs, actions, **kwargs)

    noise = (model.target_policy_noise, model.target_noise_clip)
    batch = (obs, actions, obs, ones, 0 * ones, 0 * ones)
    with jax.disable_jit():
        after, _, _ = TD3.update_critic(
            actor,
            state.replace(apply_fn=watched),
            *batch,
            *noise,
            model.key,
        )
    change = before - last_bias(after.params)
    return seen[0], float(change.flatten()[0])


def td3_cells():
    untouched = TD3("MlpPolicy", env(actions="box"))
    half = (scripted.HIGH - scripted.LOW) / 2
    middle, gradient = td3_update(0.0)
    yield "target_noise", round(float(middle.std()) * half, 1)
    beyond, _ = td3_update(20.0)
    yield "target_action_clipped", "no" if beyond.max() > 1 + 1e-4 else "yes"
    noise = untouched.action_noise
    yield "exploration_noise", "none" if noise is None else str(noise)
    yield "order", order(TD3, "update_actor", 4)
    yield "critic_gradient", gradient / 4.5
    model = off_policy(TD3, env(actions="box"))
    model.learn(13)
    yield "truncated_transition", truncated_transition(model)


# === DQN
def dqn_gradient(model, reward=1.0, q=(-3.5, -3.5), target=(0.0, 0.0), gamma=0.0):
    """The sum over both actions."""
    state = model.policy.qf_state
    params = constant(state.params, *q)
    state = state.replace(params=params, target_params=constant(state.params, *target))
    size = 16
    ones = np.ones(size, np.float32)
    obs = np.zeros((size, 2), np.float32)
    actions = np.arange(size).reshape(-1, 1) % 2
    rewards = reward * ones
    arguments = (obs, actions, obs, rewards, 0 * ones, gamma * ones)
    after, _ = DQN.update_qnetwork(with_descent(state), *arguments)
    return float((last_bias(params) - last_bias(after.params)).sum())


def dqn_cells():
    untouched = DQN("MlpPolicy", env())
    yield "gradient", dqn_gradient(untouched)
    grad = dqn_gradient(untouched, 0.0, (2.0, 1.99), (1.0, 3.0), 1.0)
    yield "double", scripted.double_words(grad)
    first, last = untouched.exploration_initial_eps, untouched.exploration_final_eps
    yield "epsilon", f"{first:g} to {last:g}"
    model = off_policy(DQN, env(), train_freq=4, target_update_interval=20)
    states = []

    def remember():
        leaves = jax.tree_util.tree_leaves(model.policy.qf_state.target_params)
        states.append(np.concatenate([np.ravel(leaf) for leaf in leaves]))

    model.learn(208, callback=AtSteps(remember))
    pairs = itertools.pairwise(states)
    changes = sum(not np.array_equal(before, after) for before, after in pairs)
    unit = scripted.target_unit(changes)
    yield "target", f"each {untouched.target_update_interval:,} {unit}"
    yield "target_step", untouched.tau
    if "max_grad_norm" not in inspect.signature(DQN.__init__).parameters:
        yield "max_grad_norm", "no such flag"
    yield "truncated_transition", truncated_transition(model)


def main():
    cells = {}
    algorithms = {"PPO": ppo_cells, "SAC": sac_cells, "TD3": td3_cells, "DQN": dqn_cells}
    for algorithm, measure in algorithms.items():
        for name, cell in measure():
            cells[f"{algorithm} {name}"] = cell
    scripted.show(VERSIONS, cells)


if __name__ == "__main__":
    main()
