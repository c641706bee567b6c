"""Builds the native core, if it can: without it, the pure core does the same, slower."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WANTED = sys.implementation.name == "cpython" and os.environ.get("CENOTE_PURE") != "1"
REQUIRED = os.environ.get("CENOTE_NATIVE") == "1"  # then a failed compilation is an error


class BuildNative(build_ext):
    def run(self):
        root = "src" if self.inplace or self.editable_mode else self.build_lib
        record = Path(root, "cenote", "_core", "build_failure.txt")  # said again by `import cenote`
        record.unlink(missing_ok=True)
        try:
            super().run()
        except Exception as error:  # whatever a compiler may do
            if REQUIRED:
                raise
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(f"{error}\n")
            line = "*" * 79
            print(f"{line}\ncenote: the native core could not be compiled: {error}\n{line}")


native = Extension(
    "cenote._core.native",
    ["src/cenote/_core/native.c"],
    depends=[
        f"src/cenote/_core/native_{part}.h" for part in ("parts", "core", "wait", "front", "capi")
    ],
    extra_compile_args=[] if sys.platform == "win32" else ["-std=c11", "-O3", "-Wall", "-Wextra"],
)

setup(ext_modules=[native] if WANTED else [], cmdclass={"build_ext": BuildNative})
