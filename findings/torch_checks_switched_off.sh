#!/usr/bin/env bash
# torchrl 0.14.1, skrl 2.1.1: importing them switches the checks of all torch distributions off, in the whole process.
#
# Expected: an import does not change other code. torch's distributions refuse NaN with a ValueError, which is how a
# policy that has diverged usually comes to light. After the import of torchrl.modules, or of skrl's agents or noises, a
# Normal with a NaN mean is accepted, also in another library's code, and its samples are NaN. The order of imports does
# not matter. skrl calls Normal.set_default_validate_args, which reads as if it were for Normal; it is for all.
#
# Output seen on 2026-11-28 (a Normal with the mean NaN, and a Categorical with a NaN among its logits):
#     import torch: ValueError, ValueError
#     import torchrl.modules: a sample of nan, a log-probability of nan
#     import skrl.agents.torch.ppo: a sample of nan, a log-probability of nan
#     import skrl.resources.noises.torch: a sample of nan, a log-probability of nan
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torchrl==0.14.1" "skrl==2.1.1" "torch==2.13.0" "numpy==2.3.5"
cat > "$folder/try.py" <<'PY'
import importlib
import sys

import torch

importlib.import_module(sys.argv[1])


def tried(function, text):
    try:
        return f"{text} of {float(function()):g}"
    except ValueError:
        return "ValueError"


nan = torch.tensor(float("nan"))
sample = tried(lambda: torch.distributions.Normal(nan, 1.0).sample(), "a sample")
logits, action = torch.tensor([float("nan"), 1.0]), torch.tensor(1)
log_prob = tried(lambda: torch.distributions.Categorical(logits=logits).log_prob(action), "a log-probability")
print(f"import {sys.argv[1]}: {sample}, {log_prob}")
PY
for module in torch torchrl.modules skrl.agents.torch.ppo skrl.resources.noises.torch; do
    OMP_NUM_THREADS=1 RL_LOGGING_LEVEL=WARNING "$folder/venv/bin/python" -W ignore "$folder/try.py" "$module"
done | tee "$folder/found"
diff "$folder/found" - <<'SEEN' || { echo "the behaviour has changed" >&2; exit 1; }
import torch: ValueError, ValueError
import torchrl.modules: a sample of nan, a log-probability of nan
import skrl.agents.torch.ppo: a sample of nan, a log-probability of nan
import skrl.resources.noises.torch: a sample of nan, a log-probability of nan
SEEN
