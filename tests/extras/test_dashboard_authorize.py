"""The application decides which clients the dashboard admits."""

import asyncio
import json
from functools import partial

import pytest

import cenote
from cenote.extras.dashboard import guard
from cenote.testing import advance
from tests.support.viewer import (
    ELSEWHERE,
    TOKEN,
    ask,
    status_of,
    watching,
)

app = cenote.dashboard.app


async def admit_later(scope):
    await asyncio.sleep(0)
    return scope["client"][0] == "192.0.2.7"


class Admit:
    async def __call__(self, scope):
        return await admit_later(scope)


@pytest.mark.parametrize(
    "authorize",
    [
        admit_later,
        Admit(),
        lambda scope: scope["client"][0] == "192.0.2.7",
        lambda scope: admit_later(scope),
    ],
)
async def test_the_application_decides_who_is_admitted(authorize):
    application = app(authorize=authorize)
    assert await status_of(application, client=ELSEWHERE) == 200
    async with watching(application, client=ELSEWHERE) as viewer:
        assert viewer.status == 200
    for path in ("/", "/events"):
        status, _, body = await ask(application, "GET", path)
        assert status == 403
        assert json.loads(body) == {"error": "The application does not let you see this dashboard."}


@pytest.mark.parametrize("answer", [None, False, 0, ""])
async def test_a_client_that_is_not_admitted_is_refused(answer):
    assert await status_of(app(authorize=lambda scope: answer)) == 403


def yield_at_once(scope):
    yield False


async def yield_later(scope):
    yield False


class Yield:
    async def __call__(self, scope):
        yield False


class Door:
    def admit(self, scope):
        yield False


GENERATORS = [yield_at_once, yield_later, partial(yield_later), Yield(), Door().admit]


@pytest.mark.parametrize("authorize", GENERATORS)
def test_a_dependency_that_yields_is_refused(authorize):
    with pytest.raises(TypeError, match="authorize must not be a generator function"):
        app(authorize=authorize)


@pytest.mark.parametrize("generate", GENERATORS)
@pytest.mark.parametrize("later", [False, True])
async def test_a_generator_is_no_yes(generate, later, caplog):
    async def answer_later(scope):
        return generate(scope)

    application = app(authorize=answer_later if later else lambda scope: generate(scope))
    for path in ("/", "/events"):
        caplog.clear()
        assert await status_of(application, path=path) == 403
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert "authorize returned a generator" in record.getMessage()


@pytest.mark.parametrize("answer", [False, True])
async def test_what_is_still_to_come_is_no_yes(answer):
    async def decide():
        return answer

    async def forget_to_await(scope):
        return decide()

    assert await status_of(app(authorize=forget_to_await)) == (200 if answer else 403)


async def test_what_the_application_raises_is_its_own_matter():
    def fail(scope):
        raise LookupError(scope["path"])

    with pytest.raises(LookupError):  # the framework around it knows what to do
        await ask(app(authorize=fail), "GET", "/")


@pytest.mark.virtual_time
async def test_an_application_that_does_not_answer_is_cut_off():
    async def think(scope):
        await asyncio.Event().wait()

    task = asyncio.create_task(ask(app(authorize=think), "GET", "/"))
    await advance(guard.AUTHORIZE_TIMEOUT + 1)
    assert (await task)[0] == 503


async def test_either_the_token_or_the_application_admits():
    application = app(token=TOKEN, authorize=admit_later)
    assert await status_of(application, client=ELSEWHERE) == 200
    assert await status_of(application) == 401
    assert await status_of(application, headers={"authorization": f"Bearer {TOKEN}"}) == 200
