"""Fuzzing: the C API with programs of hostile steps, URLs and SQL with hostile text.

`python -m tests.exhibits.fuzz [--programs 20000] [--examples 2000] [--seed N]`, or `make fuzz`.
Everything is decided by the seed, which is printed. The programs run in a process of their
own, so that one that crashes it is shown; one that breaks a promise is shown as short as it can be
made, to be pasted into a test.
"""

import argparse
import contextlib
import faulthandler
import gc
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

WEIGHTS = {
    "new": 2, "new_wrongly": 1, "new_of_python": 2, "acquire_call": 8, "cancel": 3, "acquire": 3,
    "block": 2, "cancel_task": 1, "poke": 2, "try_acquire": 5, "release": 8, "discard": 3,
    "close": 1, "look": 1, "subscribe": 2, "unsubscribe": 1, "set_state": 2, "set_strategy": 2,
    "mode": 4, "make": 2, "retire": 1, "collect": 1, "drop": 1,
}  # fmt: skip
TEXTS = [
    "test_url.py",
    "test_placeholders.py",
    "test_placeholder_texts.py",
    "test_analysis.py",
    "test_analysis_texts.py",
]  # in tests/sql: what reads text of others

Program = list[tuple[Any, ...]]


def generate(seed: str) -> tuple[Program, bool]:
    """The steps, and whether they run on a stock loop instead of the virtual one."""
    from tests.support.hostile import CALLBACKS, WHERE

    choice = random.Random(seed)
    # Each program has some kinds of steps and lacks others: so it gets deeper into each.
    kinds = {name: weight for name, weight in WEIGHTS.items() if choice.random() < 0.6}
    kinds |= {"release": 8, "acquire_call": 8}
    names, weights = [*kinds], [*kinds.values()]
    callbacks = choice.sample(CALLBACKS, 5)

    def what() -> tuple[str, int, int]:
        return choice.choices(names, weights)[0], choice.randrange(256), choice.randrange(256)

    def step() -> tuple[Any, ...]:
        kind = choice.random()
        if kind < 0.2:
            return ("settle",)
        if kind < 0.25:
            return ("advance", choice.choice([0.5, 1.0, 10.0]))
        if kind < 0.5:
            return ("react", choice.choice(callbacks), *what())
        return (choice.choice(WHERE), *what())

    steps: Program = [("task", "new", choice.randrange(256), choice.randrange(256))]
    steps += [
        ("task", name, 0, choice.randrange(256))
        for name in ("subscribe", "set_strategy")
        if choice.random() < 0.4
    ]
    steps += [step() for _ in range(choice.choice([5, 20, 60, 100]))]
    if choice.random() < 0.2:
        steps.insert(choice.randrange(len(steps) + 1), ("close the loop",))
    return steps, choice.random() < 0.3


def shorten(steps: Program, fails: Callable[[Program], bool]) -> Program:
    """The same failure with as few steps as can be."""
    size = len(steps) // 2
    while size:
        at = 0
        while at < len(steps):
            shorter = steps[:at] + steps[at + size :]
            if fails(shorter):
                steps = shorter
            else:
                at += size
        size //= 2
    return steps


def failure(probe: Any, stock: bool, threshold: int, steps: Program) -> str | None:
    from tests.support.hostile import play

    try:
        play(probe, steps, stock=stock, threshold=threshold)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def fails(probe: Any, stock: bool, threshold: int, steps: Program) -> bool:
    return failure(probe, stock, threshold, steps) is not None


def describe(steps: Program, stock: bool, threshold: int = 0) -> str:
    lines = "".join(f"    {step!r},\n" for step in steps)
    return f"play(probe, [\n{lines}], stock={stock}, threshold={threshold})"


def search(
    probe: Any, seed: int, programs: range, last: Path | None = None, threshold: int = 0
) -> tuple[Counter[str], str | None]:
    """What was done, by kind, and the first failure in its shortest form."""
    from tests.support.hostile import play

    done: Counter[str] = Counter()
    for number in programs:
        steps, stock = generate(f"{seed} {number}")
        if last is not None:
            last.write_text(f"program {number}:\n{describe(steps, stock, threshold)}\n")
        try:
            done += play(probe, steps, stock=stock, threshold=threshold)
        except Exception as error:
            steps = shorten(steps, partial(fails, probe, stock, threshold))
            why = failure(probe, stock, threshold, steps) or f"only the first time, {error}"
            return done, f"program {number}: {why}\n{describe(steps, stock, threshold)}"
        done["programs"] += 1
    return done, None


def run_programs(seed: int, programs: range, last: Path, threshold: int) -> int:
    """In this process."""
    from tests.support.extensions import compile_extension, load

    faulthandler.enable()
    gc.collect()
    gc.freeze()  # each program is followed by a collection: what exists by now is not looked at
    with tempfile.TemporaryDirectory() as folder:
        source = Path(__file__).parents[1] / "c_api" / "probe.c"
        probe = load(compile_extension(source, Path(folder)))
        began = time.monotonic()
        done, found = search(probe, seed, programs, last, threshold)
    took = time.monotonic() - began
    total, made = sum(done.values()), done.pop("programs", 0)
    print(f"C API: {made:,} programs, {total - made:,} steps in {took:.0f} s", flush=True)
    print("  " + ", ".join(f"{name} {count:,}" for name, count in done.most_common()))
    if found is not None:
        print(f"FAIL {found}")
    return found is not None


def watch_programs(seed: int, programs: range, threshold: int) -> int:
    """In a process of their own."""
    with tempfile.TemporaryDirectory() as folder:
        last = Path(folder, "last")
        command = [
            sys.executable,
            "-m",
            "tests.exhibits.fuzz",
            "--seed",
            str(seed),
            "--last",
            str(last),
        ]
        command += ["--first", str(programs.start), "--programs", str(len(programs))]
        command += ["--collector", str(threshold)]
        status = subprocess.run(command, check=False).returncode
        if status not in (0, 1):
            with contextlib.suppress(OSError):
                print(f"FAIL the process ended with {status} in {last.read_text()}")
    return status


def run_texts(seed: int, examples: int) -> int:
    """The tests by hypothesis, with more examples than in the suite."""
    import pytest
    from hypothesis import settings

    settings.register_profile("fuzz", deadline=None, database=None, max_examples=examples)
    tests = [str(Path(__file__).parents[1] / "sql" / name) for name in TEXTS]
    options = [f"--hypothesis-seed={seed}", "--hypothesis-profile=fuzz", "--timeout=0"]
    # Those that hypothesis has a part in; it is imported by now, which pytest warns of.
    kept = ["-q", "-p", "no:cacheprovider", "-m", "hypothesis"]
    kept += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*kept, *options, *tests]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=20_000, help="of the C API")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--examples", type=int, default=2_000, help="of each test of text")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument(
        "--collector", type=int, default=0, help="run it after so many allocations; 0: by steps"
    )
    parser.add_argument("--last", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    programs = range(options.first, options.first + options.programs)
    if options.last is not None:
        return run_programs(options.seed, programs, options.last, options.collector)
    import cenote

    version = ".".join(map(str, sys.version_info[:3]))
    print(f"{cenote.core} core, Python {version}, seed {options.seed}", flush=True)
    status = 0
    if cenote.core == "native":
        status = watch_programs(options.seed, programs, options.collector)
    else:
        print("the core is pure: it has no C API")
    return status or run_texts(options.seed, options.examples)


if __name__ == "__main__":
    sys.exit(main())
