"""Acquires that somebody finds and uses while the collector takes them apart."""

import asyncio
import gc
import weakref

import pytest

import cenote
from cenote._fast import Acquire

USES = {
    "send": lambda acquire: acquire.send(None),
    "next": lambda acquire: next(iter(acquire.__await__())),
    "leave": lambda acquire: acquire.__aexit__(None, None, None),
    "fail": lambda acquire: acquire.__aexit__(ValueError, ValueError(), None),
    "throw": lambda acquire: acquire.throw(ValueError()),
    "close": lambda acquire: acquire.close(),
    "repr": repr,
}


class Thing:
    pass


async def slow():
    await asyncio.get_running_loop().create_future()


async def leave_garbage(look):
    """Acquires in every stage, in a cycle; `look` is called when a part of it is cleared."""
    kept = []
    for factory in Thing, slow:
        pool = cenote.Pool(factory, max_size=2)
        for number in range(4):
            acquire = pool.acquire()
            kept += [pool, acquire]
            try:
                if number > 0:
                    acquire.send(None)
            except StopIteration:
                pass
    middle, last = Thing(), Thing()
    middle.mark = compile("0", "", "eval")  # which the collector does not know
    middle.last = last
    last.kept = (*kept, middle, last)  # nothing clears a tuple
    return weakref.ref(middle.mark, look)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_an_acquire_may_be_used_while_it_is_collected(use):
    seen = []

    def look(_):
        for acquire in [each for each in gc.get_objects() if type(each) is Acquire]:
            try:
                seen.append(use(acquire))
            except Exception as error:  # whatever it is: it must not crash
                seen.append(error)

    gc.collect()
    gc.disable()
    try:
        mark = asyncio.run(leave_garbage(look))
        gc.collect()
    finally:
        gc.enable()
    assert mark() is None
    assert seen
