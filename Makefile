# Everything a newcomer needs: `make demo`, then `make test`. Only Python 3.11 – 3.13 is expected on the machine.
.DEFAULT_GOAL := help
.PHONY: help install demo test engine crossover streams soak conformance observe observe-test ui check format bench clean

SUPPORTED := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do $$p -c '$(SUPPORTED)' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
CLIENTS := build/conformance
CHECKER := build/browser
PURE := tests/index $(filter-out tests/scorers/test_contract.py,$(wildcard tests/scorers/test_*.py)) \
	$(patsubst %,tests/gateway/test_%.py,inject breaker agreement retry_budget progress engine_errors pairs unreported watchdog hanging) \
	tests/gateway/front/test_head.py tests/gateway/wire/test_shape.py tests/gateway/admission tests/gateway/test_pull_counters.py \
	$(patsubst %,tests/gateway/calibrate/test_%.py,ladder result) \
	$(patsubst %,tests/gateway/checks/test_%.py,compare finding judge told)
# What waits for nothing but the processor, as the pure tests do: it runs after them, and both beside those that wait for
# sockets and deadlines most of their time.
BESIDE := $(addprefix tests/,bench config observe scorers/test_contract.py packaging loadgen/sim loadgen/workload loadgen/report gateway/tokens \
	soak)

# Some of those that wait, in a process of their own: so many of them would take too long one after the other.
APART := $(addprefix tests/,gateway/calibrate gateway/checks gateway/front gateway/wire engine_patch loadgen conformance) \
	$(filter-out $(PURE),$(wildcard tests/gateway/test_[l-r]*.py))

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv/.made:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 to 3.13 with venv found; set PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

.venv/.runtime: .venv/.made pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.dev: .venv/.runtime
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

.venv/.browser: .venv/.dev
	$(BIN)/python -m pip install --quiet --editable '.[browser]'
	@touch $@

install: .venv/.dev ## set up .venv with everything for development

demo: .venv/.runtime ## three simulated pods and the gateway: a pull, named (ARGS=--once ends after the story)
	$(BIN)/p2p-gateway demo $(ARGS)

test: install ## all tests but the real-engine suite; pure packages at 100 % branch coverage by their own tests
	@mkdir -p build
	@{ $(BIN)/python -m pytest $(PURE) --cov --cov-report= && exec $(BIN)/python -m pytest $(BESIDE); } >build/computing.log 2>&1 & \
	computing=$$!; $(BIN)/python -m pytest $(APART) $(PURE:%=--ignore=%) $(BESIDE:%=--ignore=%) >build/apart.log 2>&1 & \
	apart=$$!; trap 'kill $$computing $$apart; exit 130' INT TERM; \
	$(BIN)/python -m pytest -m 'not engine and not browser' $(PURE:%=--ignore=%) $(BESIDE:%=--ignore=%) $(APART:%=--ignore=%); waiting=$$?; \
	wait $$computing; computing=$$?; wait $$apart; apart=$$?; cat build/computing.log build/apart.log; \
	exit $$((computing || apart || waiting))
	$(BIN)/python -m coverage report --fail-under=100 --show-missing --skip-covered

engine: install ## two real vLLM pods on the CPU, real NIXL pulls
	$(BIN)/python -m pytest -m engine tests/engine --timeout=1500 -v -s

crossover: install ## of the engine suite, what a gateway learns of two real pods beside what they take when asked directly
	$(BIN)/python -m pytest -m engine tests/engine/test_crossover.py --timeout=1500 -v -s

streams: install ## 5,000 streams for a minute, readers that leave or are slow, a pod that is killed; stops by itself
	$(BIN)/python -m tests.gateway.load $(ARGS)

observe: install ## the demo under load, Prometheus and, where it is installed, Grafana, with the files in config; ends with Ctrl-C
	$(BIN)/python -m tests.observe $(ARGS)

observe-test: install ## every alert fires for a real fault and ends, every query has data: a minute; needs prometheus
	$(BIN)/python -m pytest -m observe tests/observe --timeout=300

ui: .venv/.browser ## the live page in a headless Chromium, a checker of accessibility, and what ten open pages cost
	@if command -v npm; then npm install --silent --no-save --prefix $(CHECKER) axe-core@4; else echo "no npm: without axe-core"; fi
	$(BIN)/python -m pytest -m browser tests/browser

soak: install ## half an hour of virtual time, ten minutes of two real pods that are killed and stopped; stops by itself
	$(BIN)/python -m tests.soak $(ARGS)

conformance: install ## other people's clients: Python's and curl, and those that it installs, OpenAI's for Node and aiperf
	@if command -v npm; then npm install --silent --no-save --prefix $(CLIENTS) openai@6; else echo "no npm: without Node"; fi
	test -e $(CLIENTS)/aiperf/bin/aiperf || { $(PYTHON) -m venv $(CLIENTS)/aiperf && $(CLIENTS)/aiperf/bin/pip install --quiet 'aiperf==0.13.*'; }
	$(BIN)/python -m pytest tests/conformance

check: install ## format, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## rewrite the sources as `check` wants them
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

bench: install ## cost per event, per match, per request, with peers where they install (ONLY=index,proxy PEERS=all)
	$(BIN)/python -m tests.bench $(if $(ONLY),--only $(ONLY)) $(if $(PEERS),--peers $(PEERS))

clean: ## remove what was built; the engine environment is outside the checkout and stays
	rm -rf .venv build dist .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
