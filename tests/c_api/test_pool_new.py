"""Pools that are made in C: their options, and what is refused."""

import re

import pytest

import cenote
from tests.support.kit import Thing, styled
from tests.support.probe import ALL, CHECKS, SOURCE, last_line, native_only, python

pytestmark = native_only


async def test_a_pool_of_c_handlers_is_an_ordinary_pool(make_c):
    pool, _ = make_c(name="made in C", max_size=3)
    assert type(pool) is cenote.Pool
    assert (
        repr(pool) == "<Pool 'made in C' new, breaker ACTIVE: 0 active, 0 idle, 0 waiting, max 3>"
    )
    async with pool:
        async with pool.acquire() as resource:
            assert resource == b"resource"
            [holder] = pool.holders()
            assert holder.resource is resource
            assert holder.file == __file__
            assert holder.task == "test"
        assert pool.stats().created == pool.stats().acquired == pool.stats().released == 1


async def test_a_pool_of_python_callables(probe, keep):
    seen = []
    options = {"destructor": seen.append, "max_size": 2, "name": "callables"}
    pool = keep(probe.pool_new(Thing, options))
    assert type(pool) is cenote.Pool
    assert (pool.name, pool.max_size) == ("callables", 2)
    thing = await pool.acquire()
    pool.discard(thing)
    assert seen == [thing]
    assert options == {"destructor": seen.append, "max_size": 2, "name": "callables"}


async def test_the_options_may_be_null(probe, keep):
    pools = [keep(probe.pool_new(Thing, probe.NULL))]
    pools.append(keep(probe.pool_new_c(probe.Plan(), "factory", probe.NULL)))
    for pool in pools:
        assert pool.max_size == 10
        pool.release(await pool.acquire())


async def test_a_pool_of_async_callables(probe, keep):
    pool = keep(probe.pool_new(styled("async", Thing), probe.NULL))
    assert isinstance(await pool.acquire(), Thing)
    pool.release(pool.holders()[0].resource)


def test_a_bad_option_is_named(probe):
    with pytest.raises(ValueError, match="max_size"):
        probe.pool_new(Thing, {"max_size": 0})
    with pytest.raises(TypeError, match="colour"):
        probe.pool_new(Thing, {"colour": "blue"})
    with pytest.raises(TypeError, match="factory"):
        probe.pool_new(3, probe.NULL)


@pytest.mark.parametrize(
    ("factory", "options"), [("probe.NULL", "probe.NULL"), ("object", "[]"), ("object", "3")]
)
def test_wrong_arguments_of_pool_new_raise(probe_path, factory, options):
    code = f"import probe\nprobe.pool_new({factory}, {options})"
    done = python(code, path=[SOURCE, probe_path.parent])
    assert re.match(r"(Type|Value|System)Error: ", last_line(done))


@pytest.mark.parametrize("hook", ["destructor", *CHECKS])
@pytest.mark.parametrize("handlers", [ALL, "factory"])
def test_options_with_hooks_are_refused(probe, hook, handlers):
    plan, options = probe.Plan(), {hook: print}
    with pytest.raises(TypeError, match=hook):
        probe.pool_new_c(plan, handlers, options)
    assert options == {hook: print}
    assert plan.freed == 1


def test_options_with_a_factory_are_refused(probe):
    plan = probe.Plan()
    with pytest.raises(TypeError, match="factory"):
        probe.pool_new_c(plan, ALL, {"factory": print})
    assert plan.freed == 1


@pytest.mark.parametrize("handlers", [None, "", "destructor"])
def test_handlers_need_a_factory(probe, handlers):
    plan = probe.Plan()
    with pytest.raises(ValueError, match="need a factory"):
        probe.pool_new_c(plan, handlers, {})
    assert plan.freed == 1


@pytest.mark.parametrize("given", [[], 3, "max_size"])
def test_options_of_c_handlers_must_be_a_dict(probe, given):
    plan = probe.Plan()
    with pytest.raises((TypeError, SystemError)):
        probe.pool_new_c(plan, ALL, given)
    assert plan.freed == 1


def test_pool_check_knows_pools_from_others(probe):
    assert probe.pool_check(cenote.Pool(Thing)) == 1
    assert probe.pool_check(probe.pool_new_c(probe.Plan(), ALL, {})) == 1
    for other in (None, 3, Thing(), cenote.Pool, probe.NULL, probe.Plan()):
        assert probe.pool_check(other) == 0


def test_a_subclass_is_a_pool(probe):
    class Special(cenote.Pool):
        pass

    assert probe.pool_check(Special(Thing)) == 1


@pytest.mark.parametrize("what", [cenote.Pool(Thing), 3])
def test_pool_check_keeps_an_exception(probe, what):
    assert probe.pool_check_keeps_exception(what)
