"""The return of random actions, the zero of the normalised scores.

    python -m benchmark.measure.random_policy ENV_ID ...

Adds the mean return of 100 episodes in each environment to benchmark/results/random.json.
"""

import json

import ale_py
import gymnasium as gym
import numpy as np

from benchmark import shared
from benchmark.shared import RESULTS

PATH = RESULTS / "random.json"
EPISODES = 100


def mean_return(env_id):
    gym.register_envs(ale_py)
    env = gym.make(env_id)
    if "NoFrameskip" in env_id:
        env = gym.wrappers.MaxAndSkipObservation(env, skip=4)  # as in the scripts
    env = gym.wrappers.RecordEpisodeStatistics(env)
    env.reset(seed=1)
    env.action_space.seed(1)
    returns = []
    while len(returns) < EPISODES:
        *_, terminated, truncated, info = env.step(env.action_space.sample())
        if terminated or truncated:
            returns.append(info["episode"]["r"])
            env.reset()
    return round(float(np.mean(returns)), 3)


def main():
    parser = shared.parser(__doc__)
    parser.add_argument("env_ids", nargs="+", metavar="ENV_ID")
    args = parser.parse_args()
    found = json.loads(PATH.read_text()) if PATH.exists() else {}
    for env_id in args.env_ids:
        found[env_id] = mean_return(env_id)
        print(f"{env_id}: {found[env_id]}", flush=True)
        PATH.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
