"""The first update of PPO, ours and Stable-Baselines3's: the same weights from the same rollout?

    python -m benchmark.measure.peers_first_update

Both sides start with the same weights, seed and actions, with Stable-Baselines3's defaults but one
minibatch, whose order does not matter. Ours are run as in benchmark.measure.peers_returns. Prints
the largest difference of a weight after the update, and the largest change that it made.
"""

import contextlib
import importlib.util
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmark import shared
from benchmark.measure.peers_returns import CASES, edited, model_of

STEPS = 2048
# A layer of ours: theirs.
LAYERS = {
    "critic.0": "mlp_extractor.value_net.0",
    "critic.2": "mlp_extractor.value_net.2",
    "critic.4": "value_net",
    "actor.0": "mlp_extractor.policy_net.0",
    "actor.2": "mlp_extractor.policy_net.2",
    "actor.4": "action_net",
}


def theirs(name):
    """Their weights before and after, their actions, and the noise that gave them."""
    model, _ = model_of(name, seed=1, n_epochs=1, batch_size=STEPS)
    policy = model.policy
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    model.learn(STEPS)
    after = {key: value.clone() for key, value in policy.state_dict().items()}
    buffer = model.rollout_buffer
    policy.load_state_dict(before)
    dist = policy.get_distribution(torch.as_tensor(buffer.observations.reshape(STEPS, -1)))
    actions = buffer.actions.reshape(STEPS, 1, -1)
    return before, after, actions, dist.distribution


def renamed(weights):
    """Theirs under our names."""
    found = {}
    for ours, other in LAYERS.items():
        for kind in ("weight", "bias"):
            found[f"{ours}.{kind}"] = weights[f"{other}.{kind}"]
    if "log_std" in weights:
        found["actor_logstd"] = weights["log_std"]
    return found


def module_at(path):
    """A script in any folder, as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def noise_for(actions, dist):
    """What makes our policy take these actions: (name of numpy's function, its result)."""
    if hasattr(dist, "logits"):
        noise = np.zeros((STEPS, 1, dist.logits.shape[-1]))
        np.put_along_axis(noise, actions.astype(int), 1e3, axis=-1)
        return "gumbel", noise
    means = dist.mean.detach().numpy()
    stds = dist.stddev.detach().numpy()
    return "standard_normal", (actions - means[:, None]) / stds[:, None]


def ours(name, before, noise):
    """Our weights after the update."""
    script, env_id, *_ = CASES[name]
    kind, values = noise
    agents = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{script}.py"
        path.write_text(edited(script))
        module = module_at(path)

        class Agent(module.Agent):
            def __init__(self, *args):
                super().__init__(*args)
                self.load_state_dict(renamed(before), strict=False)
                agents.append(self)

        args = module.Args(
            env_id=env_id,
            seed=1,
            cuda=False,
            compile=False,
            runs_dir=folder,
            eval_episodes=1,
            total_timesteps=STEPS,
            num_envs=1,
            num_steps=STEPS,
            num_minibatches=1,
            update_epochs=1,
            learning_rate=3e-4,
            anneal_lr=False,
            ent_coef=0.0,
            vf_coef=1.0,
            clip_vloss=False,
        )
        with (
            mock.patch.object(module, "Agent", Agent),
            mock.patch.object(np.random, kind, lambda *_, **__: values),
            contextlib.redirect_stdout(None),
        ):
            module.main(args)
    return agents[0].state_dict()


def compare(name):
    """(largest difference of a weight after the update, largest change by the update)."""
    before, after, actions, dist = theirs(name)
    found = ours(name, before, noise_for(actions, dist))
    start = renamed(before)
    differences = []
    changes = []
    for key, value in renamed(after).items():
        differences.append(float((value - found[key]).abs().max()))
        changes.append(float((value - start[key]).abs().max()))
    return max(differences), max(changes)


def main():
    shared.parser(__doc__).parse_args()
    for name in ("ppo_cartpole", "ppo_pendulum"):
        difference, change = compare(name)
        print(f"{name}: differs by {difference:.1e}, changed by {change:.1e}")


if __name__ == "__main__":
    main()
