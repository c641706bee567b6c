"""The ledger of many hosts, in Redis or Valkey: one script decides, and publishes the news.

The script is `redis.lua`, followed by `redis_decisions.lua`. All keys begin with `cenote:{NAME}:`
and are in one slot. The clock is that of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from ..mask import explained
from .ledger import (
    FleetCircuit,
    FleetState,
    Grant,
    LedgerConfig,
    LedgerConfigError,
    LedgerError,
    MemberRow,
    News,
    Sync,
)

try:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import (
        AuthenticationError,
        AuthenticationWrongNumberOfArgsError,
        NoPermissionError,
        NoScriptError,
        RedisError,
        ResponseError,
    )
    from redis.exceptions import TimeoutError as RedisTimeoutError
except ImportError as _error:
    raise ImportError(
        "a fleet in Redis or Valkey needs redis-py 5.0.1 or later: pip install 'cenote[redis]'"
    ) from _error

SCRIPT: Final = ("redis.lua", "redis_decisions.lua")
KEYS: Final = ("meta", "rows", "lines", "processes", "votes")
PATIENCE: Final = (0.5, 2.0)  # seconds for which an answer is waited for: a beat, within these
RETRY: Final = (0.05, 2.0)  # seconds between two attempts to subscribe: the first, and the longest
SCHEMES: Final = {"valkey": "redis", "valkeys": "rediss"}

_AUDIT: Final = 1
_BREAKER: Final = 4
_REFUSED: Final = (AuthenticationError, AuthenticationWrongNumberOfArgsError, NoPermissionError)


def new_ledger(config: LedgerConfig) -> RedisLedger:
    """Make the ledger for a URL; nothing is connected yet."""
    return RedisLedger(config)


class RedisLedger:
    """The connection of one event loop to a ledger in Redis: one for requests, one for news."""

    def __init__(self, config: LedgerConfig, *, clock: Callable[[], float] | None = None) -> None:
        """Make one; `open` connects. `clock`: what to use instead of that of the server."""
        self._config = config
        self._clock = clock
        self._patience = min(max(config.beat, PATIENCE[0]), PATIENCE[1])
        self._prefix = f"cenote:{{{quote(config.name, safe=' ')}}}:"
        self._keys = [self._prefix + each for each in KEYS]
        parts = (files("cenote.fleet").joinpath(name) for name in SCRIPT)
        self._script = "\n".join(part.read_text("utf-8") for part in parts)
        self._digest = ""
        self._news: Callable[[News], object] | None = None
        self._client: Redis | None = None
        self._turn = asyncio.Lock()  # one connection serves one request at a time
        self._members: set[str] = set()
        self._pubsub: PubSub | None = None
        self._listening: asyncio.Task[None] | None = None
        self._subscribed = asyncio.Event()
        self._new_client()  # checks the URL

    def _new_client(self) -> Redis:
        """Make one that connects when it is used. Raises `ValueError` for a wrong URL."""
        scheme, colon, rest = self._config.url.partition("://")
        scheme = SCHEMES.get(scheme.lower(), scheme.lower())
        options = {} if scheme == "unix" else {"socket_keepalive": True}
        try:
            client = Redis.from_url(
                scheme + colon + rest,
                retry=Retry(NoBackoff(), 0),  # a request that was repeated would be refused
                socket_connect_timeout=self._patience,
                max_connections=2,
                **options,
            )
            pool = client.connection_pool
            pool.connection_class(**pool.connection_kwargs)  # checks the options of the URL
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"the URL of the fleet {self._config.name!r} is no URL of Redis: {explained(error)}"
            ) from None  # whose text has the URL
        return client

    async def open(self, news: Callable[[News], object]) -> None:
        """See `Ledger`."""
        self._client = self._new_client()
        self._news = news
        self._subscribed.clear()
        try:
            await self._request("look")
            self._listening = asyncio.get_running_loop().create_task(
                self._listen(), name=f"cenote fleet {self._config.name!r}: news"
            )
            async with self._limit():
                await self._subscribed.wait()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """See `Ledger`."""
        self._news = None
        client, self._client = self._client, None
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])
        if client is not None:
            with contextlib.suppress(LedgerError):
                async with self._limit():
                    await client.aclose()

    def forsake(self) -> None:
        """See `Ledger`."""
        _kept.append((self._client, self._pubsub, self._listening))  # never finalized
        self._client = self._pubsub = self._listening = self._news = None

    # -- operations --------------------------------------------------------------------------------

    async def sync(self, request: Sync) -> Grant:
        """See `Ledger`."""
        await self._follow(request.member)
        shown = [request.host, request.process, request.pool, request.since, request.breaker]
        flags = _AUDIT * request.audit + _BREAKER * (request.breaker is not None)
        accepted, held, target, owed, lend, share, used, budget, processes, *circuit, silent = (
            await self._request(
                "sync", request.member, request.seq, request.keep, request.need, request.floor,
                request.ceiling, request.budget, flags, request.epoch,
                json.dumps(shown, separators=(",", ":")), request.making,
            )
        )  # fmt: skip
        return Grant(
            bool(accepted), held, target, owed, bool(lend), share, self._config.ttl, used, budget,
            processes, tuple(map(_text, silent)), _circuit(circuit),
        )  # fmt: skip

    async def leave(self, member: str, seq: int) -> None:
        """See `Ledger`."""
        if not await self._request("leave", member, seq):
            return
        self._members.discard(member)
        if self._pubsub is not None:
            with contextlib.suppress(RedisError, OSError):
                await self._pubsub.unsubscribe(self._channel(member))

    async def rows(self) -> list[MemberRow]:
        """See `Ledger`."""
        found = []
        for member, held, need, silent, shown in await self._request("members"):
            host, process, pool, since, breaker = json.loads(shown)
            found.append(
                MemberRow(
                    _text(member), host, process, pool, held, need, since, breaker, bool(silent)
                )
            )
        return found

    async def settle(self, member: str, counted: int) -> None:
        """See `Ledger`."""
        await self._request("settle", member, counted)

    async def vote(self, member: str, epoch: int, *, down: bool) -> FleetCircuit:
        """See `Ledger`."""
        return _circuit(await self._request("vote", member, epoch, int(down)))

    async def judge(self) -> FleetCircuit:
        """See `Ledger`."""
        return _circuit(await self._request("judge"))

    async def claim(self, member: str, epoch: int) -> FleetCircuit:
        """See `Ledger`."""
        return _circuit(await self._request("claim", member, epoch))

    async def verdict(self, member: str, epoch: int, *, up: bool) -> FleetCircuit:
        """See `Ledger`."""
        return _circuit(await self._request("verdict", member, epoch, int(up)))

    # -- requests ----------------------------------------------------------------------------------

    async def _request(self, operation: str, *arguments: str | int) -> Any:
        """Run the script."""
        now = "" if self._clock is None else repr(float(self._clock()))
        given = [operation, now, self._config.ttl, self._config.beat, *arguments]
        async with self._limit(), self._turn:
            client = self._client
            if client is None:
                raise LedgerError(f"{self._where()} is closed")
            if self._digest:
                try:
                    return await client.evalsha(self._digest, len(KEYS), *self._keys, *given)
                except NoScriptError:  # the server was started anew
                    pass
            self._digest = _text(await client.script_load(self._script))
            return await client.evalsha(self._digest, len(KEYS), *self._keys, *given)

    @contextlib.asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        """Every error is a `LedgerError`, and so is no answer."""
        try:
            async with asyncio.timeout(self._patience):
                yield
        except (TimeoutError, RedisTimeoutError):
            late = TimeoutError()  # as the cause: the server may be slow, and not away
            said = f"{self._where()}: no answer for {self._patience:g} s"
            raise LedgerError(said) from late
        except _REFUSED as error:
            raise LedgerConfigError(
                f"{self._where()}: {explained(error)}. The user needs the keys {self._prefix}* and "
                f"the channels {self._prefix}*, and EVALSHA, SCRIPT LOAD and SUBSCRIBE"
            ) from None
        except ResponseError as error:
            raise self._answer(error) from None
        except (RedisError, OSError) as error:
            raise LedgerError(f"{self._where()}: {explained(error)}") from error

    def _answer(self, error: ResponseError) -> LedgerError:
        said = str(error)
        if "CENOTEVERSION" in said:
            return LedgerConfigError(
                f"{self._where()} is used by processes with another version of cenote: end them "
                f"first, or choose another name"
            )
        if said.startswith(("MOVED", "CLUSTERDOWN")) or "MOVED" in said:
            return LedgerConfigError(
                f"{self._where()} is a node of a cluster that does not have the keys of this "
                f"fleet: give the URL of a server without a cluster ({explained(error)})"
            )
        return LedgerError(f"{self._where()}: {explained(error)}")

    def _where(self) -> str:
        return f"the ledger of the fleet {self._config.name!r} in Redis"

    # -- news --------------------------------------------------------------------------------------

    def _channel(self, member: str) -> str:
        return f"{self._prefix}news:{member}"

    async def _follow(self, member: str) -> None:
        """Subscribe to what is sent to this member."""
        if member in self._members:
            return
        self._members.add(member)
        if self._pubsub is not None:
            async with self._limit():
                await self._pubsub.subscribe(self._channel(member))

    async def _listen(self) -> None:
        """Give news until `close`; connect again after every error."""
        pause = RETRY[0]
        while (client := self._client) is not None:
            pubsub = client.pubsub()
            try:
                async with asyncio.timeout(self._patience):
                    channels = [f"{self._prefix}news", *map(self._channel, self._members)]
                    await pubsub.subscribe(*channels)
                self._pubsub = pubsub
                self._subscribed.set()
                await self._read(pubsub)
                pause = RETRY[0]
            except (RedisError, OSError):  # TimeoutError is one; requests report what is wrong
                await asyncio.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, RETRY[1])
            finally:
                self._pubsub = None
                with contextlib.suppress(RedisError, OSError):
                    await pubsub.aclose()

    async def _read(self, pubsub: PubSub) -> None:
        """Give news until the connection is lost, or does not answer any more."""
        asked = False  # whether the server still answers
        while True:
            message = await pubsub.get_message(timeout=self._config.ttl)
            if message is not None:
                asked = False
                self._announce(message)
            elif asked:
                raise ConnectionError("no answer")
            else:
                asked = True
                await pubsub.ping()

    def _announce(self, message: dict[str, Any]) -> None:
        if message["type"] != "message" or self._news is None:
            return
        member = _text(message["channel"]).removeprefix(f"{self._prefix}news").removeprefix(":")
        if member:
            self._news(News(member))
        else:
            self._news(News(circuit=_circuit(json.loads(message["data"]))))


def _circuit(said: list[Any]) -> FleetCircuit:
    state, epoch, wait, prober = said
    return FleetCircuit(
        FleetState(_text(state)), int(epoch), float(_text(wait)), _text(prober) if prober else None
    )


def _text(said: str | bytes) -> str:
    return said.decode() if isinstance(said, bytes) else said


_kept: list[object] = []  # of the parent of a fork
