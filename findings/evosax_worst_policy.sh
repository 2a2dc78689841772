#!/usr/bin/env bash
# evosax 0.3.2: the algorithms minimise, the reinforcement learning problems pay rewards: the worst policy wins.
#
# Expected: a problem and an algorithm of one library fit together: the fitness of problem.eval() goes into tell().
# The README calls both `fitness` and says nothing of a sign. But all algorithms minimise the fitness, and so do their
# `best_solution` and `best_fitness`, while GymnaxProblem and BraxProblem return the sum of rewards as it is. No error
# says so: the search runs well, and the pole falls as early as it can. tell(key, population, -fitness, ...) is right.
#
# Output seen on 2026-11-28 (CMA-ES, CartPole-v1 with at most 100 steps, 12 generations of 16 policies):
#     tell(fitness): mean return 12 at first, 9 in the end, best fitness 8
#     tell(-fitness): mean return 12 at first, 100 in the end, best fitness -100
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "evosax==0.3.2" "gymnax==1.0.1" "gymnasium==1.3.0" "jax==0.10.2" "flax==0.12.8" \
    "optax==0.2.8" "numpy==2.3.5" "six==1.17.0"
OMP_NUM_THREADS=1 JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import jax
import jax.numpy as jnp
from evosax.algorithms import CMA_ES
from evosax.problems import GymnaxProblem
from flax import linen as nn

limit = 100


class Linear(nn.Module):
    """The action is the larger of two linear functions of the observation."""

    @nn.compact
    def __call__(self, obs, key):
        return jnp.argmax(nn.Dense(2)(obs))


problem = GymnaxProblem(
    "CartPole-v1",
    Linear(),
    episode_length=limit,
    num_rollouts=4,
    env_params={"max_steps_in_episode": limit},
)
key = jax.random.key(0)
solution = problem.sample(key)
algorithm = CMA_ES(population_size=16, solution=solution)
params = algorithm.default_params
ask = jax.jit(algorithm.ask)
tell = jax.jit(algorithm.tell)


def search(sign):
    """The mean returns of the first and the last generation, and the best fitness of the algorithm."""
    state = algorithm.init(key, solution, params)
    problem_state = problem.init(key)
    means = []
    for generation in range(12):
        keys = jax.random.split(jax.random.fold_in(key, generation), 3)
        population, state = ask(keys[0], state, params)
        fitness, problem_state, _ = problem.eval(keys[1], population, problem_state)
        state, _ = tell(keys[2], population, sign * fitness, state, params)
        means.append(fitness.mean().item())
    return means[0], means[-1], state.best_fitness.item()


runs = {"fitness": search(1), "-fitness": search(-1)}
for name, (first, last, best) in runs.items():
    print(f"tell({name}): mean return {first:.0f} at first, {last:.0f} in the end, best fitness {best:.0f}")
worst, right = runs.values()
seen = worst[1] < worst[0] and worst[2] < 15 and right[1] > 60
raise SystemExit(0 if seen else "the behaviour has changed")
PY
