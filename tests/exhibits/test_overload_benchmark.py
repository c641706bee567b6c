"""The benchmark of overload works, shown with tiny numbers: they mean nothing."""

from xml.etree import ElementTree

import pytest
from benchmarks import overload, overload_servers
from benchmarks.plots import both

pytestmark = [pytest.mark.own_loop, pytest.mark.once]


def test_a_lane_keeps_a_site_quick_beside_a_batch_job() -> None:
    without, _ = overload.simulate_batch(lane=False)
    within, stints = overload.simulate_batch(lane=True)
    assert without.p99 > 4 * within.p99
    assert within.goodput > 0.95
    assert stints > 0.9 * overload.LANE / overload.STINT


def test_simulations_are_shown_as_a_table_and_a_plot(
    tmp_path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overload, "SECONDS", 2.0)
    monkeypatch.setattr(overload, "WARM_UP", 1.0)
    (tmp_path / "shown.md").write_text("before <!-- bench: overload --><!-- /bench: overload -->")
    overload.main(["--output", str(tmp_path / "shown")])
    output = capsys.readouterr().out
    for text in (overload.BARE, overload.SHEDDING, "load 10", "without a lane", "batch in a lane"):
        assert text in output
    for theme in ("light", "dark"):
        ElementTree.fromstring((tmp_path / "shown" / f"overload-{theme}.svg").read_text())
    page = (tmp_path / "shown.md").read_text()
    assert page.startswith("before <!-- bench: overload -->\nOn cenote ")
    assert "**Overload, simulated**" in page
    assert overload.SHEDDING in page


def test_every_pool_is_asked_on_a_real_server(postgres_server) -> None:
    for module in ("asyncpg", "psycopg_pool", "sqlalchemy"):
        pytest.importorskip(module)
    found = overload_servers.measure(0.3, (0.2, 2.0), postgres_server)
    names = {overload.BARE, overload.SHEDDING, "asyncpg.Pool", "psycopg_pool", "SQLAlchemy"}
    assert found.keys() == names
    assert all(by_load.keys() == {0.2, 2.0} for by_load in found.values())
    assert all(name in str(overload.table("Overload", found)) for name in names)
    for drawing in both("overload", overload.chart({"PostgreSQL": found})).values():
        assert all(name in drawing for name in names)


def test_a_load_without_an_answer_has_no_times() -> None:
    nothing = overload.outcome([], 100)
    assert nothing.goodput == 0.0
    assert overload.cell(nothing) == "0%"
