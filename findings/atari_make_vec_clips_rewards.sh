#!/usr/bin/env bash
# ale-py 0.12.1, gymnasium 1.4.0: make_vec("ALE/...") clips the rewards; make, and make_vec with "sync", do not.
#
# Expected: make_vec(id) makes the game of make(id), several times. Where no mode is given, it takes ale-py's vector
# environment, whose defaults are other ones: besides gray stacks of 84 x 84, the rewards are their signs. Returns of a
# random agent are then 20 to 30 instead of 200 to 300, and no published score can be compared with. Nothing in the spec
# or the metadata of the environment says so; reward_clipping=False turns it off.
#
# Output seen on 2026-11-28 (ALE/MsPacman-v5, two environments, random actions):
#     make_vec(..., vectorization_mode="sync"): rewards 0 10, returns 210 320
#     make_vec(...): rewards 0 1, returns 29 23
#     make_vec(..., reward_clipping=False): rewards 0 10, returns 290 230
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "ale-py==0.12.1" "gymnasium==1.4.0" "numpy==2.3.5" "opencv-python-headless==5.0.0.93"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import ale_py
import gymnasium
import numpy as np

gymnasium.register_envs(ale_py)


def play(**kwargs):
    """The rewards that occur, and the return of the first episode of each environment."""
    envs = gymnasium.make_vec("ALE/MsPacman-v5", num_envs=2, **kwargs)
    envs.action_space.seed(1)
    envs.reset(seed=1)
    returns, going, seen = np.zeros(2), np.ones(2, bool), set()
    while going.any():
        _, rewards, terminated, truncated, _ = envs.step(envs.action_space.sample())
        seen |= {int(reward) for reward in rewards}
        returns += rewards * going
        going &= ~(terminated | truncated)
    envs.close()
    return sorted(seen), returns.astype(int).tolist()


found = []
for name, kwargs in (
    ('make_vec(..., vectorization_mode="sync")', {"vectorization_mode": "sync"}),
    ("make_vec(...)", {}),
    ("make_vec(..., reward_clipping=False)", {"reward_clipping": False}),
):
    found.append(play(**kwargs))
    print(f"{name}: rewards", *found[-1][0], end=", returns ")
    print(*found[-1][1])
highest = [rewards[-1] for rewards, _ in found]
raise SystemExit(0 if highest[0] >= 10 and highest[1] == 1 and highest[2] >= 10 else "the behaviour has changed")
PY
