# Tidemark's commands. `make help ALL=1` lists them; each installs what it needs first.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first Python that is new enough; `make PYTHON=/path/to/python …` overrules.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-input
# What a lock does not name by its hash is not installed. A lock is complete, so pip has nothing to resolve.
PIP_INSTALL_LOCKED := $(PIP_INSTALL) --require-hashes --no-deps

# $(call install_lock,ENVIRONMENT,LOCK) installs a lock by its hashes: with uv where it is there and succeeds, because it is
# several times faster; else with pip. On a terminal both show how far they are.
define install_lock
@echo "Installing the $$(grep -c == requirements/$(2).txt) Python packages of requirements/$(2).txt into $(1)$(SIZE_$(2))"
@if command -v uv >/dev/null && uv pip install $(if $(TERMINAL),,--quiet) --python $(1)/bin/python \
		--require-hashes --no-deps -r requirements/$(2).txt; then :; \
	elif [ -n "$(TERMINAL)" ]; then $(1)/bin/python $(PIP_INSTALL_LOCKED:--quiet=) -r requirements/$(2).txt | $(PROGRESS); \
	else $(1)/bin/python $(PIP_INSTALL_LOCKED) -r requirements/$(2).txt; fi
endef
TERMINAL := $(shell [ -t 2 ] && echo yes)
# One line that changes, in place of pip's three for each package.
PROGRESS := awk '/^(Collecting|Requirement already)/ { n++; printf "\r\033[K  %d: %s", n, $$2 } \
	/^Installing collected/ { printf "\r\033[K  unpacking" } { fflush() } END { printf "\r\033[K" }'
SIZE_local := : 160 MB, about a minute, once
SIZE_dev := : 360 MB more, for development

# Stamps: an environment is installed again when its lock is newer.
VENV := .venv/bin/python
LOCAL := .venv/.installed-local
DEV := .venv/.installed-dev
BENCH := .venv/.installed-bench
SAM := .venv-sam/.installed
POLICY := .venv-policy/.installed
DOCS := .venv-docs/.installed
UV := .venv-lock/.installed
NODE := node_modules/.installed
# PySpark takes 456 MB and has its own versions of what others need: it is kept apart.
SPARK_VERSION ?=
SPARK_SUFFIX := $(if $(SPARK_VERSION),-$(SPARK_VERSION))
SPARK_VENV := .venv-spark$(SPARK_SUFFIX)
SPARK := $(SPARK_VENV)/.installed
S3A := .s3a/.installed
LANGGRAPH := .langgraph/.installed

OFTEN := run|test|test-fast|lint|conformance|bench|pipeline|deploylocal|deploy|token
.PHONY: help
help: ## what is used most (ALL=1 lists every target)
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / && $$1 ~ /^($(if $(ALL),.*,$(OFTEN)))$$/ { printf "  make %-13s %s\n", $$1, $$2 }' \
	    $(MAKEFILE_LIST)
	@$(if $(ALL),,echo "All $$(grep -c '^[a-z0-9-]*:.*## ' $(MAKEFILE_LIST)) targets: make help ALL=1")

.PHONY: install
install: $(DEV) npm-if-possible ## make .venv and node_modules from the locks (every target does what it needs by itself)

# How many processes run the tests.
WORKERS ?= 3

# `exec`: signals reach the server itself, and its exit code is make's.
.PHONY: run
run: $(LOCAL) ## the whole system on this machine (PORT HOST DATA_DIR LOG_LEVEL=INFO VIA=asgi|lambda …)
	@PYTHONMALLOC=$${PYTHONMALLOC:-malloc} exec $(VENV) -m $(if $(filter lambda,$(VIA)),tests.stack,tidemark.cli serve)

# Several processes, each with engines of its own. The tests of a file stay together, because they share its fixtures;
# files start in the order of tests/conftest.py.
PARALLEL := --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder --durations=10

.PHONY: test
test: $(DEV) npm-if-possible ## the tests (ARGS="…" goes to pytest; WORKERS=0 for one process)
	@$(VENV) -m pytest $(PARALLEL) $(ARGS)

.PHONY: test-fast
test-fast: $(DEV) npm-if-possible ## the tests to run before every commit (ARGS and WORKERS as above)
	@$(VENV) -m pytest $(PARALLEL) -m "not slow and not artifact and not emulated" --hypothesis-profile=fast $(ARGS)

.PHONY: coverage
coverage: $(DEV) npm-if-possible ## the tests, and which lines and branches they reach
	@$(VENV) -m pytest $(PARALLEL) --cov --cov-report=term:skip-covered $(ARGS)

.PHONY: conformance
conformance: $(DEV) $(NODE) ## the official conformance suite, both ways (VIA=asgi|lambda for one)
	@$(VENV) -m tests.conformance.run

# The suite is not on npm, and it takes the path of a program without arguments.
define NO_SUITE
SKIPPED: the suite for clients is not in SUITE=$(SUITE). To get it:
  git clone https://github.com/durable-streams/durable-streams && cd durable-streams/packages/client-conformance-tests
  sed -i 's/workspace:\*/latest/' package.json && npm install --ignore-scripts --omit=dev
  make clientconformance SUITE=$$PWD
endef
export NO_SUITE
.PHONY: clientconformance
clientconformance: $(DEV) ## upstream's suite for clients against tidemark.client (SUITE=…/packages/client-conformance-tests of a clone)
	@[ -x "$(SUITE)/node_modules/.bin/tsx" ] || { echo "$$NO_SUITE" >&2; exit 0; }; \
	adapter=$$(mktemp); trap 'rm -f "$$adapter"' EXIT; chmod +x "$$adapter"; for way in "" --async; do \
		printf '#!/bin/sh\ncd "%s" && exec .venv/bin/python -m tests.client.adapter %s\n' "$(CURDIR)" "$$way" > "$$adapter"; \
		(cd "$(SUITE)" && node_modules/.bin/tsx src/cli.ts --run "$$adapter"); done

.PHONY: proxyconformance
proxyconformance: $(DEV) $(NODE) ## upstream's suite for the durable proxy (SUITE=…/packages/proxy of a clone; VIA=asgi|lambda)
	@[ -d "$(SUITE)/src/__tests__" ] || { echo "SKIPPED: the suite is not in SUITE=$(SUITE): clone durable-streams/durable-streams" >&2; exit 0; }; \
		$(VENV) -m tests.conformance.proxy "$(SUITE)"

# One process: the emulator is heavy, and each file starts one of its own.
.PHONY: emulated
emulated: $(DEV) $(NODE) ## the built template deployed into an emulated AWS, and tested there (after make build)
	@$(VENV) -m pytest -m emulated --durations=5 tests/emulated $(ARGS)

.PHONY: chaos
chaos: $(DEV) npm-if-possible ## faults of every kind while writers write and readers read (MINUTES=2 SEED VIA=asgi|lambda APPENDS)
	@exec $(VENV) -m tests.chaos $(ARGS)

.PHONY: mutations
mutations: $(DEV) npm-if-possible ## plant known bugs in a copy of the tree: which do the tests catch? (ARGS="trim": words of names)
	@$(VENV) -m tests.mutations $(ARGS)

.PHONY: nightly
nightly: ## what is run every night: long campaigns, planted bugs, every PySpark, benchmarks (hours)
	@.ci/nightly

.PHONY: prove
prove: ## all that a change must pass, as CI runs it
	@.ci/run

.PHONY: bench
bench: $(BENCH) npm-if-possible ## benchmarks beside the Node reference server (ARGS="--ways lambda --rows sse …")
	@$(VENV) -m benchmarks $(ARGS)

.PHONY: benchpeers
benchpeers: $(BENCH) ## appends beside Redis streams and NATS JetStream (Debian: redis-server, nats-server)
	@$(VENV) -m benchmarks.peers $(ARGS)

.PHONY: guard
guard: $(DEV) ## calls, CPU, cold starts and the layer's size against their limits (after make build)
	@$(VENV) -m benchmarks.guard $(ARGS)

.PHONY: pipeline
pipeline: $(SPARK) npm-if-possible ## the Spark pipeline on this machine, with data it makes, checked
	@.venv-spark/bin/python -m tests.pipeline $(ARGS)

# SPARK_VERSION=4.2, SPARK_VERSION=next: newer versions of PySpark, each in an environment of its own.
.PHONY: testspark
testspark: $(SPARK) npm-if-possible ## the tests of the Spark pipeline (SPARK_VERSION=4.2 or next for a newer PySpark)
	@$(SPARK_VENV)/bin/python -m pytest tests/spark $(ARGS)

.PHONY: tests3a
tests3a: $(SPARK) $(S3A) npm-if-possible ## the jobs with their lake in S3, by Hadoop's own file system (fetches 180 MB)
	@$(SPARK_VENV)/bin/python -m pytest tests/spark/test_s3a.py $(ARGS)

.PHONY: packagespark
packagespark: $(VENV) ## the jobs as EMR Serverless and Glue take them, into dist/pipeline (ARGS="--python 3.12")
	@$(VENV) pipeline/package.py $(ARGS)

.PHONY: benchspark
benchspark: $(SPARK) npm-if-possible ## rows per CPU-second of the data source beside Spark's own sources (ARGS=--quick: that it runs)
	@.venv-spark/bin/python -m benchmarks.spark $(ARGS)

.PHONY: lint
lint: $(DEV) ## format, lint, types, import directions, template
	@$(VENV) -m ruff format --check .
	@$(VENV) -m ruff check .
	@$(VENV) -m mypy
	@.venv/bin/lint-imports --no-logo
	@.venv/bin/cfn-lint template.yaml pipeline/template.yaml container/template.yaml

# Not --quiet: then MkDocs would neither say nor count its warnings, and --strict would mean nothing.
.PHONY: docs
docs: $(DOCS) ## the documentation as a site, into site/ (a broken link fails)
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --strict

.PHONY: vendor
vendor: $(NODE) ## copy the console's libraries from node_modules into the package
	@$(VENV) console/vendor.py

.PHONY: pictures
pictures: $(DEV) $(NODE) ## draw the pictures of the console in docs/images, in Chromium
	@$(VENV) -m console.pictures

.PHONY: diagrams
diagrams: $(DOCS) ## draw docs/images/*.svg from their Mermaid sources
	@.venv-docs/bin/python docs/images/render.py

# It skips a template that it cannot read, and says so in its summary alone.
.PHONY: policy
policy: $(POLICY) ## the template against checkov's policies (exceptions: .checkov.yaml)
	@.venv-policy/bin/checkov --config-file .checkov.yaml | awk '{ print } /Parsing errors/ { bad = 1 } END { exit bad }'

# No Docker and no AWS account: the layer's wheels are fetched for Lambda's platform (shared/Makefile).
.PHONY: build
build: export PATH := $(CURDIR)/.venv-sam/bin:$(PATH)
build: export SAM_CLI_TELEMETRY := 0
build: export AWS_DEFAULT_REGION ?= us-east-1
build: $(SAM) ## what AWS SAM deploys, into .aws-sam (EXTRAS=otel for spans)
	@sam build
	@sam validate --lint
	@.venv-sam/bin/python -W ignore -m cyclonedx_py requirements requirements/layer$(EXTRAS:%=-%).txt --pyproject pyproject.toml \
		--output-reproducible --of JSON -o .aws-sam/sbom.cdx.json
	@$(VENV) requirements/sbom.py .aws-sam/sbom.cdx.json .aws-sam/build/SharedLayer/python

.PHONY: deploylocal
deploylocal: build $(DEV) ## sam build and sam deploy into an emulated AWS on this machine, until Ctrl-C (ARGS: options of sam deploy)
	@exec $(VENV) -m tests.emulated $(ARGS)

.PHONY: deploy
deploy: export PATH := $(CURDIR)/.venv-sam/bin:$(PATH)
deploy: export SAM_CLI_TELEMETRY := 0
deploy: build $(LOCAL) ## sam build and sam deploy: what samconfig.toml says, to AWS (ARGS=--confirm-changeset shows the changes and asks)
	@sam deploy $(ARGS)
	@$(VENV) -m tidemark.ops.deploy

.PHONY: undeploy
undeploy: export PATH := $(CURDIR)/.venv-sam/bin:$(PATH)
undeploy: export SAM_CLI_TELEMETRY := 0
undeploy: $(SAM) $(LOCAL) ## sam delete: the stacks of samconfig.toml; table and bucket stay (ARGS=--no-prompts does not ask)
	@$(VENV) -m tidemark.ops.deploy --remove $(ARGS)

.PHONY: release
release: ## sign the tag of VERSION=0.2.0, with its section of CHANGELOG.md as the notes
	@grep -qx 'version = "$(VERSION)"' pyproject.toml || { echo "pyproject.toml does not have the version '$(VERSION)'" >&2; exit 1; }
	@awk '/^## \[/ { on = index($$0, "[$(VERSION)]"); next } on' CHANGELOG.md | grep -q . || { echo "CHANGELOG.md has no section [$(VERSION)]" >&2; exit 1; }
	@{ printf 'Tidemark %s\n\n' "$(VERSION)"; awk '/^## \[/ { on = index($$0, "[$(VERSION)]"); next } on' CHANGELOG.md; } | git tag --sign --cleanup=whitespace --file=- "v$(VERSION)"
	@echo "Publish it: git push origin v$(VERSION). Then start the workflow Publish on it. The notes: git tag --list --format='%(contents:body)' v$(VERSION)"

.PHONY: base-image
base-image: ## write the digest that the base image's tag has now into Dockerfile (needs Docker)
	@digest=$$(docker buildx imagetools inspect python:3.14-slim --format '{{.Manifest.Digest}}') && \
		echo "$$digest" | grep -Eqx 'sha256:[0-9a-f]{64}' || { echo "docker names no digest of python:3.14-slim: '$$digest'" >&2; exit 1; } && \
		sed -i "s/^FROM python:3.14-slim.*/FROM python:3.14-slim@$$digest/" Dockerfile

.PHONY: token
token: $(LOCAL) ## a token (STACK=tidemark, SECRET_NAME=/name in SSM, or AUTH_SECRET in the environment; ARGS="--scopes … --hours …", list or "revoke <id>")
	@$(VENV) -m tidemark.cli token $(addprefix --secret-name ,$(SECRET_NAME)) $(addprefix --stack ,$(STACK)) $(ARGS)

.PHONY: rotate-keys
rotate-keys: $(LOCAL) ## a new key for webhooks (STACK=tidemark, else this machine's; ARGS="list" or "remove <kid>")
	@$(VENV) -m tidemark.ops.signing_keys $(if $(STACK),--stack $(STACK),--data-dir $(or $(DATA_DIR),.data)) $(or $(ARGS),rotate)

.PHONY: smoke
smoke: $(LOCAL) ## one stream's life against a deployed system (URL=https://…, TIDEMARK_TOKEN in the environment)
	@$(VENV) -m tidemark.ops.smoke $(if $(URL),$(URL),"$$URL")

# Each lock pins versions and hashes, and names no registry. What is locked stays as it is unless its .in file or
# pyproject.toml asks for more: ARGS="--upgrade" takes the newest of all, ARGS="--upgrade-package boto3" of one.
# Python 3.11 is the oldest supported, so a lock holds every package that a newer one needs. The smaller locks are
# constrained by the one that the tests run with: what is deployed is what is tested.
COMPILE = .venv-lock/bin/uv pip compile --quiet --no-config --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock" --python-version 3.11 --python-platform x86_64-manylinux_2_28 $(ARGS)
WITHOUT_CLIENT := --overrides requirements/without-client.overrides
.PHONY: lock
lock: $(UV) ## make the locks in requirements/ anew (ARGS="--upgrade" for newer versions)
	@$(COMPILE) --extra local --extra dev pyproject.toml -o requirements/dev.txt
	@$(COMPILE) -c requirements/dev.txt --override requirements/layer.overrides --extra aws pyproject.toml -o requirements/layer.txt
	@$(COMPILE) -c requirements/dev.txt --override requirements/layer.overrides --extra aws --extra otel pyproject.toml -o requirements/layer-otel.txt
	@$(COMPILE) -c requirements/dev.txt --extra local pyproject.toml -o requirements/local.txt
	@$(COMPILE) -c requirements/dev.txt $(WITHOUT_CLIENT) --extra container pyproject.toml -o requirements/container.txt
	@$(COMPILE) -c requirements/dev.txt --extra bench pyproject.toml -o requirements/bench.txt
	@$(COMPILE) -c requirements/dev.txt requirements/langgraph.in -o requirements/langgraph.txt
	@for name in docs lock policy sam; do $(COMPILE) requirements/$$name.in -o requirements/$$name.txt; done
	@for name in spark spark-4.2 spark-next; do \
		$(COMPILE) -c requirements/dev.txt --extra local pyproject.toml requirements/$$name.in -o requirements/$$name.txt; done
	@$(COMPILE) -c requirements/spark.txt requirements/pipeline.in -o requirements/pipeline.txt
	@$(COMPILE) --no-deps requirements/s3a.in -o requirements/s3a.txt

$(VENV):
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is missing (python3: $$(python3 --version 2>/dev/null || echo none))." >&2; exit 1; fi
	@if ! [ -w . ]; then echo "This folder is not yours to write to: clone it as the user who runs make." >&2; exit 1; fi
	@had=$$(ls -d .venv 2>/dev/null || true); $(PYTHON) -m venv .venv || { [ -n "$$had" ] || rm -rf .venv; \
		echo "$(PYTHON) cannot make a virtual environment: install python3-venv." >&2; exit 1; }

$(LOCAL): requirements/local.txt pyproject.toml | $(VENV)
	$(call install_lock,.venv,local)
	@$(VENV) $(PIP_INSTALL) --no-deps -e .
	@touch $@

$(DEV): requirements/dev.txt $(LOCAL)
	$(call install_lock,.venv,dev)
	@touch $@

$(BENCH): requirements/bench.txt $(DEV)
	$(call install_lock,.venv,bench)
	@touch $@

$(SAM): requirements/sam.txt | $(VENV)
	@$(VENV) -m venv .venv-sam
	$(call install_lock,.venv-sam,sam)
	@touch $@

$(SPARK): requirements/spark$(SPARK_SUFFIX).txt pyproject.toml | $(VENV)
	@$(VENV) -m venv $(SPARK_VENV)
	$(call install_lock,$(SPARK_VENV),spark$(SPARK_SUFFIX))
	@$(SPARK_VENV)/bin/python $(PIP_INSTALL) --no-deps -e .
	@touch $@

# The jars alone are wanted; what the package asks for is an old PySpark.
$(S3A): requirements/s3a.txt $(SPARK)
	@echo "Fetching the jars of requirements/s3a.txt into .s3a"
	@$(SPARK_VENV)/bin/python $(PIP_INSTALL_LOCKED) --target .s3a -r requirements/s3a.txt
	@touch $@

$(LANGGRAPH): requirements/langgraph.txt $(DEV)
	@echo "Installing the packages of requirements/langgraph.txt into .langgraph: 78 MB, for one example's test"
	@$(VENV) $(PIP_INSTALL_LOCKED) --target .langgraph -r requirements/langgraph.txt
	@touch $@

$(POLICY): requirements/policy.txt | $(VENV)
	@$(VENV) -m venv .venv-policy
	$(call install_lock,.venv-policy,policy)
	@touch $@

$(DOCS): requirements/docs.txt | $(VENV)
	@$(VENV) -m venv .venv-docs
	$(call install_lock,.venv-docs,docs)
	@touch $@

$(UV): requirements/lock.txt | $(VENV)
	@$(VENV) -m venv .venv-lock
	$(call install_lock,.venv-lock,lock)
	@touch $@

# Install scripts stay off: every package used here carries its binary already built.
NPM_CI := npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
$(NODE): package.json package-lock.json
	@command -v npm >/dev/null || { echo "Node 20 with npm is missing." >&2; exit 1; }
	@echo "Installing the npm packages of package-lock.json into node_modules: 185 MB, for development"
	@$(NPM_CI)
	@touch $@

# For what runs without npm as well: say what that costs and go on.
WITHOUT_NPM := Going on without: there is no conformance suite, and no test of a client of JavaScript.
.PHONY: npm-if-possible
npm-if-possible:
	@$(MAKE) -sq $(NODE) || if command -v npm >/dev/null; then $(MAKE) -s $(NODE) || echo "$(WITHOUT_NPM)" >&2; \
		else echo "Node 20 with npm is missing. $(WITHOUT_NPM)" >&2; fi
