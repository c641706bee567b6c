"""No text that cenote shows has the credentials that somebody's error has."""

import asyncio
import logging

import pytest

import cenote
from tests.support.kit import STYLES, Tripwire, outcome, styled

from cenote.mask import LONGEST, explained, masked  # isort: skip

SECRETS = [
    "cannot connect to amqp://me:hunter2@broker:5672/x",
    "'amqp://me:hunter2@broker'",
    "redis://:hunter2@cache",
    "https://hunter2@github.example/x",
    "mysql://u:hunter2/x@h/d",
    "mysql://u:p@hunter2@h/d",
    "a://plain/x,b://u:hunter2@h2",
    "host=h password='hunter2 \\' hunter2' user=u",
    "password=hunter2, user=u",
    "PGPASSWORD='hunter2 x' psql",
    '{"password": "hunter2", "user": "u"}',
    "connect(password=b'hunter2 x')",
    "api_key: hunter2",
    "secret_key: hunter2",
    "AWS_SECRET_ACCESS_KEY=hunter2",
    "AccountKey=hunter2;EndpointSuffix=x",
    "Authorization: Bearer hunter2",
    "alter user u password 'hunter2 x'",
    "CREATE USER u IDENTIFIED BY 'hunter2'",
    'secret="hunter2 that goes on',
]
HARMLESS = [
    "connection refused",
    "http://api.example/users/@me",
    "Access denied for user 'u'@'h' (using password: YES)",
    'password authentication failed for user "app"',
    "amqp://***@broker: password=***",
]


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_in_a_text_are_masked(text):
    assert "hunter2" not in masked(text)
    assert "***" in masked(text)
    assert masked(masked(text)) == masked(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_text_is_left_alone(text):
    assert masked(text) == text


def test_what_is_around_a_secret_is_kept():
    assert masked(SECRETS[0]) == "cannot connect to amqp://***@broker:5672/x"
    assert masked(SECRETS[7]) == "host=h password=*** user=u"
    assert masked(SECRETS[10]) == '{"password": ***, "user": "u"}'


@pytest.mark.parametrize(
    "part",
    ["://", "://a:", "@://", "password", "password=", 'password="', "password='\\", "password ",
     "authorization: a ", "identified ", "identified by ", "password\n", "\\", "b'", "://u:p@"],
)  # fmt: skip
def test_a_hostile_text_comes_to_its_end(part):
    """What tries every part with every other one would take minutes."""
    masked(part * (400_000 // len(part)))
    masked(part + " " * 400_000)


def test_an_error_is_its_class_and_its_text():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    assert explained(OSError("token=hunter2")) == "OSError: token=***"
    assert explained(OSError()) == "OSError"
    assert explained(Mute()) == "Mute"
    assert len(explained(OSError("x" * 100_000))) == LONGEST


# -- where it is shown ---------------------------------------------------------------------------


def refuse(*_):
    raise ConnectionError("cannot reach amqp://me:hunter2@broker")


@pytest.mark.parametrize("style", STYLES)
async def test_the_error_of_a_factory_is_shown_without_credentials(make_pool, caplog, style):
    caplog.set_level(logging.DEBUG, "cenote")
    pool = make_pool(styled(style, refuse), strategy=Tripwire(), name="main")
    events = []
    pool.subscribe(events.append)
    error = await outcome(pool.acquire())
    assert "hunter2" in str(error)  # the exception itself is the factory's own
    refused = await outcome(pool.acquire())
    assert isinstance(refused, cenote.ServiceUnavailableError)
    assert "last failure: ConnectionError: cannot reach amqp://***@broker" in str(refused)
    assert "cannot reach amqp://***@broker" in caplog.text
    shown = [str(refused), caplog.text, *map(repr, events), *map(repr, map(vars, caplog.records))]
    assert "hunter2" not in "".join(shown)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("hook", ["before_acquire", "before_release", "destructor"])
async def test_the_errors_of_hooks_are_shown_without_credentials(make_pool, caplog, hook, style):
    pool = make_pool(object, max_size=1, **{hook: styled(style, refuse)})
    events = []
    pool.subscribe(events.append)
    for _ in range(2):
        await outcome(pool.release(await pool.acquire()))
    await outcome(pool.close())
    assert any(event.error is not None and "hunter2" in str(event.error) for event in events)
    assert "amqp://***@broker" in "".join(map(repr, events))
    assert "amqp://***@broker" in caplog.text
    assert "hunter2" not in caplog.text + "".join(map(repr, events))


async def test_a_timeout_does_not_repeat_the_name_of_a_task(make_pool):
    pool = make_pool(object, max_size=1)

    async def hold():
        return await pool.acquire()

    task = asyncio.create_task(hold(), name="fetch amqp://me:hunter2@broker")
    resource = await task
    error = await outcome(pool.acquire(timeout=0))
    assert "held by task 'fetch amqp://***@broker' for" in str(error)
    assert error.holders[0].task == "fetch amqp://me:hunter2@broker"
    pool.release(resource)


async def test_a_deadlock_does_not_repeat_the_name_of_a_task(make_pool):
    pool = make_pool(object, max_size=1)

    async def hold():
        async with pool.acquire():
            await pool.acquire()

    task = asyncio.create_task(hold(), name="fetch amqp://me:hunter2@broker")
    error = await outcome(task)
    assert isinstance(error, cenote.PoolDeadlockError)
    assert "'fetch amqp://***@broker'" in str(error)
