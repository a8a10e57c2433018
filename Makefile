# `make sweep` is the quick start, `make test` the tests. Both set up .venv first: the quick start
# with what the tool needs, the tests with what they need, too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOL := $(VENV)/.tool
STAMP := $(VENV)/.installed

unexport PYTHONDONTWRITEBYTECODE # each process would compile the tests and the package anew

.PHONY: sweep test whole faults null-gpu soak lint format bench docs pictures clean

sweep: $(TOOL)
	$(BIN)/ablate sweep quickstart

PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
SPREAD := -n 2 --dist loadfile --no-loadscope-reorder

# What is over in a moment, and the rules of statistics: about 6 minutes on two cores.
test: $(STAMP)
	$(PYTEST) -m "not whole and not slow and not faults and not cluster and not tour" $(SPREAD)

# Whole sweeps, programs, terminals and browsers, and all else that takes seconds: 20 to 40 minutes.
whole: $(STAMP)
	$(PYTEST) -m "whole and not slow and not faults and not cluster and not tour" $(SPREAD)

# Sweeps and commands that are killed, files that are damaged, disks that are full, devices that are
# lost: 8 to 18 minutes.
faults: $(STAMP)
	$(PYTEST) -m "faults and not slow" $(SPREAD)

# Tests on a null GPU, the CUDA build of torch without a GPU (tests/null_gpu/build.py): two minutes to
# build it the first time, five to run. Needs Python 3.12, gcc and binutils.
PYTHON312 ?= $(shell .ci/python 3.12)
NULL_GPU := build/null-gpu/null

null-gpu: $(NULL_GPU)
	$(NULL_GPU) python -m pytest -n 2 --dist worksteal tests/null_gpu

$(NULL_GPU): tests/null_gpu/build.py tests/null_gpu/stand_ins.py tests/null_gpu/runtime.c .ci/environment.py pyproject.toml constraints.txt
	@test -n "$(PYTHON312)" || { echo "no Python 3.12; give PYTHON312=PATH"; exit 1; }
	$(PYTHON312) tests/null_gpu/build.py build/null-gpu

# What takes long: whole-length fault tests, simulations, trainings to an accuracy.
soak: $(STAMP)
	$(PYTEST) -m slow --timeout=7200

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# The documentation site, in build/docs/site: strict, so that a broken link fails.
docs: $(STAMP)
	$(BIN)/python tests/docs_site.py

# The pictures of the pages, docs/pictures: minutes, since a quick start is trained.
pictures: $(STAMP)
	$(BIN)/python tests/docs_pictures.py

# The oracles ask for a torchvision that matches a CUDA torch; without their dependencies they do.
ORACLES := timm vit-pytorch torchvision
$(TOOL): pyproject.toml constraints.txt Makefile
	@echo "Installing into $(VENV): about 2 minutes the first time, silently."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e .
	@touch $@
	@echo "Installed."

$(STAMP): $(TOOL)
	@echo "Installing what the tests need: about a minute the first time, silently."
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	$(BIN)/pip install -q -c constraints.txt --no-deps $(ORACLES)
	@touch $@
	@echo "Installed."

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .mypy_cache .ruff_cache
