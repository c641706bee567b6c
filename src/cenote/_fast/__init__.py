"""Select the fast path that belongs to the core in use. The pool imports both names from here."""

from typing import TYPE_CHECKING

from .._core import kind

if TYPE_CHECKING or kind == "pure":
    from .fastpath import Acquire, FastPath, adopt
else:
    from .._core.native import Acquire, FastPath, adopt

__all__ = ["Acquire", "FastPath", "adopt"]
