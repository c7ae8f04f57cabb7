# Everything a newcomer or a maintainer types. `make` alone lists the targets; `pip install -e .` works without any of this.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# ---- variables, all of which may be given on the command line: make test PYTHON=python3.12 ------------------------------
PYTHON ?= python3#            the interpreter that makes the environments
VENV ?= .venv#                where the first environment goes
TORCH ?= 2.13.0#              the torch to install where there is none; any torch of at least TORCH_MINIMUM that is there is used
TORCH_MINIMUM ?= 2.4
TORCH_INDEX ?=#               another package index to look for torch in (one with CPU builds, say)
SYSTEM_TORCH ?= auto#         yes: the environment sees PYTHON's own packages; auto: only where PYTHON has such a torch; no
ARGS ?=#                      more arguments for pytest: make test ARGS="tests/negation -x"
DEMO_ARGS ?=#                 more arguments for clipmend demo: make demo DEMO_ARGS="--photos ~/pictures"

# open_clip needs a torchvision that fits its torch, so it lives in an environment of its own.
VENV_OPEN_CLIP ?= .venv-open-clip
ifeq ($(shell uname -m),aarch64)
OPEN_CLIP_TORCH ?= 2.9.1
OPEN_CLIP_TORCHVISION ?= 0.24.1
else
OPEN_CLIP_TORCH ?= 2.14.1
OPEN_CLIP_TORCHVISION ?= 0.29.1
endif

PY := $(VENV)/bin/python
PY_OPEN_CLIP := $(VENV_OPEN_CLIP)/bin/python
PIP_INSTALL := -m pip install -qq --disable-pip-version-check
SOURCES := src tests benchmarks tools

# ---- for newcomers ------------------------------------------------------------------------------------------------------
.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: demo
demo: $(VENV)/.stamp-demo ## see an encoder fail at "no", mend it, search with it: writes demo/report.html
	$(VENV)/bin/clipmend demo $(DEMO_ARGS)

.PHONY: test
test: $(VENV)/.stamp-test ## run the tests (a few minutes)
	$(PY) -m pytest $(ARGS)

# ---- for maintainers ----------------------------------------------------------------------------------------------------
.PHONY: test-faults
test-faults: $(VENV)/.stamp-test ## kill, fill, damage and starve an index, and feed it hostile files: a few minutes
	$(PY) -m pytest tests/search/test_faults.py tests/data/test_images_fuzz.py -m "slow or not slow" $(ARGS)

.PHONY: test-slow
test-slow: $(VENV)/.stamp-test ## run the slow tests (full-size models, whole fits)
	$(PY) -m pytest -m "slow and not open_clip" $(ARGS)

.PHONY: test-page
test-page: $(VENV)/.stamp-test ## run the tests of the search page in a headless Chromium (as root installs Debian's)
	$(PY) tools/install_browser.py
	$(PY) -m pytest tests/page -m page $(ARGS)

.PHONY: test-open-clip
test-open-clip: $(VENV_OPEN_CLIP)/.stamp-test ## run the tests of open_clip, LangChain and LlamaIndex in their own environment
	$(PY_OPEN_CLIP) -m pytest tests/integrations/test_vectors.py
	$(PY_OPEN_CLIP) -m pytest -m open_clip $(ARGS)

.PHONY: lint
lint: $(VENV)/.stamp-lint ## check style and types
	@failed=0; for check in "ruff check $(SOURCES)" "ruff format --check $(SOURCES)" mypy; do \
	  echo "$$check"; $(VENV)/bin/$$check || failed=1; \
	done; exit $$failed

.PHONY: format
format: $(VENV)/.stamp-lint ## format the code and mend what can be mended
	$(VENV)/bin/ruff check --fix $(SOURCES)
	$(VENV)/bin/ruff format $(SOURCES)

.PHONY: docs
docs: $(VENV)/.stamp-docs ## build the documentation into site/
	$(VENV)/bin/zensical build --strict --clean

.PHONY: bench
bench: $(VENV)/.stamp-test ## run the speed benchmarks, results into benchmarks/results/
	@mkdir -p benchmarks/results
	@for script in $(filter-out benchmarks/acceptance.py benchmarks/gate.py benchmarks/ablations%.py benchmarks/dense_%.py benchmarks/_%.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(PY) "$$script" --json "benchmarks/results/$$(basename "$$script" .py).json"; \
	done

.PHONY: acceptance
acceptance: $(VENV)/.stamp-test ## measure what the main job must reach, mean of three fits (tens of minutes)
	@mkdir -p benchmarks/results
	$(PY) benchmarks/acceptance.py --json benchmarks/results/acceptance.json $(ARGS)

.PHONY: build
build: $(VENV)/.stamp-build ## build wheel and sdist, install each into a throwaway environment, import it
	rm -rf dist
	$(PY) -m build --quiet --outdir dist .
	$(PY) tools/check_distributions.py dist

.PHONY: clean
clean: ## remove the environments and everything that was built
	rm -rf $(VENV) $(VENV_OPEN_CLIP) dist site .cache demo benchmarks/results .pytest_cache .mypy_cache .ruff_cache .hypothesis

# ---- environments: a stamp for each set of packages, renewed when pyproject.toml changes -----------------------------------
$(VENV)/.stamp-torch: tools/install_torch.py tools/make_environment.py
	@$(PYTHON) tools/make_environment.py $(VENV) --minimum $(TORCH_MINIMUM) --system-torch "$(SYSTEM_TORCH)"
	@$(PY) tools/install_torch.py torch==$(TORCH) --minimum $(TORCH_MINIMUM) --index "$(TORCH_INDEX)"
	@touch $@

$(VENV)/.stamp-demo: pyproject.toml $(VENV)/.stamp-torch
	@echo "installing what the demo needs (a minute or two) into $(VENV)"
	@$(PY) $(PIP_INSTALL) -e ".[demo]"
	@touch $@

$(VENV)/.stamp-test: pyproject.toml $(VENV)/.stamp-torch
	@echo "installing what the tests need (a minute or two) into $(VENV)"
	@$(PY) $(PIP_INSTALL) -e ".[demo,test,cluster]"
	@touch $@ $(VENV)/.stamp-demo

$(VENV)/.stamp-lint: pyproject.toml $(VENV)/.stamp-torch
	@echo "installing what the linters need into $(VENV)"
	@$(PY) $(PIP_INSTALL) -e ".[lint]"
	@touch $@

$(VENV)/.stamp-docs: pyproject.toml $(VENV)/.stamp-torch
	@echo "installing what the documentation needs into $(VENV)"
	@$(PY) $(PIP_INSTALL) -e ".[docs]"
	@touch $@

$(VENV)/.stamp-build: pyproject.toml $(VENV)/.stamp-test
	@$(PY) $(PIP_INSTALL) "build>=1.2" "hatchling>=1.25"
	@touch $@

$(VENV_OPEN_CLIP)/.stamp-test: pyproject.toml tools/install_torch.py tools/make_environment.py
	@$(PYTHON) tools/make_environment.py $(VENV_OPEN_CLIP) --system-torch no
	@$(PY_OPEN_CLIP) tools/install_torch.py torch==$(OPEN_CLIP_TORCH) torchvision==$(OPEN_CLIP_TORCHVISION) --index "$(TORCH_INDEX)"
	@echo "installing what the tests of open_clip, LangChain and LlamaIndex need into $(VENV_OPEN_CLIP)"
	@$(PY_OPEN_CLIP) $(PIP_INSTALL) -e ".[test,open-clip,langchain,llama-index]" "clip-benchmark>=1.6"
	@touch $@
