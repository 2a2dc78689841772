"""Beside a small run, a second agent that learns as the definitions say: is each step of main the
optimizer's step on the loss, do the targets follow their own networks, does all else stay?

What a loss is given goes to the function of the script, for both agents; whether that function is
right is tested by calling it.
"""

import copy

import torch
from torch import nn

from tests import helpers, probe_envs
from tests.probe_envs import probe

CRITICS = (0, "qf1 qf2", "q_lr")
SOFT = {
    "critic_loss": [CRITICS],
    "actor_loss": [(0, "actor", "policy_lr"), (1, "log_alpha", "q_lr")],
}
TWINS = {
    "critic_loss": [(0, "qf1 qf2", "learning_rate")],
    "actor_loss": [(0, "actor", "learning_rate")],
}
ALL = [(0, "", "learning_rate")]
VALUES = [(0, "q_network", "learning_rate")]
# {loss: [(which of its results, the networks that learn from it, the flag with the rate)]}
PLANS = {
    "dqn": {"td_loss": VALUES},
    "c51": {"c51_loss": VALUES},
    "rainbow": {"rainbow_loss": VALUES},
    "ddpg": {**TWINS, "critic_loss": [(0, "qf1", "learning_rate")]},
    "td3": TWINS,
    "fast_td3": TWINS,
    "fast_td3_mjx": TWINS,
    "sac": SOFT,
    "crossq": SOFT,
    "tqc": {**SOFT, "critic_loss": [(0, "qfs", "q_lr")]},
    "sac_discrete": {"sac_loss": [CRITICS, (1, "actor", "policy_lr"), (2, "log_alpha", "q_lr")]},
    "pqn": {"q_lambda_loss": ALL},
    "vpg": {"policy_gradient_loss": ALL},
    "a2c": {"policy_gradient_loss": ALL},
    "a2c_continuous": {"policy_gradient_loss": ALL},
}
ROLLOUT_PLAN = {"ppo_loss": ALL}


def optimizer(script, args, params, names):
    if script.startswith("a2c"):
        return torch.optim.RMSprop(params, lr=1.0, alpha=0.99, eps=1e-5)
    if script == "pqn":
        return torch.optim.RAdam(params)
    eps = 1e-8
    if script in ("c51", "rainbow"):
        eps = 0.01 / args.batch_size
    if script in helpers.ROLLOUT_SCRIPTS:
        eps = 1e-5
    betas = 0.9, 0.999
    if script == "crossq" and names != "log_alpha":
        betas = 0.5, 0.999
    return torch.optim.Adam(params, eps=eps, betas=betas)


def parameters(agent, names):
    """Those of networks, or a parameter, by their names; of the whole agent without names."""
    found = []
    for name in names.split() or [""]:
        part = getattr(agent, name) if name else agent
        found += [part] if isinstance(part, nn.Parameter) else part.parameters()
    return found


class Shadow:
    """events: (environment steps so far, a loss or "network -> target", tau).

    calls: (loss, what it was given besides args and agent); metrics: what it returned.
    """

    def __init__(self, monkeypatch, script):
        self.script, self.module = script, helpers.module(script)
        self.plan = PLANS.get(script, ROLLOUT_PLAN)
        self.events, self.calls, self.metrics = [], [], []
        self.reference = self.expected = None
        self.optimizers = {}
        self.agents = helpers.spy_on_agents(monkeypatch, script)
        for name in self.plan:
            monkeypatch.setattr(self.module, name, self.spied(name))
        if hasattr(self.module, "update_target"):
            self.update_target = self.module.update_target
            monkeypatch.setattr(self.module, "update_target", self.follow)

    def train(self, runs_dir, offset=0, **flags):
        """A small run with these flags, from this step on; returns its directory."""
        flags = {"env_id": probe("Logged", self.script), **flags}
        self.args = helpers.small_args(self.script, runs_dir, **flags)
        self.offset = offset
        probe_envs.TRANSITIONS.clear()
        run_dir = helpers.main(self.script, self.args)["dir"]
        self.check(helpers.load(run_dir)["agent"])
        return run_dir

    @property
    def agent(self):
        return self.agents[-1]

    @property
    def step(self):
        return self.offset + len(probe_envs.TRANSITIONS)

    def rate(self, flag):
        rate = getattr(self.args, flag)
        if getattr(self.args, "anneal_lr", False):  # by where the rollout began
            began = self.step - self.args.num_envs * self.args.num_steps
            rate *= 1 - began / self.args.total_timesteps
        return rate

    def spied(self, name):
        original = getattr(self.module, name)

        def spy(*inputs):
            self.check(self.agent.state_dict())
            self.learn(name, original, inputs)
            self.events.append((self.step, name, None))
            given = [x for x in inputs if x is not self.agent and x is not self.args]
            self.calls.append((name, copy.deepcopy(given)))
            results = original(*inputs)
            self.metrics.append({tag: float(metric) for tag, metric in results[-1].items()})
            return results

        return spy

    def learn(self, name, loss, inputs):
        """The reference's step; afterwards the agent has to be equal to `expected`."""
        if self.reference is None:
            self.reference = copy.deepcopy(self.agent)
        reference, args = self.reference, self.args
        reference.load_state_dict(self.agent.state_dict())  # errors do not add up
        results = loss(*[reference if x is self.agent else x for x in inputs])
        stepped = {}
        plans = [plan for plan in self.plan[name] if plan[1] != "log_alpha" or args.autotune]
        for which, names, flag in plans:
            params = [p for p in parameters(reference, names) if p.requires_grad]
            grads = torch.autograd.grad(results[which], params, retain_graph=True)
            for param, grad in zip(params, grads, strict=True):
                param.grad = grad
                stepped[id(param)] = self.rate(flag)
        for which, names, flag in plans:
            params = [p for p in parameters(reference, names) if p.requires_grad]
            if hasattr(args, "max_grad_norm"):
                self.norm = nn.utils.clip_grad_norm_(params, args.max_grad_norm)
            if (name, names) not in self.optimizers:
                self.optimizers[name, names] = optimizer(self.script, args, params, names)
            self.optimizers[name, names].param_groups[0]["lr"] = self.rate(flag)
            self.optimizers[name, names].step()
        self.expected = copy.deepcopy(reference.state_dict())
        named = reference.named_parameters()
        # how far the agent may be from the reference: a small part of a step
        self.near = {key: 0.02 * stepped[id(param)] for key, param in named if id(param) in stepped}

    def follow(self, target, network, tau):
        """A target's step; then the script's own."""
        if self.expected is None:  # nothing was learned so far
            self.expected, self.near = copy.deepcopy(self.agent.state_dict()), {}
        names = {id(part): name for name, part in self.agent.named_modules()}
        old, new = names[id(target)], names[id(network)]
        self.events.append((self.step, f"{new} -> {old}", tau))
        for key in [key for key in self.expected if key.startswith(f"{old}.")]:
            source = self.expected[key.replace(old, new, 1)].double()
            part = (1 - tau) * self.expected[key].double() + tau * source
            self.expected[key] = part.to(self.expected[key].dtype)
            self.near[key] = 1e-6 + self.near.get(key.replace(old, new, 1), 0)
        self.update_target(target, network, tau)

    def check(self, state):
        """The agent is what the reference is, within a small part of a step; untouched parts are
        equal to the bit. Statistics of observations and returns have tests of their own."""
        if self.expected is None:
            return
        for key, theirs in self.expected.items():
            if "_stats." in key:
                continue
            error = (state[key].double() - theirs.double()).abs().max().item()
            assert error <= self.near.get(key, 0), f"{key} is off by {error} at step {self.step}"


TARGETS = {
    "sac": ["qf1", "qf2"],
    "sac_discrete": ["qf1", "qf2"],
    "tqc": ["qfs"],
    "ddpg": ["actor", "qf1"],
    "td3": ["actor", "qf1", "qf2"],
    "fast_td3": ["qf1", "qf2"],
    "crossq": [],
}


def expected_events(script, args):
    """What a whole run should do, and when.

    After each step of the environments but the last one, beyond learning_starts: one training for
    each multiple of train_frequency among the environment steps that it was, then one update of the
    target network for each multiple of target_network_frequency. An actor learns at every
    policy_frequency-th gradient step (sac: that often), and its targets move with it (sac, fast_td3:
    with the critics).
    """
    delayed = hasattr(args, "policy_frequency")
    as_often = args.policy_frequency if script in ("sac", "tqc") else 1
    moves = []
    for network in TARGETS.get(script, ["q_network"]):
        target = {"actor": "target_actor", "q_network": "target_network"}
        moves.append((f"{network} -> {target.get(network, f'{network}_target')}", args.tau))
    (first, *_) = PLANS[script]
    events = []
    gradient_steps = 0
    for step in range(args.num_envs, args.total_timesteps, args.num_envs):
        if step <= args.learning_starts:
            continue
        passed = range(step - args.num_envs + 1, step + 1)
        due = sum(number % args.train_frequency == 0 for number in passed)
        for _ in range(args.gradient_steps * due):
            gradient_steps += 1
            events.append((step, first, None))
            if script in ("sac", "tqc", "fast_td3"):
                events += [(step, *move) for move in moves]
            if delayed and gradient_steps % args.policy_frequency == 0:
                events += [(step, "actor_loss", None)] * as_often
                if script in ("ddpg", "td3"):
                    events += [(step, *move) for move in moves]
        if hasattr(args, "target_network_frequency"):
            times = sum(number % args.target_network_frequency == 0 for number in passed)
            events += [(step, *move) for move in moves] * times
    return events
