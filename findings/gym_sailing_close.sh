#!/usr/bin/env bash
# gym-sailing 0.2.1, gymnasium 1.4.0: after render(), env.close() ends the Python program, with exit status 0.
#
# Expected: close() frees the window and returns, as in all environments of gymnasium, so that a program goes on, for
# example saves its network, after it has recorded a video.
# But the renderer's close() calls quit(). Whatever comes after env.close() never runs, no error is shown, and a shell
# script takes the run for a success.
#
# Output seen on 2026-11-27 (the program would print "after close" as its last line):
#     before close
#     exit status 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q gym-sailing==0.2.1 gymnasium==1.4.0 numpy==2.4.6
cat > "$folder/program.py" <<'PYTHON'
import gym_sailing  # noqa: F401
import gymnasium as gym

env = gym.make("SailboatDiscrete-v0", render_mode="rgb_array")
env.reset(seed=1)
env.render()
print("before close", flush=True)
env.close()
print("after close", flush=True)
PYTHON
export SDL_VIDEODRIVER=dummy SDL_AUDIODRIVER=dummy PYGAME_HIDE_SUPPORT_PROMPT=1
status=0
output=$("$folder/venv/bin/python" -W ignore "$folder/program.py" 2>/dev/null) || status=$?
echo "$output"
echo "exit status $status"
[[ "$output" == *"before close"* && "$output" != *"after close"* && $status == 0 ]]
