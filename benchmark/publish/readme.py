"""Writes the generated parts of README.md, between their comments.

    python -m benchmark.publish.readme

They come from benchmark/results/ and the scripts: a summary, and a row for each core script.
"""

import json
import math
import re
import textwrap

from benchmark import shared
from benchmark.publish.collect import groups
from benchmark.publish.tables import (
    UNTRAINED,
    flags,
    is_untrained,
    returns_of,
    spread,
    steps,
    verdict,
)
from benchmark.shared import RESULTS, ROOT
from cleanrl_lite.tools.compare import ABOVE, BELOW, SAME, SEEDS

# script: algorithm, actions, observations, and the experiment that is its example
CORE = {
    "ppo": ("PPO", "Discrete", "vectors", "CartPole-v1", "ppo"),
    "ppo_continuous": ("PPO", "Box", "vectors", "Walker2d-v4", "ppo_continuous"),
    "ppo_atari": ("PPO", "Discrete", "Atari frames", "BreakoutNoFrameskip-v4", "ppo_atari_bf16"),
    "dqn": ("DQN", "Discrete", "vectors", "CartPole-v1", "dqn"),
    "dqn_atari": ("DQN", "Discrete", "Atari frames", "PongNoFrameskip-v4", "dqn_atari_bf16_1000k"),
    "c51": ("C51", "Discrete", "vectors", "CartPole-v1", "c51"),
    "c51_atari": ("C51", "Discrete", "Atari frames", "PongNoFrameskip-v4", "c51_atari_bf16_1000k"),
    "ddpg": ("DDPG", "Box, bounded", "vectors", "HalfCheetah-v4", "ddpg"),
    "td3": ("TD3", "Box, bounded", "vectors", "HalfCheetah-v4", "td3"),
    "sac": ("SAC", "Box, bounded", "vectors", "HalfCheetah-v4", "sac"),
}


def fill(text, indent=""):
    return textwrap.fill(
        text, 118, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def speeds():
    """{core script: steps per second as a multiple of Stable-Baselines3's}"""
    found = {}
    for script in CORE:
        for path in (RESULTS / "speed").glob(f"{script}__*__compiled.json"):
            found[script] = json.loads(path.read_text())["ratio"]
    return found


def summary():
    paths = [path for path in (ROOT / "cleanrl_lite").glob("*.py") if path.stem != "utils"]
    lengths = [len(path.read_text().splitlines()) for path in paths]
    shortest = min(lengths) // 10 * 10
    longest = math.ceil(max(lengths) / 10) * 10
    ratios = speeds().values()
    verdicts = [word for word, _ in map(verdict, groups().values()) if word]
    above, same, below = (verdicts.count(word) for word in (ABOVE, SAME, BELOW))
    lines = [
        f"- Single file: {len(paths)} scripts of {shortest} to {longest} lines of plain code. They "
        "share one `utils.py`, which contains no algorithm.",
        f"- Fast: {min(ratios):.1f} to {max(ratios):.1f} times the steps per second of "
        "[Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3) with the same "
        "hyperparameters on one CPU core, from the same readable file ([speed](docs/speed.md)).",
        f"- Measured: with default flags and {SEEDS} seeds or more, our mean return is above that "
        f"of [CleanRL](https://github.com/vwxyzjn/cleanrl) in {above} of {len(verdicts)} pairs of "
        f"script and environment, within noise of it in {same}, and below it in "
        f"{below or 'none'}. CleanRL's means have 3 seeds, so only large differences would show "
        "([results](docs/results.md)).",
        "- Correct where common implementations are not: truncation, resets, counting, "
        "normalisation, replay, resume ([the list](docs/guides/design.md)).",
    ]
    return "\n".join(fill(line, "  ") for line in lines)


def core():
    """A row for each core script."""
    lines = ["| script | algorithm | actions | observations | a result | speed, SB3 = 1 |"]
    lines.append("|---|---|---|---|---|---:|")
    for script, (algorithm, actions, observations, env_id, name) in CORE.items():
        cells = [
            f"[{script}.py](docs/{script}.md)",
            algorithm,
            actions,
            observations,
            example(script, env_id, name),
            f"{speeds()[script]:.1f}",
        ]
        lines.append(shared.row(cells))
    note = "Actions: Discrete is one of n choices, Box a vector of real numbers. A result: mean "
    note += "of the last 100 training episodes ± deviation over seeds, with the number of steps. "
    note += "Speed: steps per second on one CPU core, where those of Stable-Baselines3 (SB3) are 1."
    return "\n".join([*lines, "", fill(note)])


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
    """README.md's text with its generated parts as the files give them now."""
    for name, text in {"summary": summary(), "core": core()}.items():
        marks = rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)"
        readme = re.sub(marks, rf"\g<1>{text}\n\g<2>", readme, flags=re.S)
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(render(path.read_text()))
