"""The first update of PPO and SAC, ours and Stable-Baselines3's: the same weights?

    python -m benchmark.measure.peers_first_update

Both sides start with the same weights and defaults of Stable-Baselines3: PPO with the same seed and
actions, and one minibatch, whose order does not matter; SAC with the same minibatch and noise. Ours
are run as in benchmark.measure.peers_returns. Prints the largest difference of a weight after the
update, and the largest change that it made; for SAC also the largest difference of a gradient, as
a part of the largest one of its network. SAC comes twice: with the page's edit, and with the two
lines of like_sb3/sac_exact.diff on top.
"""

import contextlib
import importlib.util
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmark import shared
from benchmark.measure.peers_returns import CASES, EDITS, changed, edited, model_of

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


# === SAC
FIRST = 101  # the step after which theirs train for the first time
BATCH = 256
# A network of ours: the layers of theirs, several where ours has their outputs in one.
SAC_LAYERS = {
    "actor.fc1": ["actor.latent_pi.0"],
    "actor.fc2": ["actor.latent_pi.2"],
    "actor.fc3": ["actor.mu", "actor.log_std"],
}
for number in (1, 2):
    for part in ("", "_target"):
        for place in range(3):
            other = f"critic{part}.qf{number - 1}.{2 * place}"
            SAC_LAYERS[f"qf{number}{part}.fc{place + 1}"] = [other]


def sac_renamed(weights):
    """Theirs, or their gradients, under our names."""
    found = {}
    for ours, others in SAC_LAYERS.items():
        for kind in ("weight", "bias"):
            parts = [weights[f"{other}.{kind}"] for other in others if f"{other}.{kind}" in weights]
            if parts:
                found[f"{ours}.{kind}"] = torch.cat(parts)
    found["log_alpha"] = weights["log_alpha"].reshape(())
    return found


def state_of(model):
    weights = {key: value.clone() for key, value in model.policy.state_dict().items()}
    return {**weights, "log_alpha": model.log_ent_coef.detach().clone()}


def sac_theirs(noises):
    """Their weights before and after the first update, its gradients and its minibatch.

    noises: those of the actor's actions and of the next ones, in this order.
    """
    model, _ = model_of("sac_pendulum", seed=1)
    train = model.train
    sample = model.replay_buffer.sample
    found = {"grads": {}}
    waiting = list(noises)

    def rsample(dist, sample_shape=()):
        return dist.mean + dist.stddev * waiting.pop(0)

    def watched_sample(*args, **kwargs):
        found["batch"] = sample(*args, **kwargs)
        return found["batch"]

    def watched_train(*args, **kwargs):
        found["before"] = state_of(model)
        with mock.patch.object(torch.distributions.Normal, "rsample", rsample):
            train(*args, **kwargs)
        found["after"] = state_of(model)

    def keep_gradients(names, step):
        def watched_step(*args, **kwargs):
            found["grads"].update({name: param.grad.clone() for name, param in names.items()})
            return step(*args, **kwargs)

        return watched_step

    for part in ("actor", "critic"):
        network = getattr(model, part)
        names = {f"{part}.{name}": param for name, param in network.named_parameters()}
        network.optimizer.step = keep_gradients(names, network.optimizer.step)
    alpha = model.ent_coef_optimizer
    alpha.step = keep_gradients({"log_alpha": model.log_ent_coef}, alpha.step)
    model.replay_buffer.sample = watched_sample
    model.train = watched_train
    model.learn(FIRST)
    return found


def rows_of(batch, scale):
    """A minibatch of theirs as rows of our replay buffer, whose actions have the bounds' scale."""
    actions = batch.actions * scale
    parts = [batch.observations, actions, batch.rewards, batch.next_observations, batch.dones]
    return torch.cat([part.float() for part in parts], dim=1)


def sac_ours(theirs, noises, exact):
    """Our weights after the update, and its gradients."""
    text = edited("sac")
    if exact:
        text = changed(text, (EDITS / "sac_exact.diff").read_text())
    agents = []
    grads = {}
    noises = [noise.clone() for noise in noises]
    randn = torch.randn
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sac.py"
        path.write_text(text)
        module = module_at(path)
        adam_update = module.Adam.update

        class Agent(module.Agent):
            def __init__(self, *args):
                super().__init__(*args)
                self.load_state_dict(sac_renamed(theirs["before"]), strict=False)
                agents.append(self)

        def update(adam, found, learning_rate):
            names = {id(param): name for name, param in agents[0].named_parameters()}
            keys = [names[id(param)] for param in adam.params]
            grads.update(zip(keys, found, strict=True))
            return adam_update(adam, found, learning_rate)

        def sample(replay, batch_size):
            return rows_of(theirs["batch"], agents[0].action_scale)

        def drawn(shape, **kwargs):
            return noises.pop() if tuple(shape) == (BATCH, 1) else randn(shape, **kwargs)

        args = module.Args(
            env_id="Pendulum-v1",
            seed=1,
            cuda=False,
            compile=False,
            runs_dir=folder,
            eval_episodes=1,
            save_every=0,
            total_timesteps=10,
            learning_starts=8,
            buffer_size=1000,
            q_lr=3e-4,
            policy_frequency=1,
        )
        with (
            mock.patch.object(module, "Agent", Agent),
            mock.patch.object(module.Adam, "update", update),
            mock.patch.object(module.ReplayBuffer, "sample", sample),
            mock.patch.object(torch, "randn", drawn),
            contextlib.redirect_stdout(None),
        ):
            module.main(args)
    return agents[0].state_dict(), grads


def compare_sac(exact):
    """(largest difference of a weight, largest change, {network: difference of its gradients})."""
    generator = torch.Generator().manual_seed(1)
    noises = [torch.randn((BATCH, 1), generator=generator) for _ in range(2)]
    theirs = sac_theirs(noises)
    weights, grads = sac_ours(theirs, noises, exact)
    before = sac_renamed(theirs["before"])
    differences = []
    changes = []
    for key, value in sac_renamed(theirs["after"]).items():
        differences.append(float((value - weights[key]).abs().max()))
        changes.append(float((value - before[key]).abs().max()))
    networks = {}
    expected = sac_renamed(theirs["grads"])
    for part in ("qf1", "qf2", "actor", "log_alpha"):
        keys = [key for key in expected if key.startswith(part)]
        found = torch.cat([grads[key].flatten() for key in keys])
        other = torch.cat([expected[key].flatten() for key in keys])
        # the tables' "d loss / d Q"
        factor = 2 if part.startswith("qf") and not exact else 1
        networks[part] = float((found - factor * other).abs().max() / found.abs().max())
    return max(differences), max(changes), networks


def main():
    shared.parser(__doc__).parse_args()
    for name in ("ppo_cartpole", "ppo_pendulum"):
        difference, change = compare(name)
        print(f"{name}: differs by {difference:.1e}, changed by {change:.1e}")
    for name, exact in (("sac_pendulum", False), ("sac_pendulum, exact", True)):
        difference, change, networks = compare_sac(exact)
        print(f"{name}: differs by {difference:.1e}, changed by {change:.1e}")
        for part, of_part in networks.items():
            print(f"{name}, gradient of {part}: differs by {of_part:.1e} of its largest")


if __name__ == "__main__":
    main()
