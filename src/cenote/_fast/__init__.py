"""Select the fast path that belongs to the core in use. The pool imports its names from here."""

from typing import TYPE_CHECKING

from .._core import kind
from .contract import PROTOCOLS, SlowPath, names, provides

if TYPE_CHECKING or kind == "pure":
    from .fastpath import Acquire, EngineBase, FastPath, adopt, give_back
else:
    from .._core import native
    from .._core.native import Acquire, EngineBase, FastPath, adopt, give_back

    _listed = {(protocol.__name__, name) for protocol in PROTOCOLS for name in names(protocol)}
    if _unknown := sorted({*native.names()} - _listed):
        raise ImportError(f"the native core uses names that contract.py does not list: {_unknown}")

__all__ = ["Acquire", "EngineBase", "FastPath", "SlowPath", "adopt", "give_back", "provides"]
