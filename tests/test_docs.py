"""The code in the documents: every block is Python, and every complete program runs."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cenote

ROOT = Path(__file__).parent.parent
SOURCE = str(Path(cenote.__file__).parent.parent)  # what is tested: the tree, or an install
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# What a program needs that is not there: it is only compiled.
NEEDS = re.compile(r"localhost|asyncpg\.|psycopg|redis\.|fastapi|FastAPI|sqlalchemy|opentelemetry|"
                   r'prometheus|serve_dashboard|Database\("(postgresql|mysql)')  # fmt: skip


def blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"```python\n(.*?)```", text, re.DOTALL):
            line = text[: match.start()].count("\n") + 2
            found.append((f"{page.name}:{line}", match[1]))
    return found


BLOCKS = blocks()
ELSEWHERE = ("c-api.md", "observability.md")  # whose programs have tests of their own
PROGRAMS = [
    (name, code)
    for name, code in BLOCKS
    if "asyncio.run(" in code and not NEEDS.search(code) and not name.startswith(ELSEWHERE)
]


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_every_block_is_python(name: str, code: str) -> None:
    compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize(("name", "code"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_every_program_runs(name: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_there_is_something_to_run() -> None:
    assert len(BLOCKS) > 10
    assert len(PROGRAMS) >= 2


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
