"""The ledger in Redis: servers that hang, forget or refuse, and every way to reach one."""

import asyncio
import contextlib
import os
import signal
import socket
from uuid import uuid4

import pytest

import cenote
from cenote.fleet.ledger import LedgerConfig, LedgerConfigError, LedgerError, News, Sync
from cenote.fleet.redis import RedisLedger
from cenote.testing import FaultProxy
from tests.support.ledgers import opened_ledger
from tests.support.servers import RedisServer
from tests.support.waiting import WAIT, eventually

pytestmark = pytest.mark.coreless
SECRET = "s3cr:t@p/ss"
QUOTED = "s3cr%3At%40p%2Fss"


class OtherRedisServer(RedisServer):
    """One with a Unix socket, and with TLS if it is asked for."""

    def _initialize(self):
        self._certify()

    def _command(self):
        command = [*super()._command(), "--unixsocket", str(self.directory / "socket")]
        if self.tls:
            files = ["--tls-cert-file", self.certificate, "--tls-key-file", self.key]
            only = ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no"]
            command += [*only, *files, "--tls-ca-cert-file", self.certificate]
        return command

    def _answers(self):
        try:
            with socket.create_connection((self.host, self.port), timeout=WAIT):
                return True
        except OSError:
            return False


def opened(url, news=None, *, name=None, ttl=10.0, clock=None):
    ledger = RedisLedger(LedgerConfig(url, name or uuid4().hex, ttl), clock=clock)
    return opened_ledger(ledger, news)


def request(member, seq=1, *, keep=0, need=1, **more):
    return Sync(member, seq, keep, need, 1, 20, 30, "here", os.getpid(), "pool", **more)


class Clock:
    """Stands still until it is set."""

    now = 100.0

    def __call__(self):
        return self.now


async def grown(ledger, member, **more):
    """A grant after the first ones of a new ledger, which are floors. The ledger has a `Clock`."""
    grant = await ledger.sync(request(member, **more))
    ledger._clock.now += 2 * ledger._config.beat
    return await ledger.sync(request(member, 2, keep=grant.held, **more))


# -- what the server does --------------------------------------------------------------------------


async def test_the_clock_is_that_of_the_server(redis_server):
    async with opened(redis_server.url) as ledger:
        grant = await ledger.sync(request("a", need=20))
        assert (grant.target, grant.lasts) == (20, 10.0)
        client = ledger._client
        meta = f"{ledger._prefix}meta"
        assert 0 < await client.ttl(meta) <= 86400
        assert {key.decode() for key in await client.keys(f"{ledger._prefix}*")} <= {*ledger._keys}


async def test_an_idle_beat_reads_one_row(redis_server):
    async with opened(redis_server.url, clock=Clock()) as ledger:
        held = (await grown(ledger, "a", need=3)).held
        other = await ledger.sync(request("b", need=3))
        before = (await ledger._client.info("commandstats"))["cmdstat_hgetall"]["calls"]
        for seq in range(3, 13):  # also if it needs a little more or less
            grant = await ledger.sync(request("a", seq, keep=held, need=seq % 3))
            assert (grant.held, grant.lend) == (20, True)
            assert (await ledger.sync(request("b", seq, keep=other.held, need=3))).held == 10
        after = (await ledger._client.info("commandstats"))["cmdstat_hgetall"]["calls"]
        assert after == before


async def test_news_comes_to_the_member_it_is_for(redis_server):
    news, others, name = [], [], uuid4().hex
    options = {"name": name, "clock": Clock()}
    async with (
        opened(redis_server.url, news, **options) as ledger,
        opened(redis_server.url, others, **options) as other,
    ):
        held = (await grown(ledger, "a", need=20)).held
        await other.sync(request("b", need=20))
        assert (await other.sync(request("b", 2, keep=10, need=20))).held == 10
        await eventually(lambda: news)
        assert news[0] == News("a")
        await ledger.sync(request("a", 3, keep=held - 5, need=20))
        await eventually(lambda: others)
        assert others[0] == News("b")


async def test_a_start_while_the_server_hangs_gets_the_floor():
    """Others may have the rest; only a server that refuses everybody is nobody's."""
    with RedisServer() as server:
        server.pause()
        fleet = cenote.Fleet(server.url, budget=60, ttl=3.0, name=uuid4().hex)
        async with cenote.Pool(object, min_size=2, max_size=20, fleet=fleet) as pool:
            assert pool.max_size == 2
            server.go_on()
            async with asyncio.timeout(WAIT):
                await eventually(lambda: pool.max_size == 20)


async def test_a_server_that_hangs_is_an_error():
    with RedisServer() as server:
        async with opened(server.url, ttl=2.5) as ledger:
            await ledger.sync(request("a"))
            os.kill(server._process.pid, signal.SIGSTOP)
            try:
                async with asyncio.timeout(WAIT):
                    for operation in (
                        ledger.sync(request("a", 2)),
                        ledger.rows(),
                        ledger.leave("a", 3),
                        ledger.sync(request("new")),
                    ):
                        with pytest.raises(LedgerError, match=r"in Redis: no answer for 0\.5 s"):
                            await operation
            finally:
                os.kill(server._process.pid, signal.SIGCONT)
            # What was asked meanwhile has no effect on what is answered now.
            async with asyncio.timeout(WAIT):
                while True:
                    with contextlib.suppress(LedgerError):
                        grant = await ledger.sync(request("a", 9, keep=1, need=5))
                        break
            assert (grant.accepted, grant.target) == (True, 20)


async def test_requests_at_once_share_a_connection(redis_server):
    async with opened(redis_server.url) as ledger:
        await asyncio.gather(*(ledger.sync(request(f"m{i}")) for i in range(20)))
        assert len(await ledger.rows()) == 20
        mine = [each for each in await ledger._client.client_list() if each["cmd"] != "subscribe"]
        assert len([each for each in mine if each["cmd"] == "evalsha"]) <= 1


async def test_a_cancelled_request_leaves_the_ledger_usable(redis_server):
    async with opened(redis_server.url) as ledger:
        for turns in range(12):
            asking = asyncio.ensure_future(ledger.sync(request("a", 100 + turns, keep=turns)))
            for _ in range(turns):
                await asyncio.sleep(0)
            asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asking
            assert (await ledger.sync(request("b", 1 + turns, keep=turns))).held >= turns


async def test_a_restarted_server_without_data_learns():
    news = []
    with RedisServer() as server:
        async with opened(server.url, news, clock=Clock()) as ledger:
            await grown(ledger, "a", need=20)
            pubsub = ledger._pubsub
            server.kill()
            with pytest.raises(LedgerError, match=r"the ledger of the fleet '\w+' in Redis: "):
                await ledger.sync(request("a", 3, keep=20, need=20))
            server.start()
            grant = await ledger.sync(request("a", 4, keep=20, need=20))
            assert (grant.held, grant.used) == (20, 20)
            assert (await ledger.sync(request("b", need=20))).held == 1  # its floor

            await eventually(lambda: ledger._pubsub not in (None, pubsub))
            await ledger.sync(request("a", 5, keep=20, breaker="ACTIVE"))
            await ledger.vote("a", 0, down=True)
            await eventually(lambda: [each for each in news if each.circuit])


async def test_a_new_fleet_does_not_learn(redis_server):
    async with opened(redis_server.url, name="other") as ledger:

        async def uptime():
            return (await ledger._client.info("server"))["uptime_in_seconds"]

        async with asyncio.timeout(WAIT):
            while await uptime() < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    async with opened(redis_server.url, ttl=1.0) as ledger:
        assert (await ledger.sync(request("a", need=20))).held == 20
        await ledger._client.delete(*ledger._keys)  # while somebody listens
        assert (await ledger.sync(request("b", need=20))).held == 1
    async with opened(redis_server.url, ttl=1e6) as ledger:  # it has not run for so long
        assert (await ledger.sync(request("a", need=20))).held == 1


async def test_news_that_stops_is_asked_for_again(redis_server):
    """A connection that a firewall has forgotten."""
    news = []
    async with (
        FaultProxy(redis_server.host, redis_server.port) as proxy,
        opened(f"redis://{proxy.host}:{proxy.port}", news, ttl=2.5) as ledger,
    ):
        pubsub = ledger._pubsub
        proxy.black_hole()
        await eventually(lambda: ledger._pubsub is not pubsub)
        proxy.black_hole(False)
        await eventually(lambda: ledger._pubsub is not None)


async def test_a_lost_key_makes_the_ledger_learn(redis_server):
    for lost in ("rows", "lines", "meta"):
        async with opened(redis_server.url, clock=Clock()) as ledger:
            held = (await grown(ledger, "a", need=20)).held
            await ledger._client.delete(f"{ledger._prefix}{lost}")
            grant = await ledger.sync(request("b", need=20))
            assert (grant.held, grant.used) == (1, 1)
            grant = await ledger.sync(request("a", 3, keep=held, need=20))
            assert (grant.held, grant.used) == (20, 21)
            assert [each.member for each in await ledger.rows()] == ["b", "a"]


async def test_a_clock_put_back_ends_no_lease(redis_server):
    async with opened(redis_server.url) as ledger:
        await ledger.sync(request("a"))
        ledger._clock = lambda: 1e10  # far ahead, from where the server goes back to its own
        await ledger.sync(request("a", 2))
        ledger._clock = None
        grant = await ledger.sync(request("b", breaker="ACTIVE"))
        assert grant.processes == 1
        assert len(await ledger.rows()) == 2
        circuit = await ledger.vote("b", grant.circuit.epoch, down=True)
        assert 0 < circuit.next_in <= 1.0


# -- ways to a server ------------------------------------------------------------------------------


async def test_valkey_schemes_are_those_of_redis(redis_server):
    async with opened(redis_server.url.replace("redis://", "valkey://")) as ledger:
        await ledger.sync(request("a"))
        assert [each.member for each in await ledger.rows()] == ["a"]


async def test_a_database_number_and_options_count(redis_server):
    async with opened(f"{redis_server.url}/3?decode_responses=true") as ledger:
        await ledger.sync(request("ü"))
        assert [each.member for each in await ledger.rows()] == ["ü"]
        assert ledger._client.connection_pool.connection_kwargs["db"] == 3


@pytest.mark.parametrize("tls", [False, True])
async def test_unix_sockets_and_tls_are_served(tls):
    with OtherRedisServer(tls=tls) as server:
        place = f"{server.host}:{server.port}?ssl_ca_certs={server.certificate}"
        url = f"valkeys://{place}" if tls else f"unix://{server.directory / 'socket'}"
        news = []
        async with opened(url, news) as ledger:
            grant = await ledger.sync(request("a", breaker="ACTIVE"))
            await ledger.vote("a", grant.circuit.epoch, down=True)
            await eventually(lambda: news)


async def test_a_wrong_password_is_not_shown():
    with RedisServer() as server:
        async with opened(server.url) as ledger:
            await ledger._client.config_set("requirepass", SECRET)
        url = server.url.replace("redis://", f"redis://:{QUOTED}x@")
        with pytest.raises(LedgerConfigError) as caught:
            async with opened(url):
                pass
        shown = f"{caught.value!r} {caught.value} {LedgerConfig(url, 'shop', 10.0)!r}"
        assert "s3cr" not in shown
        assert "in Redis: AuthenticationError" in shown
        async with opened(url.replace("x@", "@")) as ledger:
            assert (await ledger.sync(request("a"))).held == 1


async def test_a_user_without_rights_is_told_which():
    with RedisServer() as server:
        async with opened(server.url) as ledger:
            rules = ["on", f">{SECRET}", "~other:*", "&*", "+@all"]
            await ledger._client.execute_command("ACL", "SETUSER", "app", *rules)
            with pytest.raises(LedgerConfigError, match=r"needs the keys cenote:\{shop\}:"):
                async with opened(
                    server.url.replace("redis://", f"redis://app:{QUOTED}@"), name="shop"
                ):
                    pass


async def test_a_server_that_is_not_there_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(LedgerError, match=f"fleet 'shop' in Redis: .*127.0.0.1:{port}"):
            async with opened(f"redis://:{QUOTED}@127.0.0.1:{port}", name="shop"):
                pass


def test_a_url_that_is_none_is_refused():
    for url in (f"redis://:{QUOTED}@host:port", f"redis://:{QUOTED}@host/?nothing=1"):
        with pytest.raises(ValueError, match="is no URL of Redis") as caught:
            RedisLedger(LedgerConfig(url, "shop", 10.0))
        assert "s3cr" not in str(caught.value)


async def test_another_version_is_refused(redis_server):
    async with opened(redis_server.url, name="versions") as ledger:
        await ledger.sync(request("a"))
        meta = f"{ledger._prefix}meta"
        await ledger._client.set(meta, b"\0" * 8 + (await ledger._client.get(meta))[8:])
        with pytest.raises(LedgerConfigError, match="another version of cenote: end them first"):
            await ledger.sync(request("a", 2))
        await ledger._client.delete(meta)


async def test_a_closed_ledger_says_so(redis_server):
    async with opened(redis_server.url) as ledger:
        pass
    with pytest.raises(LedgerError, match="is closed"):
        await ledger.rows()
