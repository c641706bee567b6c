"""The options of a pool, each once, and the checks of arguments.

A check returns the value, or raises an error that names the argument and says what would be right.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from functools import partial
from inspect import Parameter, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar

from .events import EventKind
from .hooks import Hook

if TYPE_CHECKING:
    from .breaker import CircuitBreakerStrategy
    from .lender import Lender

T = TypeVar("T")


class Unset:
    """The type of `UNSET`, which means "not given" where None is a value."""

    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = Unset()
MOST: Final = 2**62  # the largest whole number that the native core can count

# Names of the same options in other pools, where the spelling is too different to guess.
ELSEWHERE: Final = {
    "timeout": "acquire_timeout", "pool_timeout": "acquire_timeout",
    "size": "max_size", "pool_size": "max_size", "max_connections": "max_size",
    "connect_timeout": "create_timeout", "connection_timeout": "create_timeout",
    "idle_timeout": "max_idle", "max_inactive_connection_lifetime": "max_idle",
    "pool_recycle": "max_lifetime", "max_queries": "max_uses",
    "check": "healthcheck", "pool_pre_ping": "ping_after_idle",
    "setup": "before_acquire", "reset": "before_release", "close": "destructor",
    "init": "on_connect", "configure": "on_connect",
}  # fmt: skip


def number(name: str, value: Any) -> float:
    """Return the value as a float.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is not a number that fits, such as nan.
    """
    if isinstance(value, bool | str | bytes) or not (
        hasattr(type(value), "__float__") or hasattr(type(value), "__index__")
    ):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    try:
        result = float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large: {value!r}") from None
    if math.isnan(result):
        raise ValueError(f"{name} must be a number, not nan")
    return result


def duration(name: str, value: Any) -> float:
    """Return seconds: finite, 0 or more."""
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be 0 or more seconds, not {value!r}")
    if math.isinf(result):
        raise ValueError(f"{name} must be a finite number of seconds, not {value!r}")
    return result


def optional_duration(name: str, value: Any) -> float | None:
    """Return seconds, or None for no limit, which infinity means as well."""
    if value is None:
        return None
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be 0 or more seconds, or None, not {value!r}")
    return None if math.isinf(result) else result


def whole(name: str, value: Any, *, least: int) -> int:
    """Return the value as an int from `least` to `MOST`."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    result = operator.index(value)
    if result < least:
        raise ValueError(f"{name} must be {least} or more, not {value!r}")
    if result > MOST:
        raise ValueError(f"{name} must be {MOST} at most, not {value!r}")
    return result


def optional_whole(name: str, value: Any, *, least: int) -> int | None:
    """Return the value as `whole` does, or None."""
    return None if value is None else whole(name, value, least=least)


def flag(name: str, value: Any) -> bool:
    """Return the value, which must be True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def text(name: str, value: Any) -> str | None:
    """Return the value, which must be a string or None."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None, not {type(value).__name__}")
    return value


def names(name: str, value: Any) -> tuple[str, ...]:
    """Return the value, several strings, as a tuple; one string alone would be many of one letter.

    Raises `TypeError` for anything else.
    """
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence of strings, not {type(value).__name__}")
    given = tuple(value)
    for each in given:
        if not isinstance(each, str):
            raise TypeError(f"{name} must contain strings, not {type(each).__name__}")
    return given


def function(name: str, value: Any) -> Callable[..., Any]:
    """Return the value, which must be callable."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def optional_function(name: str, value: Any) -> Callable[..., Any] | None:
    """Return the value, which must be callable or None."""
    return None if value is None else function(name, value)


def unknown(owner: str, given: Iterable[str], known: Collection[str]) -> TypeError:
    """Return the error for unknown options; each is shown with the nearest known one."""
    return TypeError(f"{owner} has no option {', '.join(nearest(name, known) for name in given)}")


def nearest(name: str, known: Collection[str]) -> str:
    """Return the unknown name, quoted, with the known name that was probably meant."""
    near = [ELSEWHERE[name]] if ELSEWHERE.get(name) in known else get_close_matches(name, known, 1)
    return f"{name!r} (did you mean {near[0]}?)" if near else repr(name)


def sizes(min_size: Any, max_size: Any, *, least_max: int = 1, ceiling: int = 0) -> tuple[int, int]:
    """Return both sizes, checked; `max_size` is `least_max` or more, and may become `ceiling`.

    Raises:
        TypeError: One of them is not a whole number.
        ValueError: One of them is out of range, or min_size is larger than max_size.
    """
    least, most = (
        whole("min_size", min_size, least=0),
        whole("max_size", max_size, least=least_max),
    )
    if least > max(most, ceiling):
        raise ValueError(f"min_size ({least}) must not be more than max_size ({most})")
    return least, most


def checked_lane(name: Any, max_size: Any, priority: Any) -> tuple[str, int | None, int]:
    """Return the options of a lane, checked.

    Raises `TypeError` or `ValueError` for the first bad one, naming it.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a string, not {type(name).__name__}")
    if not name:
        raise ValueError("name must be the name of a lane, not ''")
    most = optional_whole("max_size", max_size, least=1)
    return name, most, whole("priority", priority, least=-MOST)


def strategy(name: str, value: Any) -> CircuitBreakerStrategy | None:
    """Check the strategy of a circuit breaker: None, or an object with the two report methods.

    Raises `TypeError` for anything else, a class instead of an object and async methods included:
    nobody would await them, and whatever `async def should_recover()` returns would be true.
    """
    if isinstance(value, type):
        raise TypeError(
            f"{name} must be an object, not the class {value.__name__}: "
            f"write {name}={value.__name__}(...)"
        )
    if value is not None:
        for method in ("report_success", "report_failure"):
            if not callable(getattr(value, method, None)):
                raise TypeError(
                    f"{name} must have report_success(source) and report_failure(source, error), "
                    f"{type(value).__name__} has no {method}()"
                )
        for method in ("report_success", "report_failure", "should_recover", "retry_after"):
            if iscoroutinefunction(getattr(value, method, None)):
                raise TypeError(
                    f"{name} must have plain methods: {type(value).__name__}.{method}() is async"
                )
    return value  # type: ignore[no-any-return]


def lender(name: str, value: Any) -> Lender | None:
    """Check the lender of a pool's capacity: None, or an object with the methods of a `Lender`.

    Raises `TypeError` for anything else.
    """
    if value is not None and (
        isinstance(value, type)
        or not all(callable(getattr(value, each, None)) for each in ("check", "opened", "strategy"))
    ):
        raise TypeError(f"{name} must be a cenote.Fleet or None, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def event_kinds(name: str, value: Any) -> frozenset[EventKind] | None:
    """Return the kinds of events, which may be given as strings; None stands for every kind.

    Raises:
        TypeError: The value is no iterable of strings.
        ValueError: One of them is no kind of event.
    """
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a set of kinds, or None, not {type(value).__name__}")
    given, known = [*value], [str(kind) for kind in EventKind]
    for kind in given:
        if kind not in known:
            raise ValueError(f"{name}: there is no event {nearest(str(kind), known)}")
    return frozenset(EventKind(kind) for kind in given)


class CommonOptions(TypedDict, total=False):
    """The options that `Pool` and `Database` share; `docs/reference/options.md` explains them."""

    min_size: int
    max_size: int
    healthcheck_interval: float
    acquire_timeout: float | None
    create_timeout: float
    hook_timeout: float
    destructor_timeout: float
    max_waiting: int | None
    max_creating: int | None
    queue_target: float | None
    queue_interval: float
    max_lifetime: float | None
    max_idle: float | None
    max_uses: int | None
    hold_warning: float | None
    lifo: bool
    strategy: CircuitBreakerStrategy | None
    recovering_limit: int
    reuse_after_cancel: bool
    skip_frames: Iterable[str]
    fleet: Lender | None
    name: str | None


class PoolOptions(CommonOptions, Generic[T], total=False):
    """The options of `Pool[T]`: the common ones, and the hooks."""

    destructor: Hook[T] | None
    healthcheck: Hook[T] | None
    before_acquire: Hook[T] | None
    before_release: Hook[T] | None


def _option(check: Callable[[str, Any], Any], default: Any = MISSING) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one pool, checked: each with its check and its default.

    Sizes and strategy are the initial ones: they may be changed later.
    """

    factory: Callable[..., Any] = _option(function)
    destructor: Callable[..., Any] | None = _option(optional_function, None)
    healthcheck: Callable[..., Any] | None = _option(optional_function, None)
    before_acquire: Callable[..., Any] | None = _option(optional_function, None)
    before_release: Callable[..., Any] | None = _option(optional_function, None)
    min_size: int = _option(partial(whole, least=0), 0)
    max_size: int = _option(partial(whole, least=1), 10)
    healthcheck_interval: float = _option(duration, 0.0)
    acquire_timeout: float | None = _option(optional_duration, None)
    create_timeout: float = _option(duration, 60.0)
    hook_timeout: float = _option(duration, 5.0)
    destructor_timeout: float = _option(duration, 10.0)
    max_waiting: int | None = _option(partial(optional_whole, least=0), None)
    max_creating: int | None = _option(partial(optional_whole, least=1), None)
    queue_target: float | None = _option(optional_duration, None)
    queue_interval: float = _option(duration, 1.0)
    max_lifetime: float | None = _option(optional_duration, None)
    max_idle: float | None = _option(optional_duration, None)
    max_uses: int | None = _option(partial(optional_whole, least=1), None)
    hold_warning: float | None = _option(optional_duration, None)
    lifo: bool = _option(flag, False)
    strategy: CircuitBreakerStrategy | None = _option(strategy, None)
    recovering_limit: int = _option(partial(whole, least=1), 1)
    reuse_after_cancel: bool = _option(flag, False)
    skip_frames: tuple[str, ...] = _option(names, ())
    fleet: Lender | None = _option(lender, None)
    name: str | None = _option(text, None)

    @classmethod
    def check(cls, factory: Any, given: Mapping[str, Any]) -> Settings:
        """Check every option, with the defaults for those that are not given.

        Raises `TypeError` for an unknown option, naming the nearest known one, and `ValueError` or
        `TypeError` for the first bad value, naming its option.
        """
        if surplus := [name for name in given if name not in _KNOWN]:
            raise unknown("Pool()", surplus, _KNOWN)
        complete = {**_DEFAULTS, **given, "factory": factory}
        checked = {each.name: each.metadata["check"](each.name, complete[each.name])
                   for each in fields(cls)}  # fmt: skip
        least, most = sizes(checked["min_size"], checked["max_size"])
        if checked["fleet"] is not None:
            checked["fleet"].check(least, most)
        return cls(**checked)


_KNOWN: Final = [each.name for each in fields(Settings)]
_DEFAULTS: Final = {
    each.name: each.default for each in fields(Settings) if each.default is not MISSING
}


def signature_of_options() -> list[Parameter]:
    """Give the options of a pool as the keyword-only parameters of a signature."""
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default)
        for name, default in _DEFAULTS.items()
    ]
