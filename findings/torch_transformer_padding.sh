#!/usr/bin/env bash
# torch 2.13.0: TransformerEncoder gives zeros for padded tokens in eval() under no_grad, and other values in training.
#
# Expected: with dropout 0, train() and eval() are the same function. Attention's mask is the same in both, but under
# no_grad in eval() the encoder leaves out the padded tokens and writes zeros for them (enable_nested_tensor, its
# default); in training they pass through the layers. A network that takes the mean over all tokens (entities, units, a
# history) is then evaluated as another policy than the one that was trained.
#
# Output seen on 2026-11-28 (2 layers, 8 tokens, 0 to 6 of them padded; 4 actions from the mean of the tokens):
#     largest difference of valid tokens: below 1e-5
#     largest difference of padded tokens: above 1
#     greedy actions of train() and eval() differ in 215 of 1000 observations
#     with enable_nested_tensor=False they differ in 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "torch==2.13.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import torch
from torch import nn

torch.manual_seed(1)
TOKENS, WIDTH, BATCH = 8, 16, 1000
observations = torch.randn(BATCH, TOKENS, WIDTH)
padded = torch.arange(TOKENS) >= TOKENS - torch.randint(0, 7, (BATCH, 1))
head = nn.Linear(WIDTH, 4)


def compare(nested):
    """Outputs while training and while evaluating, of the same weights."""
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
    training = encoder.train()(observations, src_key_padding_mask=padded).detach()
    with torch.no_grad():
        evaluation = encoder.eval()(observations, src_key_padding_mask=padded)
        actions = [head(tokens.mean(1)).argmax(1) for tokens in (training, evaluation)]
    difference = (training - evaluation).abs()
    return difference[~padded].max(), difference[padded].max(), int((actions[0] != actions[1]).sum())


valid, other, differing = compare(nested=True)
print("largest difference of valid tokens:", "below 1e-5" if valid < 1e-5 else float(valid))
print("largest difference of padded tokens:", "above 1" if other > 1 else float(other))
print(f"greedy actions of train() and eval() differ in {differing} of {BATCH} observations")
without = compare(nested=False)[2]
print(f"with enable_nested_tensor=False they differ in {without}")
as_seen = valid < 1e-5 and other > 1 and differing > 50 and without == 0
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
