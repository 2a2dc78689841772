"""Is a changed copy better than its script? Trains both on the same seeds, and says what they tell.

    python -m cleanrl_lite.tools.study my_idea.py --env-id Hopper-v4 --steps 100000 --seeds 1-5
    ... --jobs 2 -- --num-envs 4                          two runs at a time; flags for both sides
    ... --minutes 20                                      no --steps, but equal time for each run
    ... --try learning_rate=2.5e-4,1e-3 gamma=0.98,0.99   four settings of the copy, ranked
    ... --try learning_rate=2.5e-4,1e-3 --confirm 11-15   and the best one again, on new seeds

First each setting makes two updates, to find mistakes. The same command continues what was stopped.
study/NAME gets verdict.md, curves.png, runs.json and copy.diff, study/runs the runs of all studies.
"""

import difflib
import hashlib
import itertools
import json
import os
import re
import shlex
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
from tqdm import tqdm

from cleanrl_lite.tools import compare, jobs, plot
from cleanrl_lite.tools import runs as tools

OUT = Path("study")
OURS = {"env_id", "total_timesteps", "seed", "runs_dir", "resume", "exp_name", "evaluate"}
FOREVER = 10**9  # steps
LEGEND = """
Final is the mean return of the last tenth of the steps, with --minutes of each run's own; area that
of all steps, with --minutes of all the time. Differences have their 95 % interval and the p of
Welch's t-test. Better or worse: final differs; faster or more slowly: only area does. Of the two p,
one must be below 0.025 and the other below 0.05; at the same ceiling, only area counts. Seeds: on
each side, to see a tenth of what the parent has learned."""
LUCK = "\nThe best of several was also the luckiest. To run it again on new seeds: --confirm 11-15"
Arm = namedtuple("Arm", "name script flags")  # a side of the comparison; flags are words


# === before a run
def refuse_unfair(args):
    """What would spoil the comparison, in one line."""
    script, parent = args.script, args.parent
    code, text = tools.code_of(script), script.read_text()
    if (tools.SCRIPTS / script.name).exists() and not (args.tried and script.samefile(parent)):
        tools.refuse(f"{script.name} is the name of an installed script: call the copy otherwise")
    if code == tools.code_of(parent) and not args.tried:
        tools.refuse(f"{script.name} has the code of {parent.name}: there is nothing to compare")
    if "def sampler(" in text and ".check_policy(" not in text and not args.other_act:
        tools.refuse(f"{script.name} lacks utils.check_policy. If act() is to differ: --other-act")
    words = [word.partition("=")[0] for word in args.flags if word.startswith("--")]
    given = {word[2:].replace("-", "_").removeprefix("no_") for word in words}
    ours, theirs = tools.default_args(text), tools.default_args(parent.read_text())
    tried = {name for setting in args.tried for name, _ in setting}
    for name in (given - (ours.keys() & theirs.keys() - OURS)) | (tried - (ours.keys() - OURS)):
        tools.refuse(f"--{name} is no flag of both {script.name} and {parent.name}, or study's own")
    for name in ours.keys() & theirs.keys() - given:
        if ours[name] != theirs[name]:
            same = tools.flag(name, ours[name])
            tools.refuse(f"{name} is {theirs[name]} in {parent.name}. The same for both: -- {same}")
    for old in OUT.glob(f"runs/*/*/{script.name}"):
        if old.with_name("checkpoint.pt").exists() and tools.code_of(old) != code:
            tools.refuse(f"{script.name} changed since it ran: rename it or rm -r {old.parents[1]}")
    if args.minutes and (args.print_jobs or args.jobs > os.cpu_count()):
        tools.refuse("--minutes needs this machine, and a core for each of --jobs")
    scheduled = re.search(r"(?<!< )(?<!>= )args\.total_timesteps", text + parent.read_text())
    if scheduled and args.steps == FOREVER:
        tools.refuse("a schedule depends on the total: give --steps, what --minutes should reach")
    if set(args.seeds) & set(args.confirm):
        tools.refuse("--confirm needs seeds that --seeds does not have")


# === runs
def folder(args, arm, env_id):
    """That of an arm's runs in an environment. With other code or flags, it is another one."""
    code = tools.code_of(arm.script), tools.code_of(tools.SCRIPTS / "utils.py")
    text = repr([code, args.steps, args.flags, [*arm.flags], *filter(None, [args.minutes])])
    key = hashlib.sha256(text.encode()).hexdigest()[:6]
    return OUT / "runs" / re.sub("[/:]", "-", f"{arm.script.stem}-{env_id}-{key}")


def job_of(args, arm, env_id, seed):
    runs_dir = folder(args, arm, env_id)
    words = [arm.script, "--env-id", env_id, "--total-timesteps", args.steps, "--threads", "1"]
    words += [*args.flags, *arm.flags, "--seed", seed, "--runs-dir", runs_dir]
    words += [] if args.minutes else ["--resume", "auto"]  # minutes are those of one attempt
    job = jobs.Job(words, runs_dir / f"seed{seed}.txt", 60 * (args.minutes or 0))
    job.arm, job.env_id, job.seed = arm, env_id, seed
    return job


def smoke_of(args, job):
    """The job with about two updates and one episode of evaluation, in study/NAME/smoke."""
    sizes = tools.default_args(job.arm.script.read_text())
    runs_dir = OUT / args.script.stem / "smoke" / job.log.parent.name
    words = [*job.words, "--eval-episodes", "1", "--no-track", "--runs-dir", runs_dir]
    if "num_steps" in sizes:
        words += ["--total-timesteps", 2 * sizes["num_steps"] * sizes["num_envs"]]
    else:
        first = min(sizes["learning_starts"], 1_000)
        steps = first + max(200, 2 * sizes["train_frequency"])
        words += ["--learning-starts", first, "--total-timesteps", steps]
    return jobs.Job(words, runs_dir / "log.txt")


def finished(job):
    """The run of a job, or None. If its minutes were over, it has the steps that it reached."""
    over = jobs.OVER in job.output()
    paths = job.log.parent.glob("*/checkpoint.pt" if over else "*/eval.json")
    for path in sorted(paths, key=os.path.getmtime, reverse=True):
        run = tools.read_run(path.parent, path.parents[1])
        if run and over:
            run.finished = True
            run.args["total_timesteps"] = tools.last_step(tools.event_files(run.dir)[-1])
        if run and run.finished and run.args["seed"] == getattr(job, "seed", run.args["seed"]):
            return run


def train(args, todo):
    """Tries each setting, and runs the jobs; returns {job: its last line} of what failed."""
    smokes = {job.log.parent: smoke_of(args, job) for job in todo}
    for job, _ in jobs.run([job for job in smokes.values() if not finished(job)], args.jobs):
        if job and job.status:
            tools.refuse(f"{job.last_line().removeprefix('error: ')} (see {job.log})")
    speeds = [finished(smokes[job.log.parent]).curve("charts/SPS")[2][-1] for job in todo]
    minutes = [args.minutes or (args.steps / speed + 10) / 60 for speed in speeds]
    minutes = sum(minutes) / min(args.jobs, len(todo))
    print(f"{tools.count(len(todo), 'run')} to do: about {minutes:.0f} minutes", file=sys.stderr)
    look = {"unit": "run", "unit_scale": True, "mininterval": 0.1 if sys.stderr.isatty() else 30}
    with tqdm(total=len(todo), initial=sum(job.part() for job in todo), **look) as bar:
        for _ in jobs.run(todo, args.jobs):
            parts = [job.status is not None or (not args.minutes and job.part()) for job in todo]
            bar.update(sum(parts) - bar.n)
    return {job: job.last_line() for job in todo if job.status}


# === the verdict
def judge(final, area, top=None):
    """What the numbers of final and area say; `top` is the ceiling where both sides end, if any.

    If nothing differs, at most 5 of 100 verdicts say that something does (Holm 1979): the smaller p
    must be below 0.025, then the other one below 0.05. At a ceiling, only areas are compared.
    """
    if final["difference"] == area["difference"] == 0:
        return "no effect"
    if top is None and final["p"] < (0.05 if area["p"] < 0.025 else 0.025):
        return "better" if final["difference"] > 0 else "worse"
    if area["p"] < (0.025 if top is None else 0.05):
        return "learns faster" if area["difference"] > 0 else "learns more slowly"
    return "cannot tell" if top is None else "same ceiling"


def row_of(args, env_id, arm, parent, found, seeds):
    """What runs.json has on an arm in an environment; `found` is {arm: {run: measures}}."""
    row = {"env_id": env_id, "arm": arm.name, "parent": parent.name, "seeds": seeds}
    row["folders"] = [folder(args, one, env_id).name for one in (arm, parent)]
    enough = len(found[arm]) == len(found[parent]) == len(seeds) >= compare.SEEDS
    for name in args.measures:
        ours, theirs = (compare.column(found[one], name) for one in (arm, parent))
        row[name] = {"values": [*ours], "of parent": [*theirs]}
        row[name] |= compare.beside(ours, theirs) if enough else {}
    top = compare.ceiling([*found[arm], *found[parent]]) if enough else None
    verdict = judge(row["final"], row["area"], top) if enough else None
    return {**row, "ceiling": top, "verdict": verdict}


def compared(args, arms, seeds):
    """Trains the arms; {env_id: {arm: {run: measures}}}, and a line for each run without them."""
    order = itertools.product(seeds, args.env_id, arms)  # seed by seed
    every = [job_of(args, arm, env_id, seed) for seed, env_id, arm in order]
    todo = [job for job in every if not finished(job)]
    if args.print_jobs and todo:
        print(*[shlex.join(["python", *job.words]) for job in todo], sep="\n")
        sys.exit()
    failed = train(args, todo) if todo else {}
    table, lost = {env_id: {arm: {} for arm in arms} for env_id in args.env_id}, []
    for job in every:
        run = finished(job)
        early = run and args.minutes and run.args["total_timesteps"] >= args.steps
        if measures := run and not early and compare.measures(run, minutes=args.minutes):
            table[job.env_id][job.arm][run] = measures
        else:
            why = failed.get(job, "no episode has ended" if run else "not finished")
            why = "ended before its minutes: give it more --steps" if early else why
            lost.append(f"- {job.arm.name}, {job.env_id}, seed {job.seed}: {why} (see {job.log})")
    return table, lost


# === what is written
def report(args, table, seeds, rows):
    """The lines of verdict.md on these seeds; adds to `rows`, those of runs.json."""
    for env_id, found in table.items():
        parent, *others = found
        others.sort(key=lambda arm: -compare.learned(found[arm])[0])
        yield f"\n## {env_id}, seeds {', '.join(map(str, seeds))}\n"
        for arm in others:
            rows.append(row_of(args, env_id, arm, parent, found, seeds))
            yield f"- {arm.name}: **{rows[-1]['verdict'] or 'no verdict'}**"
        groups = {arm.name: found[arm] for arm in (parent, *others) if found[arm]}
        for measure in args.measures:
            size = 0.1 * compare.learned(found[parent])[1] if measure in compare.MEASURES else None
            lines = compare.table(groups, measure, parent.name, size)
            yield from ["", *compare.markdown(line[:5] + line[6:] for line in lines)]
    if count := count_comparisons(rows):
        yield f"\nComparison {count} with these seeds: about {0.05 * count:.2f} differ by chance.\n"


def count_comparisons(rows):
    """Logs the verdicts; returns how many comparisons had one of the last row's seeds."""
    path = OUT / "log.jsonl"
    known = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    known += [{name: row[name] for name in ("folders", "seeds", "verdict")} for row in rows]
    known = {str([line["folders"], line["seeds"]]): line for line in known if line["verdict"]}
    path.write_text("".join(json.dumps(line) + "\n" for line in known.values()))
    return sum(not {*rows[-1]["seeds"]}.isdisjoint(line["seeds"]) for line in known.values())


# === command line
def parse(words):
    parser = tools.parser(__doc__)
    add = parser.add_argument
    add("script", type=jobs.find, help="your copy; with --try, also an installed script")
    add("--env-id", nargs="+", required=True, help="environments")
    add("--steps", type=int, default=FOREVER, help="the scripts' --total-timesteps")
    add("--minutes", type=float, help="end each run after so much time, on one thread")
    add("--seeds", nargs="+", default=["1-5"], help="numbers and ranges (1-5)")
    add("--jobs", type=int, default=1, help="runs at a time (1)")
    add("--parent", type=jobs.find, help="what to compare with (the nearest installed script)")
    add("--try", nargs="+", default=[], dest="tried", metavar="FLAG=A,B", help="flags to try")
    add("--confirm", nargs="+", default=[], help="seeds to run the best of --try again")
    add("--other-act", action="store_true", help="act() is meant to play another policy")
    add("--print-jobs", action="store_true", help="print the commands that are left to run")
    add("--json", action="store_true", help="print runs.json instead of verdict.md")
    at = words.index("--") if "--" in words else len(words)
    args = parser.parse_args(words[:at])
    if args.steps <= 0 or (args.minutes or 0) < 0 or (args.steps == FOREVER and not args.minutes):
        tools.refuse("give --steps or --minutes, above 0")
    args.measures = compare.MEASURES + ("steps",) * bool(args.minutes)
    args.flags = words[at + 1 :]
    args.seeds, args.confirm = jobs.seeds(args.seeds), jobs.seeds(args.confirm)
    args.parent = args.parent or tools.nearest_script(args.script.read_text())
    tried = [word.partition("=") for word in args.tried]
    args.tried = [[(a.replace("-", "_"), b) for b in values.split(",")] for a, _, values in tried]
    return args


def arms_of(args):
    """The parent, and the script once or with each setting of --try."""
    yield Arm(args.parent.stem, args.parent, ())
    for setting in itertools.product(*args.tried):
        values = [(name, {"True": True, "False": False}.get(x, x)) for name, x in setting]
        words = tuple(shlex.split(" ".join(tools.flag(*pair) for pair in values)))
        yield Arm(" ".join([args.script.stem, *words]), args.script, words)


def main():
    args = parse(sys.argv[1:])
    refuse_unfair(args)
    old, new = args.parent.read_text(), args.script.read_text()
    changes, out = tools.changed_lines(old, new), OUT / args.script.stem
    by_section = ", ".join(f"{count} in {name}" for name, count in changes.items())
    budget = f"{args.minutes:g} minutes" if args.minutes else f"{args.steps:,} steps"
    lines = [f"# {args.script.stem} beside {args.parent.stem}, {budget}\n"]
    lines.append(f"Lines of copy.diff: {by_section or 'none'}.")
    if changes["environment"]:
        lines.append("make_env changed: if rewards or observations differ, returns say little.")
    print(*lines, sep="\n", file=sys.stderr)
    names = args.parent.name, args.script.name
    diff = difflib.unified_diff(old.splitlines(True), new.splitlines(True), *names)
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "copy.diff").write_text("".join(diff))
    except OSError as error:
        tools.refuse(f"cannot write to {out}: {error.strerror}")
    arms, rows = [*arms_of(args)], []
    for seeds in [args.seeds] + [args.confirm] * bool(args.confirm):
        table, lost = compared(args, arms, seeds)
        lines += [*report(args, table, seeds, rows), *lost]
        runs = {arm.name: [run for found in table.values() for run in found[arm]] for arm in arms}
        if any(runs.values()):
            plot.draw(runs, out / "curves.png", x="time" if args.minutes else "steps")
        if lost:
            break
        lines += [LUCK] * (len(arms) > 2)
        gains = np.zeros(len(arms))
        for found in table.values():
            final, above = compare.learned(found[arms[0]])
            gains += [(compare.learned(found[arm])[0] - final) / (above + 1e-9) for arm in arms]
        arms = arms[0], arms[1 + np.argmax(gains[1:])]  # for --confirm
    (out / "verdict.md").write_text("\n".join([*lines, LEGEND]) + "\n")
    (out / "runs.json").write_text(json.dumps({"rows": rows, "lost": lost}, indent=1) + "\n")
    print((out / ("runs.json" if args.json else "verdict.md")).read_text())
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
