"""What TQC of sb3-contrib computes, in the rows of SAC, whose variant it is.

python -m benchmark.measure.probes.sb3_contrib
"""

from unittest import mock

import sb3_contrib
import torch

from benchmark.measure.probes import sb3, scripted

VERSIONS = {"sb3-contrib": sb3_contrib.__version__, **sb3.VERSIONS}


def main():
    torch.manual_seed(1)
    cells = {}
    with (
        mock.patch.object(sb3, "SAC", sb3_contrib.TQC),
        mock.patch.object(sb3, "set_critics", lambda model: [{"bias": 0.0}]),
    ):
        for name, cell in sb3.sac_cells():
            if name != "critic_gradient":  # of quantiles: no row for it
                cells[f"SAC {name}"] = cell
    scripted.show(VERSIONS, cells)


if __name__ == "__main__":
    main()
