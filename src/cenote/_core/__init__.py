"""Chooses the machine. Every name the runtime needs of a core is imported from here."""

import os
from typing import TYPE_CHECKING

from .due import due, next_due

if TYPE_CHECKING or os.environ.get("CENOTE_PURE") == "1":
    from .front import Acquire, Front
    from .parts import Claim, Slot
    from .pure import Core

    kind = "pure"
else:
    try:
        from .native import Acquire, Claim, Core, Front, Slot

        kind = "native"
    except ModuleNotFoundError:  # not compiled; one that does not load is an error
        from .front import Acquire, Front
        from .parts import Claim, Slot
        from .pure import Core

        kind = "pure"

__all__ = ["Acquire", "Claim", "Core", "Front", "Slot", "due", "kind", "next_due"]
