# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed

.PHONY: demo smoke test test-slow test-oldest test-extras test-wheel fuzz check format lint types bench size zoo dist docs clean

demo: $(READY)
	$(BIN)/rattle demo

# Ten seconds: every module is imported, every package does one small thing.
smoke: $(READY)
	$(BIN)/python -m pytest tests/test_smoke.py

# Two processes; a file's tests stay together, so that what they share is made once.
test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

# The tests on the lowest versions that pyproject.toml promises. Old packages use what newer ones beneath them deprecate.
OLDEST := .venv-oldest
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest -n 2 --dist loadfile -W ignore::DeprecationWarning $(TESTS)

# Every extra installed, and the tests that are skipped without them.
EXTRAS := .venv-extras
NEED_EXTRAS := tests/models tests/publish tests/evaluation/test_public_models.py tests/data/test_own_data.py tests/cli/test_export.py \
	tests/training/test_loggers.py tests/training/test_optimizers.py tests/training/test_sweep.py tests/integrations
test-extras: $(EXTRAS)/.installed
	$(EXTRAS)/bin/python -m pytest -n 2 --dist loadfile $(NEED_EXTRAS)

# Wheel and sdist; the wheel is built from the sdist, so that neither lacks a file unnoticed.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# Both installed with $(PYTHON) in an environment of their own and used from a folder without sources.
test-wheel: dist
	$(PYTHON) tests/support/installed.py dist $(WHEEL_OPTIONS)

# Bad input of nine kinds, in processes with limits of time and memory; counts by kind.
N ?= 1000
fuzz: $(READY)
	cd tests && OMP_NUM_THREADS=1 PYTHONPATH=. ../$(BIN)/python -m fuzz -n $(N)

check: $(READY) lint types test

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/pyright

bench: $(READY)
	$(BIN)/python -m reproduction.bench $(BENCH)

# Syntax nodes and lines by package, and how much of the code a training run needs.
size: $(READY)
	$(BIN)/python -m reproduction.size

zoo: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m reproduction.make_zoo

# The site, into build/site: open build/site/index.html. Broken links, unknown references and public names without a
# docstring fail; so does anything that a page would fetch from elsewhere.
DOCS := .venv-docs
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	$(DOCS)/bin/python docs/_site/offline.py build/site

# Reinstalled only when what is to be installed has changed.
# torch goes first, by its exact pin, so that no other package's range can pull a CUDA build.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	@touch $@

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --constraint constraints-oldest.txt --editable . pytest pytest-xdist hypothesis pyautoattack
	@touch $@

$(EXTRAS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(EXTRAS)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,hub,slurm,wandb,mlflow,onnx,timm,lightning]"
	@touch $@

$(DOCS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(DOCS)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(EXTRAS) $(DOCS) .pytest_cache .ruff_cache .hypothesis build dist src/*.egg-info
