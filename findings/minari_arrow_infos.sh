#!/usr/bin/env bash
# Minari 0.5.4: with data_format="arrow", nested infos come back in another form than with "hdf5".
#
# Expected: the format of the storage makes no difference to what is read. With hdf5, the nested
# info {"pose": {"x": 0.5}} of each step becomes a dictionary with an array; with arrow it is an
# array of dictionaries, so that infos["pose"]["x"] is an error. Infos that are given as arrays of
# one number a step, as an hdf5 dataset returns them, are written to arrow without complaint: then
# no episode of this dataset can be read.
#
# Output seen on 2026-11-28 (the infos of an episode of three steps):
#     hdf5, nested: {'x': array([0.5, 0.5, 0.5, 0.5])}
#     arrow, nested: array([{'x': 0.5}, {'x': 0.5}, {'x': 0.5}, {'x': 0.5}], dtype=object)
#     hdf5, array: array([0.5, 0.5, 0.5, 0.5])
#     arrow, array: ValueError("invalid literal for int() with base 10: b''")
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "minari[create,hdf5,arrow]==0.5.4" "gymnasium==1.4.0" \
    "jax==0.10.2" "h5py==3.16.0" "pyarrow==26.0.1" "pillow==11.3.0" \
    "numpy==2.3.5"
MINARI_DATASETS_PATH=$folder JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PY'
import gymnasium
import minari
import numpy as np
from minari.data_collector import EpisodeBuffer

STEPS = 3


class Pose(gymnasium.Wrapper):
    def reset(self, **kwargs):
        return self.env.reset(**kwargs)[0], {"pose": {"x": 0.5}}

    def step(self, action):
        return *self.env.step(action)[:4], {"pose": {"x": 0.5}}


def collected(data_format):
    """The nested infos of an episode that was played."""
    env = Pose(gymnasium.make("CartPole-v1", max_episode_steps=STEPS))
    env = minari.DataCollector(env, record_infos=True, data_format=data_format)
    env.reset(seed=1)
    for _ in range(STEPS):
        env.step(0)
    return env.create_dataset(f"played-{data_format}-v0")[0].infos["pose"]


def written(data_format):
    """The infos of an episode that was given as arrays."""
    episode = EpisodeBuffer(
        observations=np.zeros((STEPS + 1, 2), np.float32),
        actions=np.zeros(STEPS, np.int64),
        rewards=np.zeros(STEPS),
        terminations=np.array([False, False, True]),
        truncations=np.zeros(STEPS, bool),
        infos={"x": np.full(STEPS + 1, 0.5)},
    )
    data = minari.create_dataset_from_buffers(
        f"given-{data_format}-v0",
        [episode],
        observation_space=gymnasium.spaces.Box(-1, 1, (2,)),
        action_space=gymnasium.spaces.Discrete(2),
        data_format=data_format,
    )
    try:
        return data[0].infos["x"]
    except ValueError as error:
        return error


found = [read(data_format) for read in (collected, written) for data_format in ("hdf5", "arrow")]
for name, result in zip(("hdf5, nested", "arrow, nested", "hdf5, array", "arrow, array"), found):
    print(f"{name}: {result!r}")
as_seen = isinstance(found[0], dict) and isinstance(found[1], np.ndarray)
as_seen = as_seen and isinstance(found[2], np.ndarray) and isinstance(found[3], ValueError)
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
