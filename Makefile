PYTHON ?= python3
ARGS ?=
AGE ?= newest

.NOTPARALLEL:
.PHONY: help demo quick pools drivers test lint types check matrix bench bench-languages sanitize soak fuzz chaos nemesis exhibits replay peers values timeouts mysql docs dist coverage constraints clean

help:
	@echo 'make demo    run the demo'
	@echo 'make quick   core and pool on both cores, without servers: the inner loop'
	@echo 'make pools   the same with what explores many cases'
	@echo 'make drivers  the tests of the database with AGE=newest or AGE=oldest drivers'
	@echo 'make test    run the tests (ARGS="-k name" goes to pytest)'
	@echo 'make lint    formatting and lint; make types: mypy, pyright'
	@echo 'make check   format, lint, types, and the tests with the long ones'
	@echo 'make matrix  the tests on every Python, core, loop, driver and server, also in a scratch Debian unstable; one table'
	@echo 'make bench   everything beside other pools, into docs/benchmarks.md, about 20 minutes'
	@echo 'make bench-languages  PostgreSQL from C, Go, Java, Node and Python beside each other, 2 minutes'
	@echo 'make sanitize  tests, fuzzing and chaos on a native core with the address, undefined and leak sanitizers'
	@echo 'make soak    a million mixed cycles; reference counts and memory must not grow'
	@echo 'make fuzz    hostile programs for the C API, hostile text for URLs and SQL, about 10 minutes'
	@echo 'make chaos   2,000 tasks on real servers while everything breaks, about 10 minutes'
	@echo 'make nemesis  processes of a fleet are killed, paused, replaced and forked; the server refuses nobody'
	@echo 'make exhibits  the long tests: chaos, soak, demo, benchmarks, browser, replays of our own'
	@echo 'make replay  other projects'"'"' test suites on the bare driver and through cenote, some hours (ARGS="--statements 1500": 5 minutes)'
	@echo 'make peers   the own tests of SQLAlchemy, redis-py and asyncpg, with their pools and with the adapters'
	@echo 'make values  100,000 hostile values through MariaDB and MySQL, in every sql_mode and charset'
	@echo 'make timeouts  10,000 timeouts of statements at random moments on each driver; ARGS="--driver sqlite"'
	@echo 'make mysql   get a real MySQL server (Debian unstable, root), and run the database tests on it'
	@echo 'make docs    build the documentation into site/, without a warning'
	@echo 'make dist    sdist and wheels, and the tests on what they install'
	@echo 'make coverage  lines and branches of Python and C that the tests run; fails below the floors'
	@echo 'make constraints  renew constraints.txt, the versions of the development environment'
	@echo 'make clean   remove everything that was generated'

demo:
	@scripts/venv.sh .venv '$(PYTHON)' plain
	@trap : INT; .venv/bin/python -m cenote demo $(ARGS); ended=$$?; [ $$ended -eq 130 ] || exit $$ended

quick:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@CENOTE_PURE=1 .venv/bin/python -m pytest -q -n auto -m 'not once and not thorough' tests/core tests/pool $(ARGS)
	@.venv/bin/python -m pytest -q -n auto -m 'not thorough' tests/core tests/pool $(ARGS)

pools:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@CENOTE_PURE=1 .venv/bin/python -m pytest -q -n auto -m 'not once' tests/core tests/pool $(ARGS)
	@.venv/bin/python -m pytest -q -n auto tests/core tests/pool $(ARGS)

drivers:
	@scripts/venv.sh .venv-drivers '$(PYTHON)' test
	@scripts/servers.sh
	@mkdir -p build && .venv-drivers/bin/python scripts/driver_versions.py $(AGE) > build/drivers.txt
	@.venv-drivers/bin/python -m pip install -q --upgrade -r build/drivers.txt
	@.venv-drivers/bin/python -m pytest -q -n auto tests/sql tests/drivers tests/adapters $(ARGS)

test:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@scripts/servers.sh
	@scripts/suite.sh .venv/bin/python $(ARGS)

C_FILES = $(wildcard src/cenote/_native/*.[ch] src/cenote/include/*.h tests/c_api/*.c benchmarks/*.c examples/*/*.c)

lint:
	@scripts/venv.sh .venv '$(PYTHON)' dev
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m ruff check .
	.venv/bin/clang-format --dry-run --Werror $(C_FILES)

types:
	@scripts/venv.sh .venv '$(PYTHON)' dev
	.venv/bin/python -m mypy
	.venv/bin/python -m pyright --pythonpath .venv/bin/python src
	.venv/bin/python scripts/type_completeness.py

check: lint types
	@scripts/servers.sh
	@CENOTE_FACTOR=8 scripts/suite.sh .venv/bin/python --exhibits $(ARGS)

matrix:
	@scripts/servers.sh
	@'$(PYTHON)' scripts/matrix.py $(ARGS)

bench:
	@scripts/venv.sh .venv '$(PYTHON)' bench
	@scripts/servers.sh postgresql mariadb redis
	@.venv/bin/python -m benchmarks $(ARGS)

bench-languages:
	@scripts/venv.sh .venv '$(PYTHON)' bench
	@scripts/servers.sh postgresql go java node
	@.venv/bin/python -m benchmarks.languages $(ARGS)

sanitize:
	@PYTHON='$(PYTHON)' scripts/sanitize.sh $(ARGS)

soak:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@.venv/bin/python -m tests.exhibits.soak --cycles 1000000 $(ARGS)

fuzz:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@.venv/bin/python -m tests.exhibits.fuzz $(ARGS)

chaos:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@scripts/servers.sh
	@.venv/bin/python -m tests.exhibits.chaos $(ARGS)
	@.venv/bin/python -m tests.exhibits.poison $(ARGS_POISON)

nemesis:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@scripts/servers.sh postgresql redis
	@.venv/bin/python -m tests.exhibits.nemesis $(ARGS)

exhibits:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@scripts/servers.sh
	@.venv/bin/python -m pytest --exhibits -m exhibit $(ARGS)

replay:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@scripts/servers.sh postgresql mariadb
	@.venv/bin/python -m tests.exhibits.replay $(ARGS)

peers:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@scripts/servers.sh
	@.venv/bin/python -m tests.exhibits.peers $(ARGS)

values:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@scripts/servers.sh mariadb
	@.venv/bin/python -m tests.exhibits.values $(ARGS)

timeouts:
	@scripts/venv.sh .venv '$(PYTHON)' test
	@scripts/servers.sh postgresql mariadb
	@.venv/bin/python -m tests.exhibits.timeouts $(ARGS)

mysql:
	@scripts/mysql.sh
	@scripts/venv.sh .venv '$(PYTHON)' test
	@.venv/bin/python -m pytest --mysql -k 'mysql and not mariadb' tests/sql tests/drivers $(ARGS)

docs:
	@scripts/venv.sh .venv '$(PYTHON)' docs
	@.venv/bin/python scripts/draw_pictures.py --check
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict $(ARGS)
	@echo 'site/index.html is there; with search: python3 -m http.server -d site'

dist:
	@PYTHON='$(PYTHON)' scripts/dist.sh $(ARGS)

coverage:
	@PYTHON='$(PYTHON)' scripts/coverage.sh $(ARGS)

constraints:
	@PYTHON='$(PYTHON)' scripts/constraints.sh $(ARGS)

clean:
	rm -rf .venv .venv-3.* .venv-drivers build dist site src/*.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
