"""Runs the blocks of one page, in order, in one process: `python docs_runner.py < blocks.json`.

A program (it calls `asyncio.run`) runs by itself; a file (its title ends in .py) is written and
then run or imported; everything else is a fragment, run with top-level `await` in a namespace that
all fragments of the page share, after the page's prelude. Prints what became of each as JSON.
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
import sys
import traceback
from pathlib import Path
from typing import Any

TROUBLE: list[str] = []  # what is not raised where it happens


class Trouble(logging.Handler):
    """Tasks whose exception nobody has seen, and the like."""

    def emit(self, record: logging.LogRecord) -> None:
        TROUBLE.append(self.format(record))


def run_block(block: dict[str, str], runner: asyncio.Runner, names: dict[str, Any]) -> str:
    """What it printed."""
    printed = io.StringIO()
    code, title = block["code"], block["title"]
    with contextlib.redirect_stdout(printed):
        if title.endswith(".py"):
            Path(title).write_text(code, encoding="utf-8")
            importlib.invalidate_caches()
            forget_local_modules()
            if "asyncio.run(" in code:
                runpy.run_path(title, run_name="__main__")
            else:
                importlib.import_module(title.removesuffix(".py"))
        elif "asyncio.run(" in code:
            exec(compiled(block, 0), {"__name__": "__main__"})
        else:
            runner.run(run_fragment(block, names))
    return printed.getvalue()


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
    task = json.load(sys.stdin)
    sys.path.insert(0, os.getcwd())
    logging.getLogger("asyncio").addHandler(Trouble(logging.ERROR))
    # A slow machine is not a failure.
    logging.getLogger("asyncio").addFilter(lambda record: record.levelno >= logging.ERROR)
    sys.unraisablehook = lambda what: TROUBLE.append(f"{what.err_msg} {what.exc_value!r}")
    results = []
    names: dict[str, Any] = {"__name__": "__fragment__"}
    with asyncio.Runner() as runner:
        for block in task["blocks"]:
            result = {"name": block["name"], "printed": "", "error": ""}
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
            results.append(result)
        names.clear()
    gc.collect()
    if TROUBLE and results:
        results[-1]["error"] += "at the end of the page: " + "\n".join(TROUBLE)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
