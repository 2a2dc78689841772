#!/usr/bin/env bash
# gym-trading-env 0.3.5, torch 2.13.0: once an environment is made, torch.compile fails, for warnings are errors.
#
# Expected: making an environment changes nothing in the rest of the program, and torch.compile works as before. But
# the module of the environment sets the process's filter of warnings to "error", and nothing sets it back: from then
# on every warning of any package is an exception. torch.compile gives a DeprecationWarning of its own, which Python
# does not show, and so it fails. A program that then goes on in eager mode is only slower, and nobody sees why.
#
# Output seen on 2026-11-29:
#     before: a warning is shown or not, torch.compile works
#     after:  a warning is an error, torch.compile fails: DeprecationWarning
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "gym-trading-env==0.3.5" "gymnasium==1.4.0" "pandas==3.1.1" "numpy==2.3.5" \
    "torch==2.13.0"
export TORCHINDUCTOR_CACHE_DIR=$folder/cache OMP_NUM_THREADS=1
cat > "$folder/compile.py" <<'PY'
import sys
import warnings

import gymnasium as gym
import gym_trading_env  # noqa: F401
import numpy as np
import pandas as pd
import torch

if sys.argv[1] == "after":
    close = np.linspace(100.0, 110.0, 20)
    prices = {"open": close, "high": close, "low": close, "close": close, "volume": 1.0, "feature_none": 0.0}
    table = pd.DataFrame(prices, pd.date_range("2020-01-01", periods=20))
    gym.make("TradingEnv", df=table, verbose=0)
warning = "a warning is shown or not"
try:
    warnings.warn("anything", UserWarning, stacklevel=1)
except UserWarning:
    warning = "a warning is an error"
compiled = "torch.compile works"
try:
    torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
except Exception as error:
    compiled = f"torch.compile fails: {type(error).__name__}"
print(f"{sys.argv[1] + ':':7} {warning}, {compiled}")
PY
"$folder/venv/bin/python" "$folder/compile.py" before 2> "$folder/log" | tee "$folder/seen"
"$folder/venv/bin/python" "$folder/compile.py" after 2>> "$folder/log" | tee -a "$folder/seen"
cmp "$folder/seen" - <<'SEEN' || { tail -n 1 "$folder/log"; echo "the behaviour has changed"; exit 1; }
before: a warning is shown or not, torch.compile works
after:  a warning is an error, torch.compile fails: DeprecationWarning
SEEN
