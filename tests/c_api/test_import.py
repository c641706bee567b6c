"""The import of cenote by an extension: `probe.c` exposes the whole C API."""

import re
import subprocess
from pathlib import Path

import pytest

import cenote
from tests.support.extensions import compile_extension, compiler
from tests.support.probe import PROBE, SOURCE, last_line, native_only, python

pytestmark = native_only


def test_import_says_that_cenote_is_not_installed(probe_path):
    code = f"import sys; sys.path.insert(0, {str(probe_path.parent)!r}); import probe"
    done = python(code, path=[], options=["-I", "-S"])
    assert last_line(done) == (
        "ImportError: this extension needs cenote, which is not installed: pip install cenote"
    )


def test_import_says_that_the_core_is_pure(probe_path):
    done = python("import probe", path=[SOURCE, probe_path.parent], CENOTE_PURE="1")
    line = last_line(done)
    assert line.startswith("ImportError: this extension needs the native core of cenote")
    assert "unset CENOTE_PURE" in line


def test_import_says_that_cenote_is_too_old(tmp_path):
    header = Path(cenote.get_include(), "cenote.h").read_text()
    newer, changes = re.subn(r"#define CENOTE_ABI \d+", "#define CENOTE_ABI 99", header)
    assert changes == 1
    (tmp_path / "cenote.h").write_text(newer)
    compile_extension(PROBE, tmp_path, include=tmp_path)
    done = python("import probe", path=[SOURCE, tmp_path])
    assert re.fullmatch(
        r"ImportError: this extension was compiled for C API 99 of cenote, "
        r"the installed one has \d+: upgrade cenote",
        last_line(done),
    )


FAKES = {
    "needs another module": (
        "import no_such_module",
        "ModuleNotFoundError: No module named 'no_such_module'",
    ),
    "fails": ("raise OSError('disk')", "OSError: disk"),
    "is something else": (
        "x = 1",
        "ImportError: this extension needs cenote, and what was imported under that name is "
        "something else",
    ),
    "has no table": (
        "core = 'native'",
        "ImportError: this extension needs the C API of cenote, which the installed one does not "
        "have: upgrade cenote",
    ),
}


@pytest.mark.parametrize(("content", "line"), FAKES.values(), ids=FAKES)
def test_import_says_what_is_wrong_with_a_cenote(probe_path, tmp_path, content, line):
    (tmp_path / "cenote.py").write_text(content)
    assert last_line(python("import probe", path=[tmp_path, probe_path.parent])) == line


def test_import_succeeds_with_a_native_core(probe):
    abi, size, fits = probe.table()
    assert abi >= 1
    assert size > 0
    assert fits


def test_the_header_is_clean_in_cpp(tmp_path):
    (tmp_path / "unit.cpp").write_text('#include "cenote.h"\nint f() { return cenote_import(); }\n')
    command = [*compiler("CXX", "c++"), "-std=c++14", f"-I{cenote.get_include()}", "-fsyntax-only"]
    done = subprocess.run([*command, "unit.cpp"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


TICKET_OF_AN_EARLIER_IMPORT = """
import asyncio, sys, cenote, probe
old = cenote.Pool(object, max_size=1)
for name in [name for name in sys.modules if name.partition(".")[0] == "cenote"]:
    del sys.modules[name]
import cenote
assert not isinstance(old, cenote.Pool)

async def main():
    async with old:
        resource, plan = await old.acquire(), probe.Plan()
        ticket = probe.acquire_call(old, 5.0, plan)
        await asyncio.sleep(0)
        print(probe.ticket_cancel(ticket))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        print(plan.log)
        probe.set_strategy(old, plan, "success failure")
        probe.unsubscribe(probe.subscribe(old, plan))
        old.release(resource)
        print(plan.log[1:])

asyncio.run(main())
"""


def test_cenote_may_be_imported_anew(probe_path):
    done = python(TICKET_OF_AN_EARLIER_IMPORT, path=[SOURCE, probe_path.parent])
    heard = "1\n[('error', CancelledError())]\n[('success', None)]\n"
    assert done.stdout == heard, done.stderr
