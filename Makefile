# The few words of this repository. `make demo` and `make test` set up everything by themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUADRIGA := $(BIN)/quadriga
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
INSTALLED := $(VENV)/installed-$(VERSION)
CLIENTS := tritonclient kserve mlserver schemathesis supervision datasets tables
# Ultralytics brings 6 GB of torch: make clients CLIENTS=ultralytics; without it its checks and torchvision's are skipped.
LARGE_CLIENTS := ultralytics
# MLServer takes no Python above 3.12: make conformance PYTHON=python3.13 CLIENTS_PYTHON=python3.11
CLIENTS_PYTHON ?= $(PYTHON)
CLIENTS_INSTALLED := installed-$(shell $(CLIENTS_PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')

# Triton runs models in Python 3.12 alone; where there is none it is left out.
PEERS := mlserver kserve fastapi bentoml ray litserve
TRITON_PYTHON ?= $(shell .ci/find-python 3.12)
PEER_ENVIRONMENTS := $(patsubst %,.peers/%/installed,$(PEERS) $(if $(TRITON_PYTHON),triton))

# Each process of a server would compile all of it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help installed demo serve test again drill prometheus-drill nightly longest clients conformance browser pictures label-studio cuda docs lint bench bench-peers soak descriptors release-check lock clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

installed: $(INSTALLED)-dev

demo: $(INSTALLED)  ## Serve the sample models, send images, query what was stored
	@$(BIN)/python -m sample_models.demo

serve: $(INSTALLED)  ## Serve the sample models on port 8080 until Ctrl-C
	@$(QUADRIGA) serve sample_models

# Tests of whole servers wait most of the time: four at once keep two cores busy.
test: $(INSTALLED)-dev  ## Run the tests but the longest
	@$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder

# Tests of real processes under load may wait too long on a machine that has no time for them.
again:  ## Run the tests that failed in the last run once more, one after the other
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

drill: $(INSTALLED)-dev  ## Kill and harm real servers under load, count what was lost: DRILL="--kills 30"
	@$(BIN)/python -m tests.drill $(DRILL)

prometheus-drill: $(INSTALLED)-dev  ## Fire each alert by its fault, compare a Prometheus with clients: PROMETHEUS_DRILL="--parts counts"
	@$(BIN)/python -m tests.prometheus_drill $(PROMETHEUS_DRILL)

nightly:  ## Run every test, the longest too, on the lowest and the highest Python, with all public clients
	@for version in $(PYTHONS); do \
		python=$$(.ci/find-python $$version) || { echo "Python $$version is not here: its tests did not run"; continue; }; \
		$(MAKE) --keep-going test longest PYTHON=$$python VENV=.venv-$$version || failed="$$failed $$version"; \
	done; \
	[ -z "$$failed" ] || { echo "Failed on Python$$failed"; exit 1; }
	@$(MAKE) --keep-going conformance browser PYTHON=$$(.ci/find-python 3.11)

# The lowest and the highest that the project supports; .ci/run takes them in turns.
PYTHONS := 3.11 3.13

longest: $(INSTALLED)-dev
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "nightly and not conformance and not browser" $$(sed -n 's|^\([^#:]*\)::.*|tests/\1|p' tests/nightly.txt | uniq)

clients: $(CLIENTS:%=.conformance/%/$(CLIENTS_INSTALLED))  ## Install the public clients

# CI leaves out what tests/nightly.txt has: EXCEPT="and not nightly"
EXCEPT :=

conformance: $(INSTALLED)-dev clients  ## Run public clients against a server
	@$(BIN)/python -m pytest tests/conformance -m "conformance $(EXCEPT)"

# Accessibility checks (MPL-2.0), for the tests alone: the one file of the package that they run, checked by its hash.
AXE := .axe/axe.min.js
AXE_VERSION := 4.14.1

$(AXE):
	@mkdir -p .axe
	@cd .axe && npm pack --silent axe-core@$(AXE_VERSION) > /dev/null && tar -xzf axe-core-$(AXE_VERSION).tgz --strip-components 1 package/axe.min.js

browser: $(INSTALLED)-dev  ## Open the pages of reports and the console in Chromium, which must be there
	@$(MAKE) --no-print-directory $(AXE) || echo "without npm: accessibility is not checked"
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -m "browser $(EXCEPT)" $$(grep --recursive --files-with-matches --include='*.py' pytest.mark.browser tests)

pictures: $(INSTALLED)-dev  ## Make the pictures of docs/console.md anew, from a real server in Chromium
	@$(BIN)/python -m tests.console_pictures

lint: $(INSTALLED)-dev  ## Check format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Its onnxruntime must be onnxruntime-gpu, which takes the place of the default one: make cuda VENV=.venv-cuda
cuda: $(INSTALLED)-dev  ## Run models on an NVIDIA GPU beside the CPU; skipped where CUDA does not start
	@$(BIN)/python -m pytest -m cuda tests/cuda

# Label Studio brings 1 GB; it and its database of SQLite stay below .label-studio.
LABEL_STUDIO := .label-studio/env/bin/label-studio

$(LABEL_STUDIO):
	@echo "Setting up .label-studio: some two minutes, once"
	@$(CLIENTS_PYTHON) -m venv --clear .label-studio/env
	@.label-studio/env/bin/python -m pip install --quiet --disable-pip-version-check label-studio==$(LABEL_STUDIO_VERSION)

LABEL_STUDIO_VERSION := 1.23.2

label-studio: $(INSTALLED)-dev $(LABEL_STUDIO)  ## Connect the real Label Studio: LABEL_STUDIO_FLAGS="--picture docs/label-studio.jpg"
	@$(BIN)/python -m tests.extras.label_studio.studio --program $(LABEL_STUDIO) $(LABEL_STUDIO_FLAGS)

# Benchmarks use the servers and models of the tests.
bench: export PYTHONPATH := $(CURDIR)
bench: $(INSTALLED)-dev  ## Measure the server beside a bare application, the store, and evaluation
	@$(BIN)/python bench/path_cost.py
	@$(BIN)/python bench/store_ingest.py
	@$(BIN)/python bench/store_queries.py --records $(RECORDS) --folder bench-data/$(RECORDS)
	@$(BIN)/python bench/evaluation_speed.py

bench-peers: export PYTHONPATH := $(CURDIR)
bench-peers: $(INSTALLED)-dev $(PEER_ENVIRONMENTS)  ## Measure the server beside MLServer, KServe, Triton, FastAPI, BentoML, LitServe and Ray Serve
	@$(BIN)/python bench/peer_speed.py --seconds $(SECONDS) --connections $(CONNECTIONS) $(PEER_FLAGS)

# Of each load; a quarter of an hour in all with 8 connections: make bench-peers SECONDS=0.5 CONNECTIONS="1 8 32"
SECONDS := 2
CONNECTIONS := 8
PEER_FLAGS :=

soak: export PYTHONPATH := $(CURDIR)
soak: $(INSTALLED)-dev  ## Put load of all kinds on a server for MINUTES, and see that its memory does not grow
	@$(BIN)/python bench/soak.py --minutes $(MINUTES)

MINUTES := 120

# make bench RECORDS=1000000; the store of each size is kept.
RECORDS := 200000

descriptors: $(INSTALLED)-dev  ## Compile the messages of gRPC
	@$(BIN)/python -m grpc_tools.protoc --proto_path=proto --descriptor_set_out=proto/open_inference.binpb open_inference.proto model_repository.proto

# The script with which the search works in a site that is opened as files; its hash stands in deploy/site/pages.py.
SHIM := .site/package/shim/index.js
SHIM_VERSION := 1.0.4

$(SHIM): .site/installed-$(VERSION)
	@cd .site && npm pack --silent iframe-worker@$(SHIM_VERSION) > /dev/null && tar -xzf iframe-worker-$(SHIM_VERSION).tgz package/shim/index.js
	@touch $@

docs: .site/installed-$(VERSION)  ## Build the documents as a site into the folder site, and check its links
	@$(MAKE) --no-print-directory $(SHIM) || echo "without npm: the search of the site needs a server"
	@NO_MKDOCS_2_WARNING=1 .site/bin/mkdocs build --quiet --strict --config-file deploy/site/mkdocs.yml

# Its tools stay out of the environment of development.
release-check: .release/installed-$(VERSION)  ## Build the archives of a release into dist, and check them and what stands around them
	@.release/bin/python -m deploy.release

lock: $(INSTALLED)-dev  ## Resolve the lock files again
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --group bench $(LOCK) --output-file requirements-dev.lock
	$(BIN)/uv pip compile pyproject.toml $(LOCK) --constraint requirements-dev.lock --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml $(EXTRAS:%=--extra %) $(LOCK) --constraint requirements-dev.lock --output-file requirements-extras.lock
	$(BIN)/uv pip compile deploy/release/requirements.txt $(LOCK) --output-file deploy/release/requirements.lock
	$(BIN)/uv pip compile deploy/site/requirements.txt $(LOCK) --output-file deploy/site/requirements.lock
	for peer in $(PEERS) triton; do $(BIN)/uv pip compile bench/peers/$$peer/requirements.txt $(LOCK) --output-file bench/peers/$$peer/requirements.lock; done
	for client in $(CLIENTS) $(LARGE_CLIENTS); do $(BIN)/uv pip compile tests/conformance/requirements-$$client.txt $(LOCK) --output-file tests/conformance/requirements-$$client.lock; done

# Of the image; rouge-score comes as source alone, and Ray has images of its own.
EXTRAS := clickhouse oidc otel parquet postgres s3
LOCK := --quiet --universal --python-version 3.11 --upgrade --generate-hashes --no-header --no-emit-index-url --no-emit-find-links

clean:  ## Remove the environment and what a server and the demo wrote
	rm -rf $(VENV) $(PYTHONS:%=.venv-%) .conformance .label-studio .peers .release .site .axe site bench-data data demo-output

# The mark names the version: another PYTHON makes the environment anew. Python compiles what is imported, which takes
# half the time of compiling all of it.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Quadriga needs Python 3.11 or newer: make PYTHON=python3.12"; exit 1; }
	@echo "Setting up $(VENV): about a minute, once"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(INSTALLED)-dev: $(INSTALLED) requirements-dev.lock
	@$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@touch $@

# Each client lives in an environment of its own: two of them bring the same protocol buffers.
.conformance/%/$(CLIENTS_INSTALLED): tests/conformance/requirements-%.lock
	@echo "Setting up .conformance/$*: under a minute, once"
	@$(CLIENTS_PYTHON) -m venv --clear .conformance/$*
	@.conformance/$*/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.release/installed-$(VERSION): deploy/release/requirements.lock
	@echo "Setting up .release: under a minute, once"
	@$(PYTHON) -m venv --clear .release
	@.release/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.site/installed-$(VERSION): deploy/site/requirements.lock
	@echo "Setting up .site: under a minute, once"
	@$(PYTHON) -m venv --clear .site
	@.site/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

# So do peers, and each has its own versions.
.peers/triton/installed: PEER_PYTHON = $(TRITON_PYTHON)
.peers/%/installed: PEER_PYTHON ?= $(CLIENTS_PYTHON)
.peers/%/installed: bench/peers/%/requirements.lock
	@echo "Setting up .peers/$*: about a minute, once"
	@$(PEER_PYTHON) -m venv --clear .peers/$*
	@.peers/$*/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@
