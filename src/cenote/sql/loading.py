"""Finding the driver of a URL, and the checks that drivers make before the first connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from inspect import Parameter, signature
from typing import Any

from ..options import nearest
from .driver import ConnectConfig, Driver

# The module of each scheme has the name `driver`, which is called with the ConnectConfig. These
# are names and not imports, so that a library is imported only if a URL asks for it.
BUILT_IN = {
    "sqlite": "cenote.drivers.sqlite.driver",
    "postgresql": "cenote.drivers.asyncpg.driver",
    "postgres": "cenote.drivers.asyncpg.driver",
    "postgresql+asyncpg": "cenote.drivers.asyncpg.driver",
    "postgresql+psycopg": "cenote.drivers.psycopg.driver",
    "mysql": "cenote.drivers.mysql.driver",
    "mariadb": "cenote.drivers.mysql.driver",
}
GROUP = "cenote.drivers"  # entry points of other packages: scheme = "package.module:driver"


def load(config: ConnectConfig) -> Driver:
    """Import the driver for the scheme of the URL, and make one for this configuration.

    Raises ValueError if no driver has the scheme, ImportError if its library is not installed.
    """
    scheme = config.target.scheme
    module = BUILT_IN.get(scheme)
    if module is not None:
        make: Callable[[ConnectConfig], Driver] = import_module(module).driver
        return make(config)
    for point in entry_points(group=GROUP, name=scheme):
        make = point.load()
        return make(config)
    known = ", ".join(sorted(BUILT_IN))
    raise ValueError(f"url has the unknown scheme {scheme!r}; known are {known}")


def missing(package: str, extra: str) -> ImportError:
    """Return the error for a driver whose library is not installed; `extra` installs it."""
    return ImportError(
        f"the driver {package} is not installed: pip install 'cenote[{extra}]'", name=package
    )


def reject_unknown(options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ValueError if the URL has an option that the driver does not read."""
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(
            f"url has the unknown option {', '.join(nearest(name, known) for name in unknown)}; "
            f"known are {', '.join(sorted(known))}. "
            f"Arguments of the driver's connect() go into connect_args."
        )


def check_connect_args(given: Mapping[str, Any], connect: Callable[..., Any], *more: str) -> None:
    """Raise ValueError if `connect` of the library does not take one of the given arguments.

    `more` names arguments that it takes besides those of its signature. A function without a
    readable signature, or with `**arguments` alone, is not checked.
    """
    try:
        parameters = signature(connect).parameters.values()
    except (TypeError, ValueError):
        return  # written in C, without a signature
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    named = {each.name for each in parameters if each.kind in kinds}
    known = named.union(more)
    for name in given if named else ():  # without names it takes every argument
        if name not in known:
            raise ValueError(
                f"connect_args has the unknown argument {nearest(name, known)}; the driver's "
                f"connect() takes {', '.join(sorted(known))}"
            )


def fresh(value: Any) -> Any:
    """Copy dicts, lists, sets and tuples at every depth; the objects in them are shared."""
    if type(value) is dict:
        return {key: fresh(each) for key, each in value.items()}
    if type(value) in (list, set, tuple):
        return type(value)(fresh(each) for each in value)
    return value
