"""What cenote tests itself with, for the tests of programs that use it.

Nothing here is imported by `import cenote`. See `docs/testing.md`.
"""

from .fault_proxy import Counts, FaultProxy
from .ledger import check_ledger, imbalance
from .rolled_back import rolled_back
from .virtual_loop import Deadlocked, VirtualLoop, advance, now, settle

__all__ = [
    "Counts",
    "Deadlocked",
    "FaultProxy",
    "VirtualLoop",
    "advance",
    "check_ledger",
    "imbalance",
    "now",
    "rolled_back",
    "settle",
]
