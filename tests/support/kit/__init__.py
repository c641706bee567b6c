"""The helpers of the tests of the pool: resources, hooks, strategies, tasks, and a fake service."""

from tests.support.kit.hooks import STYLES, Fatal, Gate, Stubborn, raising, styled
from tests.support.kit.recording import (
    RaisingStrategy,
    RecordingStrategy,
    Tripwire,
    counts,
    kinds,
    line,
    recorded,
)
from tests.support.kit.resources import Moody, Thing, Things, drop
from tests.support.kit.service import HOOKS, SLOW, Broken, FakeService, NumberedThing, filled
from tests.support.kit.tasks import (
    Holding,
    acquiring,
    cancel,
    full,
    give_all,
    hang,
    obtain,
    outcome,
    start,
    started,
    take_all,
)

__all__ = [
    "HOOKS",
    "SLOW",
    "STYLES",
    "Broken",
    "FakeService",
    "Fatal",
    "Gate",
    "Holding",
    "Moody",
    "NumberedThing",
    "RaisingStrategy",
    "RecordingStrategy",
    "Stubborn",
    "Thing",
    "Things",
    "Tripwire",
    "acquiring",
    "cancel",
    "counts",
    "drop",
    "filled",
    "full",
    "give_all",
    "hang",
    "kinds",
    "line",
    "obtain",
    "outcome",
    "raising",
    "recorded",
    "start",
    "started",
    "styled",
    "take_all",
]
