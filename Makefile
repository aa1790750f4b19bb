# Everything here works on a fresh clone: what a target needs is installed into .venv first.
# PYTHON chooses the interpreter of a new .venv (`make clean` drops an old one), ARGS is passed on.

PYTHON ?= python3
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.installed-core
DEV := $(VENV)/.installed-dev
PACKAGING := pyproject.toml accelmetrics/_version.py
# Folders of tests, each with the frameworks of its requirements in an environment of its own.
FRAMEWORKS := torch ray deploy nvml trackers
ENVIRONMENTS := .cache/frameworks
PACKAGES := .cache/packages

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# The tests start hundreds of interpreters: each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help dump quick test fuzz test-integrations test-gpu bench lint generate docs packages format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

# Standard output holds the document and nothing else: whatever installs talks to standard error.
# (`make -C DIR` announces the directory on standard output by itself; `make -s -C DIR dump` does not.)
dump: $(CORE) ## Print this machine's metrics as one JSON document
	@$(BIN)/accelmetrics dump --json $(ARGS)

quick: $(DEV) ## Run the tests of the core and of what changed, in less than 90 seconds
	@$(BIN)/python -m scripts.quick $(ARGS)

# Several processes run the tests, twice as many as there are cores: tests wait for processes about as long as they compute.
# ARGS="-n 0" runs them in this one, for a debugger.
test: $(DEV) ## Run the tests, e.g. make test ARGS="-k nvidia -x"
	@$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

# The first time this installs several gigabytes. FRAMEWORKS=ray runs one folder alone.
# Warnings are the frameworks' own.
test-integrations: $(FRAMEWORKS:%=$(ENVIRONMENTS)/%/.installed) ## Run the integrations with the real frameworks
	@status=0; for name in $(FRAMEWORKS); do \
		$(ENVIRONMENTS)/$$name/bin/python -m pytest -n 2 --dist worksteal -o filterwarnings=default tests/frameworks/$$name $(ARGS) || status=$$?; \
	done; exit $$status

# A vendor's samples are in its own test, in one that is called `test_fuzz…`.
fuzz: $(DEV) ## Parse 100,000 mutated outputs of each vendor's tool
	@ACCELMETRICS_FUZZ=100000 $(BIN)/python -m pytest -n auto --dist worksteal -o timeout=3600 -k test_fuzz tests/backends $(ARGS)

test-gpu: $(DEV) ## Run the tests that need a real accelerator
	@$(BIN)/python -m pytest -m gpu tests/hardware $(ARGS)

bench: $(DEV) ## Run the comparison with peers
	@$(BIN)/python -m benchmarks $(ARGS)

lint: $(DEV) ## Check style, types, layering and house rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter
	$(BIN)/python scripts/check_house.py

generate: $(DEV) ## Rewrite the files derived from the tables of metrics
	@$(BIN)/python -m scripts.generate $(ARGS)

# Warnings are errors: a broken link, a page that no menu lists, a docstring that does not render.
docs: $(DEV) ## Build the documentation site into .cache/site
	@$(BIN)/sphinx-build -W --keep-going -q -b html -d .cache/site/doctrees docs .cache/site/html $(ARGS)
	@echo .cache/site/html/index.html

# The SBOM lists what a plain install of the wheel brings.
packages: ## Build wheel, source distribution and SBOM (CycloneDX) into dist
	@rm -rf dist $(PACKAGES)
	@$(PYTHON) -m venv $(PACKAGES)/tools && $(PACKAGES)/tools/bin/python -m pip install --quiet build cyclonedx-bom 'twine>=6' >&2
	@$(PACKAGES)/tools/bin/python -m build --outdir dist . >&2
	@$(PACKAGES)/tools/bin/python -m twine check --strict dist/* >&2
	@$(PYTHON) -m venv --without-pip $(PACKAGES)/installed
	@$(PACKAGES)/tools/bin/python -m pip --python $(PACKAGES)/installed/bin/python install --quiet dist/*.whl >&2
	@$(PACKAGES)/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file dist/sbom.cdx.json $(PACKAGES)/installed/bin/python
	@ls dist

format: $(DEV) ## Apply the formatter and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## Remove .venv, caches and build outputs
	rm -rf $(VENV) .cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A .venv without a working pip (an interrupted creation, a removed interpreter) is made anew.
# Editable installs from pyproject.toml need pip 21.3; early releases of Python 3.10 bundle an older one.
define prepare_venv
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) >&2
	@$(BIN)/python -m pip install --quiet 'pip>=21.3' >&2
endef

$(CORE): $(PACKAGING)
	$(prepare_venv)
	@$(BIN)/python -m pip install --quiet --editable . >&2
	@touch $@

$(ENVIRONMENTS)/%/.installed: tests/frameworks/requirements.txt tests/frameworks/%/requirements.txt $(PACKAGING)
	@$(@D)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(@D) >&2
	@$(@D)/bin/python -m pip install --quiet 'pip>=21.3' >&2
	@$(@D)/bin/python -m pip install --quiet -r tests/frameworks/$*/requirements.txt -r tests/frameworks/requirements.txt --editable . >&2
	@test ! -e tests/frameworks/$*/requirements-without-dependencies.txt || \
		$(@D)/bin/python -m pip install --quiet --no-deps -r tests/frameworks/$*/requirements-without-dependencies.txt >&2
	@touch $@

$(DEV): $(PACKAGING)
	$(prepare_venv)
	@$(BIN)/python -m pip install --quiet --editable '.[dev]' >&2
	@touch $(CORE) $@
