"""Runs the blocks of one page, in order, in one process: `python docs_runner.py < blocks.json`.

A program (it calls `asyncio.run`) runs by itself; a file (its title ends in .py) is written and
then run or imported, or given to pytest; one in a folder is for another to find. Everything else is
a fragment, run with top-level `await` in a namespace that all fragments of the page share, after
the page's prelude. Prints what became of each as JSON, with what it wrote to stderr, be it a log
line, a warning, or a program that it started.
"""

import ast
import asyncio
import contextlib
import gc
import importlib
import io
import json
import linecache
import logging
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

TROUBLE: list[str] = []  # what is not raised where it happens


class Trouble(logging.Handler):
    """Tasks whose exception nobody has seen, and the like."""

    def emit(self, record: logging.LogRecord) -> None:
        TROUBLE.append(self.format(record))


class Stderr:
    """What is written to file descriptor 2, whoever writes it."""

    def __init__(self) -> None:
        self._before = os.dup(2)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115
        self._read = 0
        os.dup2(self._file.fileno(), 2)

    def take(self) -> str:
        """Everything since the last time."""
        sys.stderr.flush()
        end = os.fstat(self._file.fileno()).st_size
        part = os.pread(self._file.fileno(), end - self._read, self._read)
        self._read = end
        return part.decode(errors="replace")

    def end(self) -> None:
        """Whatever nobody has taken is shown in the end."""
        left = self.take()
        os.dup2(self._before, 2)
        sys.stderr.write(left)


def run_block(block: dict[str, str], runner: asyncio.Runner, names: dict[str, Any]) -> str:
    """What it printed."""
    printed = io.StringIO()
    code, title = block["code"], block["title"]
    with contextlib.redirect_stdout(printed):
        if title.endswith(".py"):
            Path(title).parent.mkdir(parents=True, exist_ok=True)
            Path(title).write_text(code, encoding="utf-8")
            importlib.invalidate_caches()
            forget_local_modules()
            if title.startswith("test_") and "\ndef test_" in code.replace("async def", "def"):
                run_pytest(title)
            elif "asyncio.run(" in code:
                runpy.run_path(title, run_name="__main__")
            elif "/" not in title:
                importlib.import_module(title.removesuffix(".py"))
        elif "asyncio.run(" in code:
            exec(compiled(block, 0), {"__name__": "__main__"})
        else:
            runner.run(run_fragment(block, names))
    return printed.getvalue()


def run_pytest(title: str) -> None:
    """The tests of a file, as `pytest` at the prompt does it."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", title]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)


async def run_fragment(block: dict[str, str], names: dict[str, Any]) -> None:
    outcome = eval(compiled(block, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if outcome is not None:
        await outcome


def compiled(block: dict[str, str], flags: int) -> Any:
    """With its source at hand for tracebacks and dataclasses."""
    name, code = f"<{block['name']}>", block["code"]
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    return compile(code, name, "exec", flags=flags)


def forget_local_modules() -> None:
    here = os.getcwd()
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(here):
            del sys.modules[name]


def announce(toml: str) -> None:
    """The entry points of a pyproject.toml, as if the package were installed."""
    import tomllib

    folder = Path("announced-1.0.dist-info")
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: announced\nVersion: 1.0\n")
    groups = tomllib.loads(toml)["project"]["entry-points"]
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    stderr = Stderr()
    try:
        results = run(json.load(sys.stdin), stderr)
    finally:
        stderr.end()
    json.dump(results, sys.stdout)


def run(task: dict[str, Any], stderr: Stderr) -> list[dict[str, str]]:
    sys.path.insert(0, os.getcwd())
    logging.getLogger("asyncio").addHandler(Trouble(logging.ERROR))
    # A slow machine is not a failure.
    logging.getLogger("asyncio").addFilter(lambda record: record.levelno >= logging.ERROR)
    sys.unraisablehook = lambda what: TROUBLE.append(f"{what.err_msg} {what.exc_value!r}")
    results = []
    names: dict[str, Any] = {"__name__": "__fragment__"}
    with asyncio.Runner() as runner:
        for block in task["blocks"]:
            result = {"name": block["name"], "printed": "", "stderr": "", "error": ""}
            try:
                if block["language"] == "toml":
                    announce(block["code"])
                else:
                    result["printed"] = run_block(block, runner, names)
            except BaseException:
                result["error"] = traceback.format_exc()
            gc.collect()
            if TROUBLE:
                result["error"] += "\n".join(TROUBLE)
                TROUBLE.clear()
            result["stderr"] = stderr.take()
            results.append(result)
        names.clear()
    gc.collect()
    if TROUBLE and results:
        results[-1]["error"] += "at the end of the page: " + "\n".join(TROUBLE)
    if results:
        results[-1]["stderr"] += stderr.take()
    return results


if __name__ == "__main__":
    main()
