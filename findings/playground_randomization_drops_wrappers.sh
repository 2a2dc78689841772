#!/usr/bin/env bash
# brax 0.14.2, MuJoCo Playground 0.2.0: with a randomization_fn, wrappers around the environment have no effect.
#
# Expected: domain randomization varies the model, and a wrapper that was put around the environment (another reward,
# observation noise, an action delay) still works. brax's training.wrap and Playground's wrap_for_brax_training step the
# unwrapped environment where a randomization_fn is given. Nothing warns; an agent trains without the wrapper, and is
# evaluated with it where the evaluation is not randomized.
#
# Output seen on 2026-11-28 (a wrapper that multiplies rewards by 100; the randomization changes nothing):
#     Playground, CartpoleBalance: 99.98, with a randomization_fn 1.00
#     brax, reacher: -19.83, with a randomization_fn -0.20
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --no-compile "playground==0.2.0" "brax==0.14.2" "jax==0.10.2" \
    "mujoco==4.0.0" "mujoco-mjx==3.17.0" "warp-lang==1.19.0" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - 2> "$folder/log" <<'PY' ||
from functools import partial, reduce

import jax
import jax.numpy as jnp
from brax import envs
from brax.envs.wrappers.training import wrap
from mujoco_playground import registry, wrapper


def times_100(base):
    class Times100(base):
        def step(self, state, action):
            state = self.env.step(state, action)
            return state.replace(reward=100 * state.reward)

    return Times100


def randomize(model, name):
    """Two times the model as it is."""
    axes = jax.tree.map(lambda _: None, model).tree_replace({name: 0})
    value = reduce(getattr, name.split("."), model)
    return model.tree_replace({name: jnp.stack([value, value])}), axes


def first_reward(env, actions):
    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), 2))
    return float(jax.jit(env.step)(state, jnp.zeros((2, actions))).reward[0])


found = []
for title, env, wrap_env, name, actions in (
    (
        "Playground, CartpoleBalance",
        times_100(wrapper.Wrapper)(registry.load("CartpoleBalance", config_overrides={"impl": "jax"})),
        wrapper.wrap_for_brax_training,
        "body_mass",
        1,
    ),
    ("brax, reacher", times_100(envs.Wrapper)(envs.get_environment("reacher")), wrap, "link.inertia.mass", 2),
):
    randomization = partial(randomize, name=name)
    plain = first_reward(wrap_env(env, episode_length=10), actions)
    random = first_reward(wrap_env(env, episode_length=10, randomization_fn=randomization), actions)
    print(f"{title}: {plain:.2f}, with a randomization_fn {random:.2f}")
    found.append(round(plain / random))
raise SystemExit(0 if found == [100, 100] else "the behaviour has changed")
PY
    { cat "$folder/log" >&2; exit 1; }
