#!/usr/bin/env bash
# rliable 1.2.0: the interquartile mean of 3 runs is their mean, and that of 10 runs is the mean of the middle 6.
#
# Expected: aggregate_iqm is the mean of the middle half, in which an outlier counts nothing: that is what it is taken
# for. The number of runs cut off at each end is a quarter, rounded down (scipy's trim_mean), not a share of a run. For
# one task, 3 runs lose none, 7 runs one at each end, 10 runs two. So curves of different numbers of seeds show
# different statistics, and with 3 seeds the robust one is the mean.
#
# Output seen on 2026-11-28 (one task, all runs score 1 except for one that scores 1000):
#     runs:  3, aggregate_iqm 334.00, mean 334.00; kept 3 runs, half would be 1.5
#     runs:  4, aggregate_iqm 1.00, mean 250.75; kept 2 runs, half would be 2
#     runs:  7, aggregate_iqm 1.00, mean 143.71; kept 5 runs, half would be 3.5
#     runs: 10, aggregate_iqm 1.00, mean 100.90; kept 6 runs, half would be 5
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "rliable==1.2.0" "scipy==1.17.1" "pandas<3" "numpy<2.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from rliable import metrics

found = {}
for runs in (3, 4, 7, 10):
    scores = np.ones((runs, 1))
    scores[-1] = 1000.0
    iqm = metrics.aggregate_iqm(scores)
    # How much the run at each place counts: moving it and all above it by 1 moves the result by the sum of their weights.
    rises = [metrics.aggregate_iqm((np.arange(runs) >= k)[:, None].astype(float)) for k in range(runs + 1)]
    found[runs] = int((-np.diff(rises) > 1e-9).sum())
    print(f"runs: {runs:2d}, aggregate_iqm {iqm:.2f}, mean {scores.mean():.2f};", end=" ")
    print(f"kept {found[runs]} runs, half would be {runs / 2:g}")
raise SystemExit(0 if found == {3: 3, 4: 2, 7: 5, 10: 6} else "the behaviour has changed")
PY
