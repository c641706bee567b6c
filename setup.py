"""Builds the native core, if it can: without it, the pure core does the same, slower."""

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WANTED = sys.implementation.name == "cpython" and os.environ.get("CENOTE_PURE") != "1"
REQUIRED = os.environ.get("CENOTE_NATIVE") == "1"  # then a failed compilation is an error


class BuildNative(build_ext):
    def run(self):
        try:
            super().run()
        except Exception as error:  # whatever a compiler may do
            if REQUIRED:
                raise
            line = "*" * 79
            print(
                f"{line}\ncenote: the native core could not be compiled:\n  {error}\n"
                f"The pure core is used instead: the same behaviour, several times slower.\n"
                f"Install a C compiler and Python's headers (Debian: gcc, python3-dev) and\n"
                f"install again; CENOTE_NATIVE=1 makes this an error.\n{line}",
                file=sys.stderr,
            )


native = Extension(
    "cenote._core.native",
    ["src/cenote/_core/native.c"],
    depends=[f"src/cenote/_core/native_{part}.h" for part in ("parts", "core", "front", "capi")],
    include_dirs=["src/cenote/_core/include"],
    extra_compile_args=[] if sys.platform == "win32" else ["-std=c11", "-O2", "-Wall", "-Wextra"],
)

setup(ext_modules=[native] if WANTED else [], cmdclass={"build_ext": BuildNative})
