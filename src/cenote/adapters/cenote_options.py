"""The options of `cenote.Pool` that the pool of another library takes besides its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..options import MOST, CommonOptions, Settings, unknown

# Packages that trace other libraries, by functions of their own around those of the library.
TRACERS = (
    "aws_xray_sdk", "datadog", "ddtrace", "elasticapm", "logfire", "newrelic", "opentelemetry",
    "scout_apm", "sentry_sdk", "wrapt",
)  # fmt: skip


def check_cenote_options(
    given: CommonOptions | None,
    said_otherwise: Mapping[str, str],
    remedy: str,
    *,
    limit: tuple[str, int],
) -> dict[str, Any]:
    """Return what was given as `cenote_options`; None is nothing.

    Args:
        said_otherwise: Options that the other library has itself, by what it calls them.
        remedy: What the message says of such a one, with its name in the place of `{}`.
        limit: The option of the other library that `min_size` must not exceed, and its value.

    Raises:
        TypeError: It is no mapping, has an option of the other library or an unknown one, or a
            value is of the wrong type.
        ValueError: A value is out of range.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(
            f"cenote_options must be a mapping of options of cenote.Pool, not {given!r}"
        )
    for name in given:
        if name in said_otherwise:
            what = remedy.format(said_otherwise[name])
            raise TypeError(f"cenote_options cannot have {name!r}: give {what}")
    known = [name for name in CommonOptions.__annotations__ if name not in said_otherwise]
    if strange := [name for name in given if name not in known]:
        raise unknown("cenote_options", strange, known)
    least = Settings.check(_nothing, {"max_size": MOST, **given}).min_size
    name, most = limit
    if least > most:
        raise ValueError(f"min_size must be {name} ({most}) at most, not {least}")
    return dict(given)


def skipped(given: Mapping[str, Any], *library: str) -> tuple[str, ...]:
    """Return the modules that are never the caller of an acquire: those of the library, those that
    trace it, and those of the program's `cenote_options`."""
    return *library, *TRACERS, *given.get("skip_frames", ())


def _nothing() -> None:
    """Stand in the place of a factory."""
