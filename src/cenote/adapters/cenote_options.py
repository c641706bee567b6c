"""The options of `cenote.Pool` that the pool of another library takes besides its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..options import CommonOptions


def check_cenote_options(
    given: CommonOptions | None, said_otherwise: Mapping[str, str], remedy: str
) -> dict[str, Any]:
    """Return what was given as `cenote_options`; None is nothing.

    Args:
        said_otherwise: Options that the other library has itself, by what it calls them.
        remedy: What the message says of such a one, with its name in the place of `{}`.

    Raises `TypeError` if it is no mapping, or has an option of the other library.
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
    return dict(given)
