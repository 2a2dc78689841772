"""What rsl_rl computes: iterations of its runner, in an environment of its interface.

python -m benchmark.measure.probes.rsl_rl
"""

import contextlib
import copy
import inspect
import math
from importlib import metadata

import gymnasium
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict
from torch import nn

from benchmark.measure.probes import scripted
from benchmark.measure.probes.scripted import Ladder

VERSIONS = {
    "rsl-rl-lib": metadata.version("rsl-rl-lib"),
    "torch": torch.__version__,
    "gymnasium": gymnasium.__version__,
}
CONFIG = {
    "num_steps_per_env": scripted.ROLLOUT,
    "save_interval": 1000,
    "obs_groups": {"actor": ["ladder"], "critic": ["ladder"]},
    "actor": {
        "class_name": "MLPModel",
        "hidden_dims": [8],
        "distribution_cfg": {"class_name": "GaussianDistribution"},
    },
    "critic": {"class_name": "MLPModel", "hidden_dims": [8]},
}


class Vector(VecEnv):
    """One Ladder, reset in the step that ends an episode, with or without `time_outs`."""

    def __init__(self, reward=1.0, time_outs=True):
        self.env = Ladder("box", reward=reward)
        self.time_outs = time_outs
        self.num_envs = 1
        self.num_actions = 1
        self.max_episode_length = scripted.EPISODE
        self.episode_length_buf = torch.zeros(1)
        self.device = "cpu"
        self.cfg = {}
        self.obs, _ = self.env.reset()

    def get_observations(self):
        return TensorDict({"ladder": torch.as_tensor(self.obs)[None]}, batch_size=1)

    def step(self, actions):
        self.obs, reward, _, truncated, _ = self.env.step(actions[0].numpy())
        if truncated:
            self.obs, _ = self.env.reset()
        ended = torch.tensor([truncated])
        extras = {"time_outs": ended} if self.time_outs else {}
        return self.get_observations(), torch.tensor([float(reward)]), ended, extras


def linear(weight, bias):
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[weight, 0.0]]))
        layer.bias.fill_(bias)
    return layer


class Run:
    """A runner after some iterations, its gradients, and the samples of its minibatches."""

    def __init__(self, iterations=1, shift=0.0, mean=0.0, std=1.0, replace=True, env=(), **flags):
        self.env = Vector(**dict(env))
        config = copy.deepcopy(CONFIG)
        config["actor"]["distribution_cfg"]["init_std"] = std
        config["algorithm"] = {
            "class_name": "PPO",
            "num_mini_batches": 1,
            "num_learning_epochs": 1,
            "gamma": scripted.GAMMA,
            "lam": scripted.LAMBDA,
            "max_grad_norm": 1e9,
            **flags,
        }
        with contextlib.redirect_stdout(None):
            runner = OnPolicyRunner(self.env, config)
            self.alg = runner.alg
            if replace:
                self.alg.critic.mlp = linear(1.0, 10.0)
                self.alg.actor.mlp = linear(0.0, mean)
            self.watch(shift)
            runner.learn(iterations)

    def watch(self, shift):
        alg = self.alg
        self.grads = []
        self.samples = []
        step = alg.optimizer.step
        generator = alg.storage.mini_batch_generator

        def watched_step(*args, **kwargs):
            parts = {"actor": alg.actor, "critic": alg.critic}
            self.grads.append({name: gradients(part) for name, part in parts.items()})
            return step(*args, **kwargs)

        def watched_generator(*args, **kwargs):
            storage = alg.storage
            self.errors = (storage.returns - storage.values).flatten().clone()
            self.actions = storage.actions.flatten().clone()
            if shift:
                with torch.no_grad():
                    alg.critic.mlp.bias.add_(shift)
            for batch in generator(*args, **kwargs):
                self.samples.append(batch.observations["ladder"][:, 1].int().tolist())
                yield batch

        alg.optimizer.step = watched_step
        alg.storage.mini_batch_generator = watched_generator

    def gradient(self, part):
        """Of the bias of the last layer, in the first update."""
        return float(self.grads[0][part]["mlp.bias"])

    def last_advantage(self):
        return float(self.errors[scripted.EPISODE - 1])


def gradients(part):
    named = part.named_parameters()
    return {name: param.grad.clone() for name, param in named if param.grad is not None}


def norm(grads):
    return float(torch.cat([grad.flatten() for grad in grads.values()]).norm())


def default(name):
    return inspect.signature(PPO.__init__).parameters[name].default


def clipping(**flags):
    found = []
    for reward in (-9.0, 12.0):
        run = Run(shift=1.0, env={"reward": reward}, **flags)
        found.append(run.gradient("critic"))
    return scripted.clipping_words(*found)


def normalisation(**flags):
    run = Run(num_mini_batches=2, **flags)
    grad = run.gradient("actor")
    return scripted.normalisation_of_scores(grad, run.errors, run.actions, run.samples[0])


def grad_norm():
    """With a gradient that is larger than any limit."""
    run = Run(env={"reward": 9_000.0}, max_grad_norm=default("max_grad_norm"))
    actor, critic = (norm(run.grads[0][part]) for part in ("actor", "critic"))
    apart = scripted.near(actor, critic)
    return f"{critic:g}, actor and critic apart" if apart else math.hypot(actor, critic)


def kl():
    """A limit that each update exceeds."""
    flags = {"num_mini_batches": 4, "num_learning_epochs": 5}
    run = Run(replace=False, desired_kl=1e-9, learning_rate=5e-3, **flags)
    lower = run.alg.learning_rate < 5e-3
    return f"{len(run.grads)}; lowers the learning rate" if lower else len(run.grads)


def log_std():
    found = []
    distribution = Run().alg.actor.distribution
    for log_std in (-30.0, 1.0, 30.0):
        nn.init.constant_(distribution.std_param, math.exp(log_std))
        distribution.update(torch.zeros(1, 1))
        found.append(round(float(distribution.std.log().detach()), 2))
    return scripted.log_std_words(*found, size=30)


def ppo_cells():
    run = Run()
    last = run.last_advantage()
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    yield "truncated_advantage_silent", Run(env={"time_outs": False}).last_advantage()
    yield "value_gradient", run.gradient("critic") / -float(run.errors.mean())
    yield "value_clipping", clipping()
    over, std = normalisation()
    yield "advantages_over", over
    yield "advantages_std", std
    over, _ = normalisation(normalize_advantage_per_mini_batch=True)
    yield "advantages_over_given", over
    yield "kl_updates", kl()
    samples = Run(num_mini_batches=2, num_learning_epochs=3).samples
    epochs = [first + second for first, second in zip(samples[::2], samples[1::2], strict=True)]
    yield "later_epochs", scripted.minibatch_words(epochs)
    yield "uneven_minibatches", ", ".join(map(str, map(len, Run(num_mini_batches=3).samples)))
    received = [Run(mean=mean, std=1e-4).env.env.received[0] for mean in (10.0, 0.5)]
    yield "box_action", scripted.action_words(*received)
    yield "log_std", log_std()
    yield "ent_coef_box", default("entropy_coef")
    yield "max_grad_norm", grad_norm()
    yield "adam_eps", run.alg.optimizer.defaults["eps"]


def main():
    torch.manual_seed(1)
    cells = {f"PPO {name}": cell for name, cell in ppo_cells()}
    scripted.show(VERSIONS, cells)


if __name__ == "__main__":
    main()
