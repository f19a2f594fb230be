# Two commands from a clone: `make demo` shows the paper on real data, `make test` checks everything.
VENV   := .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
DONE   := $(VENV)/.installed

.PHONY: demo test check docs bench slow e2e browser-test clean help

help:              ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(DONE): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(DONE)      ## classes collapse without spreadout and stay apart with it: handwritten digits, a minute
	$(BIN)/fedaws compare digits --methods positive-only,fixed,fedaws,softmax --seeds 3

check: $(DONE)     ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check        ## check, then the tests
	$(BIN)/pytest -q -n auto

docs: $(DONE)      ## the documentation as a site in site/, strictly: every link and anchor is there
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir site

slow: $(DONE)      ## the long checks: ten kills in one run, acceptance figures over every λ, 50,000 damaged files
	$(BIN)/pytest -q -m slow

e2e: $(DONE)       ## real processes on loopback: TLS, keys, kills and restarts; ten minutes and more on two cores
	$(BIN)/pytest -q -m e2e tests/flower

browser-test: $(DONE) ## report and site in headless Chromium: errors, requests, slider, search, widths, dark (apt-get install chromium)
	$(BIN)/pytest -q -m browser tests/browser

bench: $(DONE)     ## speeds, as ratios within one run (look at the load first)
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/spread.py
	$(BIN)/python benchmarks/scale.py --quick
	$(BIN)/python benchmarks/convolutions.py
	$(BIN)/python benchmarks/xc_read.py

clean:             ## remove what was built and run
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis runs site
