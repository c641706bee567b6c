"""Checks of what `Database()` and `transaction()` are called with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .. import options
from ..hooks import is_awaitable
from ..options import CommonOptions, Settings
from .dialects import ISOLATIONS, Isolation
from .url import Secret, is_text

HOOKS = ("factory", "destructor", "healthcheck", "before_acquire", "before_release")
POOL_OPTIONS = CommonOptions.__optional_keys__
ACQUIRE_TIMEOUT = 30.0  # seconds, unless given
MAX_CREATING = 4  # connects at once, unless given: a server that comes back is not flooded


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, not {value!r}")
    return str(value)


def check_password(password: Any, of_url: Secret | None) -> Secret | None:
    if password is None:
        return of_url
    if not isinstance(password, str) and not callable(password):
        raise TypeError("password must be a string or a callable that returns one")
    return sendable(password) if isinstance(password, str) else Secret(password)


def sendable(password: str) -> Secret:
    if not is_text(password):
        raise ValueError(
            "password has a null character or an unpaired surrogate, which no server accepts"
        )
    return Secret(password)


def check_connect_args(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError("connect_args must be a mapping from names to values")
    return dict(given)


def check_pool_options(
    given: dict[str, Any], own: Iterable[str], *, pooled: bool, persistent: bool, name: str
) -> dict[str, Any]:
    hooks = [hook for hook in HOOKS if hook in given]
    if hooks:
        raise TypeError(
            f"Database() has hooks of its own and does not take {', '.join(hooks)}; "
            f"on_connect runs on each new connection"
        )
    if persistent and pooled:
        raise ValueError("persistent=True is for pooled=False: a pool keeps its connections open")
    if not pooled:
        sizes = [size for size in ("min_size", "max_size", "max_uses") if size in given]
        if sizes:
            raise ValueError(f"{', '.join(sizes)} cannot be given with pooled=False")
        given["max_size"] = 1
        if not persistent:
            given["max_uses"] = 1
    complete = {
        "acquire_timeout": ACQUIRE_TIMEOUT,
        "max_creating": MAX_CREATING,
        **given,
        "name": given.get("name") or name,
    }
    unknown = [option for option in complete if option not in POOL_OPTIONS]
    if unknown:
        known = POOL_OPTIONS.union(own) - {"url", "pool_options"}
        raise options.unknown("Database()", unknown, known)
    Settings.check(object, complete)  # each event loop gets a pool of its own
    return complete


async def ask_password(password: Secret | None) -> Secret | None:
    """Return the password for a new connection: what its function answers, if it is one.

    Raises `TypeError` if that is no string.
    """
    if password is None or not callable(password.reveal()):
        return password
    value = password.reveal()()
    if is_awaitable(value):
        value = await value
    if not isinstance(value, str):
        raise TypeError(f"password() must return a string, not {type(value).__name__}")
    return sendable(value)


def check_isolation(value: Any) -> Isolation | None:
    if value is None:
        return None
    if isinstance(value, str):
        name = value.lower().replace("_", " ")
        if name in ISOLATIONS:
            return name
    raise ValueError(f"isolation must be one of {', '.join(map(repr, ISOLATIONS))}, not {value!r}")
