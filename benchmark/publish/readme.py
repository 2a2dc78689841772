"""Writes the generated parts of README.md, between their comments.

    python -m benchmark.publish.readme

All of it comes from benchmark/results/ and the scripts: a summary in four lines, a row for each
core script, the main table of overview.py, and one line of speed for each script.
"""

import json
import math
import re
import textwrap

from benchmark import shared
from benchmark.measure import time_to_return
from benchmark.measure.speed import PUBLISHED, stars, unequal
from benchmark.publish.collect import groups, spread, steps
from benchmark.publish.overview import (
    OPEN,
    SCRIPTS,
    compared,
    flags,
    lacking,
    open_cells,
    open_table,
    verdict,
    verdict_table,
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
        text,
        width=118,
        break_on_hyphens=False,
        break_long_words=False,
        subsequent_indent=indent,
    )


def speeds(mode="compiled"):
    """{script: record} of a mode's published runs beside Stable-Baselines3.

    `compiled` and `eager` are float32.
    """
    found = {}
    for script, env_id, _ in PUBLISHED:
        path = RESULTS / "speed" / f"{script}__{env_id}__{mode}.json"
        if path.exists():
            found[script] = json.loads(path.read_text())
    return {script: found[script] for script in SCRIPTS if script in found}


def summary():
    paths = [path for path in (ROOT / "cleanrl_lite").glob("*.py") if path.stem != "utils"]
    lengths = [len(path.read_text().splitlines()) for path in paths]
    shortest = min(lengths) // 10 * 10
    longest = math.ceil(max(lengths) / 10) * 10
    single = f"- Single file: {len(paths)} scripts of {shortest} to {longest} lines of plain code. "
    single += "They share one `utils.py`, which contains no algorithm."
    ratios = [record["ratio"] for record in speeds().values() if not unequal(record)]
    fast = f"- Fast: {min(ratios):.1f} to {max(ratios):.1f} times the steps per second of "
    fast += "[Stable-Baselines3](https://github.com/DLR-RM/stable-baselines3) with the same "
    fast += "hyperparameters on one CPU core, from the same readable file ([speed](#speed))."
    verdicts = [verdict(runs) for runs in compared()]
    above, same, below = (verdicts.count(word) for word in (ABOVE, SAME, BELOW))
    measured = f"- Measured: with default flags and {SEEDS} seeds or more, our mean return is "
    measured += "above that of [CleanRL](https://github.com/vwxyzjn/cleanrl) in "
    measured += f"{above} of {len(verdicts)} pairs of script and environment, "
    measured += f"within noise of it in {same}, and below it in {below or 'none'}. CleanRL's "
    measured += "means have 3 seeds, so only large differences would show ([results](#results))."
    correct = "- Correct where common implementations are not: truncation, resets, counting, "
    correct += "normalisation, replay, resume ([the list](docs/guides/design.md))."
    return "\n".join(fill(line, "  ") for line in (single, fast, measured, correct))


def core():
    """A row for each core script."""
    head = "| script | algorithm | actions | observations | a result | speed, SB3 = 1 |"
    lines = [head, "|---|---|---|---|---|---:|"]
    for script, (algorithm, actions, observations, env_id, name) in CORE.items():
        record = speeds()[script]
        star = "\\*" if unequal(record) else ""
        cells = [
            f"[{script}.py](docs/{script}.md)",
            algorithm,
            actions,
            observations,
            example(script, env_id, name),
            f"{record['ratio']:.1f}{star}",
        ]
        lines.append(shared.row(cells))
    note = "Actions: Discrete is one of n choices, Box a vector of real numbers. A result: mean "
    note += "of the last 100 training episodes ± deviation over seeds, with the number of steps. "
    note += "Speed: steps per second on one CPU core, where those of Stable-Baselines3 (SB3) are 1"
    starred = any(unequal(speeds()[script]) for script in CORE)
    note += "; \\* see [speed](#speed)." if starred else "."
    return "\n".join([*lines, "", fill(note)])


def example(script, env_id, name):
    """An experiment's return, after how many steps, of how many seeds."""
    found = groups(script)
    runs = found.get((script, env_id, name, True))
    if not runs:
        return "no finished run yet"
    mean = spread([run["last_100_mean"] for run in runs])
    total = steps(runs[0]["total_timesteps"])
    seeds = f"{len(runs)} seed{'s' * (len(runs) > 1)}"
    short = env_id.split("NoFrameskip")[0]
    given = f", `{flags(runs)}`" if flags(runs) else ""
    return f"{short}: {mean} ({total}, {seeds}{given})"


def results():
    lines = [*verdict_table(), ""]
    if open_cells():
        lines += [f"<details><summary>{OPEN}</summary>", "", *open_table(), "", "</details>", ""]
    return "\n".join([*lines, fill(absent())]).rstrip()


def absent():
    """One sentence: the scripts without full-length results."""
    found = [script for script in SCRIPTS if lacking(script)]
    others = [script for script in found if "_atari" not in script]
    if len(others) < len(found):
        others.append("the Atari scripts")
    told = f"Not there yet: some of the planned runs of {', '.join(others)}. "
    told += "[All results](benchmark/results/overview.md)."
    return told if found else ""


def speed():
    lines = [
        "| script | environment | Stable-Baselines3, steps/s | cleanrl_lite, steps/s | ratio |"
    ]
    lines.append("|---|---|---:|---:|---:|")
    records = speeds()
    for script, record in records.items():
        star = "\\*" if unequal(record) else ""
        ratio = f"{record['ratio']:.1f}"  # the second digit does not repeat
        better = min(record["ratios"]) > 1
        cells = [
            script,
            record["env_id"],
            f"{record['sb3']['sps']:,.0f}",
            f"{record['ours']['sps']:,.0f}",
            f"**{ratio}**{star}" if better else f"{ratio}{star}",
        ]
        lines.append(shared.row(cells))
    machines = " or ".join(sorted({record["hardware"] for record in records.values()}))
    note = f"Float32, compiled, on one core (machine: {machines}). "
    note += "Ratio: median over pairs of runs ([ranges](docs/speed.md))."
    if "c51" in records:
        note += " Stable-Baselines3 has no C51, so its DQN stands in."
    until = time_to_return.sentence(time_to_return.read(time_to_return.FILE))
    parts = [stars(records.values()), f"{note} {compiling()}", until]
    return "\n\n".join(["\n".join(lines), *map(fill, filter(None, parts))])


def conditions(record):
    """What two records must share to be compared: commit, machine, and iterations in a run."""
    iterations = len(record["ours_runs"][0]["iteration_sps"])
    # Before the tool left its own results out, they made the later records dirty.
    commit = (record["commit"] or "").removesuffix("-dirty")
    return commit, record["hardware"], iterations


def compiling():
    """What compiling costs at the start of a PPO script, and what it gains afterwards."""
    eager = speeds("eager")
    compiled = {script: record for script, record in speeds().items() if script in eager}
    gains = []
    for script, record in compiled.items():
        if conditions(record) == conditions(eager[script]):
            gains.append(record["ours"]["sps"] / eager[script]["ours"]["sps"])
    gained = f"The update is compiled by default: {min(gains):.3g} to {max(gains):.3g} times as "
    gained += "fast as `--no-compile`."
    ppo = [record for script, record in compiled.items() if script.startswith("ppo")]
    starts = [record for record in ppo if record["cold"]]
    if not starts:
        return gained
    cold = seconds([record["cold"]["first_update_s"] for record in starts])
    warm = seconds([record["ours"]["first_update_s"] for record in starts])
    first = f"The ppo scripts finish their first update after {cold}, or {warm} with a filled "
    more = "(the first run on a machine also precompiles torch's headers: about 7 s more)"
    return f"{gained} {first}compiler cache {more}."


def seconds(found):
    return f"{math.floor(min(found))} to {math.ceil(max(found))} s"


def render(readme):
    """README.md's text with its generated parts as the files give them now."""
    parts = {"summary": summary(), "core": core(), "results": results(), "speed": speed()}
    for name, text in parts.items():
        pattern = rf"(?<=<!-- {name}: )(.*? -->\n).*?(<!-- end of {name} -->)"
        pieces = re.search(pattern, readme, re.S)
        readme = readme.replace(pieces[0], f"{pieces[1]}{text}\n{pieces[2]}")
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(render(path.read_text()))
