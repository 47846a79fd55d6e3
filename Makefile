# Two commands: `make demo` shows the main job in about a minute, `make test` checks everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
STAMP := $(VENV)/.installed
KERNELS := $(VENV)/kernels
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
INSTALL := $(BIN)/pip install --disable-pip-version-check --quiet --no-compile --editable
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # on all cores; pip would compile 18,000 files on one

.PHONY: demo test pytest kernels axe fuzz lint ruff mypy mutants docs pictures bench clean

demo: $(READY)
	$(BIN)/fedekd run --dataset heart --methods second-opinion,fedekd,fedavg --alone menu --folds 5 --out demo-results

test: ruff  # types and tests side by side: mypy alone has one core busy for most of a minute
	$(MAKE) --no-print-directory -j2 mypy pytest kernels

# One worker more than cores: tests of federations wait a good part of their time. Some machines forbid bytecode; then
# each worker and each of the hundreds of processes that tests start would compile everything anew.
pytest: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# The GPU's kernels in Triton's interpreter, which needs no GPU but a numpy before 2.4; both lie beside the installation.
kernels: $(STAMP)
	@if [ -e $(KERNELS)/.ready ] || \
	  $(BIN)/pip install --disable-pip-version-check --quiet --upgrade --target $(KERNELS) "triton>=3.4,<4" "numpy<2.4" && \
	  touch $(KERNELS)/.ready; then \
	  PYTHONPATH=$(KERNELS) TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/kernels; \
	else echo "Triton cannot be installed here: the GPU's kernels are not tested"; fi

axe: $(STAMP)  # for the browser tests that use it; they are skipped without
	mkdir -p $(VENV)/axe && cd $(VENV)/axe && npm pack --silent axe-core@4 && tar xzf axe-core-*.tgz

fuzz: $(STAMP)
	FEDEKD_FUZZ=10000 $(BIN)/python -m pytest tests/flower/test_fuzz_messages.py
	FEDEKD_FUZZ=2000 $(BIN)/python -m pytest tests/flower/test_masking.py
	FEDEKD_FUZZ=2000 $(BIN)/python -m pytest tests/data/test_fuzz_files.py

lint: ruff mypy

ruff: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples tools docs/*.py
	$(BIN)/ruff format --check src tests benchmarks examples tools docs/*.py

mypy: $(STAMP)
	$(BIN)/mypy

mutants: $(STAMP)
	$(BIN)/python tools/mutants.py --count 500

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

pictures: $(STAMP) demo
	$(BIN)/python docs/make_screenshots.py demo-results results/paper
	$(BIN)/python docs/make_terminal_picture.py

bench: $(STAMP)
	$(BIN)/python benchmarks/cpu.py

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	$(COMPILE)
	touch $(READY)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) ".[dev]"
	$(COMPILE)
	touch $(READY) $(STAMP)

clean:
	rm -rf $(VENV) site demo-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
