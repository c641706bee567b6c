"""skip_frames: modules that are never the caller, in holders and in messages."""

import sys
from types import ModuleType

import pytest

import cenote
from cenote.caller import caller
from tests.support.kit import Thing, line

LIBRARY = """
async def connect(pool):
    return await pool.acquire()

def try_connect(pool):
    return pool.try_acquire()
"""


@pytest.fixture
def library():
    module = ModuleType("library.engine")
    exec(compile(LIBRARY, "/site-packages/library/engine.py", "exec"), vars(module))
    return module


@pytest.mark.parametrize("skip", [("library",), ["other", "library.engine"]])
async def test_the_frames_of_a_library_are_skipped(make_pool, library, skip):
    pool = make_pool(Thing, skip_frames=skip)
    thing, here = await library.connect(pool), line()
    [holder] = pool.holders()
    assert (holder.file, holder.line) == (__file__, here)
    pool.release(thing)
    thing, here = library.try_connect(pool), line()
    [holder] = pool.holders()
    assert (holder.file, holder.line) == (__file__, here)
    pool.release(thing)


@pytest.mark.parametrize("skip", [(), ("lib",), ("library.engine.deep",)])
async def test_a_prefix_is_of_whole_module_names(make_pool, library, skip):
    pool = make_pool(Thing, skip_frames=skip)
    thing = await library.connect(pool)
    assert pool.holders()[0].file == "/site-packages/library/engine.py"
    pool.release(thing)


def test_if_everything_is_skipped_the_first_frame_counts(library):
    frame = sys._getframe()
    skip = []
    while frame is not None:
        skip.append(frame.f_globals["__name__"])
        frame = frame.f_back
    here = sys._getframe()
    code, _ = caller(here, skip=tuple(skip))
    assert code is here.f_code


@pytest.mark.parametrize("bad", ["library", 5, [5]])
def test_skip_frames_has_to_be_several_strings(bad):
    with pytest.raises(TypeError, match="skip_frames must"):
        cenote.Pool(Thing, skip_frames=bad)
