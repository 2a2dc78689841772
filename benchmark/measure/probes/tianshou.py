"""What tianshou computes: its collector fills its buffer, then its algorithm updates.

python -m benchmark.measure.probes.tianshou
"""

import math
from importlib import metadata

import gymnasium
import torch
from gymnasium.spaces import Box, Discrete
from tianshou.algorithm import DQN, PPO, SAC, TD3
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, ReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.continuous import ContinuousActorProbabilistic
from tianshou.utils.torch_utils import policy_within_training_step, torch_train_mode
from torch import nn
from torch.distributions import Independent, Normal

from benchmark.measure.probes import scripted
from benchmark.measure.probes.scripted import HIGH, LOW, Ladder

VERSIONS = {
    "tianshou": metadata.version("tianshou"),
    "torch": torch.__version__,
    "gymnasium": gymnasium.__version__,
}
BOX = Box(LOW, HIGH, (1,))


# === networks whose outputs are biases
class Constant(nn.Module):
    max_action = 1.0

    def __init__(self, *outputs):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(outputs))

    def forward(self, obs, state=None, info=None):
        return self.bias.repeat(len(obs), 1), state


class Gaussian(nn.Module):
    max_action = 1.0

    def __init__(self, mean=0.0, log_std=0.0):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([mean]))
        self.log_std = nn.Parameter(torch.tensor([log_std]))

    def forward(self, obs, state=None, info=None):
        mean = self.bias.repeat(len(obs), 1)
        return (mean, self.log_std.exp().expand_as(mean)), state


class LadderValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([10.0]))

    def forward(self, obs, *_):
        return torch.as_tensor(obs)[:, :1].float() + self.bias


class Critic(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([bias]))

    def forward(self, obs, actions=None, info=None):
        SEEN.append(torch.as_tensor(actions).detach().clone())
        return self.bias.repeat(len(obs), 1)


SEEN = []  # the actions that critics were given


# === collecting and updating
def watch(optimizer, params):
    """A list that gets {name: gradient} at each step of the optimizer."""
    found = []
    step = optimizer._optim.step

    def watched_step(*args, **kwargs):
        found.append({name: param.grad.clone() for name, param in params.items()})
        return step(*args, **kwargs)

    optimizer._optim.step = watched_step
    return found


def collect(policy, ladder, steps=scripted.ROLLOUT):
    buffer = ReplayBuffer(1_000)
    collector = Collector(policy, DummyVectorEnv([lambda: ladder]), buffer)
    collector.reset()
    with policy_within_training_step(policy), torch_train_mode(policy, False):
        collector.collect(n_step=steps)
    return buffer


def update(algorithm, *args, **kwargs):
    policy = algorithm.policy
    with policy_within_training_step(policy), torch_train_mode(algorithm):
        return algorithm.update(*args, **kwargs)


# === PPO
class Rollout:
    """An update of PPO after one rollout: its batch, its gradients, its minibatches."""

    def __init__(self, reward=1.0, shift=0.0, batch_size=None, repeat=1, **settings):
        actor = Constant(0.0, 0.0)
        self.critic = LadderValue()
        policy = DiscreteActorPolicy(actor=actor, action_space=Discrete(2))
        settings = {"gamma": scripted.GAMMA, "gae_lambda": scripted.LAMBDA, **settings}
        self.algorithm = PPO(
            policy=policy,
            critic=self.critic,
            optim=AdamOptimizerFactory(),
            **settings,
        )
        params = {"value": self.critic.bias, "logits": actor.bias}
        self.grads = watch(self.algorithm.optim, params)
        self.minibatches = []
        preprocess = self.algorithm._preprocess_batch

        def watched(batch, buffer, indices):
            self.batch = preprocess(batch, buffer, indices)
            with torch.no_grad():
                self.critic.bias.add_(shift)
            self.critic.register_forward_pre_hook(self.keep)
            return self.batch

        self.algorithm._preprocess_batch = watched
        buffer = collect(policy, Ladder(reward=reward))
        update(self.algorithm, buffer, batch_size=batch_size, repeat=repeat)

    def keep(self, _, args):
        self.minibatches.append(torch.as_tensor(args[0])[:, 1].int().tolist())


def clipping(**settings):
    away = Rollout(-9.0, 1.0, **settings).grads[0]["value"]
    towards = Rollout(12.0, 1.0, **settings).grads[0]["value"]
    return scripted.clipping_words(float(away), float(towards))


def gaussian(outputs):
    return Independent(Normal(*outputs), 1)


def box_action():
    received = []
    for mean in (10.0, 0.5):
        ladder = Ladder("box")
        actor = Gaussian(mean, -10.0)
        policy = ProbabilisticActorPolicy(actor=actor, dist_fn=gaussian, action_space=BOX)
        collect(policy, ladder, steps=4)
        received.append(ladder.received[0])
    return scripted.action_words(*received)


def ppo_cells():
    rollout = Rollout(ent_coef=0.0)
    advantages = rollout.batch.adv.numpy()
    last = float(advantages[scripted.EPISODE - 1])
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    yield "value_gradient", float(rollout.grads[0]["value"]) / -advantages.mean()
    yield "value_clipping", clipping()
    yield "value_clipping_given", clipping(value_clip=True)
    rollout = Rollout(batch_size=4, repeat=4)
    first = rollout.minibatches[0]
    grad = float(rollout.grads[0]["logits"][0])
    actions = rollout.batch.act.tolist()
    over, std = scripted.normalisation(grad, rollout.batch.adv, actions, first)
    yield "advantages_over", over
    yield "advantages_std", std
    halves = rollout.minibatches
    epochs = [halves[n] + halves[n + 1] for n in range(0, len(halves), 2)]
    yield "later_epochs", scripted.minibatch_words(epochs)
    yield "adam_eps", rollout.algorithm.optim._optim.defaults["eps"]
    rollout = Rollout(9000.0)
    norm = float(torch.cat(list(rollout.grads[0].values())).norm())
    yield "max_grad_norm", scripted.clip_words(norm)
    yield "ent_coef", rollout.algorithm.ent_coef
    yield "ent_coef_box", rollout.algorithm.ent_coef
    rollout = Rollout(batch_size=3)
    yield "uneven_minibatches", ", ".join(str(len(found)) for found in rollout.minibatches)
    yield "box_action", box_action()


# === SAC, TD3
def truncated_transition(buffer):
    last = scripted.EPISODE - 1
    return scripted.stored_words(float(buffer.obs_next[last, 0]), bool(buffer.terminated[last]))


def note_order(algorithm, letters):
    """C critic, A actor, T targets."""
    for letter, optimizer in (("C", algorithm.critic_optim), ("A", algorithm.policy_optim)):
        step = optimizer.step

        def noted(*args, letter=letter, step=step, **kwargs):
            letters.append(letter)
            return step(*args, **kwargs)

        optimizer.step = noted
    lag = algorithm._update_lagged_network_weights

    def noted_lag():
        letters.append("T")
        return lag()

    algorithm._update_lagged_network_weights = noted_lag


def sac_policy(mean, log_std=-20.0, space=BOX):
    """The log-probability of the mean, in evaluation."""
    policy = SACPolicy(actor=Gaussian(mean, log_std), action_space=space)
    found = policy(Batch(obs=torch.zeros(1, 2), info={}))
    return float(found.log_prob.detach())


def off_policy(algorithm, policy, **settings):
    factory = AdamOptimizerFactory()
    return algorithm(
        policy=policy,
        policy_optim=factory,
        critic=Critic(5.5),
        critic_optim=factory,
        gamma=0.0,
        **settings,
    )


def sac_cells():
    alpha = AutoAlpha(-1.0, math.log(0.5), AdamOptimizerFactory())
    policy = SACPolicy(actor=Gaussian(), action_space=BOX)
    algorithm = off_policy(SAC, policy, alpha=alpha)
    buffer = collect(policy, Ladder("box"))
    grads = watch(algorithm.critic_optim, {"bias": algorithm.critic.bias})
    letters = []
    note_order(algorithm, letters)
    entropies = []
    learn_alpha = alpha.update

    def watched(entropy):
        entropies.append(float(entropy.mean()))
        return learn_alpha(entropy)

    alpha.update = watched
    update(algorithm, buffer, sample_size=64)
    first = float(alpha._log_alpha.grad)
    for _ in range(3):
        update(algorithm, buffer, sample_size=64)
    yield "critic_gradient", float(grads[0]["bias"]) / 4.5
    per_entropy = first / (entropies[0] + 1)
    yield "alpha_gradient", scripted.named(per_entropy, {"alpha": 0.5, "1": 1.0})
    yield "tanh_slope", sac_policy(10.0) - sac_policy(0.0)
    wide = sac_policy(0.0, space=Box(-4, 4, (1,)))
    scale = wide - sac_policy(0.0, space=Box(-1, 1, (1,)))
    yield "log_prob_scale", scripted.named(scale, {"yes": -math.log(4), "no": 0.0})
    yield "log_std", log_std_limits()
    untouched = off_policy(SAC, policy).alpha
    fixed = "fixed" if untouched.update(torch.zeros(1)) is None else "learned"
    yield "initial_alpha", f"{untouched.value:g}, {fixed}"
    yield "order", " ".join(letters)
    yield "truncated_transition", truncated_transition(buffer)


def log_std_limits():
    """Of the library's own actor."""
    found = []
    for output in (-100.0, 1.0, 100.0):
        actor = ContinuousActorProbabilistic(
            preprocess_net=Body(),
            action_shape=(1,),
            unbounded=True,
            conditioned_sigma=True,
        )
        last = [layer for layer in actor.sigma.modules() if isinstance(layer, nn.Linear)][-1]
        nn.init.zeros_(last.weight)
        nn.init.constant_(last.bias, output)
        (_, std), _ = actor(torch.zeros(1, 2))
        found.append(float(std.log().detach()))
    return scripted.log_std_words(*found)


class Body(nn.Module):
    """A network in front of the actor."""

    def get_output_dim(self):
        return 2

    def forward(self, obs, state=None, info=None):
        return torch.as_tensor(obs), state


def td3_cells():
    seen = {}
    for output in (0.0, 1.0):
        policy = ContinuousDeterministicPolicy(actor=Constant(output), action_space=BOX)
        algorithm = off_policy(TD3, policy)
        buffer = collect(policy, Ladder("box"))
        grads = watch(algorithm.critic_optim, {"bias": algorithm.critic.bias})
        letters = []
        note_order(algorithm, letters)
        SEEN.clear()
        for _ in range(4):
            update(algorithm, buffer, sample_size=2_000)
        seen[output] = SEEN[0]
    half = (HIGH - LOW) / 2
    yield "target_noise", round(float(seen[0.0].std()) * half, 1)
    most = float(seen[1.0].max())
    yield "target_action_clipped", "yes" if most < 1.0001 else f"no: up to {most:.1f} of 1"
    noise = policy.exploration_noise
    yield "exploration_noise", "none" if noise is None else str(noise)
    yield "critic_gradient", float(grads[0]["bias"]) / 4.5
    yield "truncated_transition", truncated_transition(buffer)
    yield "order", " ".join(letters)


# === DQN
def dqn(reward=1.0, q=(-3.5, -3.5), updates=1, **settings):
    policy = DiscreteQLearningPolicy(model=Constant(*q), action_space=Discrete(2))
    settings = {"gamma": 0.0, **settings}
    algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(), **settings)
    grads = watch(algorithm.optim, {"bias": policy.model.bias})
    letters = []
    lag = algorithm._update_lagged_network_weights

    def noted():
        letters.append("T")
        return lag()

    algorithm._update_lagged_network_weights = noted
    buffer = collect(policy, Ladder(reward=reward))
    for _ in range(updates):
        update(algorithm, buffer, sample_size=64)
    return algorithm, grads, buffer, letters


def dqn_cells():
    algorithm, grads, buffer, _ = dqn()
    yield "gradient", float(grads[0]["bias"].sum())
    yield "truncated_transition", truncated_transition(buffer)
    epsilon = algorithm.policy.eps_training
    yield "epsilon", f"{epsilon:g}"
    *_, letters = dqn(updates=50, target_update_freq=20)
    # 50 updates, and no environment steps in between
    unit = scripted.target_unit(len(letters))
    every = algorithm.target_update_freq if algorithm.use_target_network else "none"
    yield "target", f"{every}; where given, counts {unit}"
    # The first update copies the target network, the second does not.
    settings = {"gamma": 1.0, "target_update_freq": 100}
    algorithm, grads, buffer, _ = dqn(0.0, (2.0, 1.99), updates=1, **settings)
    with torch.no_grad():
        algorithm.model_old.module.bias.copy_(torch.tensor([1.0, 3.0]))
        algorithm.policy.model.bias.copy_(torch.tensor([2.0, 1.99]))
    update(algorithm, buffer, sample_size=64)
    yield "double", scripted.double_words(float(grads[-1]["bias"].sum()))
    _, grads, *_ = dqn(reward=9000.0)
    yield "max_grad_norm", scripted.clip_words(float(grads[0]["bias"].norm()))


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
