# The scripts with MuJoCo, Atari, Box2D, a compiler for --compile, headless video and AWS's command line.
#     docker build -t cleanrl_lite .                                      for the CPU
#     docker build -t cleanrl_lite --build-arg TORCH_BACKEND=cu128 .      for NVIDIA GPUs (then: docker run --gpus all)
#     docker run --init -v "$PWD/runs:/app/cleanrl_lite/runs" cleanrl_lite ppo.py --env-id CartPole-v1 --capture-video
ARG BASE=python:3.11.14-slim-bookworm
FROM ${BASE}

# g++ compiles the updates, EGL renders MuJoCo without a display, git gives a run its commit.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ git libegl1 libgl1 libglib2.0-0 \
    && rm -rf /var/lib/apt/lists/*

# uv finds the build of torch for a CPU or a CUDA version: cpu, cu126, cu128 ...
ARG TORCH_BACKEND=cpu
RUN pip install --no-cache-dir uv==0.13.8 \
    && UV_TOOL_DIR=/opt/uv UV_TOOL_BIN_DIR=/usr/local/bin uv tool install --no-cache awscli==1.46.3
WORKDIR /app
COPY constraints.txt ./
RUN uv pip install --system --no-cache --torch-backend "${TORCH_BACKEND}" -c constraints.txt torch

# The dependencies, installed with an empty package.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir -p cleanrl_lite/tools \
    && uv pip install --system --no-cache -c constraints.txt -e ".[mujoco,atari,box2d]"

COPY benchmark benchmark
COPY cleanrl_lite cleanrl_lite

# Not root: a host folder mounted over runs/ must be writable for this user (or run with --user "$(id -u)").
RUN useradd --create-home --uid 1000 lite \
    && mkdir cleanrl_lite/runs \
    && chmod 777 cleanrl_lite/runs
USER 1000
ENV HOME=/tmp PYTHONPATH=/app PYTHONUNBUFFERED=1 TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
# A container has no earlier run's precompiled headers, and they pay only after some runs.
ENV TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS=0
WORKDIR /app/cleanrl_lite
VOLUME /app/cleanrl_lite/runs
ENTRYPOINT ["python"]
CMD ["ppo.py", "--help"]
