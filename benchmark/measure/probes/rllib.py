"""What ray's RLlib computes: iterations of its PPO with a module of known values.

python -m benchmark.measure.probes.rllib
"""

import contextlib
import sys
from importlib import metadata
from unittest import mock

import gymnasium
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.learner import general_advantage_estimation
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmark.measure.probes import scripted
from benchmark.measure.probes.scripted import Ladder

VERSIONS = {
    "ray": metadata.version("ray"),
    "torch": torch.__version__,
    "gymnasium": gymnasium.__version__,
}
LADDERS = []


class Ladders(Ladder):
    def __init__(self, config):
        super().__init__(**config)
        LADDERS.append(self)


class Module(TorchRLModule, ValueFunctionAPI):
    """V = 10 + the step in the episode; actions from biases."""

    def setup(self):
        self.value = nn.Parameter(torch.tensor(10.0))
        discrete = hasattr(self.action_space, "n")
        outputs = [0.0, 0.0] if discrete else [self.model_config["mean"], -10.0]
        self.policy = nn.Parameter(torch.tensor(outputs))

    def _forward(self, batch, **kwargs):
        outputs = self.policy.expand(len(batch[Columns.OBS]), -1)
        return {Columns.ACTION_DIST_INPUTS: outputs}

    def compute_values(self, batch, embeddings=None):
        return batch[Columns.OBS][:, 0] + self.value


class Run:
    """An algorithm after some iterations, its gradients, and the samples of its minibatches."""

    def __init__(self, iterations=1, shift=0.0, env=(), mean=0.0, **flags):
        settings = {
            "train_batch_size_per_learner": scripted.ROLLOUT,
            "minibatch_size": None,
            "num_epochs": 1,
            "gamma": scripted.GAMMA,
            "lambda_": scripted.LAMBDA,
            "vf_clip_param": 1e9,
            **flags,
        }
        spec = RLModuleSpec(module_class=Module, model_config={"mean": mean})
        config = PPOConfig().environment(Ladders, env_config=dict(env))
        config = config.env_runners(num_env_runners=0, rollout_fragment_length=scripted.ROLLOUT)
        config = config.rl_module(rl_module_spec=spec).training(**settings)
        config = config.debugging(seed=1)
        self.grads = []
        self.batches = []
        self.errors = None
        LADDERS.clear()
        with contextlib.ExitStack() as stack:
            self.watch(stack, shift)
            algorithm = config.build_algo()
            self.learner = algorithm.learner_group._learner
            for _ in range(iterations):
                algorithm.train()
            self.ladder = LADDERS[0]
            (self.optimizer,) = self.learner._named_optimizers.values()
            self.rate = self.optimizer.param_groups[0]["lr"]
            algorithm.stop()

    def watch(self, stack, shift):
        targets = general_advantage_estimation.compute_value_targets
        loss = PPOTorchLearner.compute_loss_for_module

        def watched_targets(values, **kwargs):
            found = targets(values=values, **kwargs)
            self.errors = found - values
            return found

        def watched_loss(learner, *, batch, **kwargs):
            self.batches.append({name: value.clone() for name, value in batch.items()})
            if shift and len(self.batches) == 1:
                with torch.no_grad():
                    learner.module["default_policy"].value.add_(shift)
            return loss(learner, batch=batch, **kwargs)

        def before_step(optimizer, *_):
            named = self.learner.module["default_policy"].named_parameters()
            self.grads.append({name: param.grad.clone() for name, param in named})

        module = general_advantage_estimation
        stack.enter_context(mock.patch.object(module, "compute_value_targets", watched_targets))
        name = "compute_loss_for_module"
        stack.enter_context(mock.patch.object(PPOTorchLearner, name, watched_loss))
        stack.callback(register_optimizer_step_pre_hook(before_step).remove)

    def gradient(self, name):
        """In the first update."""
        return self.grads[0][name]


def value_gradient(largest):
    """d loss / d V with errors `largest`, and 1, 2 and 3 less, at the default of vf_clip_param."""
    flags = {"gamma": 0.0, "vf_clip_param": PPOConfig().vf_clip_param}
    run = Run(env={"reward": 10.0 + largest}, **flags)
    return float(run.gradient("value"))


def value_words():
    """The gradient per unit of error, and the error at which it ends."""
    errors = np.arange(4)
    slope = -value_gradient(3.1) / (3.1 - errors).mean()
    beyond = -value_gradient(3.2) / (3.2 - errors[1:]).sum() * scripted.EPISODE
    if scripted.near(beyond, slope) and value_gradient(100.0) == 0:
        return f"{slope:g}, none beyond an error of {PPOConfig().vf_clip_param ** 0.5:.3g}"
    return slope


def normalisation():
    """(over what, which deviation), from the advantages that the loss gets."""
    run = Run()
    found = run.batches[0]["advantages"].numpy()
    real = run.batches[0]["loss_mask"].numpy()
    words = {"rollout": run.errors[real], "rollout and a made-up step an episode": run.errors}
    for name, over in words.items():
        for std in ("unbiased", "biased"):
            if np.allclose(scripted.normalised(run.errors, over, std), found, atol=1e-4):
                return name, std, float(found[real].mean())
    return "another", "", float(found[real].mean())


def later_epochs():
    """With the made-up steps, a rollout has ten."""
    run = Run(minibatch_size=5, num_epochs=4)
    samples = np.concatenate([batch["obs"][:, 1].int().tolist() for batch in run.batches])
    epochs = [epoch.tolist() for epoch in samples.reshape(4, -1)]
    words = scripted.minibatch_words(epochs[1:])
    return f"{words}; the first in order" if epochs[0] == sorted(epochs[0]) else words


def uneven():
    """How many of the environment's steps each minibatch has."""
    run = Run(minibatch_size=3)
    return ", ".join(str(int(batch["loss_mask"].sum())) for batch in run.batches)


def kl():
    """A limit that each update exceeds, and one that none does."""
    flags = {"minibatch_size": 5, "num_epochs": 5, "lr": 0.5}
    tiny = Run(kl_target=1e-9, **flags)
    huge = Run(kl_target=1e9, **flags)
    (raised,) = tiny.learner.curr_kl_coeffs_per_module.values()
    stops = len(tiny.grads) < len(huge.grads)
    raises = float(raised) > PPOConfig().kl_coeff
    return "all; raises a penalty" if raises and not stops else len(tiny.grads)


def ppo_cells():
    untouched = PPOConfig()
    run = Run()
    last = float(run.errors[scripted.EPISODE - 1])
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    yield "value_gradient", value_words()
    over, std, mean = normalisation()
    yield "advantages_over", over
    yield "advantages_std", std
    yield "advantages_mean", mean
    yield "kl_updates", kl()
    yield "later_epochs", later_epochs()
    yield "uneven_minibatches", uneven()
    received = []
    for mean in (10.0, 0.5):
        received.append(Run(env={"actions": "box"}, mean=mean).ladder.received[0])
    yield "box_action", scripted.action_words(*received)
    yield "ent_coef", untouched.entropy_coeff
    yield "ent_coef_box", untouched.entropy_coeff
    yield "max_grad_norm", "none" if untouched.grad_clip is None else untouched.grad_clip
    yield "adam_eps", run.optimizer.defaults["eps"]
    yield "last_learning_rate", Run(iterations=5).rate / untouched.lr


def main():
    torch.manual_seed(1)
    cells = {}
    with contextlib.redirect_stdout(sys.stderr):
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
        for name, cell in ppo_cells():
            cells[f"PPO {name}"] = cell
        ray.shutdown()
    scripted.show(VERSIONS, cells)


if __name__ == "__main__":
    main()
