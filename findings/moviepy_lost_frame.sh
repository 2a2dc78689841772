#!/usr/bin/env bash
# MoviePy 2.2.1: videos of certain lengths lack their last frame.
#
# Expected: ImageSequenceClip(frames, fps), as gymnasium's RecordVideo uses it, writes all of its
# frames. The clip's duration is a sum of rounded times, and the writer cuts duration * fps off to
# an integer: where that is 5.999, only five of six frames are written. In the video of an episode
# the frame with the goal or the fall is missing.
#
# Output seen on 2026-11-28 (clips of 1 to 60 frames; the numbers of frames for which one is lost):
#     20 frames a second: 8 10 11 47 48 49 50 51 52 53 54 55 56 57 58 59 60
#     30 frames a second: 6 7 12 13 14 15 24 25 26 27 28 29 30 31
#     50 frames a second: 11 12 13 14
#     60 frames a second: 6 7 12 13 14 15 24 25 26 27 28 29 30 31
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q "moviepy==2.2.1" "imageio==2.38.1" "imageio-ffmpeg==0.8.1" \
    "numpy==2.3.5"
"$folder/venv/bin/python" -W ignore - "$folder/video.mp4" <<'PY'
import sys

import imageio_ffmpeg
import numpy as np
from moviepy import ImageSequenceClip

video = sys.argv[1]


def written(count, fps):
    """Frames in the video of a clip of that many frames."""
    frames = [np.full((16, 16, 3), i, np.uint8) for i in range(count)]
    ImageSequenceClip(frames, fps=fps).write_videofile(video, logger=None)
    reader = imageio_ffmpeg.read_frames(video)
    next(reader)
    return sum(1 for _ in reader)


found = {}
for fps in (20, 30, 50, 60):
    lost = {count: count - written(count, fps) for count in range(1, 61)}
    found[fps] = [count for count in lost if lost[count]]
    print(f"{fps} frames a second:", *found[fps])
    assert all(lost[count] == 1 for count in found[fps])
as_seen = found[20][:4] == [8, 10, 11, 47] and found[30][:3] == [6, 7, 12]
as_seen = as_seen and found[50] == [11, 12, 13, 14]
raise SystemExit(0 if as_seen else "the behaviour has changed")
PY
