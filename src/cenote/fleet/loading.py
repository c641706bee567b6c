"""Which module has the ledger for a URL; it is imported when a fleet needs it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final, cast

from .ledger import Ledger, LedgerConfig

MODULES: Final = {
    "": "cenote.fleet.local",
    "redis": "cenote.fleet.redis",
    "rediss": "cenote.fleet.redis",
    "unix": "cenote.fleet.redis",
    "valkey": "cenote.fleet.redis",
    "valkeys": "cenote.fleet.redis",
    "postgresql": "cenote.fleet.postgresql",
    "postgres": "cenote.fleet.postgresql",
    "postgresql+asyncpg": "cenote.fleet.postgresql",
    "postgresql+psycopg": "cenote.fleet.postgresql",
}


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, in lower case; empty for an empty URL.

    Raises `ValueError` if it is none that leads to a ledger; the URL is not shown, as it may have a
    password.
    """
    scheme = url.partition("://")[0].lower() if url else ""
    if scheme not in MODULES or (url and "://" not in url):
        known = ", ".join(f"{each}://" for each in MODULES if each)
        shown = f"{scheme!r}://" if "://" in url else "no scheme"
        raise ValueError(
            f"the URL of a fleet has {shown}; known are {known}. Without a URL the fleet is "
            f"that of this host, in a file."
        )
    return scheme


def load(scheme: str) -> ModuleType:
    """Import the module with the ledger for URLs of this scheme.

    Raises `ImportError` if a package that it needs is not installed.
    """
    return import_module(MODULES[scheme])


def new_ledger(config: LedgerConfig) -> Ledger:
    """Make the ledger for the URL; nothing is connected yet."""
    return cast("Ledger", load(scheme_of(config.url)).new_ledger(config))
