"""What CleanRL's files compute, run as a user runs them: each script from its first line on.

    python -m benchmark.measure.probes.cleanrl              those of the installed package
    python -m benchmark.measure.probes.cleanrl FOLDER       those of a checkout, or LeanRL's

Some scripts of the package need gym, others gymnasium: where gym is installed, those that need it
are measured, otherwise the rest. A script that a folder does not have leaves its cells out.
"""

import contextlib
import importlib
import importlib.util
import math
import re
import runpy
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from benchmark.measure.probes import scripted

ENGINE = "gym" if importlib.util.find_spec("gym") else "gymnasium"
gym = importlib.import_module(ENGINE)
SCRIPTS = ["ppo", "ppo_continuous_action", "sac_continuous_action", "td3_continuous_action", "dqn"]
LADDERS = []  # those that were made
SETTINGS = {}  # of the next ones


# === the environment
class OldLadder(gym.Env):
    """The ladder for gym 0.23: TimeLimit, gym's own, ends the episodes."""

    def __init__(self, ladder):
        self.ladder = ladder
        space = ladder.observation_space
        self.observation_space = gym.spaces.Box(space.low, space.high, space.shape, np.float32)
        space = ladder.action_space
        self.action_space = gym.spaces.Discrete(2)
        if hasattr(space, "low"):
            self.action_space = gym.spaces.Box(space.low, space.high, space.shape, np.float32)

    def seed(self, seed=None):
        return [seed]

    def reset(self, **kwargs):
        return self.ladder.reset()[0]

    def step(self, action):
        obs, reward, *_ = self.ladder.step(action)
        return obs, reward, False, {}


def make_ladder(render_mode=None):
    LADDERS.append(scripted.Ladder(**SETTINGS))
    return OldLadder(LADDERS[-1]) if ENGINE == "gym" else LADDERS[-1]


if ENGINE == "gym":
    gym.register("Scripted-v0", entry_point=make_ladder, max_episode_steps=scripted.EPISODE)
else:
    gym.register("Scripted-v0", make_ladder, disable_env_checker=True, order_enforce=False)


# === runs
class Script:
    """A run of a script: `at_start(globals)` is called at the environment's first reset, and
    `at_step(globals, name of the optimizer)` before each step of an optimizer.
    """

    def __init__(self, path, at_start=lambda script: None, at_step=None):
        self.path = path
        self.at_start = at_start
        self.at_step = at_step
        self.started = False
        self.grads = []  # of each optimizer step: {parameter's name: gradient}
        self.samples = []  # of each minibatch of PPO

    def run(self, env, flags):
        """Returns its globals, as they are at its end."""
        command = [str(self.path), "--env-id", "Scripted-v0"]
        for name, value in flags.items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        SETTINGS.clear()
        SETTINGS.update(env)
        LADDERS.clear()
        reset = scripted.Ladder.reset

        def watched_reset(ladder, **kwargs):
            if not self.started:
                self.started = True
                self.at_start(current())
            return reset(ladder, **kwargs)

        hook = register_optimizer_step_pre_hook(self.before_step)
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            enter = stack.enter_context
            enter(contextlib.chdir(folder))
            enter(mock.patch.object(sys, "argv", command))
            enter(mock.patch.object(scripted.Ladder, "reset", watched_reset))
            enter(contextlib.redirect_stdout(None))
            stack.callback(hook.remove)
            return runpy.run_path(str(self.path), run_name="__main__")

    def before_step(self, optimizer, *_):
        script = current()
        (name,) = [key for key, value in script.items() if value is optimizer]
        if "mb_inds" in script:
            self.samples.append(script["mb_inds"].tolist())
        named = [pair for pair in parameters(script) if pair[1].grad is not None]
        self.grads.append({key: param.grad.detach().clone() for key, param in named})
        if self.at_step:
            self.at_step(script, name)


def current():
    """The globals of the script that runs."""
    return vars(sys.modules["__main__"])


def parameters(script):
    """(name, parameter) of all networks, and of tensors that learn."""
    for name, value in script.items():
        if isinstance(value, nn.Module):
            for key, param in value.named_parameters():
                yield f"{name}.{key}", param
        elif isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf:
            yield name, value


def constant(layer, *outputs):
    nn.init.zeros_(layer.weight)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor(outputs))


# === PPO
class Files:
    """The scripts of a folder."""

    def __init__(self, folder, given):
        self.folder = folder
        self.given = given

    def find(self, name):
        """The script's path; None if it is missing or needs the other engine."""
        path = self.folder / f"{name}.py"
        if not path.exists():
            return None
        engine = re.search(r"^import (gym\w*)", path.read_text(), re.M)[1]
        return path if engine == ENGINE else None


class PPO:
    """Runs of a script, with a critic whose values are 10 + the step."""

    def __init__(self, path):
        self.path = path
        self.box = path.stem != "ppo"
        self.actor = "actor_mean" if self.box else "actor"

    def run(self, reward=1.0, shift=0.0, mean=0.0, log_std=0.0, **flags):
        """(script, globals); the critic moves by `shift` after the values are stored."""

        def at_start(script):
            agent = script["agent"]
            agent.critic = nn.Sequential(nn.Linear(2, 1))
            constant(agent.critic[0], 10.0)
            with torch.no_grad():
                agent.critic[0].weight[0, 0] = 1
            actor = getattr(agent, self.actor)
            for layer in actor[::2]:
                nn.init.zeros_(layer.weight)
            if self.box:
                nn.init.constant_(actor[-1].bias, mean)
                nn.init.constant_(agent.actor_logstd, log_std)
            moves = [shift]

            def move(critic, args):
                if torch.is_grad_enabled() and moves:
                    with torch.no_grad():
                        critic[0].bias.add_(moves.pop())

            agent.critic.register_forward_pre_hook(move)

        settings = {
            "num_envs": 1,
            "num_steps": scripted.ROLLOUT,
            "num_minibatches": 1,
            "update_epochs": 1,
            "gamma": scripted.GAMMA,
            "gae_lambda": scripted.LAMBDA,
            "max_grad_norm": 1e9,
            "total_timesteps": scripted.ROLLOUT,
            **flags,
        }
        script = Script(self.path, at_start)
        env = {"actions": "box" if self.box else "discrete", "reward": reward}
        return script, script.run(env, settings)

    def cells(self):
        """Where the environment's observations and rewards reach the agent as they are."""
        script, found = self.run()
        advantages = found["advantages"].flatten()
        last = float(advantages[scripted.EPISODE - 1])
        grad = float(script.grads[0]["agent.critic.0.bias"])
        yield "truncated_advantage", last
        yield "truncated_bootstrap", scripted.bootstrap_words(last)
        yield "value_gradient", grad / -float(advantages.mean())
        yield "value_clipping", scripted.clipping_words(*map(self.value_gradient, (-40.0, 40.0)))
        yield "adam_eps", found["optimizer"].defaults["eps"]
        yield from self.advantage_cells()
        flags = {"num_minibatches": 4, "update_epochs": 5}
        script, _ = self.run(learning_rate=0.5, target_kl=1e-4, **flags)
        yield "kl_updates", len(script.grads)
        script, _ = self.run(num_minibatches=3)
        yield "uneven_minibatches", ", ".join(str(len(inds)) for inds in script.samples)
        _, found = self.run(total_timesteps=5 * scripted.ROLLOUT)
        rate = found["optimizer"].param_groups[0]["lr"]
        yield "last_learning_rate", rate / found["args"].learning_rate
        untouched = Script(self.path).run(script_env(self.box), {"total_timesteps": 0})["args"]
        yield "max_grad_norm", untouched.max_grad_norm
        yield "ent_coef_box" if self.box else "ent_coef", untouched.ent_coef

    def value_gradient(self, reward):
        """d loss / d V after the critic has moved by 1."""
        script, _ = self.run(reward, shift=1.0)
        return float(script.grads[0]["agent.critic.0.bias"])

    def advantage_cells(self):
        script, found = self.run(num_minibatches=2, update_epochs=4)
        half = script.samples[0]
        advantages = found["b_advantages"].numpy()
        actions = found["b_actions"].flatten().numpy()
        scores = actions if self.box else np.where(actions == 0, 0.5, -0.5)
        grad = float(script.grads[0][f"agent.{self.actor}.4.bias"][0])
        over, std = scripted.normalisation_of_scores(grad, advantages, scores, half)
        yield "advantages_over", over
        yield "advantages_std", std
        epochs = [a + b for a, b in zip(script.samples[::2], script.samples[1::2], strict=True)]
        yield "later_epochs", scripted.minibatch_words(epochs)

    def box_cells(self):
        """Of the script for Box actions, with its wrappers."""
        received = []
        for mean in (10.0, 0.5):
            self.run(mean=mean, log_std=-10.0)
            received.append(LADDERS[0].received[0])
        yield "box_action", scripted.action_words(*received)
        yield "log_std", scripted.log_std_words(*map(self.log_std, (-30.0, 1.0, 30.0)), size=30)
        yield "ent_coef_box", self.run()[1]["args"].ent_coef
        steps = scripted.EPISODE + 1
        _, found = self.run(num_steps=steps, total_timesteps=steps)
        env = found["envs"].envs[0]
        while not hasattr(env, "returns"):
            env = env.env
        after = float(np.squeeze(env.returns))
        yield "return_scale", "restarts" if scripted.near(after, 1) else "goes on"

    def log_std(self, log_std):
        """From the entropy of the policy."""
        _, found = self.run(log_std=log_std, total_timesteps=0)
        agent = found["agent"]
        nn.init.constant_(agent.actor_logstd, log_std)
        _, _, entropy, _ = agent.get_action_and_value(torch.zeros(1, 2))
        return float(entropy.detach()) - 0.5 * math.log(2 * math.pi * math.e)


def script_env(box):
    return {"actions": "box" if box else "discrete"}


@contextlib.contextmanager
def no_normalisation():
    """Where a folder has no ppo.py: the other script's wrappers leave all numbers as they are."""
    names = ["NormalizeObservation", "NormalizeReward", "TransformObservation", "TransformReward"]
    with contextlib.ExitStack() as stack:
        for name in names:
            patch = mock.patch.object(gym.wrappers, name, lambda env, *args, **kwargs: env)
            stack.enter_context(patch)
        yield


def ppo_cells(files):
    discrete = files.find("ppo")
    box = files.find("ppo_continuous_action")
    if discrete:
        yield from PPO(discrete).cells()
    elif box and not (files.folder / "ppo.py").exists():
        with no_normalisation():
            yield from PPO(box).cells()
    if box:
        yield from PPO(box).box_cells()


# === SAC, TD3, DQN
class Order:
    """C critics, A actor, T target networks, as they come."""

    letters = {"q_optimizer": "C", "actor_optimizer": "A"}

    def __init__(self, target):
        self.target = target
        self.found = []
        self.before = None

    def look(self, script, name=""):
        """Before each step of an optimizer, and at the end."""
        now = nn.utils.parameters_to_vector(script[self.target].parameters()).detach().clone()
        if self.before is not None and not torch.equal(now, self.before):
            self.found.append("T")
        self.before = now
        self.found.extend(self.letters.get(name, ""))


def off_policy(path, at_start, at_step=None, env=(), **flags):
    settings = {
        "buffer_size": 2_000,
        "learning_starts": 8,
        "total_timesteps": 13,
        "gamma": 0.0,
        "batch_size": 8,
        **flags,
    }
    script = Script(path, at_start, at_step)
    return script, script.run(dict(env), settings)


def stored(found):
    sample = found["rb"]._get_samples(np.array([scripted.EPISODE - 1]))
    next_step = float(sample.next_observations.flatten()[0])
    return scripted.stored_words(next_step, bool(sample.dones.flatten()[0]))


def constant_critics(script):
    for name in ("qf1", "qf2"):
        constant(script[name].fc3, 5.5)


def order_of(path):
    """Of the steps 9 to 12, the first four with an update."""
    order = Order("qf1_target")
    box = script_env(box=True)
    _, found = off_policy(path, lambda script: None, order.look, box)
    order.look(found)
    return " ".join(order.found)


def sac_policy(path, low, high, mean, log_std):
    """The log-probability of the mean."""
    env = {"actions": "box", "low": low, "high": high}
    _, found = off_policy(path, lambda script: None, env=env, total_timesteps=1)
    actor = found["actor"]
    constant(actor.fc_mean, mean)
    constant(actor.fc_logstd, log_std)

    def rsample(self, sample_shape=()):
        return self.mean

    with mock.patch.object(torch.distributions.Normal, "rsample", rsample), torch.no_grad():
        _, log_prob, _ = actor.get_action(torch.zeros(1, 2))
    return float(log_prob)


def sac_cells(files):
    path = files.find("sac_continuous_action")
    if not path:
        return
    slopes = []

    def at_start(script):
        constant_critics(script)
        nn.init.constant_(script["log_alpha"], math.log(0.5))

    def at_step(script, name):
        if name == "a_optimizer" and not slopes:
            excess = 1 - float(script["log_pi"].mean())  # entropy - target
            slopes.append(float(script["log_alpha"].grad) / excess)

    box = script_env(box=True)
    script, found = off_policy(path, at_start, at_step, box)
    yield "critic_gradient", float(script.grads[0]["qf1.fc3.bias"]) / 4.5
    yield "alpha_gradient", scripted.named(slopes[0], {"alpha": 0.5, "1": 1.0})
    at_0 = sac_policy(path, -1.0, 1.0, 0.0, 0.0)
    yield "tanh_slope", sac_policy(path, -1.0, 1.0, 10.0, 0.0) - at_0
    scale = sac_policy(path, -4.0, 4.0, 0.0, 0.0) - at_0
    yield "log_prob_scale", scripted.named(scale, {"yes": -math.log(4), "no": 0.0})
    stds = []
    for output in (-100.0, 1.0, 100.0):
        log_prob = sac_policy(path, -1.0, 1.0, 0.0, output)
        stds.append(-(log_prob + math.log(2 * math.pi) / 2))
    yield "log_std", scripted.log_std_words(*stds)
    _, untouched = off_policy(path, lambda script: None, env=box, total_timesteps=1)
    yield "initial_alpha", float(untouched["alpha"])
    yield "order", order_of(path)
    yield "truncated_transition", stored(found)
    args = Script(path).run(box, {"total_timesteps": 1, "buffer_size": 8})["args"]
    yield "random_steps", int(args.learning_starts)


def td3_cells(files):
    path = files.find("td3_continuous_action")
    if not path:
        return
    targets = {}
    box = script_env(box=True)
    for output in (0.0, 20.0):
        actions = []

        def at_start(script, output=output, actions=actions):
            constant_critics(script)
            constant(script["target_actor"].fc_mu, output)
            keep = actions.append
            script["qf1_target"].register_forward_pre_hook(lambda _, args: keep(args[1].clone()))

        script, found = off_policy(path, at_start, env=box, batch_size=2_000)
        targets[output] = actions[0]
    yield "target_noise", round(float(targets[0.0].std()), 1)
    beyond = float(targets[20.0].max()) > scripted.HIGH + 1e-4
    yield "target_action_clipped", "no" if beyond else "yes"
    yield "critic_gradient", float(script.grads[0]["qf1.fc3.bias"]) / 4.5
    yield "truncated_transition", stored(found)
    args = Script(path).run(box, {"total_timesteps": 1, "buffer_size": 8})["args"]
    yield "exploration_noise", args.exploration_noise
    yield "order", order_of(path)


def dqn(path, q=(-3.5, -3.5), target=(0.0, 0.0), at_step=None, reward=1.0, **flags):
    def at_start(script):
        constant(script["q_network"].network[-1], *q)
        constant(script["target_network"].network[-1], *target)

    settings = {"train_frequency": 1, **flags}
    return off_policy(path, at_start, at_step, {"reward": reward}, **settings)


def dqn_cells(files):
    path = files.find("dqn")
    if not path:
        return
    bias = "q_network.network.4.bias"
    script, found = dqn(path)
    yield "gradient", float(script.grads[0][bias].sum())
    yield "truncated_transition", stored(found)
    script, _ = dqn(path, (2.0, 1.99), (1.0, 3.0), reward=0.0, gamma=1.0)
    yield "double", scripted.double_words(float(script.grads[0][bias].sum()))
    script, _ = dqn(path, reward=9_000.0, batch_size=64)
    norm = float(torch.cat([grad.flatten() for grad in script.grads[0].values()]).norm())
    yield "max_grad_norm", scripted.clip_words(norm)
    args = Script(path).run({}, {"total_timesteps": 1})["args"]
    yield "epsilon", f"{args.start_e:g} to {args.end_e:g}"
    order = Order("target_network")
    flags = {"train_frequency": 4, "target_network_frequency": 20, "total_timesteps": 208}
    dqn(path, at_step=order.look, **flags)
    unit = scripted.target_unit(order.found.count("T"))
    yield "target", f"each {args.target_network_frequency:,} {unit}"
    yield "target_step", args.tau


def installed():
    """The package's folder; importing it is not needed."""
    (folder,) = importlib.util.find_spec("cleanrl").submodule_search_locations
    return Path(folder)


def measured(files, algorithm, cells):
    """The cells of an algorithm; of a checkout, as far as its scripts are what this expects."""
    try:
        for name, cell in cells(files):
            yield f"{algorithm} {name}", cell
    except (AttributeError, ImportError, LookupError, RuntimeError, TypeError) as problem:
        if not files.given:
            raise
        print(f"{algorithm}: the rest was not measured: {problem!r}", file=sys.stderr)


def main():
    given = sys.argv[1:]
    files = Files(Path(given[0]) if given else installed(), bool(given))
    if not any((files.folder / f"{name}.py").exists() for name in SCRIPTS):
        raise SystemExit(f"error: {files.folder} has none of {', '.join(SCRIPTS)}")
    # What a checkout's scripts import from beside themselves
    sys.path[:0] = [str(files.folder), str(files.folder.parent)]
    torch.manual_seed(1)
    cells = {}
    algorithms = {"PPO": ppo_cells, "SAC": sac_cells, "TD3": td3_cells, "DQN": dqn_cells}
    for algorithm, measure in algorithms.items():
        cells.update(measured(files, algorithm, measure))
    versions = {} if given else {"cleanrl": metadata.version("cleanrl")}
    for name in (ENGINE, "stable-baselines3", "torch"):
        versions[name] = metadata.version(name)
    scripted.show(versions, cells)


if __name__ == "__main__":
    main()
