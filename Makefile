# Every target sets up what it needs in .venv; Python 3.11 and make are all a machine must have.
# PIP_ARGS reaches pip: on Linux, point it at an index with torch's CPU build to save gigabytes.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.run-installed
DEV := $(VENV)/.dev-installed
NEWEST_VENV := .venv-newest
NEWEST := $(NEWEST_VENV)/.installed

.PHONY: demo test test-all test-newest check docs fuzz wheel bench containers guide faults attacks leakage \
  privacy forms results release hashes resolve clean

demo: $(RUN)  ## forecasts of the embedded data: the simplest, alone, federated; does it pay?
	$(BIN)/fedproto demo

test: $(DEV)  ## the tests, every method and fault once; PART: 2/3, say: with a part of the products
	$(BIN)/pytest -n auto --dist worksteal $(if $(PART),--part $(PART),-m "not exhaustive")

test-all: $(DEV)  ## all tests, with every product of cases
	$(BIN)/pytest -n auto --dist worksteal

test-newest: $(NEWEST)  ## all tests with the newest Flower that pyproject.toml allows
	$(NEWEST_VENV)/bin/pytest -n auto --dist worksteal

check: $(DEV)  ## lint, format, types, and the rooms: who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DEV)  ## the docs as a site in docs/_build, every link of it checked
	$(BIN)/python -m sphinx -q -W --keep-going docs docs/_build

fuzz: $(DEV)  ## what reads bytes of others, with anything, ten minutes; SECONDS: another time
	FUZZ_SECONDS=$(or $(SECONDS),600) $(BIN)/pytest -n 0 -s tests/test_fuzz.py

wheel:  ## build the wheel, install it elsewhere, use it in an empty folder; seven minutes
	PYTHON=$(PYTHON) PIP_ARGS="$(PIP_ARGS)" .ci/wheel

bench: $(DEV)  ## speed, memory and disk as ratios against peers, perhaps half an hour
	$(BIN)/python -m benchmarks.throughput
	PIP_ARGS="$(PIP_ARGS)" $(BIN)/python -m benchmarks.stock_flower
	$(BIN)/python -m benchmarks.jsd

containers: $(DEV)  ## the federation in containers, for real; BASE_IMAGE: what the image stands on
	$(BIN)/python -m benchmarks.containers $(CONTAINERS)

guide: $(DEV)  ## the commands of docs/deployment.md as they stand there, on a real engine
	$(BIN)/python -m benchmarks.guide $(GUIDE)

faults: $(DEV)  ## each fault done to real processes, about half an hour; FAULTS: only these
	$(BIN)/python -m benchmarks.faults $(FAULTS)

attacks: $(DEV)  ## hostile clients against every rule, and what honest ones pay for the limits; an hour
	$(BIN)/python -m benchmarks.attacks --page

leakage: $(DEV)  ## what clients' messages tell of their data, two minutes
	$(BIN)/python -m benchmarks.leakage --page

privacy: $(DEV)  ## what noise that protects clients costs, by ε, five minutes
	$(BIN)/python -m benchmarks.privacy_results --page

forms: $(DEV)  ## docs/file-forms.csv: what each form of file gets, two minutes
	$(BIN)/python -m benchmarks.file_forms --page

results: $(DEV)  ## docs/results: half an hour a series dataset, two hours CIFAR-10, two sequences
	$(BIN)/python -m benchmarks.results forecasting
	$(BIN)/python -m benchmarks.results systems
	$(BIN)/python -m benchmarks.sharing_results
	$(BIN)/python -m benchmarks.history_results
	$(BIN)/python -m benchmarks.results fuels
	$(BIN)/python -m benchmarks.results classification
	$(BIN)/python -m benchmarks.results sequences
	$(BIN)/python -m benchmarks.rand_curves

resolve: $(DEV)  ## pip finds versions that go together, for each end of Flower's range; two minutes
	PIP=$(BIN)/pip PIP_ARGS="$(PIP_ARGS)" .ci/resolve

release:  ## wheel and source in dist/, checked, with their hashes; a minute
	PYTHON=$(PYTHON) PIP_ARGS="$(PIP_ARGS)" .ci/release

hashes: $(RUN)  ## docker/requirements.txt: what the image holds, with hashes; FLOWER: another version
	FLOWER="$(FLOWER)" PATH="$(CURDIR)/$(BIN):$$PATH" .ci/hashes

$(VENV)/bin/pip:
	$(PYTHON) -m venv $(VENV)

$(RUN): pyproject.toml constraints.txt | $(VENV)/bin/pip
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable .
	touch $@

$(DEV): $(RUN)
	$(BIN)/pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable '.[dev]'
	touch $@

$(NEWEST): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NEWEST_VENV)
	.ci/flower constraints "$$(.ci/flower highest)" >$(NEWEST_VENV)/constraints.txt
	$(NEWEST_VENV)/bin/pip install --quiet $(PIP_ARGS) --constraint $(NEWEST_VENV)/constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf docs/_build $(VENV) $(NEWEST_VENV) .venv-pfl .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
