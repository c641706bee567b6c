"""The helpers of the tests of the pool: resources, hooks, strategies, tasks, and a fake service."""

from tests.support.kit.hooks import STYLES, Gate, Stubborn, raising, styled
from tests.support.kit.recording import (
    Listener,
    RaisingStrategy,
    RecordingStrategy,
    Tripwire,
    line,
    recorded,
)
from tests.support.kit.resources import Thing, Things, drop
from tests.support.kit.service import HOOKS, SLOW, Broken, FakeService, NumberedThing
from tests.support.kit.tasks import (
    Holding,
    acquiring,
    cancel,
    give_all,
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
    "Gate",
    "Holding",
    "Listener",
    "NumberedThing",
    "RaisingStrategy",
    "RecordingStrategy",
    "Stubborn",
    "Thing",
    "Things",
    "Tripwire",
    "acquiring",
    "cancel",
    "drop",
    "give_all",
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
