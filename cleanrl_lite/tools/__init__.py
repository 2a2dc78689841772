"""Commands for your own environment and runs, from any folder.

python -m cleanrl_lite.tools.NAME --help
"""
