# memwal: everything that a developer or a machine does here. `make` alone lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROWS ?=
ENGINE ?=
SHELL := /bin/bash
.DEFAULT_GOAL := help
# Tests start hundreds of processes; without stored bytecode each compiles Airflow, Spark and Lance.
unexport PYTHONDONTWRITEBYTECODE
# uv installs into the active environment, which may be another one.
export VIRTUAL_ENV := $(abspath $(VENV))
.PHONY: help setup ui demo test test-slow bench-test test-all soak safeguards lint types format protos lock dist compat golden audit licences images images-test docs docs-serve clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Make .venv with everything in it (Python 3.11 to 3.13; Java comes along if there is none)

$(VENV)/.ready: requirements/tools.lock requirements/dev.lock requirements/java.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
	  || { echo "memwal needs Python 3.11, 3.12 or 3.13; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/tools.lock
	$(BIN)/uv pip sync --quiet --require-hashes requirements/dev.lock
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -m memwal.spark.session >/dev/null 2>&1 \
	  || $(BIN)/uv pip install --quiet --require-hashes -r requirements/java.lock
	@touch $@

# Starts of Spark that take half of the processor time. What they run is too short for the better of
# the JVM's compilers, and without an archive, or with that of another Java, they are only slower.
SPARK_SUBMIT_OPTS ?= -XX:TieredStopAtLevel=1 -XX:SharedArchiveFile=$(CURDIR)/$(VENV)/spark.jsa -Xlog:disable -Xlog:all=error:stderr
demo test test-slow: export SPARK_SUBMIT_OPTS := $(SPARK_SUBMIT_OPTS)

$(VENV)/spark.jsa: $(VENV)/.ready scripts/spark_archive.py
	@$(BIN)/python scripts/spark_archive.py $@ >/dev/null 2>&1 || touch $@

ui: setup ## Build the page in the Airflow UI (Node comes along)
	$(BIN)/python scripts/build_ui.py

# Its page in Airflow is built while producers write; one Spark starts faster than its archive is made.
demo: setup ## Run the main job on a year of real flights (ROWS=n bounds the flights)
	@$(BIN)/python scripts/build_ui.py >$(VENV)/page.log 2>&1 & \
	  $(BIN)/python examples/flights/demo.py $(if $(ROWS),--rows $(ROWS))

dist: ui ## Build the wheel and the sdist into dist/
	MEMWAL_RELEASE=1 $(BIN)/python -m hatchling build -d dist

test: setup $(VENV)/spark.jsa ## Run the tests that CI runs
	PYTEST_DEBUG_TEMPROOT=$$($(BIN)/python scripts/test_folder.py) \
	  $(BIN)/python -m pytest -q -n 3 --dist loadgroup --no-loadscope-reorder

# Parts of the slow tests. What stands in none of the others is the core.
AREA ?= all
AREA_airflow := tests/dags tests/plugins tests/examples/test_airflow_demo.py
AREA_faults := tests/jobs/faults tests/power_cuts tests/simulation tests/histories
AREA_hostile := tests/fuzz tests/hostile
AREA_stores := tests/stores
AREA_ship := tests/packaging tests/docker tests/helm tests/examples tests/exporter tests/test_documents.py tests/test_tutorial.py tests/test_site.py
AREA_all := tests
AREA_core := tests $(addprefix --ignore=,$(AREA_airflow) $(AREA_faults) $(AREA_hostile) $(AREA_stores) $(AREA_ship))

test-slow: setup $(VENV)/spark.jsa ## Run the slow tests in random order (AREA=airflow, faults, hostile, stores, ship or core)
	$(if $(AREA_$(AREA)),,$(error no such area: $(AREA)))
	$(BIN)/uv pip install --quiet --no-deps --require-hashes -r requirements/sentences.lock
	$(BIN)/python scripts/slow_tools.py
	$(BIN)/python scripts/build_ui.py --test
	$(BIN)/python -m pytest -q -rs -m "slow and not soak" -p randomly -n 3 --dist loadgroup --durations=30 $(AREA_$(AREA))

bench-test: setup ## Run the programs of bench/ on small tables, and compare their lines with bench/figures
	$(BIN)/python -m pytest -q -m bench -n 2 tests/test_bench.py

test-all: test test-slow bench-test ## Run all tests

MINUTES ?= 10
PLAY ?=
SEED ?=
soak: setup ## Random worlds and plays of real processes for MINUTES=n (PLAY=kills, moves, foreign or worlds alone; SEED=n), then all cases that slow tests draw from (hours)
	$(BIN)/uv pip install --quiet --no-deps --require-hashes -r requirements/sentences.lock
	PYTHONPATH=tests $(BIN)/python -m soak --minutes $(MINUTES) $(if $(PLAY),--only $(PLAY)) $(if $(SEED),--first-seed $(SEED))
	$(if $(PLAY),,$(BIN)/python -m pytest -q -rs -m soak -p randomly -n 2)

safeguards: setup ## Take each safeguard of tests/safeguards.toml out: its tests must notice (half an hour)
	$(BIN)/python scripts/mutants.py safeguards

compat: ui ## Run the tests that count with other versions (PYLANCE=newest LANCEDB=0.39 AIRFLOW=3.1 SQLALCHEMY=2.0 SPARK=4.0 WITH=3.12 ONLY=facts)
	$(BIN)/python scripts/compat.py $(foreach name,PYLANCE LANCEDB AIRFLOW SQLALCHEMY SPARK,$(if $($(name)),--$(shell echo $(name) | tr A-Z a-z) $($(name)))) \
	  $(if $(WITH),--python $(WITH)) $(if $(ONLY),--only "$(ONLY)")

golden: setup ## Keep small tables as this version writes them; once for each release
	LANCE_LOG=error,lance::index=off $(BIN)/python tests/golden/make.py

audit: setup ## Ask for known vulnerabilities of all that is locked (ADVISORIES=all.zip of OSV, else the index)
	$(BIN)/python scripts/audit.py $(if $(ADVISORIES),--advisories $(ADVISORIES))

licences: setup ## Write the licences of the images' packages from the locks
	$(BIN)/python scripts/licences.py

images: ## Build the container images (ENGINE=docker, podman or buildah)
	$(PYTHON) scripts/build_images.py $(if $(ENGINE),--engine $(ENGINE))

images-test: setup ## Build the images without an engine's server, and run what is in them (root; Debian)
	$(BIN)/python scripts/slow_tools.py --images
	$(BIN)/python -m pytest -q -m images -s

lint: setup ## Check style, and that generated code is current
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/generate_protos.py --check

types: setup ## Check types
	$(BIN)/mypy

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: setup ## Generate the protobuf modules
	$(BIN)/python scripts/generate_protos.py

docs: setup ## Build the documentation site into site/, strictly and without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

docs-serve: setup ## Show the documentation on 127.0.0.1:8000 while it is written
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8000

LOCK := uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet
# The images have the versions that the tests have.
LOCK_AS_TESTED := $(LOCK) --constraints requirements/dev.lock
lock: setup ## Resolve the dependencies again; then make setup audit licences
	$(BIN)/$(LOCK) --all-extras --overrides requirements/overrides.txt pyproject.toml -o requirements/dev.lock
	$(BIN)/$(LOCK) pyproject.toml -o requirements/producer.lock
	$(BIN)/$(LOCK) requirements/tools.in -o requirements/tools.lock
	$(BIN)/$(LOCK) requirements/java.in -o requirements/java.lock
	$(BIN)/$(LOCK) --no-deps requirements/sentences.in -o requirements/sentences.lock
	$(BIN)/$(LOCK_AS_TESTED) requirements/build.in -o requirements/build.lock
	$(BIN)/$(LOCK_AS_TESTED) --extra cli --extra postgres --extra metrics pyproject.toml -o requirements/cli.lock
	$(BIN)/$(LOCK_AS_TESTED) --extra cli --extra postgres --extra metrics --extra quality --extra spark \
	  pyproject.toml -o requirements/spark.lock
	$(BIN)/$(LOCK_AS_TESTED) --extra airflow --extra postgres --extra metrics --extra quality --extra spark \
	  --overrides requirements/overrides.txt pyproject.toml requirements/airflow.in -o requirements/airflow.lock

clean: ## Remove what setup and tests made
	rm -rf plugins/memwal_airflow/ui/node_modules plugins/memwal_airflow/web/static
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis demo-output site
