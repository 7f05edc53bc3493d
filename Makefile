# `make help` lists what there is. A newcomer needs two of them: `make run` and `make test`.

PY := .venv/bin/python
WORKSPACE ?= ./workspace
ARGS ?=

# Recipes read these from the environment, so that spaces and quotes in a path need no escaping.
export WORKSPACE PREFIX SBINDIR DESTDIR UNLOCKED

.DEFAULT_GOAL := help
.PHONY: help setup setup-tests run install uninstall fmt lint types test test-deep bench bench-docs bench-compare docs check lock dist deb vm vm-test clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/\1@\2/p' Makefile | awk -F@ '{ printf "make %-13s %s\n", $$1, $$2 }'

setup: ## install what is missing: system packages, .venv, .venv/bin/ckptfs
	@sh vagrant/provision.sh

setup-tests: ## setup, and what the tests and linters need
	@sh vagrant/provision.sh tests

run: setup ## mount WORKSPACE=path (default ./workspace) and say what to do next
	@sh vagrant/run.sh "$$WORKSPACE"

install: ## after setup, as root: link ckptfs, its manual page and completion below PREFIX (/usr/local), and the helper of mount(8) and fstab into /sbin
	@sh vagrant/install.sh install

uninstall: ## remove these links
	@sh vagrant/install.sh uninstall

fmt: setup-tests ## format the code
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

lint: setup-tests ## ruff, and the layers held by import-linter
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet .
	.venv/bin/lint-imports

types: setup-tests ## mypy, strict
	$(PY) -m mypy

test: lint types ## set up, then lint, types and the default suite, mounted tests included; ARGS="-k word"
	$(PY) -m pytest -n 2 --dist worksteal $(ARGS)

test-deep: ## the tests that take minutes: atheris, sanitizers, coding agents and more; ARGS="-k word"
	@sh vagrant/provision.sh deep
	$(PY) -m pytest -m deep --timeout=0 $(ARGS)

bench: setup-tests ## measure against the disk's own file system and others, half an hour; QUICK=1 for 5; ARGS=...
	$(PY) -m bench $(if $(QUICK),--quick) $(ARGS)

bench-docs: setup-tests ## write docs/BENCHMARKS.md and its plots from the newest result, or RESULT=file
	$(PY) -m bench --docs $(RESULT)

bench-compare: setup-tests ## the change of every row since revision BASE=rev; ARGS="--only 'git*'"
	@test -n "$(BASE)" || { echo "Cannot compare: say with what, as in: make bench-compare BASE=HEAD~1" >&2; exit 2; }
	$(PY) -m bench --quick --base "$(BASE)" $(ARGS)

docs: setup ## the pages as a site of HTML in build/docs, without network
	@$(PY) -m tests.docs.site

check: test ## everything that must pass before a commit

lock: ## write anew what setup installs, with hashes, after a change of pyproject.toml; ARGS=--upgrade: newest versions
	@sh vagrant/packaging/lock.sh $(ARGS)

dist: setup ## sdist and wheel into dist/, each installed and tried in a clean environment; PYTHONS="python3.12 ..."
	@sh vagrant/packaging/dist.sh $(PYTHONS)

deb: setup ## a Debian package for this distribution into dist/
	@sh vagrant/packaging/deb.sh

vm: ## a Debian machine with ckptfs set up, by Vagrant
	@command -v vagrant >/dev/null || { \
	    echo "Cannot start the VM: vagrant is not installed. Get it from https://developer.hashicorp.com/vagrant" >&2; exit 1; }
	cd vagrant && vagrant up
	@echo "Next: cd vagrant && vagrant ssh -c 'cd ckptfs && make run WORKSPACE=~/workspace; exec bash -l'"

vm-test: vm ## the default and the deep suites in that machine; ARGS="-k word"
	cd vagrant && vagrant rsync
	cd vagrant && vagrant ssh -c 'cd ckptfs && make test ARGS="$(ARGS)" && make test-deep ARGS="$(ARGS)"'

clean: ## remove .venv, caches and build output; workspaces and stores stay
	@! grep -qE '^ckptfs | fuse\.ckptfs ' /proc/mounts || { \
	    echo "Cannot clean: a workspace is mounted, and its daemon runs from .venv. Unmount it first: ckptfs umount DIR" >&2; exit 1; }
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find ckptfs tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
	find ckptfs -name '*.so' -type f -delete
