# These commands do everything on a machine that has Python 3.11 or newer and make:
#   make demo    train, export, verify, and run a policy in a control loop
#   make test    what continuous integration runs: ruff, pyright, pytest
#   make test-slow    what takes an hour: 300 random networks in every format, long comparisons of 64 rows
#   make test-browser    opens reports in a Chromium, which has to be installed (Debian: apt-get install chromium) or
#                        named: make test-browser BROWSER_BINARY=/opt/chrome/chrome
#   make test-embedded    runs the exported C on an emulated Cortex-M4F; as root on Debian it installs what is missing
#   make coverage-table    docs/coverage.md, written from what the tests of the rules compare
# PYTHON=python3.12 chooses the interpreter, VENV=/elsewhere the virtual environment,
# DEMO_ARGUMENTS="--seed 3" and PYTEST_ARGUMENTS="-k carry" go to the command.

PYTHON ?= python3
VENV ?= .venv
DEMO_ARGUMENTS ?=
PYTEST_ARGUMENTS ?=
# Two workers: more would each hold a copy of JAX and TensorFlow for little gain.
PYTEST_WORKERS ?= 2

RUN := $(VENV)/bin/python
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
# Stamps inside the environment: one per interpreter version and set of extras. An installation that was
# interrupted leaves no stamp and is done again.
CREATED := $(VENV)/.created-$(VERSION)
FOR_DEMO := $(VENV)/.demo-$(VERSION)
# A Triton server, for the tests of fleets. Without its dependencies: they ask for NumPy 1, and only
# the server in the package is used. Elsewhere than on Linux on x86_64 there is none, and those
# tests fail with an error that says so.
TRITON_SERVER := 'nvidia-pytriton>=0.7; sys_platform == "linux" and platform_machine == "x86_64"'
FOR_TEST := $(VENV)/.test-$(VERSION)

.PHONY: demo test test-slow test-browser test-embedded coverage-table lint format clean check-python

demo: $(FOR_DEMO)
	$(RUN) -m nnx_ppo.cli demo $(DEMO_ARGUMENTS)

test: lint
	$(RUN) -m pytest -n $(PYTEST_WORKERS) --dist worksteal $(PYTEST_ARGUMENTS)

test-slow: $(FOR_TEST)
	$(RUN) -m pytest -m slow -n $(PYTEST_WORKERS) --dist worksteal $(PYTEST_ARGUMENTS)

test-browser: export BROWSER_BINARY := $(BROWSER_BINARY)
test-browser: $(FOR_TEST)
	$(RUN) -m pytest tests/browser -m browser $(PYTEST_ARGUMENTS)

test-embedded: $(FOR_TEST)
	sh tests/embedded/install_tools.sh
	$(RUN) -m pytest tests/embedded -m embedded $(PYTEST_ARGUMENTS)

coverage-table: $(FOR_TEST)
	$(RUN) -m pytest -n $(PYTEST_WORKERS) --dist worksteal --write-coverage-table tests/export/test_lowering*.py

lint: $(FOR_TEST)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright --pythonpath $(RUN)

format: $(FOR_TEST)
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis

check-python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "make: '$(PYTHON)' is not Python 3.11 or newer; name one, for example: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; \
	  exit 2; }

# --clear: an environment made by another interpreter, or half made, is no use.
$(CREATED): | check-python
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(FOR_DEMO): pyproject.toml $(CREATED)
	$(RUN) -m pip install --disable-pip-version-check --quiet --editable '.[all]'
	touch $@

$(FOR_TEST): pyproject.toml $(CREATED)
	$(RUN) -m pip install --disable-pip-version-check --quiet --editable '.[all,dev]'
	$(RUN) -m pip install --disable-pip-version-check --quiet --no-deps $(TRITON_SERVER)
	touch $@
