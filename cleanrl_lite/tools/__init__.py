"""Commands for your own environment and runs: `python -m cleanrl_lite.tools.NAME --help`."""
