"""Loads a trained agent, and plays one episode with it.

    python -m cleanrl_lite.tools.agents RUN_DIR
    python -m cleanrl_lite.tools.agents RUN_DIR my_idea.py    of a script of your own

In Python: `from cleanrl_lite.tools.agents import load, play`. The episode is the first one of the
run's own evaluation, if its --seed was 1.
"""

import importlib.util
from pathlib import Path

import numpy as np
import torch
from gymnasium.spaces import Box

from cleanrl_lite import utils
from cleanrl_lite.tools import runs as tools


def load(run_dir, path=None, render_mode=None, **changed):
    """The agent of a run and its environment; `path` is that of the script, if it is your own.

    `changed` are arguments of the run to change, such as env_kwargs. Imports only what you name:
    an installed script or `path`, and a module of --env-id if `changed` has it.
    """
    changed = {name: x for name, x in changed.items() if x is not None}
    saved = utils.load(run_dir)
    script = imported(path) if path else installed(saved)
    # An older version of the script may have had flags that are gone.
    args = {name: x for name, x in saved["args"].items() if hasattr(script.Args, name)}
    args = script.Args(**{**args, "cuda": False, **changed})
    trusted = ":" not in args.env_id or "env_id" in changed
    utils.check(trusted, f"this run imports a module. To allow it: --env-id {args.env_id}")
    env = script.make_env(args, render_mode)
    agent = script.Agent(args, env.observation_space, env.action_space)
    utils.load(run_dir, agent=agent)
    return agent.eval(), env  # no dropout


def imported(path):
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def installed(saved):
    """The script of this package that made the run; refuses a copy under its name."""
    name = saved["script"]
    path = Path(utils.__file__).with_name(f"{name}.py")
    copied = saved["dir"] / path.name
    known = path.exists() and (not copied.exists() or copied.read_text() == path.read_text())
    utils.check(known, f"this run is of another {name}.py: name the script, such as {copied}")
    utils.check(name != "ppo_godot", "a game's agents play together: ppo_godot.py --evaluate")
    return importlib.import_module(f"cleanrl_lite.{name}")


@torch.no_grad()
def play(agent, env, seed):
    """The return of one episode with the greedy policy."""
    obs, _ = env.reset(seed=seed)
    episodic_return = 0.0
    done = False
    while not done:
        batch = torch.as_tensor(obs)[None]  # act() takes a batch of observations
        action = agent.act(batch)[0].numpy()[()]
        if isinstance(env.action_space, Box):  # a Gaussian's actions may lie outside the bounds
            action = np.clip(action, env.action_space.low, env.action_space.high)
        obs, reward, terminated, truncated, _ = env.step(action)
        episodic_return += reward
        done = terminated or truncated
    return episodic_return


def main():
    parser = tools.parser(__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("script", nargs="?", help="its path, if it is not an installed one")
    parser.add_argument("--env-id", help="the run's, if it names a module, which is imported then")
    args = parser.parse_args()
    agent, env = load(args.run_dir, args.script, env_id=args.env_id)
    print(play(agent, env, seed=10_001))


if __name__ == "__main__":
    main()
