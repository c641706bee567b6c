"""Dialects: how each database writes its statements, and what they do to a session."""

from .dialect import ISOLATIONS, Dialect, Isolation, Quote
from .mysql import MYSQL
from .postgresql import POSTGRESQL
from .sqlite import SQLITE

__all__ = ["ISOLATIONS", "MYSQL", "POSTGRESQL", "SQLITE", "Dialect", "Isolation", "Quote"]
