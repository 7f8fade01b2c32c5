# What can be made here. `make` alone lists it.

# The interpreter that .venv is made with: make venv PYTHON=python3.12 (delete .venv first to change it).
PYTHON ?= python3
# How many processes the tests run in, with one thread each: make test PROCESSES=4. One more than the cores of a small
# machine, because a part of their time the tests wait for servers and clusters.
PROCESSES ?= 3
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
# The Python for `make test-versions`, and the tests of both: those of code that Python's own library, numpy, scipy, torch,
# tokenizers, pydantic, jinja or pyarrow may treat otherwise in another version.
PYTHONS ?= python3.13
QUICK := advice api init logs_table pool prompts report saved tasks_format tasks_metrics top_k unite_step
QUICK_PACKAGES := pytest pytest-timeout pytest-xdist hypothesis '.[local,tables]'
# The Python for `make test-lowest`.
OLDEST ?= python3.10
# Clients of OpenAI's API for `make test-clients`.
CLIENTS := openai==3.57.0 litellm==1.110.2 langchain-openai==1.7.4
# How long `make fuzz` takes.
SECONDS ?= 300
# Where `make real` keeps models; where questions are, instead of the hub; how many of each split it asks; and whether it
# also fetches Gemma 3 270M and accepts its terms: make real GEMMA=1.
REAL ?= build/real
DATA ?=
QUESTIONS ?= 350
GEMMA ?=
REAL_TASKS := flores:deu-eng gsm8k triviaqa

# Where this is set, each process compiles all libraries again, which takes longer than most tests.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
# $(call install,PYTHON,PACKAGES) installs with uv, which takes a fifth of pip's time; where uv cannot, with pip.
install = $(BIN)/uv pip install --quiet --python $(1) $(2) || \
	$(1) -m pip install --quiet --disable-pip-version-check $(2)
# uv does not read pip's variables.
ifdef PIP_FIND_LINKS
export UV_FIND_LINKS := $(PIP_FIND_LINKS)
endif
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX := $(PIP_INDEX_URL)
endif
STAMP := $(VENV)/.installed
TYPED := advisor ensemble reports hatch_build.py $(wildcard benchmarks)
BENCHMARKS := $(basename $(notdir $(filter-out benchmarks/_% benchmarks/vllm.py benchmarks/mutations.py,$(wildcard benchmarks/*.py))))

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-further test-versions test-lowest test-vllm test-exports test-clients check format docs package real fuzz bench lock clean

help:  ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

venv: $(STAMP)  ## set up .venv with the exact versions of requirements.lock; nothing to do where that is done

demo: venv  ## set up, then choose among the bundled models, and write runs/demo/report.html; then the same for models that think
	$(BIN)/advisor demo
	$(BIN)/advisor select --pool demo-thinking --task word_problems --limit 50 --think apart --quiet --out runs/demo-thinking

test: venv check  ## set up, then run all checks and the first lane of the tests
	$(PYTEST) -m "not second_lane"

test-slow: venv  ## run the second lane: examples, notebooks, benchmarks, clusters, browsers; tests/conftest.py has the list
	$(PYTEST) -m "second_lane and not further"

test-further: venv  ## run the further cases of tests with many; before a release, and after a change of what they test
	$(PYTEST) -m further

test-versions: venv  ## run the quick part of the tests on other versions of Python, where they are installed; see PYTHONS
	@set -e; for python in $(PYTHONS); do \
		$$python -c 'import ensurepip, venv' 2>/dev/null || { echo "$$python is not installed; skipped"; continue; }; \
		env=build/$$($$python -c 'import sys; print("python-%d.%d" % sys.version_info[:2])'); \
		test -x $$env/bin/python || $$python -m venv $$env; \
		{ $(call install,$$env/bin/python,--constraint requirements.lock $(QUICK_PACKAGES)); } || \
			{ echo "the packages cannot be installed for $$python; skipped"; continue; }; \
		OMP_NUM_THREADS=1 $$env/bin/python -m pytest -n $(PROCESSES) --dist loadfile $(QUICK:%=tests/test_%.py); \
	done

# The oldest torch with a build for processors alone where the checks run is the newest, 2.13.0 (see pyproject.toml), so
# its lower bound is not tried. The oldest libraries warn of newer ones below them, so a warning is no error here.
test-lowest: venv  ## run the quick part of the tests on the oldest versions that pyproject.toml allows; see OLDEST
	@set -e; $(OLDEST) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(OLDEST) is not installed; skipped"; exit 0; }; \
		mkdir -p build; \
		$(BIN)/uv pip compile pyproject.toml --extra local --extra tables --resolution lowest-direct --python $(OLDEST) --quiet --no-header \
			--no-annotate --no-emit-index-url --no-emit-find-links --output-file build/lowest.txt || \
			{ echo "the oldest versions cannot be looked up; skipped"; exit 0; }; \
		test -x build/lowest/bin/python || $(OLDEST) -m venv build/lowest; \
		sed -E '/^(nvidia-|cuda-|triton==)/d' build/lowest.txt > build/lowest/requirements.txt; \
		{ $(call install,build/lowest/bin/python,--requirement build/lowest/requirements.txt $(QUICK_PACKAGES)); } || \
			{ echo "the oldest versions cannot be installed; skipped"; exit 0; }; \
		OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest -n $(PROCESSES) --dist loadfile -W default $(QUICK:%=tests/test_%.py)

test-vllm: venv  ## set up vLLM in build/vllm, and test ensembles behind its servers; VLLM=FILE is another vllm command
	$(BIN)/python -m benchmarks._vllm_environment
	$(BIN)/python -m benchmarks.vllm --save

test-exports: venv  ## set up LiteLLM in build, and load the files of `advisor export --as` with them
	test -x build/litellm/bin/python || $(PYTHON) -m venv build/litellm
	build/litellm/bin/python -m pip install --quiet --disable-pip-version-check 'litellm[proxy]==1.110.2'
	$(BIN)/python -m pytest -q tests/test_export.py

test-clients: venv  ## set up three clients of OpenAI's API in build, and let them ask a real server
	@set -e; test -x build/clients/bin/python || $(PYTHON) -m venv build/clients; \
		{ $(call install,build/clients/bin/python,$(CLIENTS)); } || { echo "the clients cannot be installed; skipped"; exit 0; }; \
		$(BIN)/python -m pytest -q -m "" tests/test_clients.py

check: venv  ## lint, formatting, types, and whether all imported packages are declared
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/deptry --no-ansi advisor ensemble reports
	$(BIN)/mypy --num-workers 2 $(TYPED)

format: venv  ## put the code into the form that `make check` wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: venv  ## build the site into build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: venv  ## build the sdist and the wheel into dist, and try the wheel in new environments, alone and with `local`
	rm -rf dist build/package
	$(BIN)/python -m hatchling build
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/package dist/*.tar.gz
	cmp dist/*.whl build/package/*.whl
	@for extra in base tables local; do $(PYTHON) -m venv build/package/$$extra; done
	$(call install,build/package/base/bin/python,--constraint requirements.lock dist/*.whl)
	$(call install,build/package/tables/bin/python,--constraint requirements.lock "$$(ls dist/*.whl)[tables]")
	$(call install,build/package/local/bin/python,--constraint requirements.lock "$$(ls dist/*.whl)[local]")
	@echo "Megabytes of each installation, without pip:"
	@for extra in base tables local; do \
		build/package/$$extra/bin/python -m pip uninstall --quiet --yes pip setuptools; \
		du -sm build/package/$$extra/lib/python*/site-packages; \
	done
	build/package/base/bin/python tests/base.py
	cd build/package && local/bin/advisor select --pool demo --task word_problems --limit 50 --cache-dir cache --out run
	test -s build/package/run/report.html

real: venv  ## fetch real models, and run the main job on them, on three tasks; see REAL, DATA, QUESTIONS and GEMMA
	$(BIN)/python -m benchmarks.studies.real_models $(REAL) $(if $(GEMMA),--gemma)
	@set -e; for task in $(REAL_TASKS); do \
		$(BIN)/advisor select --pool $(REAL)/models.txt --task $$task $(if $(DATA),--data $(DATA)) \
			--limit $(QUESTIONS) --chat-template never --out runs/real-$${task%%:*}; \
	done

fuzz: venv  ## change real files and messages, and read them, for five minutes; make fuzz SECONDS=3600 goes on longer
	$(BIN)/python -m benchmarks.fuzz --seconds $(SECONDS)

bench: venv  ## run every benchmark but those of test-vllm, mutations and the studies, one after the other
	@$(if $(BENCHMARKS),,echo "There is no benchmark yet.")
	@set -e; for name in $(BENCHMARKS); do echo "benchmarks.$$name"; $(BIN)/python -m benchmarks.$$name; done

lock: venv  ## write requirements.lock again from pyproject.toml; UPGRADE=--upgrade takes newer versions too
	$(BIN)/uv pip compile pyproject.toml --universal --all-extras --python-version 3.10 $(UPGRADE) --quiet \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links --output-file requirements.lock
	printf '# %s\n' $(LOCK_HEADER) > requirements.lock.new
	sed -E '/^(nvidia-|cuda-|triton==)/d' requirements.lock >> requirements.lock.new
	mv requirements.lock.new requirements.lock

clean:  ## remove caches, builds and the demo's run; .venv stays
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis runs/demo runs/demo-thinking
	find advisor ensemble reports tests $(wildcard benchmarks) -name __pycache__ -prune -exec rm -rf {} +

LOCK_HEADER := \
	"The exact versions that unite-advisor is tested with, on Python 3.10 to 3.13. Made by make lock; not edited by hand." \
	"A line after ; says on which Python and system the version is meant." \
	"What only the CUDA build of torch needs (nvidia-*, cuda-*, triton) is left out: torch names the versions that belong" \
	"to its build, and the CPU build needs none of them. There are no hashes, because the two builds have different ones."

$(STAMP): requirements.lock pyproject.toml hatch_build.py ensemble/step/compiled.c
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || \
		{ echo "Python 3.10 to 3.13 is needed, and $(PYTHON) is not that. Choose one: make venv PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Setting up $(VENV); it takes a few minutes, once."; $(PYTHON) -m venv $(VENV); } || \
		{ rm -rf $(VENV); echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu, install python3-venv." >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock uv
	$(call install,$(BIN)/python,--requirement requirements.lock)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
