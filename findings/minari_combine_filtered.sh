#!/usr/bin/env bash
# Minari 0.5.4: combine_datasets() brings back the episodes that were filtered out.
#
# Expected: a dataset from filter_episodes() or split_dataset() has only its own episodes, as
# iterate_episodes(), sample_episodes() and total_steps show, and so has a dataset that is combined
# from it. combine_datasets() copies the whole storage of each part instead: where the good episodes
# of two datasets are joined, the new one has the bad ones too, and the two halves of a split give
# every episode twice. No message says so.
#
# Output seen on 2026-11-28 (CartPole, two datasets of six episodes):
#     filtered: 3 and 3 episodes; combined: 12
#     split into 4 and 2 episodes; combined: 12
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "minari[create,hdf5]==0.5.4" "gymnasium==1.4.0" "jax==0.10.2" \
    "h5py==3.16.0" "pillow==11.3.0" "numpy==2.3.5"
MINARI_DATASETS_PATH=$folder JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import minari


def collect(name):
    """A dataset of six episodes of 1 to 6 steps."""
    env = minari.DataCollector(gymnasium.make("CartPole-v1"))
    env.action_space.seed(1)
    for steps in range(1, 7):
        env.reset(seed=steps)
        for _ in range(steps):
            env.step(env.action_space.sample())
    return env.create_dataset(name)


first, second = collect("first-v0"), collect("second-v0")
good = [data.filter_episodes(lambda episode: len(episode.rewards) > 3) for data in (first, second)]
combined = minari.combine_datasets(good, "good-v0")
found = [data.total_episodes for data in (*good, combined)]
print(f"filtered: {found[0]} and {found[1]} episodes; combined: {found[2]}")

halves = minari.split_dataset(first, sizes=[4, 2], seed=1)
again = minari.combine_datasets(halves, "again-v0")
found += [data.total_episodes for data in (*halves, again)]
print(f"split into {found[3]} and {found[4]} episodes; combined: {found[5]}")
raise SystemExit(0 if found == [3, 3, 12, 4, 2, 12] else "the behaviour has changed")
PY
