"""Writes the table of the core scripts into README.md, between its comments.

    python -m benchmark.publish.readme

It comes from benchmark/results/, and the word on the evidence from the scripts' pages.
"""

import json
import re

from benchmark import shared
from benchmark.publish.collect import groups
from benchmark.publish.tables import UNTRAINED, flags, is_untrained, returns_of, spread, steps
from benchmark.shared import RESULTS, ROOT

# script: actions, observations, and the experiment that is its example
CORE = {
    "ppo": ("Discrete", "vectors", "CartPole-v1", "ppo"),
    "ppo_continuous": ("Box", "vectors", "Walker2d-v4", "ppo_continuous"),
    "ppo_atari": ("Discrete", "Atari frames", "BreakoutNoFrameskip-v4", "ppo_atari_bf16"),
    "dqn": ("Discrete", "vectors", "CartPole-v1", "dqn"),
    "dqn_atari": ("Discrete", "Atari frames", "PongNoFrameskip-v4", "dqn_atari_bf16_1000k"),
    "c51": ("Discrete", "vectors", "CartPole-v1", "c51"),
    "c51_atari": ("Discrete", "Atari frames", "PongNoFrameskip-v4", "c51_atari_bf16_1000k"),
    "ddpg": ("Box, bounded", "vectors", "HalfCheetah-v4", "ddpg"),
    "td3": ("Box, bounded", "vectors", "HalfCheetah-v4", "td3"),
    "sac": ("Box, bounded", "vectors", "HalfCheetah-v4", "sac"),
}


def speeds():
    """{core script: steps per second as a multiple of Stable-Baselines3's}"""
    found = {}
    for script in CORE:
        for path in (RESULTS / "speed").glob(f"{script}__*__compiled.json"):
            found[script] = json.loads(path.read_text())["ratio"]
    return found


def core():
    """A row for each core script."""
    lines = ["| script | actions | observations | evidence | a result | speed, SB3 = 1 |"]
    lines.append("|---|---|---|---|---|---:|")
    for script, (actions, observations, env_id, name) in CORE.items():
        page = (ROOT / f"docs/{script}.md").read_text()
        evidence = re.search(r"^Evidence: \*(\w+)\*", page, re.M)[1]
        link = f"[{script}.py](docs/{script}.md)"
        result = example(script, env_id, name)
        speed = f"{speeds()[script]:.1f}"
        lines.append(shared.row([link, actions, observations, evidence, result, speed]))
    return "\n".join(lines)


def example(script, env_id, name):
    """An experiment's return, after how many steps, of how many seeds."""
    runs = groups(script)[script, env_id, name, True]
    if is_untrained(runs):
        return UNTRAINED
    total = steps(runs[0]["total_timesteps"])
    seeds = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
    short = env_id.split("NoFrameskip")[0]
    given = f", `{flags(runs)}`" if flags(runs) else ""
    return f"{short}: {spread(returns_of(runs))} ({total}, {seeds}{given})"


def render(readme):
    """README.md's text with the table as the files give it now."""
    marks = r"(<!-- core: .*? -->\n).*?(<!-- end of core -->)"
    return re.sub(marks, lambda found: f"{found[1]}{core()}\n{found[2]}", readme, flags=re.S)


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(render(path.read_text()))
