"""SQLite, the embedded default, through the standard library's `sqlite3` in a thread."""

from .client import Connection, ConnectionClosedError, connect
from .cursor import Cursor

__all__ = ["Connection", "ConnectionClosedError", "Cursor", "connect"]
