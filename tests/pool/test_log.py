"""Nothing that logs breaks a step: whatever handlers do, every slot comes back."""

import ast
import asyncio
import logging
from pathlib import Path

import pytest

import cenote
from cenote.testing import advance, settle
from tests.support.kit import STYLES, Holding, Thing, Tripwire, acquiring, outcome, styled
from tests.support.waiting import WAIT

from cenote.extras.logging import KINDS, attach  # isort: skip
from cenote.log import log  # isort: skip

SOURCE = Path(__file__).parents[2] / "src" / "cenote"
LOGGING = ["debug", "info", "warning", "error", "exception", "critical", "log"]
CLASHES = ["pool", "event", "task", "seconds", "reason", "error"]


class Failure(Exception):
    """Raised by what logs."""


class Raising(logging.Handler):
    """A handler that raises out of `emit()` instead of calling `handleError()`."""

    def __init__(self, error):
        super().__init__()
        self.error = error
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())
        raise self.error


@pytest.fixture(params=["handler", "cancelled", "filter", "factory", "clash", "own clash"])
def broken_logging(request):
    """A program whose logging is broken in one way; gives what was tried to be logged."""
    logger, factory = logging.getLogger("cenote"), logging.getLogRecordFactory()
    level = logger.level
    tried = []

    def refuse(record):
        tried.append(record.msg)
        raise Failure("filter")

    def raising(*args, **kwargs):
        tried.append(args[4])
        raise Failure("LogRecordFactory")

    def clashing(*args, **kwargs):
        record = factory(*args, **kwargs)
        tried.append(record.msg)
        prefix = "cenote_" if request.param == "own clash" else ""
        for name in CLASHES:
            setattr(record, prefix + name, "of the program")
        return record

    error = asyncio.CancelledError() if request.param == "cancelled" else Failure("handler")
    handler = Raising(error)
    handler.lines = tried
    logger.setLevel(logging.DEBUG)
    if request.param in ("handler", "cancelled"):
        logger.addHandler(handler)
    elif request.param == "filter":
        logger.addFilter(refuse)
    else:
        logging.setLogRecordFactory(raising if request.param == "factory" else clashing)
    yield tried
    logging.setLogRecordFactory(factory)
    logger.removeFilter(refuse)
    logger.removeHandler(handler)
    logger.setLevel(level)


def fail(*_):
    raise OSError("backend down")


async def nothing_is_lost(pool):
    """All slots are free: so many resources as there may be can be acquired at once."""
    await settle()
    taken = [await asyncio.wait_for(pool.acquire(), WAIT) for _ in range(pool.max_size)]
    assert pool.active_count == pool.max_size
    for resource in taken:
        await outcome(pool.release(resource))


async def discarding(pool, resource):
    await pool.discard(resource)


class Switch:
    """A hook that fails while it is on."""

    def __init__(self):
        self.on = True

    def __call__(self, *_):
        if self.on:
            fail()


@pytest.mark.virtual_time
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("hook", ["before_acquire", "before_release", "destructor"])
async def test_a_hook_that_fails_loses_no_slot(make_pool, broken_logging, hook, style):
    switch = Switch()
    pool = make_pool(Thing, max_size=2, **{hook: styled(style, switch)})
    for _ in range(3):
        resource = await pool.acquire()
        await outcome(pool.release(resource))
    await outcome(discarding(pool, await pool.acquire()))
    switch.on = False
    assert broken_logging
    await nothing_is_lost(pool)


@pytest.mark.virtual_time
@pytest.mark.parametrize("style", STYLES)
async def test_a_check_that_fails_loses_no_slot(make_pool, broken_logging, style):
    switch = Switch()
    pool = make_pool(
        Thing, max_size=2, min_size=2, healthcheck=styled(style, switch), healthcheck_interval=1
    )
    await pool.open()
    await advance(3)
    switch.on = False
    assert any("healthcheck failed" in line or "%s failed" in line for line in broken_logging)
    await nothing_is_lost(pool)


@pytest.mark.virtual_time
@pytest.mark.parametrize("style", STYLES)
async def test_a_factory_that_fails_in_the_background_is_tried_again(
    make_pool, broken_logging, style
):
    switch = Switch()

    def factory():
        switch()
        return Thing()

    pool = make_pool(styled(style, factory), max_size=2, min_size=2)
    assert isinstance(await outcome(pool.acquire()), OSError)
    await advance(1)
    switch.on = False
    await advance(60)
    assert pool.idle_count == 2
    assert broken_logging
    await nothing_is_lost(pool)


@pytest.mark.virtual_time
async def test_opening_the_breaker_fails_every_waiter(make_pool, broken_logging):
    pool = make_pool(Thing, max_size=1)
    holding = Holding(pool)
    await settle()
    waiters = [acquiring(pool) for _ in range(3)]
    await settle()
    pool.deactivate()
    for waiter in waiters:
        assert isinstance(await outcome(waiter), cenote.ServiceUnavailableError)
    await holding.leave()
    pool.activate()
    assert broken_logging
    await nothing_is_lost(pool)


@pytest.mark.virtual_time
async def test_every_long_hold_is_sent(make_pool, broken_logging):
    pool = make_pool(Thing, max_size=3, hold_warning=1)
    seen = []
    pool.subscribe(lambda event: seen.append(event.kind))
    holdings = [Holding(pool) for _ in range(3)]
    await advance(2)
    assert seen.count("held_long") == 3
    for holding in holdings:
        await holding.leave()
    assert len(broken_logging) == 3
    await nothing_is_lost(pool)


@pytest.mark.virtual_time
async def test_a_drain_comes_to_its_end(make_pool, broken_logging):
    pool = make_pool(Thing, max_size=1)
    holding = Holding(pool)
    await settle()
    await pool.close(drain=1)
    assert pool.closed
    await holding.leave()
    assert broken_logging
    assert pool.count == 0


async def test_a_subscriber_and_a_strategy_that_raise_stay_harmless(make_pool, broken_logging):
    strategy = Tripwire()
    strategy.report_success = fail
    pool = make_pool(Thing, max_size=2, strategy=strategy)
    pool.subscribe(fail)
    await nothing_is_lost(pool)
    await nothing_is_lost(pool)
    assert broken_logging


async def test_the_lines_that_are_attached_disturb_nobody(make_pool, broken_logging):
    pool = make_pool(Thing, max_size=2)
    detach = attach(pool, kinds=KINDS)
    await nothing_is_lost(pool)
    await nothing_is_lost(pool)
    detach()
    assert broken_logging


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_of_the_program_has_its_own_step(make_pool, error):
    pool = make_pool(Thing, max_size=1, before_release=fail)
    handler = Raising(error("from a handler"))
    seen = []

    async def use():
        waiting = acquiring(pool)
        resource = await pool.acquire()
        await asyncio.sleep(0)
        pool.release(resource)
        seen.append("the step goes on")
        await waiting

    loop = asyncio.new_event_loop()
    logging.getLogger("cenote").addHandler(handler)
    try:
        task = loop.create_task(use())
        with pytest.raises(error, match="from a handler"):
            loop.run_until_complete(task)
    finally:
        logging.getLogger("cenote").removeHandler(handler)
    assert seen == ["the step goes on"]
    loop.run_until_complete(task)
    assert pool.active_count == 1
    loop.run_until_complete(pool.close())
    loop.close()


def test_an_exit_without_a_loop_is_raised_at_once(make_pool):
    pool = make_pool(Thing)
    handler = Raising(KeyboardInterrupt())
    logging.getLogger("cenote").addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            pool.deactivate()
    finally:
        logging.getLogger("cenote").removeHandler(handler)
    assert pool.state is cenote.CircuitState.INACTIVE


def test_what_a_handler_raises_goes_to_stderr(capsys, monkeypatch):
    handler = Raising(Failure("amqp://me:hunter2@host"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    log(logging.ERROR, "a line", to=logger)
    shown = capsys.readouterr().err
    assert "--- Logging error in cenote ---" in shown
    assert "Failure: amqp://***@host" in shown
    monkeypatch.setattr(logging, "raiseExceptions", False)
    log(logging.ERROR, "a line", to=logger)
    assert capsys.readouterr().err == ""
    assert handler.lines == ["a line", "a line"]


# -- what a line is ------------------------------------------------------------------------------


def test_our_names_win_over_those_of_the_program(make_pool, caplog):
    factory = logging.getLogRecordFactory()

    def clashing(*args, **kwargs):
        record = factory(*args, **kwargs)
        record.pool, record.cenote_pool = "theirs", "overwritten"
        return record

    logging.setLogRecordFactory(clashing)
    try:
        make_pool(Thing, name="ours").deactivate()
    finally:
        logging.setLogRecordFactory(factory)
    (record,) = caplog.records
    assert (record.pool, record.cenote_pool) == ("theirs", "ours")


def test_a_line_is_from_where_it_was_written(make_pool, caplog):
    make_pool(Thing).deactivate()
    (record,) = caplog.records
    assert record.filename == "circuit.py"
    assert record.funcName == "switch_to"


@pytest.mark.parametrize("words", [("100 %",), ("%s", "100 %"), ("%s %s", "a", "b")])
def test_the_text_is_formatted_as_logging_does_it(words, caplog):
    log(logging.ERROR, *words)
    (record,) = caplog.records
    assert record.getMessage() == (words[0] % words[1:] if words[1:] else words[0])
    assert record.args == words[1:]


def test_a_line_without_secrets_keeps_its_parts(caplog):
    error = ValueError("plain")
    log(logging.ERROR, "%s failed", "it", error=error)
    (record,) = caplog.records
    assert (record.msg, record.args, record.exc_info[1]) == ("%s failed", ("it",), error)


def test_a_line_with_secrets_has_them_nowhere(caplog):
    try:
        raise OSError("cannot reach amqp://me:hunter2@host") from ValueError("password='hunter2'")
    except OSError as raised:
        error = raised
    log(logging.ERROR, "%s: %s", "it", error, error=error)
    (record,) = caplog.records
    assert "cannot reach amqp://***@host" in record.getMessage()
    assert "OSError: cannot reach amqp://***@host" in caplog.text
    assert "ValueError: password=***" in caplog.text
    assert "hunter2" not in caplog.text + repr(vars(record))
    assert "hunter2" in str(error)


def test_every_line_of_cenote_is_written_by_log():
    """No module calls a logger by itself; what SQLAlchemy's pools log is SQLAlchemy's."""
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and "log" in ast.unparse(node.func.value).lower()
                and node.func.attr in LOGGING
                and (path.name, ast.unparse(node.func.value)) != ("sqlalchemy.py", "self.logger")
            ):
                found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert found == []
