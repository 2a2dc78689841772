#!/usr/bin/env bash
# skrl 2.1.1: once its memory is full, RandomMemory samples sequences that go on from the newest step to the oldest one.
#
# Expected: sample(..., sequence_length=8) gives eight steps of one environment in a row. A full memory is a ring: new
# steps replace the oldest. Sequences are taken as if it began at row 0, so those over the place of the last write join
# the present with the distant past. Nothing marks the seam, and the agents with memory (SAC_RNN, TD3_RNN, DDPG_RNN)
# carry their hidden state over it. With few rows an environment, as with thousands of environments on a GPU, many
# sequences are of this kind.
#
# Output seen on 2026-11-28 (64 rows, 4 environments, sequences of 8 steps):
#     full for the first time: 0 of 228 sequences are not in a row
#     half of it written again: 28 of 228 sequences are not in a row, for example 92 93 94 95 32 33 34 35
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "skrl==2.1.1" "torch==2.13.0" "numpy==2.3.5"
OMP_NUM_THREADS=1 "$folder/venv/bin/python" -W ignore - <<'PY'
import torch
from skrl.memories.torch import RandomMemory

ROWS, ENVS, LENGTH = 64, 4, 8
ALL = ENVS * (ROWS - LENGTH + 1)  # as many sequences as there are; each is drawn once

torch.manual_seed(1)
memory = RandomMemory(memory_size=ROWS, num_envs=ENVS, device="cpu")
memory.create_tensor("step", size=1, dtype=torch.float32)


def broken(first, last):
    """Adds steps, and returns the sampled sequences that are not in a row."""
    for step in range(first, last):
        memory.add_samples(step=torch.full((ENVS, 1), float(step)))
    steps = memory.sample(("step",), batch_size=ALL, sequence_length=LENGTH)[0][0].reshape(-1, LENGTH)
    return steps[(steps.diff(dim=1) != 1).any(1)].int().tolist()


new = broken(0, ROWS)
print(f"full for the first time: {len(new)} of {ALL} sequences are not in a row")
used = broken(ROWS, ROWS + ROWS // 2)
example = next(sequence for sequence in used if sequence[3] > sequence[4])
print(f"half of it written again: {len(used)} of {ALL} sequences are not in a row, for example", *example)
raise SystemExit(0 if not new and len(used) == (LENGTH - 1) * ENVS else "the behaviour has changed")
PY
