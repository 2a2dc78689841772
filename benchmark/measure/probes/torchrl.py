"""What torchrl computes: its collector plays, its loss modules compute.

python -m benchmark.measure.probes.torchrl
"""

import math
from importlib import metadata

import gymnasium
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper
from torchrl.modules import (
    NormalParamExtractor,
    ProbabilisticActor,
    QValueActor,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import ClipPPOLoss, DQNLoss, SACLoss, TD3Loss
from torchrl.objectives.value import GAE

from benchmark.measure.probes import scripted
from benchmark.measure.probes.scripted import HIGH, LOW, Ladder

VERSIONS = {
    "torchrl": metadata.version("torchrl"),
    "torch": torch.__version__,
    "gymnasium": gymnasium.__version__,
}
FRAMES = scripted.ROLLOUT


class Constant(nn.Module):
    """A bias, whatever it sees."""

    def __init__(self, *outputs):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor(outputs))

    def forward(self, obs, *_):
        return self.bias.expand(*obs.shape[:-1], -1) + 0.0


class LadderValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([10.0]))

    def forward(self, obs):
        return obs[..., :1] + self.bias


def gradient(loss_module, loss):
    """{parameter's name: gradient}."""
    loss_module.zero_grad()
    loss.backward(retain_graph=True)
    named = loss_module.named_parameters()
    return {name: param.grad.clone() for name, param in named if param.grad is not None}


def only(grads, word):
    (found,) = [grad for name, grad in grads.items() if word in name]
    return found


def per_error(measure):
    """The gradient per unit of a small error; and whether that of a large one is limited."""
    small = measure(0.25) / 0.25
    large = measure(4.5)
    if scripted.near(large, 4.5 * small):
        return small
    return f"{small:g}, error clipped at {large / small:g}"


def collect(env, policy, frames=FRAMES):
    collector = Collector(env, policy, frames_per_batch=frames, total_frames=frames)
    data = next(iter(collector))
    collector.shutdown()
    return data


# === PPO
def categorical_actor():
    module = TensorDictModule(Constant(0.0, 0.0), ["observation"], ["logits"])
    return ProbabilisticActor(
        module,
        ["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
    )


def rollout(reward=1.0):
    env = GymWrapper(Ladder(reward=reward), categorical_action_encoding=True)
    actor = categorical_actor()
    critic = ValueOperator(LadderValue(), ["observation"])
    data = collect(env, actor)
    GAE(gamma=scripted.GAMMA, lmbda=scripted.LAMBDA, value_network=critic)(data)
    return actor, critic, data.reshape(-1)


def value_slope(error):
    """d loss / d V of the default loss, at such an error."""
    actor, critic, data = rollout()
    data["value_target"] = data["state_value"] - error
    loss = ClipPPOLoss(actor, critic)
    return float(only(gradient(loss, loss(data)["loss_critic"]), "critic"))


def clipping(**settings):
    found = []
    for reward in (-9.0, 12.0):
        actor, critic, data = rollout(reward)
        with torch.no_grad():
            critic.module.bias.add_(1.0)
        loss = ClipPPOLoss(actor, critic, **settings)
        found.append(float(only(gradient(loss, loss(data)["loss_critic"]), "critic")))
    return scripted.clipping_words(*found)


def normalisation(**settings):
    """Of a minibatch: the first half of the rollout."""
    actor, critic, data = rollout()
    loss = ClipPPOLoss(actor, critic, **settings)
    half = list(range(FRAMES // 2))
    grads = gradient(loss, loss(data[half])["loss_objective"])
    grad = float(only(grads, "actor")[0])
    advantages = data["advantage"].flatten().numpy()
    return scripted.normalisation(grad, advantages, data["action"].tolist(), half)


def ppo_cells():
    _, _, data = rollout()
    last = float(data["advantage"][scripted.EPISODE - 1])
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    yield "value_gradient", per_error(value_slope)
    yield "value_clipping", clipping()
    yield "value_clipping_given", clipping(clip_value=0.2)
    over, _ = normalisation()
    yield "advantages_over", "not by default" if over == "not" else over
    over, std = normalisation(normalize_advantage=True)
    yield "advantages_over_given", over
    yield "advantages_std", std
    yield "ent_coef", entropy_coefficient()


def entropy_coefficient():
    """From the loss of a uniform policy, whose entropy is log 2."""
    actor, critic, data = rollout()
    loss = ClipPPOLoss(actor, critic)(data)["loss_entropy"]
    return round(-float(loss) / math.log(2), 4)


# === SAC, TD3
def box_env(low=LOW, high=HIGH):
    return GymWrapper(Ladder("box", low=low, high=high))


def gaussian_actor(env, mean=0.0, scale=0.0):
    net = nn.Sequential(Constant(mean, scale), NormalParamExtractor())
    module = TensorDictModule(net, ["observation"], ["loc", "scale"])
    space = env.action_spec.space
    return ProbabilisticActor(
        module,
        ["loc", "scale"],
        distribution_class=TanhNormal,
        distribution_kwargs={"low": space.low, "high": space.high},
        return_log_prob=True,
        spec=env.action_spec,
    )


def critic(value=5.5):
    return ValueOperator(Constant(value), ["observation", "action"])


def of_critics(grads):
    """Of the first of two critics, whose parameters are stacked."""
    found = [grad for name, grad in grads.items() if "qvalue" in name]
    return float(found[0].flatten()[0])


def sac_loss(**settings):
    env = box_env()
    actor = gaussian_actor(env)
    data = collect(env, actor).reshape(-1)
    loss = SACLoss(actor, critic(), **settings)
    loss.make_value_estimator(gamma=0.0)
    return loss, data


def sac_slope(error):
    loss, data = sac_loss()
    data["next", "reward"] = torch.full_like(data["next", "reward"], 5.5 - error)
    return of_critics(gradient(loss, loss(data)["loss_qvalue"]))


def sac_cells():
    yield "critic_gradient", per_error(sac_slope)
    loss, data = sac_loss(alpha_init=0.5)
    found = loss(data)
    target = float(loss.target_entropy)
    loss.zero_grad()
    found["loss_alpha"].backward()
    per_entropy = float(loss.log_alpha.grad) / (float(found["entropy"]) - target)
    yield "alpha_gradient", scripted.named(per_entropy, {"alpha": 0.5, "1": 1.0})
    yield "initial_alpha", float(SACLoss(gaussian_actor(box_env()), critic())._alpha)
    yield "log_prob_scale", log_prob_scale()
    yield "tanh_slope", tanh_slope()
    yield "log_std", log_std()
    yield "truncated_transition", truncated_transition(data)


def log_prob_scale():
    """Of the policy with the bounds given, at the middle."""
    found = []
    for half in (4.0, 1.0):
        actor = gaussian_actor(box_env(-half, half))
        data = TensorDict({"observation": torch.zeros(1, 2)}, [1])
        dist = actor.get_dist(data)
        found.append(float(dist.log_prob(torch.zeros(1, 1)).sum().detach()))
    words = {"yes": -math.log(4), "no": 0.0}
    return scripted.named(found[0] - found[1], words)


def policy(mean, scale):
    """The distribution of a policy with bounds of -1 and 1."""
    actor = gaussian_actor(box_env(-1.0, 1.0), mean, scale)
    return actor.get_dist(TensorDict({"observation": torch.zeros(1, 2)}, [1]))


def tanh_slope():
    """Its log-probability takes u from the action again."""
    dist = policy(10.0, 0.0)
    u = float(dist.transforms[0].inv(dist.deterministic_sample).detach())
    if u < 9:
        return f"takes u for {u:.3g}"
    action = dist.deterministic_sample
    normal = torch.distributions.Normal(dist.loc, dist.scale)
    return float((dist.log_prob(action) - normal.log_prob(dist.loc)).detach())


def log_std():
    """From the standard deviations of the outputs -100, 1 and 100."""
    low, middle, high = (float(policy(0.0, x).scale.detach()) for x in (-100.0, 1.0, 100.0))
    logs = [math.log(low), math.log(middle), math.log(high)]
    grows = high > 90 and not scripted.near(middle, math.e)
    return f"log of a softplus, std at least {low:g}" if grows else scripted.log_std_words(*logs)


def truncated_transition(data):
    last = scripted.EPISODE - 1
    next_step = float(data["next", "observation"][last, 0])
    return scripted.stored_words(next_step, bool(data["next", "terminated"][last]))


def td3_slope(error):
    env = box_env()
    actor = TensorDictModule(Constant(0.0), ["observation"], ["action"])
    data = collect(env, actor).reshape(-1)
    data["next", "reward"] = torch.full_like(data["next", "reward"], 5.5 - error)
    loss = TD3Loss(actor, critic(), action_spec=env.action_spec)
    loss.make_value_estimator(gamma=0.0)
    return of_critics(gradient(loss, loss(data)["loss_qvalue"]))


class ActionItself(nn.Module):
    """Q = the action."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, obs, action):
        return action + self.bias


def target_actions(output):
    """What the default loss takes for the target policy's actions."""
    env = box_env()
    actor = TensorDictModule(Constant(output), ["observation"], ["action"])
    data = collect(env, actor, 4_000).reshape(-1)
    data["next", "reward"] *= 0
    critic = ValueOperator(ActionItself(), ["observation", "action"])
    loss = TD3Loss(actor, critic, action_spec=env.action_spec)
    loss.make_value_estimator(gamma=1.0)
    return loss(data)["target_value"]


def td3_cells():
    yield "target_noise", round(float(target_actions(0.0).std()), 1)
    beyond = float(target_actions(20.0).max()) > HIGH + 1e-4
    yield "target_action_clipped", "no" if beyond else "yes"
    yield "critic_gradient", per_error(td3_slope)


# === DQN
def dqn(reward=1.0, q=(-3.5, -3.5), target=(0.0, 0.0), gamma=0.0, **settings):
    env = GymWrapper(Ladder(reward=reward), categorical_action_encoding=True)
    actor = QValueActor(Constant(*q), spec=env.action_spec, action_space="categorical")
    data = collect(env, actor).reshape(-1)
    loss = DQNLoss(actor, action_space="categorical", **settings)
    loss.make_value_estimator(gamma=gamma)
    with torch.no_grad():
        for param in loss.target_value_network_params.values(True, True):
            param.data.copy_(torch.tensor(target))
    return float(only(gradient(loss, loss(data)["loss"]), "value").sum()), data


def dqn_cells():
    grad, data = dqn()
    yield "gradient", grad
    yield "truncated_transition", truncated_transition(data)
    grad, _ = dqn(0.0, (2.0, 1.99), (1.0, 3.0), gamma=1.0)
    yield "double", scripted.double_words(grad)


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
