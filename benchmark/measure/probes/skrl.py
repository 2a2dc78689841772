"""What skrl computes, through its own trainer.

python -m benchmark.measure.probes.skrl
"""

import contextlib
import io

import gymnasium
import skrl
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from skrl.agents.torch.dqn import DQN, DQN_CFG
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.agents.torch.td3 import TD3, TD3_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.resources.noises.torch import GaussianNoise
from skrl.trainers.torch import SequentialTrainer
from torch import nn

from benchmark.measure.probes import scripted
from benchmark.measure.probes.scripted import Ladder

VERSIONS = {
    "skrl": skrl.__version__,
    "torch": torch.__version__,
    "gymnasium": gymnasium.__version__,
}
NO_FILES = {"write_interval": 0, "checkpoint_interval": 0}


# === models that ignore what they see, but for the ladder's values
class Categorical(CategoricalMixin, Model):
    def __init__(self, **spaces):
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.bias = nn.Parameter(torch.zeros(2))

    def compute(self, inputs, role):
        return self.bias.expand(len(inputs["observations"]), -1), {}


class Gaussian(GaussianMixin, Model):
    def __init__(self, mean=0.0, log_std=0.0, **spaces):
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.bias = nn.Parameter(torch.tensor([mean]))
        self.log_std = nn.Parameter(torch.tensor([log_std]))

    def compute(self, inputs, role):
        mean = self.bias.expand(len(inputs["observations"]), -1)
        return mean, {"log_std": self.log_std.expand_as(mean)}


class Deterministic(DeterministicMixin, Model):
    """An actor, a critic, or a Q-network: a bias."""

    def __init__(self, bias=(0.0,), **spaces):
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.bias = nn.Parameter(torch.tensor(bias))
        self.taken = []

    def compute(self, inputs, role):
        if inputs.get("taken_actions") is not None:
            self.taken.append(inputs["taken_actions"].detach().clone())
        return self.bias.repeat(len(inputs["observations"]), 1), {}


class LadderValue(Deterministic):
    def compute(self, inputs, role):
        return inputs["observations"][:, :1] + self.bias, {}


# === runs
def watch(optimizer, params):
    """A list that gets {name: gradient} at each step of the optimizer."""
    found = []
    step = optimizer.step

    def watched_step(*args, **kwargs):
        found.append({name: param.grad.clone() for name, param in params.items()})
        return step(*args, **kwargs)

    optimizer.step = watched_step
    return found


def train(agent, env, steps):
    cfg = {"timesteps": steps, "headless": True, "disable_progressbar": True}
    cfg["close_environment_at_exit"] = False
    SequentialTrainer(env=env, agents=agent, cfg=cfg).train()


def spaces_of(env):
    return {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "device": "cpu",
    }


def vector(reward=1.0):
    """One environment that is reset in the step that ends an episode."""
    mode = AutoresetMode.SAME_STEP
    return SyncVectorEnv([lambda: Ladder(reward=reward)], autoreset_mode=mode)


def ppo(reward=1.0, ladder=None, steps=scripted.ROLLOUT, policy=None, shift=0.0, **settings):
    """The agent after `steps`, its gradients, and the samples of its minibatches."""
    env = wrap_env(ladder or Ladder(reward=reward), verbose=False)
    spaces = spaces_of(env)
    models = {"policy": Categorical(**spaces), "value": LadderValue((10.0,), **spaces)}
    if policy:
        models["policy"] = policy(**spaces)
    cfg = {
        "rollouts": scripted.ROLLOUT,
        "mini_batches": 1,
        "learning_epochs": 1,
        "discount_factor": scripted.GAMMA,
        "gae_lambda": scripted.LAMBDA,
        "grad_norm_clip": 0,
        "experiment": NO_FILES,
        **settings,
    }
    memory = RandomMemory(memory_size=scripted.ROLLOUT, num_envs=1, device="cpu")
    agent = PPO(models=models, memory=memory, cfg=cfg, **spaces)
    params = {"value": models["value"].bias, "logits": models["policy"].bias}
    agent.grads = watch(agent.optimizer, params)
    agent.batches = []
    sample = memory.sample

    def watched_sample(names, **kwargs):
        with torch.no_grad():
            models["value"].bias.add_(shift)
        found = sample(names, **kwargs)
        agent.batches += [batch[0][:, 1].int().tolist() for batch in found]
        agent.names = names
        return found

    memory.sample = watched_sample
    train(agent, env, steps)
    return agent


def rollout(agent, name):
    return agent.memory.get_tensor_by_name(name).flatten()


def last_advantage(agent):
    """Not yet normalised: what is kept is."""
    errors = rollout(agent, "returns") - rollout(agent, "values")
    return errors, float(errors[scripted.EPISODE - 1])


def clipping(**settings):
    away = ppo(-9.0, shift=1.0, **settings).grads[0]["value"]
    towards = ppo(12.0, shift=1.0, **settings).grads[0]["value"]
    return scripted.clipping_words(float(away), float(towards))


def box_action():
    received = []
    for mean in (10.0, 0.5):
        ladder = Ladder("box")

        def policy(mean=mean, **spaces):
            return Gaussian(mean, -10.0, **spaces)

        ppo(ladder=ladder, policy=policy)
        received.append(ladder.received[0])
    return scripted.action_words(*received)


def log_std_limits():
    found = []
    for log_std in (-100.0, 1.0, 100.0):
        space = Box(-1, 1, (1,))
        model = Gaussian(0.0, log_std, observation_space=space, action_space=space, device="cpu")
        _, outputs = model.act({"observations": torch.zeros(1, 1)}, role="policy")
        found.append(float(outputs["log_std"].detach()))
    return scripted.log_std_words(*found)


def ppo_cells():
    untouched = PPO_CFG()
    agent = ppo()
    errors, last = last_advantage(agent)
    yield "truncated_advantage", last
    yield "truncated_bootstrap", scripted.bootstrap_words(last)
    _, flag = last_advantage(ppo(time_limit_bootstrap=True))
    yield "truncated_advantage_flag", flag
    _, flag = last_advantage(ppo(ladder=vector(), time_limit_bootstrap=True))
    yield "truncated_advantage_same_step", flag
    yield "value_gradient", float(agent.grads[0]["value"]) / -float(errors.mean())
    yield "value_clipping", clipping()
    agent = ppo(mini_batches=2, learning_epochs=4)
    errors, _ = last_advantage(agent)
    actions = rollout(agent, "actions").tolist()
    first = agent.batches[0]
    found = scripted.normalisation(float(agent.grads[0]["logits"][0]), errors, actions, first)
    yield "advantages_over", found[0]
    yield "advantages_std", found[1]
    halves = agent.batches
    epochs = [halves[n] + halves[n + 1] for n in range(0, len(halves), 2)]
    yield "later_epochs", scripted.minibatch_words(epochs)
    settings = {"mini_batches": 4, "learning_epochs": 5, "learning_rate": 0.5}
    agent = ppo(kl_threshold=1e-4, **settings)
    yield "kl_updates", len(agent.grads)
    yield "adam_eps", agent.optimizer.defaults["eps"]
    yield "max_grad_norm", untouched.grad_norm_clip
    yield "ent_coef", untouched.entropy_loss_scale
    yield "ent_coef_box", untouched.entropy_loss_scale
    agent = ppo(mini_batches=3)
    yield "uneven_minibatches", ", ".join(str(len(batch)) for batch in agent.batches)
    agent = ppo(steps=5 * scripted.ROLLOUT)
    yield "last_learning_rate", agent.optimizer.param_groups[0]["lr"] / untouched.learning_rate
    yield "box_action", box_action()
    yield "log_std", log_std_limits()


# === SAC, TD3
def off_policy(algorithm, models, env, steps, **settings):
    cfg = {
        "discount_factor": 0.0,
        "learning_starts": 8,
        "batch_size": 64,
        "experiment": NO_FILES,
        **settings,
    }
    memory = RandomMemory(memory_size=500, num_envs=1, device="cpu")
    agent = algorithm(models=models, memory=memory, cfg=cfg, **spaces_of(env))
    agent.letters = []
    for letter, name in {"C": "critic_optimizer", "A": "policy_optimizer"}.items():
        if hasattr(agent, name):
            note(agent, letter, getattr(agent, name), "step")
    for name in ("target_critic_1", "target_q_network"):
        if name in models:
            note(agent, "T", models[name], "update_parameters")
    agent.letters.clear()
    return agent, steps, env


def note(agent, letter, thing, method):
    """Adds a letter at each call."""
    function = getattr(thing, method)

    def noted(*args, **kwargs):
        agent.letters.append(letter)
        return function(*args, **kwargs)

    setattr(thing, method, noted)


def critics(spaces):
    return {
        "critic_1": Deterministic((5.5,), **spaces),
        "critic_2": Deterministic((5.5,), **spaces),
        "target_critic_1": Deterministic((0.0,), **spaces),
        "target_critic_2": Deterministic((0.0,), **spaces),
    }


def truncated_transition(agent):
    last = scripted.EPISODE - 1
    next_step = float(agent.memory.get_tensor_by_name("next_observations")[last, 0, 0])
    terminated = bool(agent.memory.get_tensor_by_name("terminated")[last, 0, 0])
    return scripted.stored_words(next_step, terminated)


def sac(ladder=None, steps=12, **settings):
    env = wrap_env(ladder or Ladder("box"), verbose=False)
    spaces = spaces_of(env)
    models = {"policy": Gaussian(**spaces), **critics(spaces)}
    return off_policy(SAC, models, env, steps, **settings)


def sac_cells():
    untouched = SAC_CFG()
    agent, steps, env = sac(initial_entropy_value=0.5)
    critic = watch(agent.critic_optimizer, {"bias": agent.critic_1.bias})
    params = {"log_alpha": agent.log_entropy_coefficient}
    alpha = watch(agent.entropy_optimizer, params)
    log_probs = []
    act = agent.policy.act

    def watched_act(inputs, **kwargs):
        actions, outputs = act(inputs, **kwargs)
        if torch.is_grad_enabled():
            log_probs.append(float(outputs["log_prob"].mean()))
        return actions, outputs

    agent.policy.act = watched_act
    train(agent, env, steps)
    yield "critic_gradient", float(critic[0]["bias"]) / 4.5
    per_entropy = float(alpha[0]["log_alpha"]) / (-log_probs[0] + 1)
    yield "alpha_gradient", scripted.named(per_entropy, {"alpha": 0.5, "1": 1.0})
    yield "log_std", log_std_limits()
    yield "initial_alpha", untouched.initial_entropy_value
    yield "order", " ".join(agent.letters)
    yield "truncated_transition", truncated_transition(agent)
    ladder = SyncVectorEnv([lambda: Ladder("box")], autoreset_mode=AutoresetMode.SAME_STEP)
    agent, steps, env = sac(ladder)
    train(agent, env, steps)
    yield "truncated_transition_same_step", truncated_transition(agent)
    yield "random_steps", untouched.random_timesteps
    yield "tanh_slope", tanh_slope()


def tanh_slope():
    """The policy's log-probability at a mean of 10, against that at 0."""
    found = []
    for mean in (0.0, 10.0):
        space = Box(-1, 1, (1,))
        model = Gaussian(mean, -20.0, observation_space=space, action_space=space, device="cpu")
        inputs = {"observations": torch.zeros(1, 1)}
        actions, _ = model.act(inputs, role="policy")
        inputs["taken_actions"] = torch.full((1, 1), mean)
        _, outputs = model.act(inputs, role="policy")
        found.append(float(outputs["log_prob"].detach()))
    beyond = scripted.near(float(actions.detach()), 10)
    return "no tanh" if beyond else found[1] - found[0]


def td3_cells():
    untouched = TD3_CFG()
    noise = {
        "smooth_regularization_noise": GaussianNoise,
        "smooth_regularization_noise_kwargs": {"mean": 0.0, "std": 0.2, "device": "cpu"},
        "batch_size": 2_000,
    }
    seen = {}
    for bias in (0.0, 20.0):
        env = wrap_env(Ladder("box"), verbose=False)
        spaces = spaces_of(env)
        models = {"policy": Deterministic(**spaces), **critics(spaces)}
        models["target_policy"] = Deterministic((bias,), **spaces)
        agent, steps, env = off_policy(TD3, models, env, 12, **noise)
        with torch.no_grad():
            models["target_policy"].bias.fill_(bias)
        grads = watch(agent.critic_optimizer, {"bias": agent.critic_1.bias})
        train(agent, env, steps)
        seen[bias] = models["target_critic_1"].taken[0]
    yield "target_noise_given", round(float(seen[0.0].std()), 1)
    given = untouched.smooth_regularization_noise
    yield "target_noise", "none" if given is None else str(given)
    beyond = float(seen[20.0].max()) > scripted.HIGH + 1e-4
    yield "target_action_clipped", "no" if beyond else "yes"
    given = untouched.exploration_noise
    yield "exploration_noise", "none" if given is None else str(given)
    yield "critic_gradient", float(grads[0]["bias"]) / 4.5
    yield "truncated_transition", truncated_transition(agent)
    yield "order", " ".join(agent.letters)


# === DQN
def dqn(reward=1.0, q=(-3.5, -3.5), target=(0.0, 0.0), steps=12, **settings):
    ladder = Ladder(reward=reward)
    env = wrap_env(ladder, verbose=False)
    spaces = spaces_of(env)
    models = {"q_network": Deterministic(q, **spaces)}
    models["target_q_network"] = Deterministic(target, **spaces)
    agent, steps, env = off_policy(DQN, models, env, steps, **settings)
    with torch.no_grad():
        models["target_q_network"].bias.copy_(torch.tensor(target))
    agent.grads = watch(agent.optimizer, {"bias": models["q_network"].bias})
    train(agent, env, steps)
    agent.received = ladder.received
    return agent


def dqn_cells():
    untouched = DQN_CFG()
    agent = dqn()
    yield "gradient", float(agent.grads[0]["bias"].sum())
    yield "truncated_transition", truncated_transition(agent)
    agent = dqn(0.0, (2.0, 1.99), (1.0, 3.0), discount_factor=1.0)
    yield "double", scripted.double_words(float(agent.grads[0]["bias"].sum()))
    agent = dqn(q=(2.0, 1.0), steps=200, learning_starts=1_000)
    explores = len(set(agent.received)) > 1
    yield "epsilon", "explores" if explores else "no exploration"
    agent = dqn(steps=208, update_interval=4, target_update_interval=20)
    unit = scripted.target_unit(agent.letters.count("T"))
    yield "target", f"each {untouched.target_update_interval} {unit}"
    yield "target_step", untouched.polyak
    agent = dqn(reward=9000.0)
    norm = float(agent.grads[0]["bias"].norm())
    yield "max_grad_norm", scripted.clip_words(norm)


def main():
    torch.manual_seed(1)
    cells = {}
    algorithms = {"PPO": ppo_cells, "SAC": sac_cells, "TD3": td3_cells, "DQN": dqn_cells}
    with contextlib.redirect_stdout(io.StringIO()):
        for algorithm, measure in algorithms.items():
            for name, cell in measure():
                cells[f"{algorithm} {name}"] = cell
    scripted.show(VERSIONS, cells)


if __name__ == "__main__":
    main()
