# make train                                                PPO on Hopper-v4, 200,000 steps, with a video
# make train SCRIPT=ppo ENV=CartPole-v1 ARGS="--seed 3"     any other script, environment and flags
# make test                                                 the tests to run before every commit, in minutes
# make test-slow                                            the others: kills, engines, servers, long runs
# make docs | make results | make torture | make format
PYTHON ?= python3
BIN = .venv/bin
ifndef SCRIPT
SCRIPT = ppo_continuous
ENV = Hopper-v4
ARGS = --total-timesteps 200000
endif
FLAGS = $(if $(ENV),--env-id $(ENV)) --capture-video $(ARGS)

.PHONY: train test test-slow torture docs results format clean

train: .venv/run
	$(BIN)/python cleanrl_lite/$(SCRIPT).py $(FLAGS)
	@run=$$(ls -td runs/*__* | head -n 1); \
	echo "run:    $$run"; \
	echo "curves: $(BIN)/tensorboard --logdir runs"; \
	echo "video:  $$(ls $$run/videos/*/*.mp4 2>/dev/null || echo 'none (see above)')"

test: .venv/test
	$(BIN)/python -m pytest -rs -n auto -m "not slow"

test-slow: .venv/test .venv/onnx
	$(BIN)/python -m pytest -rs -n auto -m slow

torture: .venv/test  # kills runs at random moments and compares them with whole runs; watches long runs for leaks
	$(BIN)/python -m benchmark.measure.torture
	$(BIN)/python -m benchmark.measure.torture --compile --scripts ppo_continuous,dqn,sac --kills 4 --terms 2
	$(BIN)/python -m benchmark.measure.torture --leaks

docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results: .venv/run  # tables and curves, from the files in benchmark/results only
	$(BIN)/python -m benchmark.measure.speed --from-results > /dev/null
	$(BIN)/python -m benchmark.measure.time_to_return --from-results > /dev/null
	$(BIN)/python -m benchmark.measure.torture --table
	$(BIN)/python -m benchmark.measure.cuda_check table
	$(BIN)/python -m benchmark.publish.tables
	$(BIN)/python -m benchmark.publish.plot
	$(BIN)/python -m benchmark.publish.readme

format: .venv/test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv site

# One virtual environment. The file .venv/EXTRA means that EXTRA is installed in it.
.venv/pip:
	$(PYTHON) -m venv .venv || { echo "cannot create .venv. Run: apt-get install python3-venv"; exit 1; }
	touch $@

.venv/run: .venv/pip pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e ".[mujoco,atari,box2d]"
	touch $@

.venv/test: .venv/run
	$(BIN)/pip install -q -c constraints.txt -e ".[test,docs]"
	$(BIN)/pip install -q -c constraints.txt --no-deps godot-rl  # its other requirements are older than ours
	touch $@

.venv/onnx: .venv/run
	$(BIN)/pip install -q -c constraints.txt -e ".[onnx]"
	touch $@

.venv/docs: .venv/run
	$(BIN)/pip install -q -c constraints.txt -e ".[docs]"
	touch $@
