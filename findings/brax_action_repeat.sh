#!/usr/bin/env bash
# brax 0.14.2: with action_repeat, the parts of an episode's reward are a fraction of its sum, and an end may be missed.
#
# Expected: with action_repeat=4 a step is four steps: the metrics of all of them are added, as the rewards are, and an
# end in any of them ends the episode. Of metrics and "done" only the last repeat's count: reward_dist and reward_ctrl
# do not add up to the episode's reward, in training's and in evaluation's figures, and an environment that is done in
# an earlier repeat goes on. The same wrapper is around MuJoCo Playground's environments.
#
# Output seen on 2026-11-28 (40 steps of reacher, and an environment that is done in its 2nd step and at no other time):
#     action_repeat=1: reward -10.27, of it reward_dist -3.07 and reward_ctrl -7.20
#     action_repeat=4: reward -10.27, of it reward_dist -0.70 and reward_ctrl -1.80
#     action_repeat=1: done after each step 0 1 0 0, rewards 1 1 1 1
#     action_repeat=4: done after each step 0, rewards 4
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "brax==0.14.2" "jax==0.10.2" "mujoco==4.0.0" "mujoco-mjx==3.17.0" "numpy==2.3.5"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - 2> "$folder/log" <<'PY' | sed "/^Failed to import/d" ||
import jax
import jax.numpy as jnp
from brax import envs
from brax.envs.wrappers.training import EvalWrapper, wrap


def steps(env, repeat, count, action):
    """The states after each step of the first of two environments."""
    env = EvalWrapper(wrap(env, episode_length=100, action_repeat=repeat))
    state = jax.jit(env.reset)(jax.random.split(jax.random.PRNGKey(0), 2))
    step = jax.jit(env.step)
    for _ in range(count // repeat):
        state = step(state, action)
        yield jax.tree.map(lambda value: value[0], state)


found = []
for repeat in (1, 4):
    *_, last = steps(envs.get_environment("reacher", backend="generalized"), repeat, 40, jnp.full((2, 2), 0.3))
    for metrics in (last.info["eval_metrics"].episode_metrics, last.info["episode_metrics"]):
        reward = metrics.get("sum_reward", metrics.get("reward"))
        parts = [float(metrics[name]) for name in ("reward_dist", "reward_ctrl")]
        found.append(round(sum(parts) / float(reward), 2))
    print(f"action_repeat={repeat}: reward {reward:.2f}", end=", of it ")
    print(f"reward_dist {parts[0]:.2f} and reward_ctrl {parts[1]:.2f}")


class DoneOnce(envs.Env):
    observation_size = action_size = 1
    backend = "none"

    def reset(self, rng):
        zero = jnp.zeros(())
        return envs.State(None, jnp.zeros(1), zero, zero, {}, {"step": zero})

    def step(self, state, action):
        state.info["step"] += 1
        return state.replace(reward=jnp.ones(()), done=(state.info["step"] == 2).astype(jnp.float32))


for repeat in (1, 4):
    states = list(steps(DoneOnce(), repeat, 4, jnp.zeros((2, 1))))
    found.append([int(state.done) for state in states])
    print(f"action_repeat={repeat}: done after each step", *found[-1], end=", rewards ")
    print(*(int(state.reward) for state in states))
raise SystemExit(0 if found == [1.0, 1.0, 0.24, 0.24, [0, 1, 0, 0], [0]] else "the behaviour has changed")
PY
    { cat "$folder/log" >&2; exit 1; }
