# Every target sets up what it needs, in .venv, once; see .ci/setup for which Python it takes.
#   make tune ARGS="--space amd_v2"   ARGS go to the command that the target runs
#   make tune PYTHON=python3.12       another Python

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
PY = $(VENV)/bin/python
# Tests start hundreds of processes: with no bytecode kept each would compile genkern's sources anew.
TESTS = env -u PYTHONDONTWRITEBYTECODE $(PY) -m pytest
NATIVE = genkern/runtime/launch/_native.c genkern/runtime/launch/_native_call.h
RUN = $(VENV)/run.stamp
DEV = $(VENV)/dev.stamp
CLUSTER = $(VENV)/cluster.stamp
CUTE = $(VENV)/cute.stamp
CLUSTER_TESTS = $(addprefix tests/,compile/remote/test_dask_pool.py compile/remote/test_nodes.py \
	cluster/test_lab_node.py cluster/test_on_dask.py cluster/test_on_slurm.py cluster/test_two_machines.py)

ENGINES ?= .venv-engines
SITE ?= .venv-site

.PHONY: help tune test test-long test-cluster test-engines lint format bench bundle kernels golden docs site notebooks results
.DELETE_ON_ERROR:

help:
	@echo 'make tune     tune the three sizes of input_sizes/quickstart.yaml: measured on the GPU found, else predicted'
	@echo 'make test     all tests but those that need a GPU'
	@echo 'make test-long  the same, with 50 kills and many more random problems (half an hour)'
	@echo 'make test-cluster  the tests that start clusters here: Dask, and Slurm'
	@echo 'make test-engines  the tests of plugins, with several releases of vLLM and SGLang, and kernels (3 GB, no GPU)'
	@echo 'make lint     ruff and mypy'
	@echo 'make format   let ruff rewrite the files'
	@echo 'make bench    the figures of benchmarks/README.md that need no GPU'
	@echo 'make results  tune all shipped results anew on this GPU; goes on where it was stopped (--list, --limit_s 500)'
	@echo 'make bundle   pack results/nvidia_* into genkern/winners, which the wheel carries (GENKERN_CONFIG=shipped)'
	@echo 'make kernels  compile what sizes try first for ARCH (sm_90) into output/ARCH.kernels, to start from (--kernels)'
	@echo 'make golden   rewrite tests/golden after a wanted change of the generated code'
	@echo 'make docs     rewrite the documents and pictures that are made from code and results, and the outputs of commands'
	@echo 'make site     build the documentation as a web site in build/site; wrong links are errors'
	@echo 'make notebooks  execute the notebooks of examples/ and keep their outputs'

# Without a GPU it predicts for GENKERN_ARCH, else for gfx942, and the small space keeps a first run short; with one,
# the default space of that GPU is measured.
tune: $(RUN)
	@gpu=$$($(PY) -c 'from genkern.gemm.gpus import detect_arch; print(detect_arch() or "")') && \
	arch=$${gpu:-$${GENKERN_ARCH:-gfx942}} && case $$arch in sm_*) quick=nvidia_quick;; *) quick=amd_quick;; esac && \
	$(PY) -m genkern --gemm_size_file input_sizes/quickstart.yaml --compare --all \
		-o "output/quickstart_$$arch.yaml" $$([ -n "$$gpu" ] || echo --arch $$arch --space $$quick) $(ARGS)

# Hundreds of processes are started, in each of which Python would compile all of genkern anew where it keeps nothing.
test test-long: export PYTHONDONTWRITEBYTECODE =

# A worker more than the two cores of CI: tests that wait for programs of their own leave a fifth of them idle.
test: $(DEV)
	$(TESTS) -m "not gpu" -n 3 --dist worksteal $(ARGS)

test-long: $(DEV)
	GENKERN_LONG_TESTS=1 $(TESTS) -m "not gpu" -n 3 --dist worksteal $(ARGS)

# Dask is in no other environment: the package is optional. With root and apt-get Slurm is installed, and runs. A test
# that waits for what never comes fails, and says where it stood.
test-cluster: $(CLUSTER)
	GENKERN_CLUSTER_TESTS=1 $(TESTS) -q -n 2 --dist loadfile --timeout 200 $(CLUSTER_TESTS) $(ARGS)

# Engines pin other versions of what they share, and have an environment of their own.
test-engines: $(ENGINES)/engines.stamp
	GENKERN_ENGINE_TESTS=1 $(ENGINES)/bin/python -m pytest -q -m "not gpu" tests/engines $(ARGS)
	$(ENGINES)/bin/python tests/engines/engine_releases.py $(ENGINES)/releases $(ARGS)

lint: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(DEV)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(DEV)
	$(PY) -m benchmarks.farm.rate $(ARGS)

results: $(RUN)
	$(PY) -m benchmarks.results.remake $(ARGS)

# With CuTe DSL, whose kernels are winners too. 1 says that some could not be compiled here: the library's calls are there
# instead.
bundle: DEVICES ?= nvidia_h200 nvidia_h100
bundle: $(CUTE)
	mkdir -p genkern/winners
	for device in $(DEVICES); do \
		$(PY) -m genkern pack $$(ls results/$$device/*.yaml results/$$device/older/*.yaml 2>/dev/null) -o genkern/winners/$$device.genkern --overwrite $(ARGS) || [ $$? -eq 1 ] || exit; \
	done

kernels: ARCH ?= sm_90
kernels: $(RUN)
	$(PY) -m genkern kernels --arch $(ARCH) -o output/$(ARCH).kernels --overwrite $(ARGS)

golden: $(DEV)
	$(PY) tests/golden/update.py

docs: $(DEV)
	$(PY) docs/options.py
	$(PY) docs/terminal.py docs/runs/quickstart.ansi docs/runs/quickstart.svg \
		'python -m genkern --gemm_size_file input_sizes/quickstart.yaml --compare -o tuned.yaml'
	$(PY) docs/formats.py
	$(PY) docs/pictures.py
	$(PY) results/figures.py
	$(PY) results/readme.py
	$(PY) results/measured.py
	$(PY) results/recorded/readme.py
	$(PY) docs/shipped_reports.py
	$(PY) docs/commands.py

site: $(SITE)/site.stamp
	$(SITE)/bin/python docs/site.py build/site_pages
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build --quiet
	@echo 'build/site/index.html'

$(SITE)/site.stamp: docs/site.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check -r docs/site.txt
	@touch $@

notebooks: $(DEV)
	$(PY) docs/notebooks.py

$(RUN): setup.cfg setup.py constraints.txt .ci/setup $(NATIVE)
	@PYTHON="$(PYTHON)" bash .ci/setup "$(VENV)" torch
	@touch $@

$(DEV): setup.cfg setup.py constraints.txt .ci/setup $(NATIVE)
	@PYTHON="$(PYTHON)" bash .ci/setup "$(VENV)" torch,dev
	@touch $@ $(RUN)

$(CUTE): setup.cfg setup.py constraints.txt .ci/setup $(NATIVE)
	@PYTHON="$(PYTHON)" bash .ci/setup "$(VENV)" torch,cute
	@touch $@ $(RUN)

$(CLUSTER): setup.cfg setup.py constraints.txt .ci/setup $(NATIVE)
	@PYTHON="$(PYTHON)" bash .ci/setup "$(VENV)" torch,dev,cluster
	@touch $@ $(DEV) $(RUN)

$(ENGINES)/engines.stamp: setup.cfg setup.py constraints.txt .ci/setup tests/engines/engines.txt tests/engines/packages.txt
	@PYTHON="$(PYTHON)" bash .ci/setup "$(ENGINES)" torch,dev
	$(ENGINES)/bin/python -m pip install --quiet -c constraints.txt -r tests/engines/packages.txt
	$(ENGINES)/bin/python -m pip install --quiet --no-deps -r tests/engines/engines.txt
	@touch $@
