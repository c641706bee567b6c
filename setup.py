"""Builds the native core, if it can: without it, the pure core does the same, slower."""

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WANTED = sys.implementation.name == "cpython" and os.environ.get("CENOTE_PURE") != "1"
REQUIRED = os.environ.get("CENOTE_NATIVE") == "1"  # then a failed compilation is an error
LAST_LINES = 8  # of a compiler that failed


class BuildNative(build_ext):
    def run(self):
        root = "src" if self.inplace or self.editable_mode else self.build_lib
        record = Path(root, "cenote", "_core", "build_failure.txt")  # said again by `import cenote`
        record.unlink(missing_ok=True)
        with tempfile.TemporaryFile() as output:
            try:
                with overhear(output):
                    super().run()
            except Exception as error:  # whatever a compiler may do
                if REQUIRED:
                    raise
                ran = "exit code" in str(error)  # else there was none
                reason = (last_lines(output) if ran else "") or str(error)
                # One of an earlier build would be imported as if nothing had happened.
                Path(root, self.get_ext_filename(native.name)).unlink(missing_ok=True)
                record.parent.mkdir(parents=True, exist_ok=True)
                record.write_text(f"{reason}\n", encoding="utf-8")
                line = "*" * 79
                print(f"{line}\ncenote: the native core could not be compiled:\n{reason}\n{line}")


@contextmanager
def overhear(output):
    """What compilers say, which are processes of their own, goes to this file, too."""
    descriptor = 1 if sys.platform == "win32" else 2  # where they complain
    flush()
    original = os.dup(descriptor)
    os.dup2(output.fileno(), descriptor)
    try:
        yield
    finally:
        flush()
        os.dup2(original, descriptor)
        os.close(original)
        output.seek(0)
        os.write(descriptor, output.read())


def flush():
    sys.stdout.flush()
    sys.stderr.flush()


def last_lines(output):
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    return "\n".join([line.rstrip() for line in lines if line.strip()][-LAST_LINES:])


native = Extension(
    "cenote._core.native",
    ["src/cenote/_native/unity.c"],
    depends=[str(path) for path in sorted(Path("src/cenote").glob("[_i]n*/*.[ch]"))],
    extra_compile_args=[] if sys.platform == "win32" else ["-std=c11", "-O3", "-Wall", "-Wextra"],
)

setup(ext_modules=[native] if WANTED else [], cmdclass={"build_ext": BuildNative})
