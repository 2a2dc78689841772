#!/usr/bin/env bash
# torchrl 0.14.1: TanhNormal gives its own samples a wrong log-probability where the tanh is near 1.
#
# Expected: log_prob(rsample()) is the density of the sample, as torch's Normal and TanhTransform with a cache give it. An
# action is at most 1 - 1e-6, and log_prob takes the Gaussian's sample from it again, so that all beyond 7.25 count as 7.25.
# SAC then sees an entropy of +364 where it is -19, and pays the policy for it.
#
# Output seen on 2026-11-28:
#     mean 2, deviation 0.1: torchrl 3.53, torch 3.53
#     mean 8, deviation 0.1: torchrl -13.80, torch 15.49
#     mean 10, deviation 0.1: torchrl -364.26, torch 19.49
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torchrl==0.14.1" "torch==2.13.0" "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - <<'PY'
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform
from torchrl.modules import TanhNormal


def mean_log_prob(dist):
    """Of the distribution's own samples."""
    torch.manual_seed(1)
    return float(dist.log_prob(dist.rsample((10_000,))).mean())


found = {}
for mean in (2.0, 8.0, 10.0):
    loc, scale = torch.tensor([mean]), torch.tensor([0.1])
    theirs = mean_log_prob(TanhNormal(loc, scale))
    exact = mean_log_prob(TransformedDistribution(Normal(loc, scale), [TanhTransform(cache_size=1)]))
    print(f"mean {mean:g}, deviation 0.1: torchrl {theirs:.2f}, torch {exact:.2f}")
    found[mean] = theirs - exact
as_seen = abs(found[2.0]) < 0.01 and found[8.0] < -20 and found[10.0] < -300
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
