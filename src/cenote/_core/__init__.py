"""Select the native or the pure core. The layers above import every core name from here."""

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from .expiry import expired, next_expiry

if TYPE_CHECKING or os.environ.get("CENOTE_PURE") == "1":
    from .histograms import Histograms
    from .machine import Core
    from .records import Claim, Slot

    kind = "pure"
else:
    try:
        from .native import Claim, Core, Histograms, Slot

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
        from .histograms import Histograms
        from .machine import Core
        from .records import Claim, Slot

        kind = "pure"

    # It switches the GIL on, unless that is forbidden; without it, it would corrupt memory.
    if kind == "native" and not getattr(sys, "_is_gil_enabled", lambda: True)():
        warnings.warn(
            "cenote runs on its pure core, several times slower, because the GIL is switched off "
            "(PYTHON_GIL=0 or -X gil=0), which its native core needs. CENOTE_PURE=1 accepts the "
            "pure core.",
            RuntimeWarning,
            stacklevel=2,
        )
        from .histograms import Histograms
        from .machine import Core
        from .records import Claim, Slot

        kind = "pure"

__all__ = ["Claim", "Core", "Histograms", "Slot", "expired", "kind", "next_expiry"]
