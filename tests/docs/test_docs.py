"""The code in the documents runs, and does what they say; the reference is complete.

Every block of Python is compiled, and run: see `docs_runner.py`. The addresses of servers in the
blocks are replaced by those of real ones. What needs a package or a server that is not there is
skipped, with the reason. A block of text with the title "output" is what the block before it
prints, with `...` for what changes, and any number of seconds for another; one with the title
"stderr" is what appears there, where otherwise nothing may appear.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

import cenote
from tests.support.servers import MariaDBServer, PgBouncer, PostgresServer, RedisServer

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SOURCE = str(Path(cenote.__file__).parent.parent)  # what is tested: the tree, or an install
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]*)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)

# Their programs have tests of their own: c_api/test_example.py, test_observability.py.
ELSEWHERE = ("docs/c-api.md", "docs/observability.md")

# What the fragments of a page take for granted.
TABLES = """
await db.execute("create table accounts (id int primary key, amount int)")
await db.execute("insert into accounts values (1, 100), (2, 0)")
await db.execute("create table log (text text)")
"""
ORDERS = """
import asyncpg
_ = await asyncpg.connect("postgresql://app:secret@localhost/shop")
await _.execute("drop table if exists orders; create table orders (id int primary key, paid bool)")
await _.execute("insert into orders values (1, false), (2, true)")
await _.close()
"""
SQLITE = "import asyncio, cenote\ndb = cenote.Database('sqlite:///:memory:')\n"
PRELUDES = {
    "docs/testing.md": SQLITE,
    "docs/pool.md": "import cenote\nconnect, disconnect = object, (lambda connection: None)\n",
    "docs/database.md": SQLITE
    + TABLES
    + "await db.execute('create table orders (id integer primary key, item text)')\n",
    "docs/dashboard.md": "import cenote, os, secrets\n",
    "docs/guides/sizes.md": "import asyncio, cenote\n",
    "docs/types.md": SQLITE + "from decimal import Decimal\n",
    "docs/guides/transactions.md": SQLITE
    + TABLES
    + "async def ask_the_bank(amount): return amount\n",
    "docs/guides/cancellation.md": "import asyncio, cenote\nclass Connection:\n"
    "    async def ask(self, text): await asyncio.sleep(1)\npool = cenote.Pool(Connection)\n",
    "docs/guides/listen.md": "import cenote\n"
    'db = cenote.Database("postgresql://app:secret@localhost/shop")\n',
    "docs/guides/timeouts.md": "import asyncio, cenote\n"
    "ENDLESS = 'with recursive n(i) as (select 1 union all select i + 1 from n) '"
    " 'select count(*) from n'\n",
    "docs/guides/breaker.md": "import cenote\n",
    "docs/guides/health.md": "import asyncio, cenote\nclass Worker:\n    alive = True\n",
    "docs/guides/full-pool.md": "import cenote\npool = cenote.Pool(object)\n",
    "docs/guides/processes.md": "import cenote\n",
    "docs/guides/overload.md": SQLITE,
    "docs/migrating/asyncpg.md": ORDERS,
    "docs/migrating/psycopg.md": ORDERS,
    "docs/migrating/sqlalchemy.md": ORDERS,
    "docs/migrating/databases.md": ORDERS,
}
# After the last fragment: what a page leaves open on purpose.
POSTLUDES = {
    "docs/database.md": "await db.close()\n",
    "docs/testing.md": "await db.close()\n",
    "docs/dashboard.md": "await server.close()\n",
    "docs/guides/transactions.md": "await db.close()\n",
    "docs/types.md": "await db.close()\n",
    "docs/guides/bulk.md": "await db.close()\n",
    "docs/guides/listen.md": "await db.close()\n",
    "docs/guides/overload.md": "await db.close()\n",
    "docs/guides/cancellation.md": "await pool.close()\n",
    "docs/guides/full-pool.md": "loop.remove_signal_handler(signal.SIGUSR1)\nawait pool.close()\n",
    "docs/guides/sqlalchemy.md": "await engine.dispose()\n",
    "docs/migrating/redis.md": "await pool.close()\n",
}


@dataclass
class Block:
    name: str  # page:line
    page: str
    language: str
    title: str
    code: str
    output: str | None = None  # what it must print
    stderr: str = ""  # what it must write there

    @property
    def packages(self) -> set[str]:
        """What it imports."""
        tree = compile(
            self.code, self.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        )
        modules = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module)
        drivers = {"postgresql+psycopg:": "psycopg", "postgresql:": "asyncpg", "mysql:": "asyncmy"}
        modules |= {
            package for scheme, package in drivers.items() if f'Database("{scheme}' in self.code
        }
        return {module.partition(".")[0] for module in modules}


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(ROOT).as_posix()
        last: Block | None = None
        for match in FENCE.finditer(text):
            language, title, code = match[1], match[2] or "", match[3]
            line = text[: match.start()].count("\n") + 2
            block = Block(f"{name}:{line}", name, language, title, code)
            yield block
            if title in ("output", "stderr"):
                assert last is not None, f"{name}:{line}: the {title} of what?"
                setattr(last, title, code)
            else:
                last = block


BLOCKS = list(blocks())
PYTHON = [block for block in BLOCKS if block.language == "python"]
RUN = [block for block in PYTHON if block.page not in ELSEWHERE]


def ids(found: list[Block]) -> list[str]:
    return [block.name for block in found]


# -- running -------------------------------------------------------------------------------------


@dataclass
class Run:
    """What became of the blocks of a page."""

    results: dict[str, dict[str, str]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    stderr: str = ""


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a page when its first block is asked for."""
    done: dict[str, Run] = {}
    addresses: dict[str, str] = {}

    def run(page: str) -> Run:
        if page not in done:
            done[page] = run_page(page, request, addresses, tmp_path_factory.mktemp("page"))
        return done[page]

    return run


def run_page(
    page: str, request: pytest.FixtureRequest, addresses: dict[str, str], folder: Path
) -> Run:
    run = Run()
    wanted = [
        block
        for block in BLOCKS
        if block.page == page and (block.language == "python" or "entry-points" in block.code)
    ]
    local = {block.title.removesuffix(".py") for block in wanted}
    chosen = []
    for block in wanted:
        packages = block.packages - local if block.language == "python" else set()
        missing = sorted(name for name in packages if importlib.util.find_spec(name) is None)
        reason = f"needs {', '.join(missing)}, not installed" if missing else None
        reason = reason or servers_missing(block.code, request, addresses)
        if reason is None:
            chosen.append(vars(block) | {"code": replaced(block.code, addresses)})
        else:
            run.skipped[block.name] = reason
    prelude = PRELUDES.get(page)
    if prelude is not None and not servers_missing(prelude, request, addresses):
        chosen.insert(0, framing("prelude", replaced(prelude, addresses)))
    postlude = POSTLUDES.get(page)
    # It closes what a fragment opened, unless that one was skipped.
    if postlude is not None and names(postlude, ast.Load) <= set().union(
        *(names(block["code"], ast.Store) for block in chosen if block["language"] == "python")
    ):
        chosen.append(framing("postlude", postlude))
    process = subprocess.run(
        [
            sys.executable,
            "-X",
            "dev",
            "-W",
            "error",
            *IGNORED,
            str(ROOT / "tests/support/docs_runner.py"),
        ],
        input=json.dumps({"blocks": chosen}),
        cwd=folder,
        env={"PYTHONPATH": SOURCE, "PATH": os.environ["PATH"], "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert process.returncode == 0, process.stderr
    run.results = {result["name"]: result for result in json.loads(process.stdout)}
    run.stderr = process.stderr
    return run


def framing(name: str, code: str) -> dict[str, Any]:
    """A block that is not on the page."""
    return {"name": name, "title": "", "language": "python", "code": code}


def names(code: str, use: type[ast.expr_context]) -> set[str]:
    """The names that the code reads (`ast.Load`) or binds (`ast.Store`, imports with it)."""
    tree = compile(code, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, use):
            found.add(node.id)
        elif isinstance(node, ast.alias) and use is ast.Store:
            found.add((node.asname or node.name).partition(".")[0])
    return found


# Of packages that we do not write.
IGNORED = [
    "-Wignore::DeprecationWarning:starlette",
    "-Wignore::DeprecationWarning:fastapi",
    "-Wignore::DeprecationWarning:sqlalchemy",
    "-Wignore::DeprecationWarning:databases",
]


def servers_missing(
    code: str, request: pytest.FixtureRequest, addresses: dict[str, str]
) -> str | None:
    """Starts what this code needs; why it cannot be started, if so."""
    for pattern, kind, fixture, urls in SERVERS:
        if re.search(pattern, code) is None:
            continue
        if reason := kind.missing():
            return reason
        server = request.getfixturevalue(fixture)
        addresses.update(urls(server))
    return None


def replaced(code: str, addresses: dict[str, str]) -> str:
    for text, address in addresses.items():
        code = code.replace(text, address)
    return code


def postgres_urls(server: PostgresServer) -> dict[str, str]:
    url = server.tcp_url()
    schemes = ("postgresql", "postgresql+psycopg", "postgresql+asyncpg")
    return {
        f'"{scheme}://app:secret@localhost/shop"': f'"{scheme}{url.removeprefix("postgresql")}"'
        for scheme in schemes
    }


class NoServer:
    """What needs no server, only an address of its own, is never missing."""

    @staticmethod
    def missing() -> None:
        return None


SERVERS: list[tuple[str, Any, str, Any]] = [
    (r'"postgresql\S*://app:secret@localhost/shop"', PostgresServer, "postgres_server",
     postgres_urls),
    (r'"mysql://app:secret@localhost/shop', MariaDBServer, "mariadb_server",
     lambda server: {"mysql://app:secret@localhost/shop": server.tcp_url()}),
    (r"localhost:6432", PgBouncer, "pgbouncer",
     lambda server: {"postgresql://app:secret@localhost:6432/shop": server.tcp_url()}),
    (r"redis://localhost:6379|\"localhost\", 6379", RedisServer, "redis_server",
     lambda server: {"redis://localhost:6379": server.url,
                     '"localhost", 6379': f'"{server.host}", {server.port}'}),
    (r"port=8765|dashboard\(control", NoServer, "no_server",
     lambda _: {"port=8765": "port=0", "dashboard(control": "dashboard(port=0, control"}),
]  # fmt: skip


@pytest.fixture(scope="session")
def no_server() -> None:
    """A port that nobody else has."""


@pytest.mark.parametrize("block", PYTHON, ids=ids(PYTHON))
def test_every_block_is_python(block: Block) -> None:
    compile(block.code, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", RUN, ids=ids(RUN))
def test_every_block_runs_and_prints_its_output(block: Block, runs: Any) -> None:
    run = runs(block.page)
    if block.name in run.skipped:
        pytest.skip(run.skipped[block.name])
    result = run.results[block.name]
    prelude = run.results.get("prelude", {"error": ""})["error"]
    assert not result["error"], f"{result['error']}\n{prelude}\n{run.stderr}"
    if block.output is not None:
        assert pattern(block.output).fullmatch(result["printed"].strip()), result["printed"]
    assert pattern(block.stderr).fullmatch(result["stderr"].strip()), result["stderr"]


def pattern(text: str) -> re.Pattern[str]:
    found = re.escape(text.strip()).replace(re.escape("..."), ".*?")
    return re.compile(re.sub(r"[0-9]+\\\.[0-9]+\\ s", r"[0-9.]+ s", found))  # a slow machine


@pytest.mark.parametrize("page", sorted(PRELUDES.keys() | POSTLUDES.keys()))
def test_the_frame_of_a_page_runs(page: str, runs: Any) -> None:
    run = runs(page)
    for name, texts in (("prelude", PRELUDES), ("postlude", POSTLUDES)):
        if page in texts and not run.skipped:
            assert name in run.results
        result = run.results.get(name, {"error": "", "stderr": ""})
        assert not result["error"]
        assert not result["stderr"]


OTHERS = [block for block in BLOCKS if block.language in ("toml", "json", "yaml", "sh")]


@pytest.mark.parametrize("block", OTHERS, ids=ids(OTHERS))
def test_what_is_not_python_can_be_read(block: Block) -> None:
    if block.language == "toml":
        tomllib.loads(block.code)
    elif block.language == "json":
        json.loads(block.code)
    elif block.language == "yaml":
        assert list(yaml.safe_load_all(block.code))
    else:
        done = subprocess.run(["bash", "-n"], input=block.code, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


def test_every_block_says_what_it_is() -> None:
    known = {"python", "text", "sh", "toml", "json", "yaml", "c", "ini", "console"}
    assert {block.language for block in BLOCKS} <= known
    for page in PAGES:
        fences = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) % 2 == 0, page


def test_there_is_something_to_run() -> None:
    assert len(RUN) >= 45
    assert sum(block.output is not None for block in RUN) >= 10


# -- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_links_lead_to_pages_and_headings(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        if "://" in target:
            continue
        found = page.parent / target if target else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), f"{target}#{anchor}"


@pytest.mark.parametrize("name", ["architecture.md", "design.md", "reliability.md", "states.md"])
def test_the_files_that_a_page_names_are_there(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")
    for path in re.findall(r"`((?:benchmarks|scripts|src|tests|tools)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_item_of_a_list_begins_a_line() -> None:
    """One that was wrapped into the line before stands behind the end of a sentence."""
    swallowed = re.compile(r"^(?:- |[0-9]+\. |  ).*[.:;)] (?:- [a-zA-Z`*\[]|[0-9]+\. \*\*|## )")
    found = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        found += [line for line in text.splitlines() if swallowed.match(line)]
    assert not found


def test_every_page_is_in_the_navigation() -> None:
    listed = set(
        re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2])
    )
    pages = {page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS)}
    pages = {
        page for page in pages if not page.startswith("benchmarks/")
    }  # linked from one that is
    assert pages <= listed
    assert listed - pages == {"changelog.md"}  # made by scripts/docs_hooks.py


@pytest.mark.exhibit
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    for package in ("material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip("mkdocs-material is not installed: make docs builds the site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr  # with --quiet, --strict would count nothing
    assert "WARNING" not in done.stdout + done.stderr
    for page in tmp_path.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()
        )
        assert not fetched, f"{page}: {fetched}"


# -- the reference -------------------------------------------------------------------------------

REFERENCE = sorted((DOCS / "reference").glob("*.md"))
NAMED = {
    name: page.name
    for page in REFERENCE
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}
EXTRAS = {
    "cenote.adapters.asyncpg": ["Pool", "create_pool"],
    "cenote.adapters.lanes": ["PoolLane"],
    "cenote.adapters.redis": ["BlockingConnectionPool", "ConnectionPool", "SentinelConnectionPool"],
    "cenote.adapters.sqlalchemy": ["CenotePool"],
    "cenote.extras.asgi": ["lifespan", "readiness"],
    "cenote.extras.dashboard": ["Dashboard", "DashboardServer"],
    "cenote.extras.logging": ["attach"],
    "cenote.extras.otel": ["instrument"],
    "cenote.extras.prometheus": ["Collector"],
    "cenote.testing": ["Deadlocked", "FaultProxy", "VirtualLoop", "advance", "check_ledger", "now",
                       "rolled_back", "settle"],
    "cenote.sql.driver": ["Driver", "DriverConnection", "RowCursor", "Prepared", "ConnectConfig"],
}  # fmt: skip
INTERNAL = {  # public by spelling, for other rooms only
    "Pool": {"after_fork"},
    "Database": {"after_fork"},
    "Transaction": {"admits", "begin_to_end", "commit", "cut_off", "cut_streams",
                    "end_what_is_open", "is_block", "is_of", "is_open", "read_only", "rollback",
                    "rolled_back_by", "send_end", "start", "state", "task", "task_name", "unjoin"},
}  # fmt: skip


def test_the_reference_has_every_public_name() -> None:
    public = {f"cenote.{name}" for name in cenote.__all__}
    public |= {f"{module}.{name}" for module, names in EXTRAS.items() for name in names}
    assert public - set(NAMED) == set()


def lookup(path: str) -> Any:
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        name = ".".join(parts[:cut])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and name.startswith(error.name):
                continue
            pytest.skip(f"{path}: {error}")
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise LookupError(path)


@pytest.mark.parametrize("path", sorted(NAMED))
def test_what_is_in_the_reference_exists_and_has_a_docstring(path: str) -> None:
    found = lookup(path)
    if inspect.isclass(found) or inspect.isfunction(found):
        assert inspect.getdoc(found), path


@pytest.mark.parametrize("name", ["Pool", "Database", "Transaction", "Statement"])
def test_every_public_member_is_documented_in_the_reference(name: str) -> None:
    kind = getattr(cenote, name)
    page = (DOCS / "reference" / NAMED[f"cenote.{name}"]).read_text(encoding="utf-8")
    directive = re.search(rf"^::: cenote\.{name}\n((?: .*\n)*)", page, re.MULTILINE)
    assert directive is not None
    listed = set(re.findall(r"^ +- (\w+)$", directive[1], re.MULTILINE))
    members = {each for each in dir(kind) if not each.startswith("_")} - INTERNAL.get(name, set())
    if listed:  # else all of its own are shown
        assert members == listed
    for member in members:
        assert inspect.getdoc(getattr(kind, member)), member


# -- the options ---------------------------------------------------------------------------------

OPTIONS = (DOCS / "reference" / "options.md").read_text(encoding="utf-8")
HEAD = "| option | unit | default | meaning | when to change it |"


def tables(section: str) -> list[dict[str, list[str]]]:
    """The tables of a section: option -> unit, default, meaning, when."""
    text = OPTIONS.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = []
    for part in text.split(HEAD)[1:]:
        rows = {}
        for line in part.strip().splitlines()[1:]:
            if not line.startswith("|"):
                break
            name, *rest = (cell.strip() for cell in line.strip("|").split("|"))
            rows[name.strip("`")] = rest
        found.append(rows)
    return found


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    found = inspect.signature(function).parameters
    return {name: each for name, each in found.items() if each.kind is not each.VAR_KEYWORD}


@pytest.mark.parametrize(
    ("section", "number", "function"),
    [
        ("Pool", 0, cenote.Pool),
        ("Database", 0, cenote.Database),
        ("The strategies", 0, cenote.ConsecutiveFailures),
        ("The strategies", 1, cenote.FailureRate),
        ("Fleet", 0, cenote.Fleet),
        ("The dashboard", 0, cenote.serve_dashboard),
    ],
)
def test_every_option_is_listed_with_its_default(section: str, number: int, function: Any) -> None:
    table = tables(section)[number]
    expected = parameters(function)
    assert set(table) == set(expected)
    for name, (unit, default, meaning, _) in table.items():
        assert unit, name
        assert meaning, name
        parameter = expected[name]
        if parameter.default is parameter.empty:
            assert default == "required"
        else:
            assert repr(ast.literal_eval(default.strip("`"))) == repr(parameter.default), name
    seldom = sum(not row[3] for row in table.values())
    assert seldom <= 1 or section == "The strategies"  # when to change it


def test_the_defaults_that_a_database_has_for_its_pool() -> None:
    from cenote.sql.checks import ACQUIRE_TIMEOUT, MAX_CREATING

    assert f"| `acquire_timeout` | `{ACQUIRE_TIMEOUT}` |" in OPTIONS
    assert f"| `max_creating` | `{MAX_CREATING}` |" in OPTIONS
