"""Are envpool's environments those of gymnasium? Every id of the two envpool scripts, compared.

    python -m benchmark.measure.engines                              every id, in half an hour
    python -m benchmark.measure.engines --only Humanoid-v4 Ant-v5    some ids

It takes the environments from the scripts, so it compares what they train in with what they
evaluate in:

- first observations: mean and standard deviation of each number in them;
- episodes of random actions: return, length and how often the time limit ends them, by Welch's
  t-test; and of each number of the observations, the mean, standard deviation and range along an
  episode;
- steps: gymnasium's environment is put into the state that envpool's observation shows, at a start
  and again after every 10 steps, and both take the same random actions. For MuJoCo's ids, once more
  with the MuJoCo that is inside envpool, which pip installs into a temporary folder.

envpool 1.2.5 can neither set nor tell a state. The observations of LunarLander and BipedalWalker do
not show theirs (the ground is random), so their steps are not compared; nor are Pusher's after the
tenth, when the object may move.

Some ids get an option from the script: they are measured without it too. Results go to
benchmark/results/engines.json, and the table to engines.md; rows of other ids stay. This needs the
extras envpool, mujoco, box2d and results.
"""

import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import metadata
from itertools import chain

import gymnasium as gym
import numpy as np

from benchmark import shared
from benchmark.shared import RESULTS, ROOT, commit, hardware

PATH = RESULTS / "engines.json"
PACKAGES = ["envpool", "gymnasium", "mujoco", "box2d", "numpy"]
SCRIPTS = ["ppo_envpool", "ppo_continuous_envpool"]
OPTIONS = ["post_constraint"]  # what the scripts pass to envpool alone
NUM_ENVS = 16
EQUAL_STEPS = 10  # until the two are put into the same state again
NO_STATE = ("LunarLander", "BipedalWalker")
# What counts as different. A row is up to some thousand numbers: one in 500 million is beyond
# 6 standard errors by chance.
MOST_ERRORS = 6
LEAST_P = 1e-4
MOST_DIFFERENCE = 1e-3


# --- the environments, as the scripts make them
def make_both(env_id, without_options=False):
    """The script that takes the id, gymnasium's environment, the script's pool.

    Ends like the scripts do where they refuse it.
    """
    for script in SCRIPTS:
        module = importlib.import_module(f"cleanrl_lite.{script}")
        args = module.Args(env_id=env_id, num_envs=NUM_ENVS)
        pool = module.EnvPool(args)
        discrete = isinstance(pool.action_space, gym.spaces.Discrete)
        if discrete == (script == "ppo_envpool"):
            break
    if without_options:
        make = pool.make
        kept = {name: value for name, value in make.keywords.items() if name not in OPTIONS}
        pool.make = partial(make.func, *make.args, **kept)
    return script, module.make_env(args), pool


def seeds(first):
    return [first + n for n in range(NUM_ENVS)]


def random_actions(space):
    actions = [space.sample() for _ in range(NUM_ENVS)]
    return np.array(actions)


def step(pool, actions):
    """observations, rewards, terminations, truncations, as arrays of their own."""
    return [array.copy() for array in pool.step(actions)[:4]]


# --- first observations and episodes
class Episode:
    def __init__(self, obs):
        self.observations = [obs]
        self.rewards = []
        self.truncated = False

    def add(self, obs, reward, truncated):
        self.observations.append(obs)
        self.rewards.append(reward)
        self.truncated = truncated

    def summary(self):
        observations = np.array(self.observations, dtype=np.float64)
        return {
            "mean": observations.mean(axis=0),
            "std": observations.std(axis=0),
            "low": observations.min(axis=0),
            "high": observations.max(axis=0),
            "return": float(np.sum(self.rewards)),
            "length": len(self.rewards),
            "truncated": float(self.truncated),
        }


def play_gymnasium(env, count, first_seed=0):
    env.action_space.seed(1 + first_seed)
    summaries = []
    for n in range(count):
        obs, _ = env.reset(seed=first_seed + n)
        episode = Episode(obs)
        ended = False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            episode.add(obs, reward, truncated)
            ended = terminated or truncated
        summaries.append(episode.summary())
    return summaries


def play_envpool(pool, count):
    """As many episodes of each environment: the first to end would be the short ones."""
    pool.action_space.seed(2)
    obs, _ = pool.reset(seeds(10_000))
    episodes = [Episode(row) for row in obs.copy()]
    each = -(-count // NUM_ENVS)
    summaries = [[] for _ in range(NUM_ENVS)]
    while min(map(len, summaries)) < each:
        resets = pool.ended
        obs, rewards, terminations, truncations = step(pool, random_actions(pool.action_space))
        for i in range(NUM_ENVS):
            if resets[i]:
                episodes[i] = Episode(obs[i])
                continue
            episodes[i].add(obs[i], rewards[i], truncations[i])
            if terminations[i] or truncations[i]:
                summaries[i].append(episodes[i].summary())
    pool.close()
    kept = [some[:each] for some in summaries]
    return list(chain(*kept))


def first_observations(env, pool, count):
    """gymnasium's, and envpool's: (count, numbers)."""
    own = np.array([env.reset(seed=n)[0] for n in range(count)])
    other = []
    for n in range(0, count, NUM_ENVS):
        obs, _ = pool.reset(seeds(20_000 + n))
        other.append(obs.copy())
        pool.close()
    return own, np.concatenate(other)


# --- comparisons
def scaled(own, other):
    """Both with columns of standard deviation 1, but for constants."""
    both = np.concatenate([own, other]).astype(np.float64)
    center = both.mean(axis=0)
    scale = both.std(axis=0)
    size = 1 + np.abs(both).max(axis=0)
    scale = np.where(scale < 1e-6 * size, size, scale)  # a constant, but for rounding
    return (own - center) / scale, (other - center) / scale


def errors_between(own, other):
    """The largest difference between means of columns, in its standard errors."""
    own, other = scaled(own, other)
    difference = np.abs(own.mean(axis=0) - other.mean(axis=0))
    variance = own.var(axis=0) / len(own) + other.var(axis=0) / len(other)
    errors = difference / (np.sqrt(variance) + 1e-5)
    return float(errors.max())


def moments_differ(own, other):
    """errors_between of the means, and of the variances."""
    own, other = scaled(own, other)
    squares = [(part - part.mean(axis=0)) ** 2 for part in (own, other)]
    return max(errors_between(own, other), errors_between(*squares))


def column(summaries, name):
    return np.array([summary[name] for summary in summaries])


def share_of_zeros(summaries):
    """Of the episodes, for each number: it is 0 all along."""
    zero = (column(summaries, "low") == 0) & (column(summaries, "high") == 0)
    return zero.mean(axis=0)


def mean_std(values):
    return {"mean": float(values.mean()), "std": float(values.std(ddof=1)), "count": len(values)}


def welch(own, other):
    """p; 1 where all are equal."""
    from scipy import stats  # of the extra `results`

    if np.ptp(np.concatenate([own, other])) < 1e-6:
        return 1.0
    return float(stats.ttest_ind(own, other, equal_var=False).pvalue)


def compare_episodes(own, other):
    names = ["mean", "std", "low", "high"]
    along = [errors_between(column(own, name), column(other, name)) for name in names]
    found = {"along_episodes": max(along)}
    # in every episode of one engine, and in at most nine of ten of the other
    shares = [share_of_zeros(part) for part in (own, other)]
    found["always_0_in_envpool_only"] = int(((shares[1] == 1) & (shares[0] < 0.9)).sum())
    found["always_0_in_gymnasium_only"] = int(((shares[0] == 1) & (shares[1] < 0.9)).sum())
    for name in ("return", "length", "truncated"):
        parts = [column(part, name) for part in (own, other)]
        found[name] = {
            "gymnasium": mean_std(parts[0]),
            "envpool": mean_std(parts[1]),
            "p": welch(*parts),
        }
    return found


# --- steps from the same state
def moved_to(env, obs):
    """Puts gymnasium's `env`, after a reset, into the state that obs shows."""
    unwrapped = env.unwrapped
    name = env.spec.id
    if hasattr(unwrapped, "set_state"):
        unwrapped.set_state(*mujoco_state(unwrapped, name, obs))
        return
    state = np.array(obs, dtype=np.float64)
    if name.startswith("Acrobot"):
        state = np.array([*np.arctan2(obs[[1, 3]], obs[[0, 2]]), *obs[4:]])
    elif name.startswith("Pendulum"):
        state = np.array([np.arctan2(obs[1], obs[0]), obs[2]])
    unwrapped.state = state


def unclipped(shown, own):
    """Velocities; Hopper, Walker2d and InvertedDoublePendulum show 10 for more."""
    return np.where(np.abs(shown) == 10, own, shown)


def mujoco_state(unwrapped, name, obs):
    """Positions and velocities; what obs does not show stays."""
    qpos = unwrapped.data.qpos.copy()
    qvel = unwrapped.data.qvel.copy()
    if name.startswith("InvertedDoublePendulum"):
        qpos[0] = obs[0]
        qpos[1:] = np.arctan2(obs[1:3], obs[3:5])
        qvel[:] = unclipped(obs[5:8], qvel)
    elif name.startswith("Reacher"):
        turn = np.arctan2(obs[2:4], obs[:2]) - qpos[:2]
        qpos[:2] += (turn + np.pi) % (2 * np.pi) - np.pi  # the second joint may be beyond pi
        qpos[2:] = obs[4:6]
        qvel[:] = [*obs[6:8], 0, 0]
    elif name.startswith("Pusher"):
        qpos[:7] = obs[:7]
        qvel[:] = [*obs[7:14], 0, 0, 0, 0]
        place = obs[17:19] - unwrapped.model.body("object").pos[:2]
        qpos[unwrapped.model.joint("obj_slidex").qposadr[0]] = place[0]
        qpos[unwrapped.model.joint("obj_slidey").qposadr[0]] = place[1]
    else:  # where the body is does not matter, and most do not show it
        hidden = len(qpos) + len(qvel) - len(obs)
        if name.startswith(("Ant", "Humanoid")):
            hidden = 2  # and more follows the velocities
        shown = len(qpos) - hidden
        qpos[hidden:] = obs[:shown]
        qvel[:] = unclipped(obs[shown : shown + len(qvel)], qvel)
    return qpos, qvel


def compare_steps(env_id, num_steps, without_options=False):
    """How far observations and rewards are apart, relative to 1 + gymnasium's; how often only one
    engine ended an episode."""
    _, _, pool = make_both(env_id, without_options)
    envs = [gym.make(env_id) for _ in range(NUM_ENVS)]
    pool.action_space.seed(3)
    obs, _ = pool.reset(seeds(30_000))
    for env, row in zip(envs, obs, strict=True):
        env.reset(seed=0)
        moved_to(env, row)
    again = not env_id.startswith("Pusher")
    limit = envs[0].spec.max_episode_steps
    lengths = np.zeros(NUM_ENVS, dtype=int)
    differences = []
    ends = 0
    for _ in range(num_steps):
        actions = random_actions(pool.action_space)
        resets = pool.ended
        obs, rewards, terminations, truncations = step(pool, actions)
        for i, env in enumerate(envs):
            if resets[i]:
                env.reset(seed=0)
                moved_to(env, obs[i])
                lengths[i] = 0
                continue
            if lengths[i] >= EQUAL_STEPS and not again:
                continue
            own, reward, terminated, truncated, _ = env.step(actions[i])
            difference = [np.abs(own - obs[i]) / (1 + np.abs(own))]
            # Rewards of speed begin at where the body was in the step before.
            if lengths[i] % EQUAL_STEPS > 0 or lengths[i] == 0:
                difference.append([abs(reward - rewards[i]) / (1 + abs(reward))])
            differences.append(np.concatenate(difference).max())
            lengths[i] += 1
            # There, envpool calls all ends truncations.
            if lengths[i] != limit:
                ends += int(terminated != terminations[i] or truncated != truncations[i])
            if lengths[i] % EQUAL_STEPS == 0 and again:
                moved_to(env, obs[i])
    pool.close()
    return {
        "median": float(np.median(differences)),
        "largest": float(np.max(differences)),
        "only_one_ended": ends,
        "steps": len(differences),
    }


def compare_steps_with(folder, env_id, num_steps, without_options):
    """compare_steps in a process that finds packages in `folder` first."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmark.measure.engines"]
    command += ["--only-steps", env_id, "--steps", str(num_steps)]
    if without_options:
        command.append("--without-options")
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# --- rows
def envpools_mujoco():
    """The version that the MuJoCo inside envpool gives itself."""
    module = importlib.import_module("envpool.mujoco.mujoco_gym_envpool")
    version = ctypes.CDLL(module.__file__).mj_versionString
    version.restype = ctypes.c_char_p
    return version().decode()


def install_mujoco(folder):
    """That version, for gymnasium."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--target", str(folder), f"mujoco=={envpools_mujoco()}"]
    subprocess.run(command, check=True)


def versions():
    found = {"envpool's MuJoCo": envpools_mujoco()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def measure(env_id, args, folder, without_options=False):
    """A row's figures, or why the scripts refuse the id."""
    try:
        script, env, pool = make_both(env_id, without_options)
    except SystemExit as refusal:
        reason = str(refusal).splitlines()[0]
        return {"refused": reason.removeprefix("error: ").removeprefix(f"--env-id {env_id}: ")}
    keywords = pool.make.keywords
    row = {
        "script": script,
        "numbers": env.observation_space.shape[0],
        "options": {name: keywords[name] for name in OPTIONS if name in keywords},
        "time_limit": env.spec.max_episode_steps,
        "first_observations": moments_differ(*first_observations(env, pool, args.resets)),
    }
    count = args.episodes
    pilot = play_gymnasium(env, NUM_ENVS, first_seed=50_000)
    if column(pilot, "length").mean() <= 200:
        count *= 10
    row |= compare_episodes(play_gymnasium(env, count), play_envpool(pool, count))
    if not env_id.startswith(NO_STATE):
        row["steps"] = compare_steps(env_id, args.steps, without_options)
    if "mujoco" in str(env.spec.entry_point):
        row["steps_same_mujoco"] = compare_steps_with(folder, env_id, args.steps, without_options)
    return row


def steps_of_one_engine(row):
    """Of the same MuJoCo, where there is one."""
    return row.get("steps_same_mujoco") or row.get("steps")


def differences(row):
    """The figures of a row that another version of MuJoCo does not explain."""
    steps = steps_of_one_engine(row)
    differs = {
        "first_observations": row["first_observations"] > MOST_ERRORS,
        "along_episodes": row["along_episodes"] > MOST_ERRORS,
        "always_0": row["always_0_in_envpool_only"] + row["always_0_in_gymnasium_only"] > 0,
        "return": lowest_p(row) < LEAST_P,
        "steps": steps and steps_differ(steps),
    }
    return [name for name, value in differs.items() if value]


# --- the table
def lowest_p(row):
    return min(row[name]["p"] for name in ("return", "length", "truncated"))


def steps_differ(found):
    return found["largest"] > MOST_DIFFERENCE or found["only_one_ended"] > 0


def marked(text, differs):
    return f"**{text}**" if differs else text


def return_cell(found):
    return f"{found['mean']:,.1f} ± {found['std'] / found['count'] ** 0.5:,.1f}"


def steps_cell(found):
    if found is None:
        return ""
    text = f"{found['median']:.0e}, {found['largest']:.0e}"
    if found["only_one_ended"]:
        text += f"; only one ended: {found['only_one_ended']}"
    return marked(text, steps_differ(found))


def table_row(row):
    name = row["env_id"]
    if row["without_options"]:
        name += " without the option"
    elif row["options"]:
        name += ", `" + ", ".join(row["options"]) + "`"
    differs = differences(row)
    along = f"{row['along_episodes']:.1f}"
    zeros = row["always_0_in_envpool_only"] + row["always_0_in_gymnasium_only"]
    if zeros:
        along += f"; {zeros} always 0"
    other = f"{return_cell(row['return']['envpool'])} ({lowest_p(row):.2g})"
    cells = [
        name,
        marked(f"{row['first_observations']:.1f}", "first_observations" in differs),
        marked(along, "along_episodes" in differs or zeros),
        return_cell(row["return"]["gymnasium"]),
        marked(other, "return" in differs),
        steps_cell(steps_of_one_engine(row)),
        steps_cell(row.get("steps_same_mujoco") and row["steps"]),
    ]
    return shared.row(cells)


def table(rows):
    """Markdown."""
    measured = [row for row in rows if "refused" not in row]
    refused = {}
    for row in rows:
        if "refused" in row:
            reason = row["refused"].removeprefix(f"--env-id {row['env_id']} ")
            reason = re.sub(r"( \((ids are|https:)|, for more).*|`", "", reason)
            refused.setdefault(reason, []).append(row["env_id"])
    newest = measured[-1]["versions"]
    inside = newest["envpool's MuJoCo"]
    head = ["id", "first observations", "along episodes", "random return, gymnasium", "envpool (p)"]
    head += ["steps", f"steps, MuJoCo {newest['mujoco']} and {inside}"]
    lines = [shared.row(head), "|---" * len(head) + "|"]
    lines += map(table_row, measured)
    note = "First observations, along episodes: the largest difference between the engines, in its "
    note += "standard errors. Returns: mean ± standard error; p: the smallest of those of return, "
    note += "length and truncation. Steps: the median and the largest relative difference of "
    note += f"observations and rewards, up to {EQUAL_STEPS} steps after both were in the same "
    note += f"state; both engines have MuJoCo {inside}, or (last column) their own. Empty: not "
    note += f"compared. **Bold**: beyond {MOST_ERRORS} standard errors, p below {LEAST_P}, a "
    note += f"step's difference above {MOST_DIFFERENCE}, numbers that are 0 in one engine only."
    lines += ["", note, ""]
    lines += ["The scripts refuse:", ""]
    for reason, env_ids in refused.items():
        lines.append(f"- {', '.join(env_ids)}: `{reason}`")
    places = []
    for row in measured:
        packages = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
        places.append(f"{row['hardware']}, {packages}; {row['date']}")
    commits = [row["commit"] for row in measured]
    made = shared.made_by("python -m benchmark.measure.engines", places, commits)
    return "\n".join([*lines, "", made]) + "\n"


def parse():
    parser = shared.parser(__doc__)
    add = parser.add_argument
    add("--only", nargs="*", metavar="ENV_ID", help="some of the ids; none: make the table only")
    add("--resets", type=int, default=1024, help="first observations of each engine")
    add("--episodes", type=int, default=64, help="of each engine; tenfold where they are short")
    add("--steps", type=int, default=200, help="of each of 16 environments, compared one by one")
    add("--only-steps", metavar="ENV_ID", help="print compare_steps of an id, as JSON")
    add("--without-options", action="store_true", help="with --only-steps: envpool's defaults")
    return parser.parse_args()


def main():
    args = parse()
    if args.only_steps:
        found = compare_steps(args.only_steps, args.steps, args.without_options)
        return print(json.dumps(found))
    import envpool

    env_ids = args.only
    if env_ids is None:
        env_ids = sorted(gym.registry.keys() & set(envpool.list_all_envs()))
    rows = json.loads(PATH.read_text()) if PATH.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        if env_ids:
            install_mujoco(folder)
        for env_id in env_ids:
            base = {
                "env_id": env_id,
                "date": time.strftime("%F"),
                "commit": commit(),
                "hardware": hardware(),
                "versions": versions(),
            }
            rows = [row for row in rows if row["env_id"] != env_id]
            row = measure(env_id, args, folder)
            rows.append({**base, "without_options": False, **row})
            if row.get("options"):
                row = measure(env_id, args, folder, without_options=True)
                rows.append({**base, "without_options": True, **row})
            rows.sort(key=lambda row: row["env_id"])
            print(json.dumps(row), flush=True)
            PATH.write_text(json.dumps(rows, indent=1) + "\n")
    PATH.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
