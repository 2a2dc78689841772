import sys
from pathlib import Path

# `python CLONE/benchmark/launch` runs from any folder, `python -m benchmark.launch` in the clone.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmark.launch.launch import main

raise SystemExit(main())
