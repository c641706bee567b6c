"""Leak hunting: `python -m tests.exhibits.leaks MODULE [arguments]`, under LeakSanitizer.

What is malloc'ed and can be reached from nowhere after the module has ended was leaked. Only what
the native core has allocated counts: CPython and the drivers leave things of their own. Objects
that the garbage collector knows are always reachable; soak.py and hostile.py keep count of those.

`scripts/sanitize.sh` starts it as it must be started: with libasan before everything else, with
`PYTHONMALLOC=malloc`, and with `ASAN_OPTIONS=detect_leaks=1:leak_check_at_exit=0`.
"""

import contextlib
import ctypes
import gc
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path

OURS = re.compile(r"/native\.cpython-[\w-]+\.so\b|/_native/\w+\.[ch]\b")


def collect() -> None:
    for _ in range(3):
        gc.collect()


def unreachable() -> list[str]:
    """The stacks of what the native core has leaked."""
    sanitizer = ctypes.CDLL(None)
    check = sanitizer.__lsan_do_recoverable_leak_check
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "report")
        sanitizer.__sanitizer_set_report_path(prefix.encode())
        check()
        sanitizer.__sanitizer_set_report_path(b"stderr")
        reports = "".join(path.read_text(errors="replace") for path in Path(folder).iterdir())
    leaks = re.split(r"\n\n", reports)
    return [each for each in leaks if "leak of" in each and OURS.search(each)]


def main() -> int:
    script, *arguments = sys.argv[1:]
    if not hasattr(ctypes.CDLL(None), "__lsan_do_recoverable_leak_check"):
        print("leaks.py needs LeakSanitizer: see scripts/sanitize.sh", file=sys.stderr)
        return 2
    sys.argv = [script, *arguments]
    status: object = 0
    try:
        runpy.run_module(script, run_name="__main__")
    except SystemExit as end:
        status = end.code
    with contextlib.suppress(AttributeError):
        sys.last_traceback = None
    collect()
    leaks = unreachable()
    for each in leaks[:10]:
        print(f"LEAKED {each.strip()}")
    print(f"LeakSanitizer: {len(leaks)} leaks of the native core", flush=True)
    return 1 if leaks or status else 0


if __name__ == "__main__":
    sys.exit(main())
