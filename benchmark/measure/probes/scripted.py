"""Environments with known answers, and what a measured number says; for all probes.

A probe runs in its library's own virtual environment, so this imports numpy and gymnasium only.
"""

import json
import math

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

GAMMA, LAMBDA = 0.9, 0.8
EPISODE = 4  # steps
ROLLOUT = 8  # steps: two episodes
LOW, HIGH = -2.0, 6.0


class Ladder(gym.Env):
    """Observations: the step in the episode, and the number of all steps so far.

    Each step has the same reward; after four, a time limit ends the episode.
    """

    def __init__(self, actions="discrete", reward=1.0, low=LOW, high=HIGH):
        self.observation_space = Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = Discrete(2)
        if actions == "box":
            self.action_space = Box(low, high, (1,), np.float32)
        self.reward = reward
        self.total = 0
        self.received = []

    def obs(self):
        return np.array([self.step_number, self.total], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self.obs(), {}

    def step(self, action):
        self.received.append(np.array(action, dtype=np.float64).reshape(-1)[0])
        self.step_number += 1
        self.total += 1
        return self.obs(), self.reward, False, self.step_number == EPISODE, {}


gym.register("Ladder-v0", Ladder, disable_env_checker=True, order_enforce=False)


def value(step):
    """What the critics of the probes are set to: 10 + the step in the episode."""
    return 10.0 + step


# === what a number says
def near(number, other, tolerance=1e-3):
    return abs(number - other) <= tolerance * max(1, abs(other))


def named(number, candidates, tolerance=1e-3):
    """The name of the candidate that `number` is; otherwise the number."""
    for name, candidate in candidates.items():
        if near(number, candidate, tolerance):
            return name
    return f"another: {number:.4g}"


def error(bootstrap):
    """r + gamma * (what the step bootstraps from) - V, of an episode's last step."""
    return 1 + GAMMA * bootstrap - value(EPISODE - 1)


def advantage(after, last, carries_on):
    """GAE of step 3 in a rollout of 8; `last` is the error of both last steps."""
    errors = [1 + GAMMA * value(s + 1) - value(s) for s in range(EPISODE - 1)]
    following = after
    for delta in reversed(errors):
        following = delta + GAMMA * LAMBDA * following
    return last + GAMMA * LAMBDA * following * carries_on


NEXT_FIRST = error(value(0))
BOOTSTRAPS = {
    "its last observation": error(value(EPISODE)),
    "nothing": error(0),
    "the observation before": error(value(EPISODE - 1)),
    "the next episode's first": NEXT_FIRST,
}


def bootstrap_words(number):
    """What a truncated episode's last step bootstraps from, by its advantage."""
    for last in (NEXT_FIRST, error(value(EPISODE)), error(0)):
        for after in (last, error(value(EPISODE)), NEXT_FIRST):
            through = advantage(after, last, carries_on=True)
            if near(number, through):
                start = named(last, BOOTSTRAPS)
                return f"{start}; runs on into it"
    return named(number, BOOTSTRAPS)


def normalised(advantages, over, std):
    advantages = np.asarray(advantages, dtype=np.float64)
    over = np.asarray(over, dtype=np.float64)
    ddof = 1 if std == "unbiased" else 0
    return (advantages - over.mean()) / (over.std(ddof=ddof) + 1e-8)


def normalisation(grad, advantages, actions, inds):
    """(over what, which deviation), from the gradient of the first logit.

    The policy is uniform over two actions, and its logits are biases alone.
    """
    scores = np.where(np.asarray(actions) == 0, 0.5, -0.5)
    return normalisation_of_scores(grad, advantages, scores, inds)


def normalisation_of_scores(grad, advantages, scores, inds):
    """The same from any bias of the policy: `scores` are d log-probability / d bias."""
    rollout = np.asarray(advantages)
    minibatch = rollout[inds]
    scores = np.asarray(scores)[inds]
    found = {("not", ""): minibatch}
    for over, samples in (("minibatch", minibatch), ("rollout", rollout)):
        for std in ("unbiased", "biased"):
            found[over, std] = normalised(minibatch, samples, std)
    for words, candidate in found.items():
        if near(grad, -(scores * candidate).mean(), 1e-3):
            return words
    return "another", f"{grad:.4g}"


def clipping_words(away, towards):
    """From d loss / d V where V has gone too far away from, and towards the return."""
    if near(towards, 0, 1e-6):
        return "clipped error alone" if near(away, 0, 1e-6) else "larger of both errors"
    return "off"


def action_words(beyond, inside):
    """What the environment gets for the samples 10 and 0.5, with bounds [-2, 6]."""
    forms = {
        (10, 0.5): "a, not clipped",
        (6, 0.5): "clip(a)",
        (6, 4): "2 + 4 clip(a, -1, 1)",
    }
    for (first, second), words in forms.items():
        if near(beyond, first, 0.01) and near(inside, second, 0.02):
            return words
    return f"{beyond:.3g} and {inside:.3g}"


def log_std_words(low, middle, high, size=100):
    """From the log-std that the outputs -100, 1 and 100 give (or of another size)."""
    if near(low, -size) and near(high, size):
        return "none"
    form = "clip" if near(middle, 1) else "tanh"
    return f"{form} to [{low:g}, {high:g}]"


def stored_words(next_step, terminated):
    """How a replay buffer has a truncated episode's last transition."""
    if terminated:
        return "as terminated"
    steps = {
        "bootstraps from its last observation": EPISODE,
        "bootstraps from the observation before": EPISODE - 1,
        "bootstraps from the next episode's first": 0,
    }
    return named(next_step, steps)


def minibatch_words(epochs):
    """Of the samples of each epoch, in their order."""
    if all(order == sorted(order) for order in epochs):
        return "the same, never shuffled"
    same = all(order == epochs[0] for order in epochs)
    return "the same permutation" if same else "new permutation"


def double_words(total):
    """From the sign of d loss / d Q.

    Rewards are 0, gamma is 1, the network's values 2 and 1.99, the target network's 1 and 3. So
    double Q-learning has the target 1, below; without it is 3, above.
    """
    return "yes" if total > 0 else "no"


def target_unit(changes):
    """In 200 steps with an update each 4, of a target that changes each 20."""
    return "environment steps" if changes >= 9 else "updates"


def clip_words(norm):
    """The limit on a gradient that would be above 10,000."""
    return "none" if norm > 5_000 else norm


def exact_slope():
    """-log(1 - tanh^2 u) at u = 10."""
    return 2 * (10 + math.log1p(math.exp(-20)) - math.log(2))


def plain(cell):
    """A cell for JSON: words, or a number of four digits."""
    if isinstance(cell, str | int):
        return cell
    return float(f"{float(cell):.4g}")


def show(versions, cells):
    """What a probe prints last."""
    cells = {name: plain(cell) for name, cell in cells.items()}
    print(json.dumps({"versions": versions, "cells": cells}))
