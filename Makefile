# Everything is installed into .venv; nothing but Python 3.11 to 3.13 and make is needed.
# PYTHON=/path/to/python chooses the interpreter; otherwise the first one below that is new enough.

VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -q

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint proto bench clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMPS)/openvino ## install, get the small model, start the daemon, stream an answer, stop
	@$(BIN)/python examples/demo.py

test: lint ## lint, then all tests that need no GPU
	$(BIN)/python -m pytest

test-all: test ## test, then what CI adds: the lowest and the newest dependencies, a long soak
	.ci/matrix
	.ci/soak

lint: $(STAMPS)/test ## ruff, mypy --strict, pyright
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --warnings

proto: $(STAMPS)/test ## generate the protobuf modules again (commit the result)
	cd proto && PATH="$(CURDIR)/$(BIN):$$PATH" python -m grpc_tools.protoc -I. \
	  --python_out=. --pyi_out=. --grpc_python_out=. --mypy_grpc_out=. $$(find . -name '*.proto' -printf '%P ')

bench: $(STAMPS)/test ## run all benchmarks and rewrite docs/benchmarks.*, docs/plots/ and what other pages quote
	$(BIN)/python -m benchmarks
	$(BIN)/python -m examples.concepts

clean: ## remove everything that make made
	rm -rf $(VENV) .venvs dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- the environment: a stamp per set, so that a second run installs nothing --------------------------------------

$(STAMPS)/venv:
	@python=; for p in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$p" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	    python="$$p"; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "make: no Python 3.11 to 3.13 with the venv module found; name one: make PYTHON=/path/to/python" >&2; exit 1; fi; \
	echo "== $(VENV), from $$("$$python" --version)"; \
	"$$python" -m venv $(VENV)
	@$(PIP) --upgrade 'pip>=25.1'
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/openvino: $(STAMPS)/venv pyproject.toml
	@echo "== installing inflightd and the OpenVINO engine (about a minute)"
	@$(PIP) -e '.[openvino]'
	@touch $@

$(STAMPS)/test: $(STAMPS)/openvino
	@echo "== installing what the tests need"
	@# All in one resolution: the pinned generators hold protobuf below 7, which other packages have to follow.
	@$(PIP) -e '.[openvino]' --group test --group lint --group proto --group build --group bench
	@touch $@
