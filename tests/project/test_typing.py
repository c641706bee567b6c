"""What a type checker makes of the public signatures."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.once

HERE = Path(__file__).parent


def test_the_types_of_a_pool(monkeypatch):
    api = pytest.importorskip("mypy.api", reason="mypy is not installed")
    monkeypatch.chdir(HERE.parents[1])
    monkeypatch.setenv("MYPYPATH", "src")
    # Silent: what is wrong inside of cenote is the business of `make check`.
    found, trouble, status = api.run(["--follow-imports=silent", str(HERE / "typed_pool.py")])
    assert status == 0, found + trouble
