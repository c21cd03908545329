# Two commands for a newcomer: `make demo` and `make test`. Each sets up everything it needs from a bare clone.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt
# One thread in each of as many processes as there are cores: the tests are many small operations.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --jaxtyping-packages=homunculus,tests.check -n auto

.PHONY: demo test test-data test-model test-experiment test-kernels test-qwen test-eval test-deep lint format bench docs clean

demo: $(VENV)/.core                       ## one look and the gallery, drawn from an example page
	@mkdir -p out
	@$(BIN)/homunculus example --out out/page.png
	$(BIN)/homunculus look --out out/look.png
	$(BIN)/homunculus gallery --out out/gallery.png

test: $(VENV)/.dev                        ## the core suite, shapes checked at run time
	$(PYTEST) --ignore=tests/data --ignore=tests/model --ignore=tests/peers --ignore=tests/train --ignore=tests/experiment --ignore=tests/report --ignore=tests/gaze --ignore=tests/kernels --ignore=tests/qwen --ignore=tests/eval

test-data: $(VENV)/.dev                   ## records, their files, metrics and the legibility benchmark
	$(PYTEST) tests/data

test-model: $(VENV)/.dev                  ## the compact model, published reducers on it, and its training: killed, resumed, on two processes
	$(PYTEST) tests/model tests/peers tests/train

test-experiment: $(VENV)/.dev             ## methods against each other: rows, readers of their own, the page; human gaze
	$(PYTEST) tests/experiment tests/report tests/gaze

test-kernels: $(VENV)/.kernels            ## the GPU kernels: interpreted, emulated and compiled for sm_90, without a GPU
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/kernels

test-qwen: $(VENV)/.dev $(VENV)-latest/.qwen ## tiny Qwen-VL models on the oldest transformers we support and on the latest
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto tests/qwen
	OMP_NUM_THREADS=1 $(VENV)-latest/bin/python -m pytest -n auto tests/qwen

test-eval: $(VENV)-eval/.lmms             ## lmms-eval reads our files and runs our model, offline; Ray; the OCR judge
	OMP_NUM_THREADS=1 $(VENV)-eval/bin/python -m pytest tests/eval

test-deep: $(VENV)/.dev                   ## the large property run: 50 000 densities against the heap
	$(PYTEST) -n 0 tests/test_budget.py --hypothesis-profile=deep --hypothesis-show-statistics

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy homunculus

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.core                      ## speed on this machine: allocation, hi-z, the token cache
	$(BIN)/python -m bench.allocation
	$(BIN)/python -m bench.hiz
	$(BIN)/python -m bench.cache

docs: $(VENV)/.dev                        ## docs/allocators.md and its pictures, and the contact sheets, from the code
	$(BIN)/python -m bench.family
	for family in documents scenes scene-text; do \
		$(BIN)/homunculus data preview $$family --count 8 --colours 256 --out docs/data/$$family.png; done

clean:
	rm -rf $(VENV) $(VENV)-latest $(VENV)-eval out build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(VENV)/.core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Homunculus needs Python 3.11 or newer: set PYTHON="; exit 1; }
	@echo "setting up $(VENV), about a minute"
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[atlas]"
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable ".[dev]"
	@touch $@

# The same versions but for transformers.
$(VENV)-latest/.qwen: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-latest
	grep -v '^transformers==' constraints.txt >$(VENV)-latest/constraints.txt
	$(VENV)-latest/bin/python -m pip --disable-pip-version-check --quiet install \
		--constraint $(VENV)-latest/constraints.txt --editable . transformers==5.22.2 pytest pytest-xdist hypothesis
	@touch $@

# lmms-eval brings 125 packages, among them a torchvision that does not load beside a CPU build of torch.
$(VENV)-eval/.lmms: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-eval
	$(VENV)-eval/bin/python -m pip --disable-pip-version-check --quiet install \
		--constraint constraints.txt --editable ".[lmms,data,eval,scale]" pytest hypothesis
	$(VENV)-eval/bin/python -m pip --quiet uninstall --yes torchvision
	@touch $@

# Triton is a gigabyte: only here.
$(VENV)/.kernels: $(VENV)/.dev
	$(PIP) --editable ".[dev,kernels]"
	@touch $@
