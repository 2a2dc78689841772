"""Writes the generated parts of README.md, between their comments:  python -m benchmark.readme

All of it comes from benchmark/results/: a summary in two sentences, a results table of at most ROWS rows (default
flags, as many steps as CleanRL's figure has, SEEDS seeds or more, environments that CleanRL's agent learned), a
sentence on runs with fewer seeds, and one line of speed for each script.
"""

import json
import math
import re
import textwrap

from benchmark.collect import RESULTS, key, published, reported, spread, steps
from benchmark.overview import SCRIPTS, SEEDS, flags, groups, lacking, normalised, verdict
from benchmark.speed import ROOT

ROWS, WRAP = 11, dict(width=118, break_on_hyphens=False, break_long_words=False)
# Where there is room for a part only: the environments that say most come first.
FIRST = "HalfCheetah Hopper Walker2d Humanoid Breakout Pong BeamRider CartPole Acrobot".split()


def comparable(script, seeds=1, given=""):
    """The experiments of a script that a row compares with CleanRL: finished, no flags but `given`, as many steps."""
    name = script + given.replace("--", "_")
    found = [runs for (_, _, found, _), runs in groups(script).items() if (found, flags(runs)) == (name, given)]
    found = [runs for runs in found if len(runs) >= seeds and verdict(runs)]
    return sorted(found, key=lambda runs: [not runs[0]["env_id"].startswith(name) for name in FIRST])


def learned(script):
    """The comparable experiments with SEEDS seeds or more, in environments that CleanRL's agent learned."""
    return [runs for runs in comparable(script, SEEDS) if runs[0]["env_id"] in normalised(script)[0]]


def chosen():
    """At most ROWS experiments, in turns one of each script, so that none is left out for another's fifth."""
    waiting, found = {script: learned(script) for script in SCRIPTS}, []
    while len(found) < ROWS and any(waiting.values()):
        found += [experiments.pop(0) for experiments in waiting.values() if experiments][: ROWS - len(found)]
    return sorted(found, key=lambda runs: (SCRIPTS.index(runs[0]["script"]), runs[0]["env_id"]))


def speeds(mode="compiled"):
    """{script: record} of a mode's runs beside Stable-Baselines3; `compiled` and `eager` are float32."""
    records = [json.loads(path.read_text()) for path in (RESULTS / "speed").glob(f"*__{mode}.json")]
    records = {record["script"]: record for record in records}
    return {script: records[script] for script in SCRIPTS if script in records}


def summary():
    ratios = [record["ratio"] for record in speeds().values()]
    verdicts = [verdict(runs) for script in SCRIPTS for runs in learned(script)]
    parts = [f"within noise of it in {verdicts.count('open')}"] if "open" in verdicts else []
    parts += [f"below it in {verdicts.count('no')}"] if "no" in verdicts else []
    fast = f"**Fast**: {min(ratios):.1f} to {max(ratios):.1f} times the steps per second of Stable-Baselines3 with the "
    fast += "same hyperparameters on one CPU core, from the same readable file ([speed](#speed))."
    measured = "**Measured**: with default flags the mean return is at or above CleanRL's published mean in "
    measured += f"{verdicts.count('yes')} of {len(verdicts)} comparisons with {SEEDS} seeds or more, "
    measured += f"{' and '.join(parts)} ([results](#results))."
    return "\n".join(textwrap.fill(f"- {text}", **WRAP, subsequent_indent="  ") for text in (fast, measured))


def results():
    lines = ["| script | environment | steps | seeds | last 100 training episodes | CleanRL | | evaluation |"]
    lines += ["|---|---|---:|---:|---:|---:|---|---:|"]
    marks = dict(yes="", open="▼ within noise", no="▼")
    for runs in chosen():
        script, env_id, *_ = key(runs[0])
        total, ours = runs[0]["total_timesteps"], [run["last_100_mean"] for run in runs]
        cells = [script, env_id, steps(total), str(len(runs)), f"**{spread(ours)}**"]
        cells += [reported(published(runs[0])["training"], total), marks[verdict(runs)]]
        lines.append(f"| {' | '.join([*cells, spread([run['eval_mean'] for run in runs])])} |".replace("|  |", "| |"))
    note = "Mean ± standard deviation over seeds. ▼: below CleanRL; *within noise*: by less than two standard errors. "
    note += "Evaluation: the greedy policy. Left out: MountainCar-v0, where CleanRL's agents hardly learn."
    return "\n".join([*lines, "", *(textwrap.fill(text, **WRAP) + "\n" for text in (note, few(), absent()))]).strip()


def few():
    """One sentence: the experiments with fewer than SEEDS seeds; with --bf16 where a script has no others."""
    told = {}
    for script in SCRIPTS:
        given = "" if comparable(script) else "--bf16"
        for runs in (runs for runs in comparable(script, 1, given) if len(runs) < SEEDS):
            ours, theirs = spread([run["last_100_mean"] for run in runs]), published(runs[0])["training"]
            text = f"{runs[0]['env_id']} {ours} ({reported(theirs, runs[0]['total_timesteps'])})"
            told[script] = f"{told[script]}, {text}" if script in told else f"{script} {given and '`--bf16` '}{text}"
    text = f"**Fewer than {SEEDS} seeds so far** (CleanRL's in brackets): {'; '.join(told.values())}."
    return re.sub("(NoFrameskip)?-v4", "", text) if told else ""


def absent():
    """One sentence: the scripts without full-length results."""
    found = [script for script in SCRIPTS if lacking(script)]
    if atari := [script for script in found if "_atari" in script]:
        found = [script for script in found if script not in atari] + ["the Atari scripts"]
    told = f"**Not there yet**: some of the planned runs ({SEEDS} seeds) of {', '.join(found)}. "
    told += "[All results](benchmark/results/overview.md)."
    return told if found else ""


def speed():
    lines = ["| script | environment | Stable-Baselines3, steps/s | cleanrl_lite, steps/s | ratio |"]
    lines += ["|---|---|---:|---:|---:|"]
    for script, record in speeds().items():
        theirs, ours = (f"{record[side]['sps']:,.0f}" for side in ("sb3", "ours"))
        lines.append(f"| {script} | {record['env_id']} | {theirs} | {ours} | **{record['ratio']:.2f}** |")
    note = f"Float32, compiled, one core ({' or '.join(sorted({r['hardware'] for r in speeds().values()}))}). "
    note += "Ratio: median over pairs of runs."
    note += " Stable-Baselines3 has no C51, so its DQN stands in" if "c51" in speeds() else ""
    note += "; its DDPG updates the actor at every step, ours at every second." if "ddpg" in speeds() else "."
    return "\n".join([*lines, "", textwrap.fill(f"{note} {compiling()}", **WRAP)])


def compiling():
    """What compiling costs at the start of a PPO script, and what it gains afterwards."""
    both = {script: (r, speeds("eager")[script]) for script, r in speeds().items() if script in speeds("eager")}
    gains = [r["ours"]["sps"] / eager["ours"]["sps"] for r, eager in both.values()]
    gained = f"The update is compiled by default: {min(gains):.3g} to {max(gains):.3g} times as fast as `--no-compile`."
    starts = [r for script, (r, _) in both.items() if script.startswith("ppo") and r["cold"]]
    if not starts:
        return gained
    cold, warm = ([r[side]["first_update_s"] for r in starts] for side in ("cold", "ours"))
    cold, warm = (f"{math.floor(min(seconds))} to {math.ceil(max(seconds))} s" for seconds in (cold, warm))
    return f"{gained} The ppo scripts finish their first update after {cold}, or {warm} with a filled compiler cache."


def render(readme):
    """README.md's text with its generated parts as the files give them now."""
    for name, write in dict(summary=summary, results=results, speed=speed).items():
        pattern = rf"(<!-- {name}: .*? -->\n).*?(<!-- end of {name} -->)"
        readme = re.sub(pattern, lambda match, text=write(): f"{match[1]}{text}\n{match[2]}", readme, flags=re.S)
    return readme


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(render(path.read_text()))
