# `make demo` and `make test` are all the set-up there is. On Windows, or without make: see README.md.

PYTHON ?= python3
BIN := .venv/bin
# A waiting thread yields soon, so a busy neighbor costs little; the command sets the same for itself.
export GOMP_SPINCOUNT ?= 1000
ifneq ($(wildcard ../shared/data),)
export CLEARHEAD_DATA ?= $(abspath ../shared/data)
endif

export CHROMIUM ?= $(shell command -v chromium)

.PHONY: demo test setup lint types campaign browser docs lessons benchmark benchmark-loss benchmark-training benchmark-gpu benchmark-translation benchmark-generation benchmark-native benchmark-starting benchmark-doctor experiments clean

demo: setup            ## train the default model on the built-in stories for two minutes, and let it write
	$(BIN)/clearhead train stories --minutes 2
	$(BIN)/clearhead generate "Once upon a time" --max-new-tokens 450 --temperature 0.5 --seed 1

test: setup            ## the whole suite but the campaigns, on two cores
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

campaign: setup        ## the long tests: kill -9 at random moments, real trainings, every case of every law
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m campaign

browser: setup         ## the pages in a real Chromium, which is installed where apt-get may; CHROMIUM names another
	test -n "$(CHROMIUM)" || { test "$$(id -u)" = 0 && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }
	OMP_NUM_THREADS=1 CHROMIUM="$${CHROMIUM:-$$(command -v chromium)}" $(BIN)/python -m pytest -n 2 -m browser tests/browser

docs: setup            ## the site, into build/site/html, without a warning
	$(BIN)/python docs/site/build.py

lessons: setup         ## the lessons, executed at test size; SIZE=full at full size, into build/lessons
	SIZE=$(SIZE) $(BIN)/python lessons/run.py

benchmark: setup       ## generation beside the tutorials' own code
	$(BIN)/python benchmarks/tutorial_speed.py

benchmark-loss: setup  ## how soon a loss is reached, beside nanoGPT, which is cloned; into benchmarks/results
	$(BIN)/python benchmarks/time_to_loss.py --nanogpt build/nanoGPT --install --keep

benchmark-training: setup  ## steps beside the tutorials' own code, and as a share of what the machine multiplies; into benchmarks/results
	$(BIN)/python benchmarks/training_speed.py --keep
	$(BIN)/python benchmarks/process_speed.py --keep

benchmark-gpu: setup   ## one GPU: how soon a loss is reached beside nanoGPT, compiled; a step; generation; into benchmarks/results
	$(BIN)/python benchmarks/gpu_speed.py --nanogpt build/nanoGPT --install --keep

benchmark-translation: setup  ## training and beam search beside a plain program and CTranslate2; into benchmarks/results
	$(BIN)/python benchmarks/translation_speed.py --install --keep

benchmark-generation: setup  ## the next token, beside Hugging Face's generate; into benchmarks/results
	$(BIN)/python benchmarks/generation_speed.py --keep
	$(BIN)/python benchmarks/draft_speed.py --clock processor --keep
	$(BIN)/python benchmarks/long_texts.py --keep

benchmark-native: setup  ## the native engine beside torch.compile and AOTInductor; into benchmarks/results
	$(BIN)/python benchmarks/native_speed.py --large --keep

benchmark-starting: setup  ## starting, reading a text, evaluating, long logs; into benchmarks/results
	$(BIN)/python benchmarks/starting_speed.py --keep
	$(BIN)/python benchmarks/long_runs.py --keep

benchmark-doctor: setup  ## planted faults, published bugs and released models, models of strangers, what the doctor says of each, other tools; into benchmarks/results
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doctor/faults_check.py --train all --keep
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doctor/run.py --keep
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doctor/known_good.py --keep
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doctor/tracing.py --keep
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doctor/other_libraries.py --install --keep
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doctor/strangers.py --install --keep
	$(BIN)/python benchmarks/doctor/timing.py --keep
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doctor/real_bugs.py --install --keep
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/doctor/other_tools.py --install --keep

experiments: setup     ## hours: what cross-attention, the norm's place, label smoothing and n-gram tables do; into benchmarks/results
	$(BIN)/python benchmarks/experiments/cross_attention.py --keep
	$(BIN)/python benchmarks/experiments/norm_position.py --keep
	$(BIN)/python benchmarks/experiments/label_smoothing.py --keep
	$(BIN)/python benchmarks/experiments/ngram_tables.py --keep
	$(BIN)/python benchmarks/experiments/induction.py --keep

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

types: setup           ## strict, on the library and on all that stands beside it
	$(BIN)/mypy
	$(BIN)/mypy examples benchmarks docs/site tests
	set -e; for file in tests/*/conftest.py lessons/run.py; do $(BIN)/mypy $$file; done  # modules whose names are taken

setup: .venv/installed ## makes .venv and installs what the demo and the tests need

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Clearhead needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	touch $@

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
