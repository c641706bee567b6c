"""Builds `buffers`: the header of cenote is all it needs, there is nothing to link."""
# mypy: ignore-errors

from setuptools import Extension, setup

import cenote

buffers = Extension(
    "buffers",
    ["buffers.c"],
    include_dirs=[cenote.get_include()],
    extra_compile_args=["-std=c11", "-Wall", "-Wextra"],
)

setup(name="buffers", version="1.0", ext_modules=[buffers], py_modules=[])
