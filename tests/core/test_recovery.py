"""The places of a recovery: which claims are admitted, and which are reported."""

from collections.abc import Callable
from typing import Any

import pytest

from cenote._core import Claim, Slot
from cenote.states import (
    CircuitState,
)
from tests.support.cores import NOW, idle, leased, new_claim, reserved, waiting

pytestmark = pytest.mark.once  # both cores, side by side


def admitted(core: Any) -> Claim | None:
    claim = new_claim(core)
    return claim if core.admit(claim) else None


def test_active_admits_everybody_and_inactive_nobody(make: Any) -> None:
    core = make()
    assert all(admitted(core) for _ in range(5))
    core.set_circuit(CircuitState.INACTIVE)
    assert admitted(core) is None
    assert core.probes_in_use == 0


def test_recovering_admits_as_many_as_its_limit(make: Any) -> None:
    core = make(recovering_limit=2)
    core.set_circuit(CircuitState.RECOVERING)
    assert [bool(admitted(core)) for _ in range(4)] == [True, True, False, False]


def hold_and_return(core: Any, claim: Claim) -> Slot:
    slot = reserved(core)
    core.hold(claim, slot, NOW)
    core.reclaim(slot)
    assert admitted(core) is None  # as long as its hook looks at it
    return slot


PLACE_ENDS: dict[str, Callable[[Any, Claim], object]] = {
    "dismissed": lambda core, claim: core.dismiss(claim),
    "left the queue": lambda core, claim: (core.wait(claim), core.leave(claim)),
    "failed": lambda core, claim: (core.wait(claim), core.fail(claim, ValueError())),
    "returned": lambda core, claim: core.put(hold_and_return(core, claim), NOW),
    "destroyed": lambda core, claim: core.retire(hold_and_return(core, claim)),
}


@pytest.mark.parametrize("end", PLACE_ENDS)
def test_a_place_is_free_again_however_the_probe_ends(make: Any, end: str) -> None:
    core = make()
    core.set_circuit(CircuitState.RECOVERING)
    claim = admitted(core)
    assert claim is not None
    assert admitted(core) is None
    PLACE_ENDS[end](core, claim)
    assert admitted(core) is not None
    assert admitted(core) is None


def test_a_place_is_given_back_once(make: Any) -> None:
    core = make()
    core.set_circuit(CircuitState.RECOVERING)
    claim = admitted(core)
    core.dismiss(claim)
    core.dismiss(claim)
    assert core.probes_in_use == 0


def test_a_place_is_of_one_recovery_only(make: Any) -> None:
    core = make()
    core.set_circuit(CircuitState.RECOVERING)
    old = admitted(core)
    core.set_circuit(CircuitState.INACTIVE)
    core.set_circuit(CircuitState.RECOVERING)
    assert admitted(core) is not None
    assert old is not None
    core.dismiss(old)
    assert core.probes_in_use == 1


def test_what_was_out_before_the_recovery_takes_no_place(make: Any) -> None:
    core = make()
    slot = leased(core)
    core.set_circuit(CircuitState.RECOVERING)
    core.reclaim(slot)
    core.put(slot, NOW)
    assert core.probes_in_use == 0
    assert admitted(core) is not None
    assert admitted(core) is None


def test_waiters_from_before_are_served_within_the_limit(make: Any) -> None:
    core = make(recovering_limit=2)
    claims = waiting(core, 3)
    idle(core, 5)
    core.set_circuit(CircuitState.RECOVERING)
    assert core.waiters_without_probe == 3
    assert [core.grant(), core.grant(), core.grant()] == [*claims[:2], None]
    assert (core.probes_in_use, core.waiters_without_probe) == (2, 1)
    core.leave(claims[0])
    assert core.grant() is claims[2]
    assert (core.probes_in_use, core.waiters_without_probe) == (2, 0)


def test_places_are_kept_for_waiters_from_before(make: Any) -> None:
    core = make(recovering_limit=2)
    claims = waiting(core, 2)
    core.set_circuit(CircuitState.RECOVERING)
    assert admitted(core) is None
    core.leave(claims[0])
    assert admitted(core) is not None
    assert admitted(core) is None


def test_demand_keeps_to_the_limit(make: Any) -> None:
    core = make(recovering_limit=2, sync_factory=False)
    waiting(core, 5)
    core.set_circuit(CircuitState.RECOVERING)
    assert core.demand() == 2
    idle(core)
    core.grant()
    assert core.demand() == 1
    core.set_circuit(CircuitState.ACTIVE)
    assert core.demand() == 4


def test_a_probe_that_waits_has_its_place_already(make: Any) -> None:
    core = make(sync_factory=False)
    core.set_circuit(CircuitState.RECOVERING)
    probe = admitted(core)
    core.wait(probe)
    assert (core.probes_in_use, core.waiters_without_probe, core.demand()) == (1, 0, 1)
    idle(core)
    assert core.grant() is probe
    assert core.probes_in_use == 1


def test_an_earlier_waiter_that_waits_again_comes_first(make: Any) -> None:
    core = make(max_size=1)
    (old,) = waiting(core)
    slot = idle(core)[0]
    assert core.grant() is old
    core.set_circuit(CircuitState.RECOVERING)
    assert not core.admit(
        new_claim(core)
    )  # or it would wait behind the old one, with the only place
    core.retire(slot)  # before_acquire has rejected it
    core.wait(old)
    core.finish(slot)
    assert core.grant() is old


def test_the_end_of_a_recovery_lets_everybody_pass(make: Any) -> None:
    core = make()
    claims = waiting(core, 2)
    idle(core, 2)
    core.set_circuit(CircuitState.RECOVERING)
    assert [core.grant(), core.grant()] == [claims[0], None]
    core.set_circuit(CircuitState.ACTIVE)
    assert (core.probes_in_use, core.waiters_without_probe) == (0, 0)
    assert core.grant() is claims[1]


def test_only_probes_report_while_recovering(make: Any) -> None:
    core = make()
    assert core.reports(0)
    core.set_circuit(CircuitState.RECOVERING)
    probe = admitted(core)
    assert probe is not None
    assert not core.reports(0)
    assert core.reports(probe.probe)
    core.set_circuit(CircuitState.INACTIVE)
    core.set_circuit(CircuitState.RECOVERING)
    assert not core.reports(probe.probe)
