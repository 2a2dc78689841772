"""Loads a trained agent, and plays one episode with it.

    python -m cleanrl_lite.tools.agents RUN_DIR
    python -m cleanrl_lite.tools.agents RUN_DIR my_idea.py    where the script has moved

In Python: `from cleanrl_lite.tools.agents import load, play`. The episode is the first one of the
run's own evaluation, if its --seed was 1.
"""

import importlib.util
from unittest import mock

import numpy as np
import torch
from gymnasium.spaces import Box

from cleanrl_lite import utils
from cleanrl_lite.tools import runs as tools


# --8<-- [start:load]
def load(run_dir, path=None, render_mode=None, **changed):
    """The agent of a run and its environment; `path` is that of the script, if it has moved.

    `changed` are arguments of the run to change, such as env_kwargs.
    """
    file = f"{run_dir}/checkpoint.pt"
    checkpoint = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    name = checkpoint["script"]
    if name == "ppo_godot":
        raise SystemExit(
            "error: a game's agents play together. Play them with ppo_godot.py --evaluate"
        )
    if path is None and importlib.util.find_spec(f"cleanrl_lite.{name}"):
        script = importlib.import_module(f"cleanrl_lite.{name}")
    else:  # a copy of a script; its run directory has its text
        spec = importlib.util.spec_from_file_location(name, path or f"{run_dir}/{name}.py")
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)

    # An older version of the script may have had flags that are gone.
    saved = {name: x for name, x in checkpoint["args"].items() if hasattr(script.Args, name)}
    args = script.Args(**{**saved, "evaluate": str(run_dir), "cuda": False, **changed})
    # main() makes the agent as the script does, but gives it back instead of evaluating it.
    with mock.patch.object(utils, "evaluate_saved", lambda args, make_env, agent: agent):
        agent = script.main(args)
    agent.load_state_dict(checkpoint["agent"])
    agent.eval()  # no dropout
    return agent, script.make_env(args, render_mode)


# --8<-- [end:load]
# --8<-- [start:play]
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


# --8<-- [end:play]
def main():
    parser = tools.parser(__doc__)
    parser.add_argument("run_dir")
    parser.add_argument("script", nargs="?", help="default: the installed one, or RUN_DIR's copy")
    args = parser.parse_args()
    agent, env = load(args.run_dir, args.script)
    print(play(agent, env, seed=10_001))


if __name__ == "__main__":
    main()
