"""The simulation of many processes works, shown with few of them."""

from xml.etree import ElementTree

import pytest
from benchmarks import fleet

pytestmark = [pytest.mark.own_loop, pytest.mark.once]


def test_a_small_fleet_is_simulated_and_drawn(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for _ in range(2):
        fleet.main(["--processes", "20", "--seconds", "5", "--output", str(tmp_path)])
        runs.append(capsys.readouterr().out)
    assert runs[0] == runs[1]  # it follows from the seed
    assert "20 processes, steady" in runs[0]
    assert "40 of 40" in runs[0]  # no more were open than the budget
    for theme in ("light", "dark"):
        ElementTree.fromstring((tmp_path / f"fleet-{theme}.svg").read_text())


def test_what_is_killed_comes_back_within_ttl() -> None:
    async def scene() -> tuple[float, fleet.Course]:
        site = await fleet.started(10, 20, 1, fleet.MANY)
        return await fleet.deaths(site, 3)

    took, course = fleet.play(scene())
    assert took < 1.2 * fleet.TTL + 2
    assert min(percent for _, percent in course) < 90
    assert course[-1][1] > 99


@pytest.mark.exhibit
@pytest.mark.driver
def test_real_processes_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("asyncpg")
    from benchmarks import processes

    processes.main(["--rounds", "1", "--only", "move"])
    assert "40 connections move" in capsys.readouterr().out
