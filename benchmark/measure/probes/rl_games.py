"""What rl_games computes: an epoch of PPO, some steps of SAC, in an environment of its interface.

python -m benchmark.measure.probes.rl_games
"""

import contextlib
import io
import tempfile
from importlib import metadata
from unittest import mock

import gymnasium
import numpy as np
import torch
from rl_games.algos_torch import model_builder
from rl_games.algos_torch.network_builder import NetworkBuilder
from rl_games.common import env_configurations, vecenv
from rl_games.common.ivecenv import IVecEnv
from rl_games.torch_runner import Runner
from torch import nn

from benchmark.measure.probes import scripted
from benchmark.measure.probes.scripted import Ladder

VERSIONS = {
    "rl-games": metadata.version("rl-games"),
    "torch": torch.__version__,
    "gymnasium": gymnasium.__version__,
}


class Vector(IVecEnv):
    """One Ladder, reset in the step that ends an episode, with or without `time_outs`."""

    def __init__(self, config_name, num_actors, seed=0, time_outs=True, **kwargs):
        self.env = Ladder(**kwargs)
        self.time_outs = time_outs

    def get_env_info(self):
        return {
            "observation_space": self.env.observation_space,
            "action_space": self.env.action_space,
        }

    def reset(self):
        obs, _ = self.env.reset()
        return obs[None]

    def step(self, actions):
        obs, reward, _, truncated, _ = self.env.step(actions[0])
        if truncated:
            obs, _ = self.env.reset()
        infos = {"time_outs": np.array([truncated])} if self.time_outs else {}
        return obs[None], np.array([reward], np.float32), np.array([truncated]), infos


class Network(NetworkBuilder.BaseNetwork):
    """V = 10 + the step in the episode; actions from biases."""

    def __init__(self, params, actions_num, **kwargs):
        super().__init__()
        self.continuous = params["continuous"]
        start = params.get("mean", 0.0)
        self.actor = nn.Parameter(torch.full((actions_num,), start))
        self.log_std = nn.Parameter(torch.full((actions_num,), -10.0))
        self.value = nn.Parameter(torch.tensor([10.0]))

    def is_rnn(self):
        return False

    def get_aux_loss(self):
        return None

    def forward(self, input_dict):
        obs = input_dict["obs"]
        value = obs[:, :1] + self.value
        outputs = self.actor.repeat(len(obs), 1)
        if self.continuous:
            return outputs, self.log_std.repeat(len(obs), 1), value, None
        return outputs, value, None


class Builder(NetworkBuilder):
    def load(self, params):
        self.params = params

    def build(self, name, **kwargs):
        return Network(self.params, **kwargs)


vecenv.register("LADDER", Vector)
model_builder.register_network("ladder", Builder)
env_configurations.register("ladder", {"env_creator": Ladder, "vecenv_type": "LADDER"})


class Epoch:
    """An agent after one epoch, its gradients and the samples of its minibatches."""

    def __init__(self, kind="discrete", shift=0.0, network=None, **settings):
        config = {
            "name": "probe",
            "env_name": "ladder",
            "device": "cpu",
            "reward_shaper": {"scale_value": 1.0},
            "normalize_advantage": True,
            "gamma": scripted.GAMMA,
            "tau": scripted.LAMBDA,
            "learning_rate": 1e-3,
            "grad_norm": 1e9,
            "entropy_coef": 0.0,
            "e_clip": 0.2,
            "clip_value": False,
            "num_actors": 1,
            "horizon_length": scripted.ROLLOUT,
            "minibatch_size": scripted.ROLLOUT,
            "mini_epochs": 1,
            "critic_coef": 1,
            "lr_schedule": None,
            "normalize_input": False,
            "env_config": {},
            **settings,
        }
        words = {"name": "ladder", "continuous": kind == "continuous", **(network or {})}
        params = {
            "algo": {"name": f"a2c_{kind}"},
            "model": {"name": f"{kind}_a2c"},
            "network": words,
            "config": config,
        }
        if kind == "continuous":
            params["model"]["name"] = "continuous_a2c_logstd"
            config["env_config"] = {"actions": "box"}
            config["bounds_loss_coef"] = 0.0
        with tempfile.TemporaryDirectory() as folder:
            config["train_dir"] = folder
            self.run(params, shift)

    def run(self, params, shift):
        runner = Runner()
        runner.load({"params": params})
        create = runner.algo_factory.create
        agent = create(runner.algo_name, base_name="run", params=runner.params)
        self.agent = agent
        self.network = agent.model.a2c_network
        self.grads = []
        self.minibatches = []
        step = agent.optimizer.step

        def watched_step(*args, **kwargs):
            named = self.network.named_parameters()
            grads = {name: param.grad for name, param in named if param.grad is not None}
            self.grads.append({name: grad.clone() for name, grad in grads.items()})
            return step(*args, **kwargs)

        prepare = agent.prepare_dataset

        def watched_prepare(batch):
            errors = batch["returns"] - batch["values"]
            self.advantages = errors.flatten().numpy().copy()
            self.actions = batch["actions"].flatten().tolist()
            with torch.no_grad():
                self.network.value.add_(shift)
            return prepare(batch)

        train = agent.train_actor_critic

        def watched_train(batch):
            self.minibatches.append(batch["obs"][:, 1].int().tolist())
            return train(batch)

        patch = mock.patch.object
        with (
            patch(agent.optimizer, "step", watched_step),
            patch(agent, "prepare_dataset", watched_prepare),
            patch(agent, "train_actor_critic", watched_train),
        ):
            agent.init_tensors()
            agent.obs = agent.env_reset()
            agent.train_epoch()
        agent.writer.close()

    def last_advantage(self):
        return float(self.advantages[scripted.EPISODE - 1])


def clipping(**settings):
    found = []
    for reward in (-9.0, 12.0):
        reward = {"env_config": {"reward": reward}}
        found.append(float(Epoch(shift=1.0, **reward, **settings).grads[0]["value"]))
    return scripted.clipping_words(*found)


def uneven():
    """Eight samples in minibatches of three."""
    try:
        epoch = Epoch(minibatch_size=3)
    except ValueError:
        return "refused"
    return ", ".join(str(len(batch)) for batch in epoch.minibatches)


def box_action():
    received = []
    for mean in (10.0, 0.5):
        epoch = Epoch("continuous", network={"mean": mean})
        received.append(epoch.agent.vec_env.env.received[0])
    return scripted.action_words(*received)


def ppo_cells():
    epoch = Epoch()
    last = epoch.last_advantage()
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    silent = Epoch(env_config={"time_outs": False}).last_advantage()
    yield "truncated_advantage_silent", silent
    gradient = float(epoch.grads[0]["value"]) / -float(epoch.advantages.mean())
    yield "value_gradient", f"{gradient:g} x critic_coef"
    yield "value_clipping_given", clipping(clip_value=True)
    epoch = Epoch(minibatch_size=4, mini_epochs=4)
    first = epoch.minibatches[0]
    grad = float(epoch.grads[0]["actor"][0])
    over, std = scripted.normalisation(grad, epoch.advantages, epoch.actions, first)
    yield "advantages_over", over
    yield "advantages_std", std
    halves = epoch.minibatches
    epochs = [halves[n] + halves[n + 1] for n in range(0, len(halves), 2)]
    yield "later_epochs", scripted.minibatch_words(epochs)
    yield "adam_eps", epoch.agent.optimizer.defaults["eps"]
    yield "uneven_minibatches", uneven()
    yield "box_action", box_action()


# === SAC
class Sac:
    """An agent after some steps; its critics' values are 5.5 at first."""

    def __init__(self, steps=12, time_outs=True, **settings):
        config = {
            "name": "probe",
            "env_name": "ladder",
            "device": "cpu",
            "reward_shaper": {"scale_value": 1.0},
            "gamma": 0.0,
            "init_alpha": 0.5,
            "alpha_lr": 3e-4,
            "actor_lr": 3e-4,
            "critic_lr": 1e-3,
            "batch_size": 8,
            "learnable_temperature": True,
            "replay_buffer_size": 100,
            "num_warmup_steps": 9,
            "env_config": {"actions": "box", "time_outs": time_outs},
            **settings,
        }
        initializer = {"initializer": {"name": "default"}}
        mlp = {"units": [16], "activation": "relu", **initializer}
        network = {"name": "soft_actor_critic", "mlp": mlp, "log_std_bounds": [-5, 2]}
        params = {
            "algo": {"name": "sac"},
            "model": {"name": "soft_actor_critic"},
            "network": network,
            "config": {key: value for key, value in config.items() if value is not None},
        }
        with tempfile.TemporaryDirectory() as folder:
            params["config"]["train_dir"] = folder
            self.run(params, steps)

    def run(self, params, steps):
        runner = Runner()
        runner.load({"params": params})
        agent = runner.algo_factory.create("sac", base_name="run", params=runner.params)
        self.agent = agent
        critic = agent.model.sac_network.critic
        for part in (critic.Q1, critic.Q2):
            last = [layer for layer in part.modules() if isinstance(layer, nn.Linear)][-1]
            nn.init.zeros_(last.weight)
            nn.init.constant_(last.bias, 5.5)
        self.letters = []
        self.critic_grads = self.watch(agent.critic_optimizer, "C", last.bias)
        self.watch(agent.actor_optimizer, "A")
        self.alpha_grads = self.watch(agent.log_alpha_optimizer, "", agent.log_alpha)
        self.entropies = []
        update_actor = agent.update_actor_and_alpha
        update_target = agent.update_target_weights

        def watched_actor(*args):
            found = update_actor(*args)
            self.entropies.append(float(found[1]))
            return found

        def watched_target():
            self.letters.append("T")
            return update_target()

        agent.update_actor_and_alpha = watched_actor
        agent.update_target_weights = watched_target
        agent.init_tensors()
        agent.obs = agent.env_reset()
        for _ in range(steps):
            agent.epoch_num += 1
            agent.train_epoch()
        agent.writer.close()

    def watch(self, optimizer, letter, param=None):
        """A list that gets the parameter's gradient at each step of the optimizer."""
        found = []
        step = optimizer.step

        def watched_step(*args, **kwargs):
            self.letters += letter
            if param is not None:
                found.append(float(param.grad))
            return step(*args, **kwargs)

        optimizer.step = watched_step
        return found

    def truncated_transition(self):
        buffer = self.agent.replay_buffer
        last = scripted.EPISODE - 1
        next_step = float(buffer.next_obses[last, 0])
        return scripted.stored_words(next_step, bool(buffer.dones[last]))


def initial_alpha():
    try:
        return float(Sac(steps=0, init_alpha=None).agent.alpha)
    except KeyError:
        return "must be given"


def sac_cells():
    yield "critic_gradient", Sac(critic_grad_clip=0).critic_grads[0] / 4.5
    untouched = Sac()
    yield "critic_grad_norm", untouched.agent.critic_grad_clip
    per_entropy = untouched.alpha_grads[0] / (untouched.entropies[0] + 1)
    yield "alpha_gradient", scripted.named(per_entropy, {"alpha": 0.5, "1": 1.0})
    yield "initial_alpha", initial_alpha()
    yield "order", " ".join(untouched.letters)
    yield "truncated_transition", untouched.truncated_transition()
    yield "truncated_transition_silent", Sac(time_outs=False).truncated_transition()


def main():
    torch.manual_seed(1)
    with contextlib.redirect_stdout(io.StringIO()):
        cells = {f"PPO {name}": cell for name, cell in ppo_cells()}
        cells |= {f"SAC {name}": cell for name, cell in sac_cells()}
    scripted.show(VERSIONS, cells)


if __name__ == "__main__":
    main()
