# Every target is safe to repeat. `make help` lists them.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENVIRONMENT := set -a; [ ! -f .env ] || . ./.env; set +a;

.DEFAULT_GOAL := help
.PHONY: help setup demo run seed test check format support-matrix lock bench-failover bench-transfer bench-overhead \
	bench-completion gpu-check soak clean

help: ## Show what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install everything: Python packages, front end, database
	@$(PYTHON) scripts/setup.py

demo: ## The story: failures of every kind, healed before your eyes (DEMO_EXIT=1 ends by itself)
	@began=$$(date +%s.%N) && $(MAKE) --no-print-directory setup \
		&& YOCO_DEMO_BEGAN=$$began exec $(BIN)/python -m demo

run: setup ## Run the whole platform in one process on http://127.0.0.1:8000
	@$(ENVIRONMENT) exec $(BIN)/yoco up

seed: setup ## Fill the database with a demo customer, its contract and a year of incidents
	@$(ENVIRONMENT) exec $(BIN)/python -m demo.seed

test: setup ## Run the tests on PostgreSQL and Redis, then again on the embedded defaults
	@exec $(BIN)/python scripts/run_tests.py $(ARGS)

check: setup ## Lint, format, types, import directions, migrations, configuration, sizes
	@exec $(BIN)/python scripts/run_checks.py

format: setup ## Put the code into the shape that check asks for
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

support-matrix: ## Write docs/support.md from what the last whole `make test` has proven
	@$(BIN)/python scripts/support_matrix.py

lock: setup ## Write requirements.lock anew from pyproject.toml
	@$(BIN)/python scripts/lock.py

bench-failover: setup ## The pause of each kind of failure, engine alone and whole platform, beside others
	@exec $(BIN)/python -m bench.failover $(ARGS)

bench-transfer: setup ## Move state in every way we have, beside torchft, files and the machine's own limits
	@exec $(BIN)/python -m bench.transfer $(ARGS)

bench-overhead: setup ## What protection costs a step, in paired blocks, for each setting and beside torchft
	@exec $(BIN)/python -m bench.overhead $(ARGS)

bench-completion: setup ## The same job under the same faults: unbroken, ours, torchrun restart, torchft
	@exec $(BIN)/python -m bench.completion $(ARGS)

gpu-check: setup ## What one GPU can show, in at most eight minutes (refuses without one)
	@exec $(BIN)/python -m bench.gpu_check $(ARGS)

soak: setup ## A job through 200 kills around its vote and 100 disasters, beside an unbroken run
	@exec $(BIN)/python -m tests.soak $(ARGS)

clean: ## Remove what setup made, the database included
	rm -rf $(VENV) var frontend/node_modules frontend/dist *.egg-info
