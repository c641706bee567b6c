"""Chooses the machine. Every name the runtime needs of a core is imported from here."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from .due import due, next_due

if TYPE_CHECKING or os.environ.get("CENOTE_PURE") == "1":
    from .front import Acquire, Front, adopt
    from .parts import Claim, Slot
    from .pure import Core

    kind = "pure"
else:
    try:
        from .native import Acquire, Claim, Core, Front, Slot, adopt

        kind = "native"
    except ModuleNotFoundError:  # not compiled; one that does not load is an error
        failure = Path(__file__).with_name("build_failure.txt")
        if failure.exists():
            reason = failure.read_text(encoding="utf-8", errors="replace").rstrip()
            warnings.warn(
                f"cenote runs on its pure core, several times slower, because the native one could "
                f"not be compiled:\n{reason}\nInstall a C compiler and the headers of Python "
                f"(Debian: gcc, python3-dev), install again; CENOTE_NATIVE=1 makes a failed "
                f"compilation an error, CENOTE_PURE=1 accepts the pure core.",
                RuntimeWarning,
                stacklevel=2,
            )
        from .front import Acquire, Front, adopt
        from .parts import Claim, Slot
        from .pure import Core

        kind = "pure"

__all__ = ["Acquire", "Claim", "Core", "Front", "Slot", "adopt", "due", "kind", "next_due"]
