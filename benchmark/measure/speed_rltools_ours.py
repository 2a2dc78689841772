"""Our side of speed_rltools.py, which starts it.

    python benchmark/measure/speed_rltools_ours.py FOLDER SCRIPT [FLAGS]

Runs a script, and writes [step, time, CPU seconds] of each of its logs to FOLDER/times.json.
"""

import json
import runpy
import sys
import time
from pathlib import Path

from cleanrl_lite import utils


def main(folder, script, *flags):
    marks = []
    log = utils.Run.log

    def recorded(self, scalars, global_step):
        log(self, scalars, global_step)
        marks.append((global_step, time.time(), time.process_time()))

    utils.Run.log = recorded
    sys.argv = [script, *flags]
    runpy.run_path(script, run_name="__main__")
    Path(folder, "times.json").write_text(json.dumps({"marks": marks}))


if __name__ == "__main__":
    main(*sys.argv[1:])
