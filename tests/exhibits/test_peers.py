"""The parts of `make peers`: its list, its comparison, its reading of reports; and a short form."""

import re
from pathlib import Path

import pytest

from tests.exhibits.peers import expected
from tests.exhibits.peers.__main__ import PEERS, run_peer
from tests.exhibits.peers.expected import Entry, compare
from tests.exhibits.peers.fetch import Unavailable
from tests.exhibits.peers.peer import PLUGS, read_report

pytestmark = pytest.mark.once


def test_every_entry_of_the_list_is_of_a_known_peer() -> None:
    entries = expected.load()
    assert {entry.peer for entry in entries} <= {*PEERS}
    assert all(len(entry.reason) > 20 for entry in entries)


@pytest.mark.parametrize(
    "entry", ["test = 'x'", "peer = 'x'\ntest = 'y'\nreason = ''", "peer = 'x'\nfile = 'y'"]
)
def test_an_entry_without_a_reason_is_refused(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(f"[[expected]]\n{entry}\n")
    with pytest.raises(ValueError, match="must have peer, test and reason"):
        expected.load(path)


def test_what_the_adapter_alone_fails_is_new_or_reviewed() -> None:
    entries = expected_entries("known")
    original = {"a": "passed", "known": "passed", "both": "failed", "theirs": "failed"}
    adapted = {"a": "failed", "known": "failed", "both": "failed", "theirs": "passed"}
    verdict = compare("x", original, adapted, entries)
    assert verdict.new == ("a",)
    assert verdict.reviewed == {"known": "private"}
    assert verdict.only_original == ("theirs",)
    assert compare("y", original, adapted, entries).new == ("a", "known")


def test_what_did_not_run_with_the_adapter_is_new() -> None:
    original = {"skipped": "passed", "missing": "passed", "never": "skipped"}
    verdict = compare("x", original, {"skipped": "skipped", "never": "failed"}, [])
    assert verdict.new == ("missing", "never", "skipped")


def test_report_gives_the_worst_end_of_each_test(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text("""<testsuites><testsuite>
        <testcase classname="t.A" name="good"/>
        <testcase classname="t.A" name="bad"><failure message="x"/></testcase>
        <testcase classname="t.A" name="ends_badly"/>
        <testcase classname="t.A" name="ends_badly"><error message="x"/></testcase>
        <testcase classname="t.A" name="left_out"><skipped message="x"/></testcase>
    </testsuite></testsuites>""")
    assert read_report(path) == {
        "t.A::good": "passed",
        "t.A::bad": "failed",
        "t.A::ends_badly": "failed",
        "t.A::left_out": "skipped",
    }


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", [*PEERS])
def test_its_own_tests_pass_with_the_adapter(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        new = run_peer(PEERS[name], short=True)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert new == [], capsys.readouterr().out


def test_every_peer_has_its_plug() -> None:
    assert {f"{peer.plug}.py" for peer in PEERS.values()} == {
        path.name for path in PLUGS.glob("*.py")
    }


def expected_entries(test: str) -> list[Entry]:
    return [Entry("x", re.compile(test), "private")]
