"""The checks of arguments: each names the argument and says what would be right."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Final


class Unset:
    """The type of UNSET: "not given", where None means something."""

    def __repr__(self) -> str:
        return "<unset>"


UNSET: Final = Unset()
MOST: Final = 2**62  # of any whole number: what the native core can count

# What other pools call it, where the spelling does not lead there.
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
    """Seconds: finite, 0 or more."""
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be 0 or more seconds, not {value!r}")
    if math.isinf(result):
        raise ValueError(f"{name} must be a finite number of seconds, not {value!r}")
    return result


def optional_duration(name: str, value: Any) -> float | None:
    """Seconds, or None for no limit; infinity is no limit, too."""
    if value is None:
        return None
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} must be 0 or more seconds, or None, not {value!r}")
    return None if math.isinf(result) else result


def whole(name: str, value: Any, *, least: int) -> int:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    result = operator.index(value)
    if result < least:
        raise ValueError(f"{name} must be {least} or more, not {value!r}")
    if result > MOST:
        raise ValueError(f"{name} must be {MOST} at most, not {value!r}")
    return result


def optional_whole(name: str, value: Any, *, least: int) -> int | None:
    return None if value is None else whole(name, value, least=least)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")
    return value


def text(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None, not {type(value).__name__}")
    return value


def function(name: str, value: Any) -> Callable[..., Any]:
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def optional_function(name: str, value: Any) -> Callable[..., Any] | None:
    return None if value is None else function(name, value)


def unknown(owner: str, given: Iterable[str], known: Collection[str]) -> TypeError:
    """The error for options that the owner does not have, each with the nearest that it has."""
    return TypeError(f"{owner} has no option {', '.join(nearest(name, known) for name in given)}")


def nearest(name: str, known: Collection[str]) -> str:
    near = [ELSEWHERE[name]] if ELSEWHERE.get(name) in known else get_close_matches(name, known, 1)
    return f"{name!r} (did you mean {near[0]}?)" if near else repr(name)


def sizes(min_size: Any, max_size: Any) -> tuple[int, int]:
    least, most = (
        whole("min_size", min_size, least=0),
        whole("max_size", max_size, least=1),
    )
    if least > most:
        raise ValueError(f"min_size ({least}) must not be more than max_size ({most})")
    return least, most


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one pool, checked. Sizes are of the beginning: they may be changed later."""

    factory: Callable[..., Any]
    destructor: Callable[..., Any] | None
    healthcheck: Callable[..., Any] | None
    before_acquire: Callable[..., Any] | None
    before_release: Callable[..., Any] | None
    min_size: int
    max_size: int
    healthcheck_interval: float
    acquire_timeout: float | None
    create_timeout: float
    hook_timeout: float
    destructor_timeout: float
    max_waiting: int | None
    max_lifetime: float | None
    max_idle: float | None
    max_uses: int | None
    hold_warning: float | None
    lifo: bool
    recovering_limit: int
    reuse_after_cancel: bool
    name: str | None

    @classmethod
    def check(cls, **given: Any) -> Settings:
        """Check every option; the first bad one raises, naming it."""
        checked = {name: check(name, given[name]) for name, check in _CHECKS.items()}
        checked["min_size"], checked["max_size"] = sizes(given["min_size"], given["max_size"])
        return cls(**checked)


_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "factory": function,
    "destructor": optional_function,
    "healthcheck": optional_function,
    "before_acquire": optional_function,
    "before_release": optional_function,
    "healthcheck_interval": duration,
    "acquire_timeout": optional_duration,
    "create_timeout": duration,
    "hook_timeout": duration,
    "destructor_timeout": duration,
    "max_waiting": partial(optional_whole, least=0),
    "max_lifetime": optional_duration,
    "max_idle": optional_duration,
    "max_uses": partial(optional_whole, least=1),
    "hold_warning": optional_duration,
    "lifo": flag,
    "recovering_limit": partial(whole, least=1),
    "reuse_after_cancel": flag,
    "name": text,
}
