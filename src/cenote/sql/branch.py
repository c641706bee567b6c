"""A database in one event loop: its pool, the hooks of that pool, and the tasks that hold links."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial, wraps
from logging import DEBUG, ERROR
from operator import methodcaller
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from .. import errors
from ..caller import depth
from ..errors import PoolError, TransactionScopeWarning
from ..hooks import is_awaitable
from ..log import log
from ..observe import task_name
from ..pool import Pool
from ..pool.bound import is_monotonic
from ..pool.hooks import was_cut
from .binding import Lease
from .driver import Driver, Link
from .notes import note, note_connect
from .query import Query, without_rows
from .scope import acting_task, forget_scope, open_transactions, scope
from .url import without_frames

if TYPE_CHECKING:
    from .database import Database
    from .transaction import Transaction

R = TypeVar("R")

LAST_MOMENTS = 2.0  # seconds for a proper end when the loop goes down
JUST_NOW = 0.001  # seconds since the last answer: as long it is alive without looking

F = TypeVar("F", bound=Callable[..., Any])

running_loop = asyncio._get_running_loop


class Branch:
    """What a `Database` is in one event loop."""

    def __init__(self, database: Database, loop: asyncio.AbstractEventLoop) -> None:
        self.database = database
        self.label = database._label
        self.driver: Driver = database._driver
        self.loop = loop
        self.leases: dict[Any, Lease] = {}  # task -> what it holds over several statements
        self.private: set[Lease] = set()  # of streams
        self.joined: dict[Any, Transaction] = {}  # task -> the transaction of another
        self.links: set[Link] = set()  # all that are open
        self.epoch = 0  # counted up when a connection is lost: the others are suspect
        self.refused: WeakSet[Any] = WeakSet()  # tasks whose commit() has failed
        self.over = False
        self.disowned = False  # this is a forked child, and all of it is the parent's
        self._closing: set[Link] = set()  # that end in proper form just now
        self._all_closed = asyncio.Event()  # after the end
        self.time = monotonic if is_monotonic(loop) else loop.time
        self._ping_after_idle = database._ping_after_idle
        self.reset_always = database._reset == "always"
        self._guard: AsyncGenerator[None, None] | None = None
        self.pool: Pool[Link] = Pool(
            self._connect,
            destructor=self._disconnect,
            healthcheck=self._ping,
            before_acquire=self._before_acquire,
            before_release=self._before_release,
            **database._pool_options,
        )
        self.pool._trust = min(JUST_NOW, self._ping_after_idle)
        self.acquire = self.pool.acquire  # bound once, for every statement
        self.release_clean = self.pool._release_clean

    # -- the hooks of the pool -------------------------------------------------------------------

    async def _connect(self) -> Link:
        database = self.database
        if self._guard is None:
            self._guard = self._watch_loop()
            await anext(self._guard)
        database._connected = True
        password = await database._get_password()
        try:
            link = await self.driver.connect(password)
        except BaseException as error:
            note_connect(error, self.driver.plan.target)
            if password is not None:
                without_frames(error)
            raise
        self.links.add(link)
        try:
            await self._greet(link)
        except BaseException:
            await self._disconnect(link)
            raise
        link.epoch = self.epoch
        link.quiet_since = self.loop.time()
        return link

    async def _greet(self, link: Link) -> None:
        """on_connect; what it sets is not touched."""
        on_connect = self.database._on_connect
        if on_connect is not None:
            answer = on_connect(link.raw)
            if is_awaitable(answer):
                await answer
            if link.in_transaction:
                await link.rollback()
            link.greeted()
        link.touched = None

    async def _disconnect(self, link: Link) -> None:
        self._closing.add(link)
        try:
            await link.close()
        except asyncio.CancelledError:
            if self._guard is not None and not was_cut():
                self._closing.discard(link)  # the loop goes down: there is a last moment for it
                return
        except BaseException:
            self._disconnected(link)
            raise
        self._disconnected(link)

    def _disconnected(self, link: Link) -> None:
        link.terminate()
        self.links.discard(link)
        self._closing.discard(link)
        while link.leftovers:
            link.leftovers.pop().abandon()
        if self.over and not self.links:
            self._all_closed.set()

    async def _ping(self, link: Link) -> bool:
        try:
            await link.ping()
        except BaseException as error:
            link.broken = True
            if not isinstance(error, Exception):
                raise  # it took too long, or nobody waits for it any more
            log(DEBUG, "%s: ping failed: %r", self.label, error)
            self.doubt()
            return False
        link.epoch = self.epoch
        link.quiet_since = self.loop.time()
        return True

    def _before_acquire(self, link: Link) -> Any:
        if link.broken:
            return False
        idle = self.time() - link.quiet_since
        stirs = idle > JUST_NOW and link.stirs()
        if link.looks_dead() or (stirs and link.hung_up()):
            link.broken = True
            self.doubt()
            return False
        if stirs or link.epoch != self.epoch or idle >= self._ping_after_idle:
            return self._ping(link)
        return True

    def _before_release(self, link: Link) -> Any:
        if link.broken or link.looks_dead():
            return False
        link.returned()
        always = self.reset_always
        if not (link.touched or link.leftovers or always or link.in_transaction):
            link.quiet_since = self.time()
            return True
        return self._clean(link, always)

    async def _clean(self, link: Link, always: bool) -> bool:
        """Nothing of the last task is left; False: this link cannot do it."""
        await self.close_leftovers(link)
        if link.in_transaction:
            await link.rollback()
        if (link.touched or always) and self.database._reset != "never":
            if not await link.reset():
                return False
            await self._greet(link)
        link.touched = None
        link.quiet_since = self.loop.time()
        return not link.in_transaction  # SET autocommit = 0 and reset="never"

    async def close_leftovers(self, link: Link) -> None:
        while link.leftovers:
            await link.leftovers.pop().close()

    def doubt(self) -> None:
        """A connection was lost: the others are looked at before they are used again."""
        self.epoch += 1
        self.pool._doubted = self.time()

    # -- who holds what --------------------------------------------------------------------------

    def current_task(self) -> Any:
        task = acting_task(self)
        if task is None:
            raise RuntimeError("a database is used from tasks; there is no running task")
        return task

    def lease(self) -> Lease | None:
        """What the running task holds; complains about tasks started inside a transaction."""
        task = acting_task(self)
        lease = self.leases.get(task)
        if lease is not None:
            return lease
        if self.joined and (transaction := self.joined.get(task)) is not None:
            return transaction._open_lease()
        if scope.get() is not None:
            self._check_scope(task)
        return None

    def peek(self) -> Lease | None:
        """The same, without complaining."""
        task = acting_task(self)
        lease = self.leases.get(task)
        if lease is None and (transaction := self.joined.get(task)) is not None:
            return transaction._lease if transaction.is_open else None
        return lease

    def _check_scope(self, task: Any) -> None:
        for transaction in open_transactions():
            if not transaction.is_of(self):
                continue
            text = (
                f"task {task_name(task)!r} was started inside the transaction of task "
                f"{transaction.task_name!r} and uses the database outside of it, on a connection "
                f"of its own. To share the transaction use its handle: tx.execute() or "
                f"async with tx.join()."
            )
            if self.database._child_tasks == "error":
                raise TransactionScopeWarning(text)
            forget_scope(self)  # once for each task
            warnings.warn(TransactionScopeWarning(text), stacklevel=depth(sys._getframe()))
            return

    async def bound_lease(self, *, private: bool = False) -> Lease:
        """The task's lease, or a new one; a private one is always new."""
        if not private and (lease := self.lease()) is not None:
            return lease
        return await self.new_lease(private=private)

    async def new_lease(self, *, private: bool = False) -> Lease:
        task = self.current_task()
        claim = self.pool.acquire()
        link = await claim
        return self.bind(link, claim, task, private=private)

    def bind(self, link: Link, claim: Any, task: Any, *, private: bool = False) -> Lease:
        lease = Lease(self, link, claim, task, private=private)
        lease.ended = self.over  # closed while the statement ran: it is not kept
        if private:
            self.private.add(lease)
        else:
            self.leases[task] = lease
        return lease

    def unbind(self, lease: Lease) -> None:
        self.private.discard(lease)
        if self.leases.get(lease.task) is lease:
            del self.leases[lease.task]

    # -- statements ------------------------------------------------------------------------------

    def watched(self, operation: str, text: str, work: Coroutine[Any, Any, R]) -> Awaitable[R]:
        """The work, with those who watch statements told of it, if there are any."""
        return self.observed(operation, text, work) if self.database._observers else work

    async def observed(self, operation: str, text: str, work: Awaitable[R]) -> R:
        """Tell those who watch statements of its beginning and its end."""
        begun = [self._tell(each, operation, text) for each in self.database._observers]
        error: BaseException | None = None
        try:
            return await work
        except BaseException as raised:
            error = raised
            raise
        finally:
            for end in reversed(begun):
                if end is not None:
                    self._tell(end, error)
            del error  # no cycle through this frame

    def _tell(self, observer: Callable[..., Any], *what: Any) -> Any:
        try:
            return observer(*what)
        except Exception as error:
            log(ERROR, "%s: an observer of statements failed", self.label, error=error)

    def failed(self, link: Link, claim: Any, query: Query, error: BaseException) -> None:
        if not self.survives(link, error, False):
            self.discard(link, error)
        else:
            self.keep(link, claim, query, failed=True)

    def keep(self, link: Link, claim: Any, query: Query, *, failed: bool = False) -> None:
        """Pinned, or given back."""
        lease = self.bind(link, claim, self.current_task())
        lease.note(link, query)
        lease.inside = link.in_transaction
        if query.control is not None:
            lease.controlled()
        if not failed:
            lease.changed(query)
        lease.settle()

    def survives(self, link: Link, error: BaseException, reads_only: bool) -> bool:
        """Whether the link is as good as before, after a statement that raised."""
        if not isinstance(error, Exception):
            link.busy = link.broken = True
            return False
        if isinstance(error, PoolError):
            return True
        if (hint := self.driver.hint(error)) is not None:
            note(error, hint)
        if self.driver.is_disconnect(error) or link.is_dead:
            link.broken = True
            link.busy = isinstance(error, TimeoutError)
            return False
        if link.is_stuck():
            link.stuck = link.busy = link.broken = True
            return False
        if self.driver.is_demoted(error) and not reads_only:
            self.pool.retire()
        return True

    # -- giving back -----------------------------------------------------------------------------

    def give_back(self, link: Link | None) -> Any:
        if link is None:
            return None
        if link.is_stuck():
            link.busy = link.broken = True
        reset = (link.touched or self.reset_always) and self.database._reset != "never"
        if link.broken or (reset and (link.lasting or not link.can_reset)):
            return self.pool.discard(link)  # no failure: that is how it is with this one
        return self.pool.release(link)

    def discard(self, link: Link, error: BaseException | None) -> None:
        """Destroy it; a lost connection is a failure for the breaker, a cancellation is none."""
        link.broken = True
        lost = isinstance(error, Exception) and not isinstance(error, PoolError) and not link.stuck
        if lost:
            self.doubt()
        if isinstance(error, GeneratorExit):  # in any thread, at any moment
            self.pool._from_finalizer(partial(self.pool.discard, link))
        else:
            self.pool.discard(link, error if lost else None)

    def gone(self) -> PoolError:
        if self.database._closed:
            return errors.database_closed(self.label)
        return errors.transaction_over()

    def post(self, step: Callable[[], object]) -> None:
        """From a finalizer: in any thread, at any moment."""
        if not self.disowned and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(step)

    # -- the end ---------------------------------------------------------------------------------

    def end_leases(self) -> None:
        """Unbind every task: what is quiet goes back, the rest at the end of its statement."""
        for lease in [*self.leases.values(), *self.private]:
            lease.end()
        self.joined.clear()

    async def close(self) -> None:
        self.over = True
        self.end_leases()
        try:
            await self.pool.close()
        finally:
            guard = self._guard
            if guard is not None and not self.links:  # else it sees to those that are busy
                await guard.aclose()

    def forsake(self) -> None:
        """The loop is gone, or does not run: close without waiting for anything."""
        self.over = True
        self.leases.clear()
        self.private.clear()
        self.joined.clear()
        self.pool._forsake()
        for link in self.links:
            link.terminate()
        self.links.clear()

    def disown(self) -> object:
        """In a forked child: nothing of it is used, closed or finalized."""
        self.over = self.disowned = True
        kept = [lease.disown() for lease in [*self.leases.values(), *self.private]]
        kept += [self.leases, self.private, self.joined, self.links, self._guard, self]
        self.leases, self.private, self.joined, self.links = {}, set(), {}, set()
        return kept

    async def _watch_loop(self) -> AsyncGenerator[None, None]:
        """asyncio.run() closes async generators when everything else is cancelled: the last moment
        in which something can be awaited."""
        try:
            yield
        finally:
            if not self.disowned:
                await self._end_with_loop()

    async def _end_with_loop(self) -> None:
        if not self.over:
            self.over = True
            self.database._leave(self)
            self.end_leases()
        try:
            async with asyncio.timeout(LAST_MOMENTS):
                self._guard = None
                await self.pool.close()
                await asyncio.gather(*map(self._disconnect, self.links - self._closing))
                if self.links:
                    await self._all_closed.wait()
        except Exception as error:
            log(DEBUG, "%s: not closed properly: %r", self.label, error)
        for link in [*self.links]:
            self._disconnected(link)


def statement(method: F) -> F:
    """Gives a method of `Database` its body: one statement of the running task, run by the link's
    method of the same name. It is one coroutine, since every layer more would be resumed, too."""
    name = method.__name__

    @wraps(method)
    async def run(
        database: Database,
        sql: str,
        parameters: Any = None,
        *,
        watched: bool = False,
        last: bool = False,
    ) -> Any:
        branch: Branch | None = database._branches.get(running_loop())  # type: ignore[arg-type]
        if branch is None or database._closed:
            branch = database._branch()
        query: Query = database._query(sql)
        if database._observers and not watched:
            work = run(database, sql, parameters, watched=True)
            return await branch.observed(query.keyword, query.text, work)
        if parameters is None:
            text, arguments = query.text, None
        else:
            text, arguments = query.bind(parameters)
        if branch.leases or branch.joined or scope.get() is not None:
            lease = branch.lease()
            if lease is not None:
                if lease.lost is not None and query.control == "rollback":
                    await database.rollback()
                    return without_rows(name)
                if query.commits:
                    call = query.commit_by(name, text, arguments)
                else:
                    call = methodcaller(name, text, arguments)
                try:
                    return await lease.run_alone(call, query)
                except Exception as error:
                    if parameters is None:
                        query.note_missing(error)
                    raise
        claim = branch.acquire()
        link: Link = await claim
        try:
            result = await getattr(link, name)(text, arguments)
        except BaseException as error:
            branch.failed(link, claim, query, error)
            if parameters is None:
                query.note_missing(error)
            if last or not branch.driver.is_unsent(error):
                raise
        else:
            if query.touches is not None or branch.reset_always or link.in_transaction:
                branch.keep(link, claim, query)
            else:
                link.quiet_since = branch.time()
                branch.release_clean(link)
            return result
        return await run(database, sql, parameters, watched=True, last=True)

    return run  # type: ignore[return-value]
