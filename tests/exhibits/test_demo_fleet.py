"""The demo of the fleet: eight processes, one budget, a kill and a rolling deploy."""

import re
import subprocess

import pytest

from cenote.demo import fleet
from tests.support.terminal import Terminal, run

pytestmark = [pytest.mark.once, pytest.mark.exhibit]

STATUS = re.compile(
    r"(\d+) process(?:es)?: (\d+) of (\d+) lent, (\d+) needed; [\d,]+/s; (\d+) failed"
)


@pytest.fixture(scope="module")
def done() -> "subprocess.CompletedProcess[str]":
    """Its short form, without a terminal."""
    return run("demo", "--fleet", "--fast", "--no-page")


def test_it_plays_to_its_end(done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    said = [line.removeprefix("* ") for line in done.stdout.splitlines() if line.startswith("* ")]
    for line, beginning in zip(
        said,
        (
            "8 processes share 24 connections",
            "rush hour in process",
            "everybody is busy",
            "process ",
            "the others have them back",
            "a rolling deploy",
            "the old ones end one after the other",
        ),
        strict=True,
    ):
        assert line.startswith(beginning)
    assert "too slow" not in done.stdout


def test_nothing_is_lost_and_nothing_fails(done: "subprocess.CompletedProcess[str]") -> None:
    summary = done.stdout.partition("Summary\n")[2]
    assert re.search(r"operations +[\d,]+ served, 0 failed", summary)
    assert "1 killed, 7 replaced, 8 serving at the end" in summary
    assert "50,000 before, 50,000 after, not a coin is lost" in summary
    assert f"at most {fleet.BUDGET} were lent at any time" in summary


def test_the_budget_is_kept_in_every_picture(done: "subprocess.CompletedProcess[str]") -> None:
    pictures = [tuple(map(int, found)) for found in STATUS.findall(done.stdout)]
    assert len(pictures) > 5
    assert {budget for _, _, budget, _, _ in pictures} == {fleet.BUDGET}
    assert max(lent for _, lent, _, _, _ in pictures) == fleet.BUDGET
    assert max(needed for _, _, _, needed, _ in pictures) > fleet.BUDGET  # they are short
    assert pictures[-1][0] == fleet.PROCESSES + 1  # and the one that audits
    assert {failed for *_, failed in pictures} == {0}


def test_a_terminal_has_the_table_of_all_processes() -> None:
    terminal = Terminal("--fleet", "--fast", "--no-color", columns=80)
    text = terminal.read()
    assert terminal.end() == 0
    pictures = text.split("\x1b[J")
    assert len(pictures) > 10
    last = pictures[-1]
    assert len(re.findall(r"^ +\d+ new ", last, re.MULTILINE)) == fleet.PROCESSES
    assert len(re.findall(r"^ +\d+ audit ", last, re.MULTILINE)) == 1
    widest = max(len(line) for line in re.sub(r"\x1b\[[\d;?]*\w", "", last).splitlines())
    assert widest < 80


def test_an_interrupt_leaves_no_process_behind() -> None:
    terminal = Terminal("--fleet", "--fast")
    text = terminal.read(b" old ")
    assert terminal.interrupt() == 130
    rows = re.findall(r"(\d+) (?:old|audit) ", text)
    assert rows
    for process in {int(row) for row in rows}:
        assert not alive(process), process


def alive(process: int) -> bool:
    found = subprocess.run(["ps", "-p", str(process)], capture_output=True)
    return found.returncode == 0


def test_it_is_not_repeated() -> None:
    done = run("demo", "--fleet", "--serve")
    assert done.returncode == 2
    assert "--serve repeats the demo of one process" in done.stderr
