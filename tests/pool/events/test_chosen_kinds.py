"""subscribe() with kinds: the others cost nothing, and are not heard of."""

import pytest

from cenote.events import EventKind
from tests.support.kit import Thing


@pytest.mark.parametrize("kind", list(EventKind))
async def test_a_subscriber_gets_the_kinds_it_wants(make_pool, kind):
    pool = make_pool(Thing, max_size=1)
    seen, everything = [], []
    pool.subscribe(lambda event: seen.append(event.kind), kinds={kind})
    pool.subscribe(lambda event: everything.append(event.kind))
    async with pool.acquire():
        pass
    pool.release(pool.try_acquire())
    pool.deactivate()
    await pool.close()
    assert seen == [each for each in everything if each == kind]


async def test_kinds_may_be_given_as_strings(make_pool):
    pool = make_pool(Thing)
    seen = []
    pool.subscribe(lambda event: seen.append(event.kind), kinds=["created", "released"])
    async with pool.acquire():
        pass
    assert seen == ["created", "released"]


async def test_no_event_is_made_that_nobody_wants(make_pool, monkeypatch):
    pool = make_pool(Thing)
    unsubscribe = pool.subscribe(lambda event: None, kinds={"destroyed"})
    engine = pool._engine
    assert (engine.on_acquired, engine.on_released, engine.on_waiting) == ((), (), ())
    other = pool.subscribe(lambda event: None, kinds={"acquired"})
    assert len(engine.on_acquired) == 1
    assert (engine.on_released, engine.on_waiting) == ((), ())
    other()
    unsubscribe()
    assert (engine.on_acquired, engine.subscribers) == ((), ())


def test_an_unknown_kind_is_refused_by_name(make_pool):
    pool = make_pool(Thing)
    with pytest.raises(ValueError, match=r"no event 'aquired' \(did you mean acquired\?\)"):
        pool.subscribe(print, kinds={"aquired"})


@pytest.mark.parametrize("kinds", ["acquired", 5])
def test_kinds_have_to_be_a_set(make_pool, kinds):
    pool = make_pool(Thing)
    with pytest.raises(TypeError, match="kinds must be a set of kinds"):
        pool.subscribe(print, kinds=kinds)
