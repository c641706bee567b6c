"""All five hooks set: C functions beside Python callables, none of which does anything."""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import cenote

from . import uncontended
from .measure import Case, Part, Scale, Table, interleave, median, ratios, spread, times

SOURCE = Path(__file__).with_suffix(".c")
BLOCK = "cenote.Pool: async with acquire()"
AWAIT = "cenote.Pool: await acquire(), release()"
TRY = "cenote.Pool: try_acquire(), release()"
FROM_C = "cenote.Pool: the same, called from C"
DISCARD = "cenote.Pool: try_acquire(), discard()"
OPERATIONS = (BLOCK, AWAIT, TRY, FROM_C, DISCARD)
NONE, C, PYTHON = "no hooks", "C", "Python"


def missing() -> str | None:
    """Why this cannot be measured."""
    if cenote.core != "native":
        return "the core is pure, and C handlers need the native one"
    if shutil.which(compiler()[0]) is None:
        return f"there is no C compiler: {compiler()[0]} was not found"
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        return f"the headers of Python are not installed: {headers} has no Python.h"
    return None


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def build() -> Any:
    """The extension, compiled as the core is and loaded."""
    apple = ["-bundle", "-undefined", "dynamic_lookup"]
    with tempfile.TemporaryDirectory(prefix="cenote-handlers-") as folder:
        target = Path(folder, "handlers" + sysconfig.get_config_var("EXT_SUFFIX"))
        command = [*compiler(), "-std=c11", "-O2", "-fPIC"]
        command += apple if sys.platform == "darwin" else ["-shared"]
        command += [f"-I{sysconfig.get_path('include')}", f"-I{cenote.get_include()}"]
        done = subprocess.run(
            [*command, str(SOURCE), "-o", str(target)], capture_output=True, text=True
        )
        if done.returncode != 0:
            raise ChildProcessError(f"{shlex.join(command)} failed:\n{done.stderr[-1000:]}")
        spec = importlib.util.spec_from_file_location("handlers", target)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


async def run(scale: Scale) -> Part:
    extension = build()
    pools = {NONE: without_hooks(), C: extension.pool({"max_size": 1}), PYTHON: with_callables()}
    cases: dict[str, Case] = {}
    for kind, pool in pools.items():
        cases |= {f"{name}, {kind}": case for name, case in operations(pool, extension).items()}
    samples = await interleave(cases, rounds=scale.short_rounds, operations=scale.operations)
    for pool in pools.values():
        await pool.close()

    table = Table(
        "Hooks: all five as C functions, and as Python callables",
        ["ns", NONE, f"in {C}", f"in {PYTHON}", f"{PYTHON} to {C}", "spread"],
    )
    for name in OPERATIONS:
        found = [samples[f"{name}, {kind}"] for kind in (NONE, C, PYTHON)]
        against = ratios(found[2], found[1])
        numbers = [f"{median(values) * 1e9:,.0f}" for values in found]
        table.rows.append([name, *numbers, times(median(against)), spread(against)])
    table.notes.append(
        "A cycle calls before_acquire and before_release, the last row factory and destructor "
        "instead; no hook does\nanything. A C function is called through its pointer."
    )
    return Part([table], samples)


def without_hooks() -> cenote.Pool[object]:
    return cenote.Pool(object, max_size=1)


def with_callables() -> cenote.Pool[object]:
    return cenote.Pool(
        lambda: object(),
        destructor=lambda resource: None,
        healthcheck=lambda resource: True,
        before_acquire=lambda resource: True,
        before_release=lambda resource: True,
        max_size=1,
    )


def operations(pool: cenote.Pool[object], extension: Any) -> dict[str, Case]:
    async def from_c(operations: int) -> float:
        began = perf_counter()
        extension.cycle(pool, operations)
        return perf_counter() - began

    async def discard(operations: int) -> float:
        began = perf_counter()
        for _ in range(operations):
            resource = pool.try_acquire()
            assert resource is not None
            pool.discard(resource)
        return perf_counter() - began

    return {
        BLOCK: uncontended.block(pool),
        AWAIT: uncontended.await_and_release(pool),
        TRY: uncontended.try_and_release(pool),
        FROM_C: from_c,
        DISCARD: discard,
    }
