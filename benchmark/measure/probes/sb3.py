"""What Stable-Baselines3 computes.

python -m benchmark.measure.probes.sb3
"""

import contextlib
import itertools
import math
from unittest import mock

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from benchmark.measure.probes import scripted

VERSIONS = {
    "stable-baselines3": stable_baselines3.__version__,
    "torch": torch.__version__,
    "gymnasium": gymnasium.__version__,
}


def env(**kwargs):
    """A Ladder with the wrapper that other environments of gymnasium have."""
    return gymnasium.make("Ladder-v0", **kwargs)


def constant(layer, *outputs):
    nn.init.zeros_(layer.weight)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor(outputs))


def watch(optimizer, names):
    """A list that gets {name: gradient} at each step of the optimizer."""
    found = []
    step = optimizer.step

    def watched_step(*args, **kwargs):
        found.append({name: param.grad.clone() for name, param in names.items()})
        return step(*args, **kwargs)

    optimizer.step = watched_step
    return found


class AtRolloutsEnd(BaseCallback):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        self.function()


class AtSteps(BaseCallback):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_step(self):
        self.function()
        return True


# === PPO
def ppo(reward=1.0, **kwargs):
    """A model whose values are 10 + the step, and the gradients of its updates."""
    settings = {
        "n_steps": scripted.ROLLOUT,
        "batch_size": scripted.ROLLOUT,
        "n_epochs": 1,
        "gamma": scripted.GAMMA,
        "gae_lambda": scripted.LAMBDA,
        "max_grad_norm": 1e9,
        "policy_kwargs": {"net_arch": []},
        "seed": 1,
        "device": "cpu",
        **kwargs,
    }
    model = PPO("MlpPolicy", env(reward=reward), **settings)
    constant(model.policy.value_net, 10.0)
    with torch.no_grad():
        model.policy.value_net.weight[0, 0] = 1
    constant(model.policy.action_net, 0.0, 0.0)
    names = {"value": model.policy.value_net.bias, "logits": model.policy.action_net.bias}
    return model, watch(model.policy.optimizer, names)


def value_gradient(shift, reward, **kwargs):
    model, grads = ppo(reward, normalize_advantage=False, **kwargs)

    def move():
        with torch.no_grad():
            model.policy.value_net.bias.add_(shift)

    model.learn(scripted.ROLLOUT, callback=AtRolloutsEnd(move))
    return model, float(grads[0]["value"])


def clipping(**kwargs):
    _, away = value_gradient(1.0, -9.0, **kwargs)
    _, towards = value_gradient(1.0, 12.0, **kwargs)
    return scripted.clipping_words(away, towards)


@contextlib.contextmanager
def permutations():
    """A list of the orders that are drawn."""
    found = []
    permutation = np.random.permutation

    def watched(size):
        found.append(permutation(size))
        return found[-1]

    with mock.patch.object(np.random, "permutation", watched):
        yield found


def advantage_cells():
    with permutations() as orders:
        model, grads = ppo(batch_size=4, n_epochs=4)
        model.learn(scripted.ROLLOUT)
    buffer = model.rollout_buffer
    actions = buffer.actions.flatten()
    half = orders[0][: scripted.ROLLOUT // 2]
    grad = float(grads[0]["logits"][0])
    over, std = scripted.normalisation(grad, buffer.advantages.flatten(), actions, half)
    yield "advantages_over", over
    yield "advantages_std", std
    yield "later_epochs", scripted.minibatch_words([order.tolist() for order in orders])


def uneven():
    model, _ = ppo(batch_size=3)
    sizes = []
    evaluate_actions = model.policy.evaluate_actions

    def watched(obs, actions):
        sizes.append(str(len(obs)))
        return evaluate_actions(obs, actions)

    model.policy.evaluate_actions = watched
    model.learn(scripted.ROLLOUT)
    return ", ".join(sizes)


def box_action():
    received = []
    for mean in (10.0, 0.5):
        space = env(actions="box")
        policy = {"net_arch": [], "log_std_init": -10}
        model = PPO("MlpPolicy", space, n_steps=8, batch_size=8, policy_kwargs=policy)
        constant(model.policy.action_net, mean)
        model.learn(8)
        received.append(space.unwrapped.received[0])
    return scripted.action_words(*received)


def box_log_std():
    model = PPO("MlpPolicy", env(actions="box"), n_steps=8, batch_size=8)
    found = []
    for log_std in (-30, 1, 30):
        nn.init.constant_(model.policy.log_std, log_std)
        dist = model.policy.get_distribution(torch.zeros(1, 2)).distribution
        found.append(float(dist.stddev.log().detach()))
    return scripted.log_std_words(*found, size=30)


def ppo_cells():
    untouched = PPO("MlpPolicy", env(), device="cpu")
    model, grad = value_gradient(0.0, 1.0)
    advantages = model.rollout_buffer.advantages.flatten()
    last = advantages[scripted.EPISODE - 1]
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    yield "value_gradient", grad / -advantages.mean()
    yield "value_clipping", clipping()
    yield "value_clipping_given", clipping(clip_range_vf=0.2)
    yield from advantage_cells()
    model, grads = ppo(batch_size=2, n_epochs=5, learning_rate=0.5, target_kl=1e-4)
    model.learn(scripted.ROLLOUT)
    yield "kl_updates", len(grads)
    yield "adam_eps", untouched.policy.optimizer.defaults["eps"]
    yield "max_grad_norm", untouched.max_grad_norm
    yield "ent_coef", untouched.ent_coef
    yield "ent_coef_box", PPO("MlpPolicy", env(actions="box"), device="cpu").ent_coef
    yield "uneven_minibatches", uneven()
    model, _ = ppo()
    model.learn(5 * scripted.ROLLOUT)
    rate = model.policy.optimizer.param_groups[0]["lr"]
    yield "last_learning_rate", rate / untouched.learning_rate
    yield "box_action", box_action()
    yield "log_std", box_log_std()
    normalize = VecNormalize(DummyVecEnv([env]), gamma=scripted.GAMMA)
    normalize.reset()
    for _ in range(scripted.EPISODE + 1):
        normalize.step([0])
    after = normalize.returns[0]
    yield "return_scale", "restarts" if scripted.near(after, 1) else "goes on"


# === SAC, TD3
def off_policy(algorithm, space, **kwargs):
    settings = {
        "gamma": 0.0,
        "learning_starts": 8,
        "buffer_size": 2_000,
        "train_freq": 1,
        "device": "cpu",
        "seed": 1,
        **kwargs,
    }
    return algorithm("MlpPolicy", space, **settings)


def set_critics(model):
    for critic in (model.critic.qf0[-1], model.critic.qf1[-1]):
        constant(critic, 5.5)
    return watch(model.critic.optimizer, {"bias": model.critic.qf0[-1].bias})


def truncated_transition(model):
    sample = model.replay_buffer._get_samples(np.array([scripted.EPISODE - 1]))
    return scripted.stored_words(float(sample.next_observations[0, 0]), bool(sample.dones[0]))


def order(model):
    """C critic, A actor, T target networks, in four updates."""
    letters = []
    parts = {"C": model.critic.optimizer, "A": model.actor.optimizer}
    for letter, optimizer in parts.items():
        step = optimizer.step

        def watched(*args, letter=letter, step=step, **kwargs):
            letters.append(letter)
            return step(*args, **kwargs)

        optimizer.step = watched
    target = next(model.critic_target.parameters())
    before = target.clone()
    for _ in range(4):
        count = len(letters)
        model.train(1, 8)
        moved = not torch.equal(before, target)
        before = target.clone()
        letters.extend("T" * moved)
        assert len(letters) > count
    return " ".join(letters)


def sac_policy(model, mean, log_std):
    """The log-probability of the mean."""
    constant(model.actor.mu, mean)
    constant(model.actor.log_std, log_std)

    def rsample(self, sample_shape=()):
        return self.mean

    with mock.patch.object(torch.distributions.Normal, "rsample", rsample), torch.no_grad():
        _, log_prob = model.actor.action_log_prob(torch.zeros(1, 2))
    return float(log_prob)


def sac_cells():
    untouched = SAC("MlpPolicy", env(actions="box"), device="cpu")
    model = off_policy(SAC, env(actions="box"), ent_coef="auto_0.5")
    critic = set_critics(model)
    alpha = watch(model.ent_coef_optimizer, {"log_alpha": model.log_ent_coef})
    log_probs = []
    action_log_prob = model.actor.action_log_prob

    def watched(obs):
        actions, log_prob = action_log_prob(obs)
        if torch.is_grad_enabled():
            log_probs.append(float(log_prob.mean()))
        return actions, log_prob

    model.actor.action_log_prob = watched
    model.learn(13)
    yield "critic_gradient", float(critic[0]["bias"]) / 4.5
    per_entropy = float(alpha[0]["log_alpha"]) / (-log_probs[0] + 1)
    yield "alpha_gradient", scripted.named(per_entropy, {"alpha": 0.5, "1": 1.0})
    at_0 = sac_policy(untouched, 0.0, 0.0)
    yield "tanh_slope", sac_policy(untouched, 10.0, 0.0) - at_0
    wide = SAC("MlpPolicy", env(actions="box", low=-4.0, high=4.0), device="cpu")
    narrow = SAC("MlpPolicy", env(actions="box", low=-1.0, high=1.0), device="cpu")
    scale = sac_policy(wide, 0.0, 0.0) - sac_policy(narrow, 0.0, 0.0)
    yield "log_prob_scale", scripted.named(scale, {"yes": -math.log(4), "no": 0.0})
    found = []
    for output in (-100.0, 1.0, 100.0):
        constant(untouched.actor.log_std, output)
        _, log_std, _ = untouched.actor.get_action_dist_params(torch.zeros(1, 2))
        found.append(float(log_std.detach()))
    yield "log_std", scripted.log_std_words(*found)
    start = SAC("MlpPolicy", env(actions="box"), device="cpu").log_ent_coef
    yield "initial_alpha", float(start.exp().detach())
    model = off_policy(SAC, env(actions="box"))
    model.learn(13)
    yield "order", order(model)
    yield "target_moves_of_40", target_moves()
    yield "truncated_transition", truncated_transition(model)
    yield "random_steps", untouched.learning_starts


def target_moves():
    """With target_update_interval=1000, in 40 steps with an update each."""
    model = off_policy(SAC, env(actions="box"), target_update_interval=1000)
    states = []

    def remember():
        weights = nn.utils.parameters_to_vector(model.critic_target.parameters())
        states.append(weights.detach().clone())

    model.learn(50, callback=AtSteps(remember))
    pairs = itertools.pairwise(states[9:])
    return sum(not torch.equal(before, after) for before, after in pairs)


def td3_cells():
    untouched = TD3("MlpPolicy", env(actions="box"), device="cpu")
    targets = {}
    for output in (0.0, 20.0):
        model = off_policy(TD3, env(actions="box"), batch_size=2_000)
        critic = set_critics(model)
        constant(model.actor_target.mu[-2], output)
        found = []

        def keep(module, args, found=found):
            found.append(args[1].clone())

        model.critic_target.register_forward_pre_hook(keep)
        model.learn(13)
        targets[output] = model.policy.unscale_action(found[0].numpy())
    yield "target_noise", round(float(targets[0.0].std()), 1)
    beyond = float(targets[20.0].max()) > scripted.HIGH + 1e-4
    yield "target_action_clipped", "no" if beyond else "yes"
    noise = untouched.action_noise
    yield "exploration_noise", "none" if noise is None else str(noise)
    yield "critic_gradient", float(critic[0]["bias"]) / 4.5
    yield "truncated_transition", truncated_transition(model)
    model = off_policy(TD3, env(actions="box"))
    model.learn(10)
    yield "order", order(model)


# === DQN
def dqn(reward=1.0, q=(-3.5, -3.5), target=(0.0, 0.0), **kwargs):
    model = off_policy(DQN, env(reward=reward), **kwargs)
    constant(model.q_net.q_net[-1], *q)
    constant(model.q_net_target.q_net[-1], *target)
    return model, watch(model.policy.optimizer, {"bias": model.q_net.q_net[-1].bias})


def dqn_cells():
    untouched = DQN("MlpPolicy", env(), device="cpu")
    model, grads = dqn()
    model.learn(13)
    yield "gradient", float(grads[0]["bias"].sum())
    yield "truncated_transition", truncated_transition(model)
    model, grads = dqn(0.0, (2.0, 1.99), (1.0, 3.0), gamma=1.0)
    model.learn(13)
    yield "double", scripted.double_words(float(grads[0]["bias"].sum()))
    first, last = untouched.exploration_initial_eps, untouched.exploration_final_eps
    yield "epsilon", f"{first:g} to {last:g}"
    unit = scripted.target_unit(target_changes())
    yield "target", f"each {untouched.target_update_interval:,} {unit}"
    yield "target_step", untouched.tau
    yield "max_grad_norm", untouched.max_grad_norm


def target_changes():
    model, _ = dqn(train_freq=4, target_update_interval=20)
    states = []

    def remember():
        states.append(model.q_net_target.q_net[-1].bias.detach().clone())

    model.learn(208, callback=AtSteps(remember))
    pairs = itertools.pairwise(states)
    return sum(not torch.equal(before, after) for before, after in pairs)


def main():
    torch.manual_seed(1)
    cells = {}
    algorithms = {"PPO": ppo_cells, "SAC": sac_cells, "TD3": td3_cells, "DQN": dqn_cells}
    for algorithm, measure in algorithms.items():
        for name, cell in measure():
            cells[f"{algorithm} {name}"] = cell
    scripted.show(VERSIONS, cells)


if __name__ == "__main__":
    main()
