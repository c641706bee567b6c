"""The texts of the errors of a pool: each function makes one error, or a part of its message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .errors import (
    AcquireTimeoutError,
    CreateTimeoutError,
    HookTimeoutError,
    NotAcquiredError,
    PoolClosedError,
    PoolDeadlockError,
    PoolError,
    PoolOverloadedError,
    ServiceUnavailableError,
)
from .mask import masked

if TYPE_CHECKING:
    from .events import Holder

HOLD_SHORTER = "Raise max_size, or hold resources for a shorter time."
RAISE_BUDGET = "Raise the budget, or hold resources for a shorter time."
HOLDERS_SHOWN = 10  # how many holders a message lists; error.holders has them all


def label(name: str | None) -> str:
    """Return how messages call a pool of this name."""
    return "pool" if name is None else f"pool {name!r}"


def not_copied(kind: str) -> TypeError:
    return TypeError(
        f"a {kind} cannot be copied or pickled: what it holds belongs to this process. Use it by "
        f"reference, and make one in each process"
    )


def seconds(value: float) -> str:
    """Return a duration for people: `0.09 ms`, `2.5 ms`, `0.25 s`, `5.0 s`, `42 s`."""
    if value >= 10:
        return f"{value:.0f} s"
    if value >= 1 or value <= 0:
        return f"{value:.1f} s"
    if value >= 0.01:
        return f"{value:.2g} s"
    return f"{value * 1000:.1f} ms" if value >= 0.001 else f"{value * 1000:.2f} ms"


def describe(holder: Holder[Any]) -> str:
    """Return task, time, place and reason of a holder, in words."""
    where = "" if holder.file is None else f" ({holder.file}:{holder.line})"
    why = "" if holder.reason is None else f", {holder.reason}"
    through = "" if holder.lane is None else f" in lane {holder.lane!r}"
    return f"task {holder.task!r} for {seconds(holder.seconds)}{through}{where}{why}"


def split_reason(reason: str) -> tuple[str, str]:
    """Return why a resource is pinned, and the text of the statement by which it is, or ""."""
    why, _, text = reason.partition(" (")
    return why, text.removesuffix(")")


def without_text(reason: str) -> str:
    """Return why a resource is pinned, without the text of a statement, which may show data."""
    return split_reason(reason)[0]


def held_by(holders: Sequence[Holder[Any]]) -> str:
    """Return the part of a message that names the longest holders; empty if there are none."""
    if not holders:
        return ""
    shown = "; ".join(describe(holder) for holder in holders[:HOLDERS_SHOWN])
    rest = len(holders) - HOLDERS_SHOWN
    return f"; held by {masked(shown)}" + (f"; and {rest} more" if rest > 0 else "")


def acquire_timeout(
    name: str | None,
    timeout: float,
    counts: tuple[int, int, int],
    holders: tuple[Holder[Any], ...],
    held: str,
    *,
    deadlock: bool,
    limit: str | None = None,
    full: str | None = None,
    lane: str | None = None,
    at_limit: bool = False,
    lent: str = "",
    remedy: str = HOLD_SHORTER,
    retry_after: float | None = None,
) -> AcquireTimeoutError:
    """Return the error of an acquire; `held` is the result of `held_by` for the holders, and `full`
    what the backend said if it has no room for another resource. `limit` is the limit that was
    reached, if the acquire had more than one. `at_limit`: it was still waiting for a place of its
    lane. `lent`: what the lender of the capacity says of it. `remedy`: what to do if none of this
    says it."""
    active, idle, waiting = counts
    which = "" if limit is None else f"{limit}; "
    text = (
        f"{label(name)}{'' if lane is None else f', lane {lane!r}'}: "
        f"no resource within {seconds(timeout)} "
        f"({which}{active} active, {idle} idle, {waiting} waiting){held}"
    )
    if lent:
        text += f"; {lent}"
    if full is not None:
        text += (
            f"; the backend is full ({full}). "
            f"Raise the limit of the backend, or lower max_size in the programs that share it."
        )
    elif deadlock:
        text += (
            ". Deadlock: every resource is held by a task that itself waits for this pool. "
            "Release before acquiring again, or raise max_size."
        )
    elif at_limit:
        text += (
            f". The lane has as many out as it may have: raise max_size of lane {lane!r}, "
            f"or hold resources for a shorter time."
        )
    else:
        text += f". {remedy}"
    return AcquireTimeoutError(text, holders, retry_after)


def still_creating(word: str) -> str:
    """Return what to do if nothing is held, and the factory, which is known by this word, runs."""
    return (
        f"{word[0].upper()}{word[1:]} was still under way: find out what takes so long, or raise "
        f"the timeout."
    )


def still_checking(word: str) -> str:
    """Return what to do if something idle was found, and the hook that looks at it runs."""
    return (
        f"{word[0].upper()}{word[1:]} was still under way: find out why it does not answer, or "
        f"raise the timeout."
    )


def nothing_idle(word: str) -> str:
    """Return what to do if there is room, but the timeout of 0 lets no async factory run."""
    return (
        f"Nothing was idle, and timeout=0 leaves no time for {word}: with wait_timeout=0 a new one "
        f"is made."
    )


def deadlock(
    name: str | None, tasks: Sequence[str], size: int, lane: str | None = None
) -> PoolDeadlockError:
    who = masked(", ".join(repr(task) for task in tasks))
    resources = "the only resource is" if size == 1 else f"all {size} resources are"
    if lane is not None:
        what = "the only resource" if size == 1 else f"all {size} resources"
        resources = f"{what} that lane {lane!r} waits for {'is' if size == 1 else 'are'}"
    return PoolDeadlockError(
        f"{label(name)}: deadlock: {resources} held by tasks that themselves wait for this pool "
        f"without a deadline: {who}. Release before acquiring again, raise max_size, "
        f"or give acquire() a timeout."
    )


def other_lane(
    owner: str, name: str, has: tuple[int | None, int], wanted: tuple[int | None, int]
) -> ValueError:
    return ValueError(
        f"lane {name!r} of {owner} has max_size={has[0]} and priority={has[1]}; it cannot have "
        f"max_size={wanted[0]} and priority={wanted[1]} as well. Give it the same options "
        f"everywhere, or another name."
    )


def shed(
    name: str | None,
    lane: str | None,
    waited: float,
    target: float,
    waiting: int,
    retry_after: float | None,
) -> PoolOverloadedError:
    through = "" if lane is None else f", lane {lane!r}"
    return PoolOverloadedError(
        f"{label(name)}{through}: shed after {seconds(waited)} in the queue: the pool is "
        f"overloaded, and queue_target is {seconds(target)} ({waiting} waiting). "
        f"Answer the client that it is to try again later, or raise max_size.",
        retry_after,
        "shed",
    )


def overloaded(
    name: str | None, waiting: int, limit: int, retry_after: float | None = None
) -> PoolOverloadedError:
    return PoolOverloadedError(
        f"{label(name)}: {waiting} waiting already, max_waiting is {limit}. "
        f"Shed this request, or raise max_waiting or max_size.",
        retry_after,
    )


def closed(name: str | None, remedy: str, *, draining: bool = False) -> PoolClosedError:
    what = "is draining and takes no new acquires" if draining else "is closed"
    return PoolClosedError(f"{label(name)} {what}. {remedy}")


def unavailable(
    name: str | None,
    state: str,
    since: float | None,
    last: str | None,
    limit: int,
    retry_after: float | None = None,
) -> ServiceUnavailableError:
    if state == "RECOVERING":
        what = f"RECOVERING, and its {limit} trial acquire{'s are' if limit > 1 else ' is'} taken"
    else:
        what = state if since is None else f"{state} for {seconds(since)}"
    text = f"{label(name)}: the service is unavailable (circuit breaker {what})"
    if last is not None:
        text += f"; last failure: {last.removesuffix('.')}"
    when = "later" if not retry_after else f"in {seconds(retry_after)}"
    return ServiceUnavailableError(
        f"{text}. Try again {when}; pool.recover() or pool.activate() lets acquires pass at once.",
        retry_after,
    )


def not_acquired(name: str | None, resource: object, verb: str) -> NotAcquiredError:
    return NotAcquiredError(
        f"{label(name)}: cannot {verb} {_short(resource)}: it is not out. "
        f"It came from elsewhere, or was released or discarded before."
    )


def not_idle(name: str | None, resource: object) -> NotAcquiredError:
    return NotAcquiredError(
        f"{label(name)}: cannot evict {_short(resource)}: it is not idle. "
        f"discard() destroys what is out; pool.idle_resources() lists what is idle."
    )


def elsewhere(name: str | None, *, other_thread: bool, loop_closed: bool) -> RuntimeError:
    what = "another thread" if other_thread else "another event loop"
    state = ", which is closed by now" if loop_closed else ""
    remedy = (
        "go through asyncio.run_coroutine_threadsafe()"
        if other_thread and not loop_closed
        else "make a pool for each event loop"
    )
    return RuntimeError(
        f"{label(name)} belongs to the event loop in which it was opened{state}; "
        f"this call comes from {what}. Remedy: {remedy}."
    )


def rejected(name: str | None, hook: str) -> PoolError:
    return PoolError(f"{label(name)}: {hook} rejected the resource (it returned False)")


def found_unusable(name: str | None, word: str) -> PoolError:
    """Return the error of a hook that returned False, for callers that know it by this word."""
    return PoolError(f"{label(name)}: {word} found it unusable")


def hook_timeout(name: str | None, hook: str, limit: float, word: str) -> HookTimeoutError:
    """Return the error of a hook, which the message calls by this word."""
    option = "destructor_timeout" if hook == "destructor" else "hook_timeout"
    return HookTimeoutError(
        f"{label(name)}: {word} took longer than {option} ({seconds(limit)}) and was cut off"
    )


def create_timeout(name: str | None, limit: float) -> CreateTimeoutError:
    return CreateTimeoutError(
        f"{label(name)}: the factory took longer than create_timeout ({seconds(limit)}) "
        f"and was cancelled"
    )


def made_nothing(name: str | None) -> PoolError:
    return PoolError(
        f"{label(name)}: the factory returned None. Return the resource; None stands for 'nothing'."
    )


def async_hook(name: str | None) -> PoolError:
    return PoolError(
        f"{label(name)}: try_acquire() cannot run an async before_acquire. "
        f"Use `await pool.acquire(timeout=0)`."
    )


def _short(resource: object) -> str:
    """Return type and identity, not the repr, which may show a password."""
    return f"<{type(resource).__qualname__} at {id(resource):#x}>"
