"""What the scripts of cleanrl_lite compute, measured in runs of their own `main`.

python -m benchmark.measure.probes.ours
"""

import contextlib
import functools
import importlib
import inspect
import math
import tempfile
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import nn

from benchmark.measure.probes import scripted

BOX = '{"actions": "box"}'
VERSIONS = {"torch": torch.__version__, "gymnasium": gymnasium.__version__}


class Seen:
    """What a run has shown."""

    def __init__(self):
        self.agent = None
        self.env = None
        self.grads = []  # of each optimizer step: {parameter's name: gradient}
        self.first_moments = []  # Adam's, after each step
        self.learning_rates = []
        self.orders = []  # permutations
        self.advantages = []
        self.order = ""  # C critic, A actor, T targets
        self.stored = []


class Constant(nn.Module):
    """A network whose output is a bias alone; of any input."""

    def __init__(self, outputs, bias=0.0):
        super().__init__()
        self.bias = nn.Parameter(torch.full((outputs,), float(bias)))

    def forward(self, x):
        return self.bias.expand(len(x), -1) + 0 * x.sum()


def ladder_critic(inputs):
    """V = 10 + the step in the episode."""
    layer = nn.Linear(inputs, 1)
    nn.init.zeros_(layer.weight)
    with torch.no_grad():
        layer.weight[0, 0] = 1
    nn.init.constant_(layer.bias, 10)
    return nn.Sequential(layer)


@contextlib.contextmanager
def watched(module, seen, change):
    """Patches a script so that `seen` gets what it computes; `change` edits its agent."""
    agent_class = module.Agent
    adam_update = module.Adam.update

    class Agent(agent_class):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            change(self)
            seen.agent = self

    def update(self, grads, learning_rate, *args, **kwargs):
        names = {id(param): name for name, param in seen.agent.named_parameters()}
        found = [names[id(param)] for param in self.params]
        copies = [grad.detach().clone() for grad in grads]
        seen.grads.append(dict(zip(found, copies, strict=True)))
        seen.learning_rates.append(float(learning_rate))
        critic = any(name.startswith("qf1") for name in found)
        seen.order += "C" if critic else "A" if any("actor" in name for name in found) else ""
        norm = adam_update(self, grads, learning_rate, *args, **kwargs)
        seen.first_moments.append(self.exp_avg.clone())
        return norm

    permutation = np.random.permutation

    def permuted(size):
        order = permutation(size)
        seen.orders.append(order.tolist())
        return order

    make_env = module.make_env

    def make(args, render_mode=None):
        env = make_env(args, render_mode)
        seen.env = seen.env or env.unwrapped
        return env

    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(module, "Agent", Agent))
        enter(mock.patch.object(module.Adam, "update", update))
        enter(mock.patch.object(np.random, "permutation", permuted))
        enter(mock.patch.object(module, "make_env", make))
        yield stack.enter_context


def run(script, change=lambda agent: None, patches=(), kwargs="{}", **flags):
    """Runs a script on the ladder; what it has shown."""
    module = importlib.import_module(f"cleanrl_lite.{script}")
    seen = Seen()
    with tempfile.TemporaryDirectory() as folder, watched(module, seen, change) as enter:
        for patch in patches:
            enter(patch(module, seen))
        args = module.Args(
            env_id="Ladder-v0",
            env_kwargs=kwargs,
            cuda=False,
            compile=False,
            runs_dir=folder,
            save_every=0,
            eval_episodes=1,
            **flags,
        )
        with contextlib.redirect_stdout(None):
            module.main(args)
    return seen


def defaults(script):
    module = importlib.import_module(f"cleanrl_lite.{script}")
    return module.Args()


def adams_eps(script):
    adam = importlib.import_module(f"cleanrl_lite.{script}").Adam
    return inspect.signature(adam.update).parameters["eps"].default


# === PPO
def ppo_agent(agent):
    agent.critic = ladder_critic(2)
    for layer in agent.actor[::2]:
        nn.init.zeros_(layer.weight)


def watch_gae(module, seen, shift=0.0):
    """Keeps the advantages; moves the critic by `shift` after the values are stored."""
    compute_gae = module.compute_gae

    def watched_gae(*args):
        advantages = compute_gae(*args)
        seen.advantages.append(advantages.flatten())
        with torch.no_grad():
            seen.agent.critic[0].bias.add_(shift)
        return advantages

    return mock.patch.object(module, "compute_gae", watched_gae)


def run_ppo(patches=(watch_gae,), reward=1.0, **flags):
    settings = {
        "num_envs": 1,
        "num_steps": scripted.ROLLOUT,
        "num_minibatches": 1,
        "update_epochs": 1,
        "gamma": scripted.GAMMA,
        "gae_lambda": scripted.LAMBDA,
        "total_timesteps": scripted.ROLLOUT,
        **flags,
    }
    kwargs = f'{{"reward": {reward}}}'
    return run("ppo", ppo_agent, patches, kwargs, **settings)


def value_gradient(shift, reward):
    """d loss / d V with the default flags, for values moved by `shift`."""
    seen = run_ppo([functools.partial(watch_gae, shift=shift)], reward, norm_adv=False)
    return seen, float(seen.grads[0]["critic.0.bias"])


def ppo_cells():
    flags = defaults("ppo")
    torch.manual_seed(1)
    seen, grad = value_gradient(0.0, 1.0)
    advantages = seen.advantages[0]
    last = advantages[scripted.EPISODE - 1]
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    yield "value_gradient", grad / -advantages.mean()
    _, away = value_gradient(1.0, -9.0)
    _, towards = value_gradient(1.0, 12.0)
    yield "value_clipping", scripted.clipping_words(away, towards)
    yield from advantage_cells()
    kl = run_ppo(num_minibatches=4, update_epochs=5, learning_rate=0.5, target_kl=1e-4)
    yield "kl_updates", len(kl.grads)
    yield "adam_eps", adams_eps("ppo")
    yield "max_grad_norm", flags.max_grad_norm
    yield "ent_coef", flags.ent_coef
    yield "ent_coef_box", defaults("ppo_continuous").ent_coef
    yield "uneven_minibatches", uneven()
    five = run_ppo(total_timesteps=5 * scripted.ROLLOUT)
    yield "last_learning_rate", five.learning_rates[-1] / flags.learning_rate
    yield "box_action", box_action()
    yield "return_scale", return_scale()
    yield "log_std", box_log_std()


def advantage_cells(**flags):
    """Over what, and with which deviation, advantages are normalised."""
    actions = []

    def watch_actions(module, seen):
        check_actions = module.utils.check_actions

        def watched_check(taken, expected):
            actions.extend(taken.tolist())
            return check_actions(taken, expected)

        return mock.patch.object(module.utils, "check_actions", watched_check)

    seen = run_ppo([watch_gae, watch_actions], num_minibatches=2, update_epochs=4, **flags)
    order = seen.orders[0][: scripted.ROLLOUT // 2]
    grad = float(seen.grads[0]["actor.4.bias"][0])
    over, std = scripted.normalisation(grad, seen.advantages[0], actions, order)
    yield "advantages_over", over
    yield "advantages_std", std
    yield "later_epochs", scripted.minibatch_words(seen.orders)


def uneven():
    """Eight samples in minibatches of three."""
    try:
        run_ppo(num_minibatches=3)
    except SystemExit:
        return "refused"
    return "accepted"


def box_action():
    received = []
    for mean in (10.0, 0.5):

        def change(agent, mean=mean):
            nn.init.zeros_(agent.actor[-1].weight)
            nn.init.constant_(agent.actor[-1].bias, mean)
            nn.init.constant_(agent.actor_logstd, -10)

        seen = run(
            "ppo_continuous",
            change,
            kwargs=BOX,
            num_steps=8,
            num_minibatches=1,
            total_timesteps=8,
        )
        received.append(seen.env.received[0])
    return scripted.action_words(*received)


def box_log_std():
    module = importlib.import_module("cleanrl_lite.ppo_continuous")
    agent = module.Agent(2, 1)
    found = []
    for log_std in (-30, 1, 30):
        nn.init.constant_(agent.actor_logstd, log_std)
        dist, _ = agent(torch.zeros(1, 2))
        found.append(float(dist.stddev.log().detach()))
    return scripted.log_std_words(*found, size=30)


def return_scale():
    """Whether the discounted return that scales rewards restarts at a truncation."""
    found = []

    def watch(module, seen):
        recurrence = module.linear_recurrence

        def watched_recurrence(*args):
            found.append(recurrence(*args))
            return found[-1]

        return mock.patch.object(module, "linear_recurrence", watched_recurrence)

    flags = {"num_steps": 8, "num_minibatches": 1, "total_timesteps": 8, "gamma": scripted.GAMMA}
    run("ppo_continuous", patches=[watch], kwargs=BOX, **flags)
    after = found[0][scripted.EPISODE, 0]
    return "restarts" if scripted.near(after, 1) else "goes on"


# === SAC, TD3
def constant_critics(agent):
    agent.qf1 = Constant(1, 5.5)
    agent.qf2 = Constant(1, 5.5)
    agent.qf1_target = Constant(1).requires_grad_(False)
    agent.qf2_target = Constant(1).requires_grad_(False)


def watch_replay(module, seen):
    add = module.ReplayBuffer.add

    def watched_add(self, *parts):
        seen.stored.append([np.array(part) for part in parts])
        return add(self, *parts)

    return mock.patch.object(module.ReplayBuffer, "add", watched_add)


def watch_targets(module, seen):
    update_target = module.update_target

    def watched_update(target, network, tau):
        seen.order += "T"
        return update_target(target, network, tau)

    return mock.patch.object(module, "update_target", watched_update)


def run_off_policy(script, change, patches=(), **flags):
    settings = {
        "buffer_size": 2_000,
        "learning_starts": 8,
        "total_timesteps": 13,
        "gamma": 0.0,
        **flags,
    }
    if script != "dqn":
        settings["kwargs"] = BOX
    return run(script, change, [watch_replay, *patches], **settings)


def truncated_transition(seen):
    _, _, _, next_obs, terminated = seen.stored[scripted.EPISODE - 1]
    return scripted.stored_words(next_obs[0, 0], bool(terminated[0]))


def order_of(text):
    """Without repeated letters of several networks."""
    kept = ""
    for letter in text:
        if not kept.endswith(letter) or letter != "T":
            kept += letter
    return " ".join(kept)


def sac_policy(low, high, mean, log_std):
    """The log-probability of the mean, from an agent with such a policy."""
    module = importlib.import_module("cleanrl_lite.sac")
    agent = module.Agent(2, Box(low, high, (1,), np.float32))
    agent.actor = Constant(2)
    with torch.no_grad():
        agent.actor.bias.copy_(torch.tensor([mean, log_std]))
        _, log_prob = agent.policy(torch.zeros(1, 2), torch.zeros(1, 1))
    return float(log_prob)


def sac_cells():
    flags = defaults("sac")
    at_0 = sac_policy(-1.0, 1.0, 0.0, 0.0)

    def log_std(output):
        return -(sac_policy(-1.0, 1.0, 0.0, output) + math.log(2 * math.pi) / 2)

    def change(agent):
        constant_critics(agent)
        agent.actor = Constant(2)
        nn.init.constant_(agent.log_alpha, math.log(0.5))

    log_probs = []

    def watch_policy(module, seen):
        policy = module.Agent.policy

        def watched_policy(self, obs, noise):
            found = policy(self, obs, noise)
            if torch.is_grad_enabled():
                log_probs.append(found[1].mean().item())
            return found

        return mock.patch.object(module.Agent, "policy", watched_policy)

    seen = run_off_policy("sac", change, [watch_policy, watch_targets])
    yield "critic_gradient", float(seen.grads[0]["qf1.bias"]) / 4.5
    (first,) = [grads["log_alpha"] for grads in seen.grads if "log_alpha" in grads][:1]
    per_entropy = float(first) / (-log_probs[0] + 1)
    yield "alpha_gradient", scripted.named(per_entropy, {"alpha": 0.5, "1": 1.0})
    yield "tanh_slope", sac_policy(-1.0, 1.0, 10.0, 0.0) - at_0
    scale = sac_policy(-4.0, 4.0, 0.0, 0.0) - at_0
    yield "log_prob_scale", scripted.named(scale, {"yes": -math.log(4), "no": 0.0})
    yield "log_std", scripted.log_std_words(log_std(-100), log_std(1), log_std(100))
    module = importlib.import_module("cleanrl_lite.sac")
    agent = module.Agent(2, Box(-1, 1, (1,), np.float32))
    yield "initial_alpha", float(agent.log_alpha.exp().detach())
    yield "order", order_of(seen.order)
    yield "truncated_transition", truncated_transition(seen)
    yield "random_steps", flags.learning_starts


def td3_cells():
    flags = defaults("td3")
    targets = {}
    for bias in (0.0, 20.0):
        found = []

        def change(agent, bias=bias):
            constant_critics(agent)
            agent.actor = Constant(1)
            agent.target_actor = Constant(1, bias).requires_grad_(False)

        def watch_value(module, seen, found=found):
            critic_value = module.Agent.value

            def watched_value(self, critic, obs, actions):
                if critic is self.qf1_target:
                    found.append(actions.clone())
                return critic_value(self, critic, obs, actions)

            return mock.patch.object(module.Agent, "value", watched_value)

        patches = [watch_value, watch_targets]
        seen = run_off_policy("td3", change, patches, batch_size=2_000, exploration_noise=0.0)
        targets[bias] = found[0]
    yield "target_noise", round(float(targets[0.0].std()), 1)
    beyond = float(targets[20.0].max()) > scripted.HIGH + 1e-4
    yield "target_action_clipped", "no" if beyond else "yes"
    yield "exploration_noise", flags.exploration_noise
    yield "order", order_of(seen.order)
    yield "critic_gradient", float(seen.grads[0]["qf1.bias"]) / 4.5
    yield "truncated_transition", truncated_transition(seen)


# === DQN
def dqn_cells():
    flags = defaults("dqn")

    def change(agent):
        agent.q_network = Constant(2)
        agent.target_network = Constant(2).requires_grad_(False)
        with torch.no_grad():
            agent.q_network.bias.copy_(torch.tensor([-3.5, -3.5]))

    patches = [watch_targets]
    seen = run_off_policy("dqn", change, patches, train_frequency=1, batch_size=8)
    yield "gradient", float(seen.grads[0]["q_network.bias"].sum())
    yield "truncated_transition", truncated_transition(seen)

    def disagree(agent):
        agent.q_network = Constant(2)
        agent.target_network = Constant(2).requires_grad_(False)
        with torch.no_grad():
            agent.q_network.bias.copy_(torch.tensor([2.0, 1.99]))
            agent.target_network.bias.copy_(torch.tensor([1.0, 3.0]))

    kwargs = '{"reward": 0.0}'
    seen = run_off_policy("dqn", disagree, kwargs=kwargs, gamma=1.0, train_frequency=1)
    yield "double", scripted.double_words(float(seen.grads[0]["q_network.bias"].sum()))
    yield "epsilon", f"{flags.start_e:g} to {flags.end_e:g}"
    seen = run_off_policy(
        "dqn",
        change,
        patches,
        train_frequency=4,
        batch_size=8,
        target_network_frequency=20,
        total_timesteps=208,
    )
    unit = scripted.target_unit(seen.order.count("T"))
    yield "target", f"each {flags.target_network_frequency:,} {unit}"
    yield "target_step", flags.tau
    yield "max_grad_norm", scripted.clip_words(gradient_limit(change))


def gradient_limit(change):
    """The norm of the gradient after the script has had its way, of one that was 12,728."""
    kwargs = '{"reward": 9000.0}'
    seen = run_off_policy("dqn", change, kwargs=kwargs, train_frequency=1, batch_size=64)
    moments = seen.first_moments[0] / 0.1
    return float(moments.norm())


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
