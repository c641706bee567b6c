"""What a type checker makes of the public signatures."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.once

HERE = Path(__file__).parent


@pytest.fixture
def check(monkeypatch):
    """Runs mypy on a file; gives what it found, and its exit status."""
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    monkeypatch.chdir(HERE.parents[1])
    monkeypatch.setenv("MYPYPATH", "src")

    def run(path):
        # Silent: what is wrong inside of cenote is the business of `make check`.
        found, trouble, status = api.run(["--follow-imports=silent", str(path)])
        return found + trouble, status

    return run


def test_the_types_of_a_pool(check):
    found, status = check(HERE / "typed_pool.py")
    assert status == 0, found


MISTAKES = {
    "Pool(object, max_sise=3)": 'No overload variant of "Pool" matches',
    'Pool(object, max_size="3")': 'No overload variant of "Pool" matches',
    "Pool(object, destructor=3)": 'No overload variant of "Pool" matches',
    'Database("sqlite:///x.db", max_sise=3)': 'Unexpected keyword argument "max_sise"',
    'Database("sqlite:///x.db", max_size="3")': 'expected "int"',
    'Database("sqlite:///x.db", destructor=print)': 'Unexpected keyword argument "destructor"',
}


def test_type_checkers_refuse_each_misused_option(check, tmp_path):
    path = tmp_path / "mistakes.py"
    path.write_text("from cenote import Database, Pool\n\n" + "\n".join(MISTAKES) + "\n")
    found, _ = check(path)
    for line, text in enumerate(MISTAKES.values(), 3):
        errors = [each for each in found.splitlines() if f"mistakes.py:{line}: error" in each]
        assert any(text in error for error in errors), (line, text, found)
