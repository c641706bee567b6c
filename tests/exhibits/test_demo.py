"""The demo, as a program: on a pipe, on a terminal, and interrupted."""

import io
import os
import random
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import cenote
from cenote.demo import play, screen
from cenote.observe import PoolEvent
from tests.support.terminal import COMMAND, PATIENCE, Terminal, environment, run

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def done() -> "subprocess.CompletedProcess[str]":
    """The demo without a terminal."""
    return run("demo", "--fast", "--seed", "3", "--no-page")


def test_the_demo_runs_without_a_terminal(done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100

    states = re.findall(r" breaker +(open|half-open|closed)[: ]", done.stdout)
    assert states[:3] == ["open", "half-open", "closed"]
    assert re.search(r" 100% breaker closed; 0 used \+ \d+ idle = \d+ open", done.stdout)
    assert "forgetful' ends in a transaction, without a commit" in done.stdout
    assert done.stdout.count("connections are cut; whoever meets one gets another") == 1
    assert re.search(r" \d+ connections cut, \d+ replaced, \d+ operations failed\n", done.stdout)
    gone, back = map(done.stdout.index, ("the database is gone", "the database is back"))
    assert " replaced " not in done.stdout[gone:back]  # by what?
    told = done.stdout.count("rolled back: all 50,000 are there, and its connection is free")
    assert told > 0
    assert re.search(rf"forgotten +{told} transactions +rolled back\n", done.stdout)


def test_the_numbers_of_the_summary_agree(done: "subprocess.CompletedProcess[str]") -> None:
    summary = done.stdout[done.stdout.index("Summary") :]

    def numbers(pattern: str) -> list[int]:
        found = re.search(pattern, summary)
        assert found, summary
        return [int(number.replace(",", "")) for number in found.groups()]

    served, failed = numbers(r"operations +([\d,]+) served +([\d,]+) failed")
    created, destroyed, still, closing = numbers(
        r"connections +(\d+) created +(\d+) destroyed +(\d+) open +(\d+) closing"
    )
    before, after = numbers(r"money +([\d,]+) before +([\d,]+) after +not a coin is lost")
    acquired, returned = numbers(r"leases +([\d,]+) acquired +([\d,]+) returned")
    errors = re.findall(r"\w+Error ([\d,]+)", summary)
    reasons = section(summary, "destroyed", "leases")
    assert created == destroyed + still + closing
    assert destroyed == sum(map(int, re.findall(r"\w+ (\d+)", reasons)))
    assert acquired == returned
    assert before == after
    assert failed == sum(int(number.replace(",", "")) for number in errors)
    assert served > 0
    assert re.search(r"wait +p50 [\d.]+ ms +p99 [\d.]+ ms +max [\d.]+ ms", summary)

    kinds = section(summary, "errors", "connections")
    assert "ServiceUnavailableError" in kinds
    assert "AcquireTimeoutError" in kinds
    message = " ".join(section(summary, "3 a.m.", None).split())
    assert "pool 'shop': no resource within" in message
    assert "held by task '" in message
    assert re.search(r"\(cenote[/\\]demo[/\\]play\.py:\d+\)", message)


def test_the_numbers_add_up_in_every_frame(done: "subprocess.CompletedProcess[str]") -> None:
    frames = re.findall(r"(\d+) used \+ (\d+) idle = (\d+) open", done.stdout)
    assert len(frames) > 3
    for active, idle, still in frames:
        assert int(active) + int(idle) == int(still) <= 20


@pytest.mark.real_time("threads of SQLite")
async def test_what_was_created_is_open_or_closing_in_every_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    story = short_play(monkeypatch)
    story.screen._live = True
    seen = 0
    draw = story.screen._panel

    def check(demo: play.Play, *, last: bool) -> list[screen.Line]:
        nonlocal seen
        panel = draw(demo, last=last)
        text = "\n".join("".join(part for part, _ in line) for line in panel)
        stats = demo.pool.stats()
        found = re.search(r"(\d+) open(?:, (\d+) closing)?", text)
        assert found
        shown = int(found[1]) + int(found[2] or 0)
        assert shown == stats.created - sum(stats.destroyed.values())
        busy = re.search(r"(\d+) and (\d+) idle", text)
        assert busy
        assert int(busy[1]) + int(busy[2]) == int(found[1])
        seen += 1
        return panel

    monkeypatch.setattr(story.screen, "_panel", check)
    async with story:
        await story.once()
    assert seen > 3


@pytest.mark.real_time("threads of SQLite")
async def test_the_rate_is_that_of_the_last_second() -> None:
    clock = iter([0.0, 0.5, 1.0, 1.5, 2.0, 9.0, 9.5])
    tally = screen.Tally(0.0)
    rates = []
    tally.elapsed = lambda: next(clock)  # type: ignore[method-assign]
    for served in (0, 50, 100, 100, 100, 100, 110):
        tally.served = served
        rates.append(round(tally.rate()))
    assert rates == [0, 100, 100, 50, 0, 0, 1]


@pytest.mark.real_time("threads of SQLite")
async def test_the_first_picture_has_a_rate() -> None:
    tally = screen.Tally(0.0)
    tally.elapsed = lambda: 0.5  # type: ignore[method-assign]
    tally.served = 50
    assert tally.rate() == 100


def test_the_bar_of_the_breaker_ends_with_the_outage() -> None:
    """However many probes fail in it: a column is a second, and not a switch."""
    active, probing, broken = screen.SEVERITY
    switches = [(0.0, active)]
    for second in range(37, 44):
        switches += [(second + 0.2, broken), (second + 0.9, probing)]
    switches.append((44.5, active))
    demo = cast("play.Play", SimpleNamespace(length=60.0, tally=SimpleNamespace(states=switches)))
    drawn = screen.Screen(Paper(), color=False)._states(demo, 50, 60)
    assert "".join(text for text, _ in drawn) == "━" * 37 + "▒" * 7 + "╍" + "━" * 5 + " " * 10


def test_what_a_timeout_says_is_not_cut() -> None:
    lines: list[str] = []
    shown = screen.Screen(Paper(), color=False)
    shown.print = lines.append  # type: ignore[method-assign, assignment]
    holder = cenote.Holder(None, "nightly-report", 42.0, "app/jobs.py", 88)
    error = cenote.AcquireTimeoutError(
        "pool 'shop': no resource within 0.1 s (20 active, 57 waiting); held by task 'x'; y",
        (holder, holder),
    )
    shown._print_news(1.0, "error", screen.essence(error))
    said = " ".join(" ".join(lines).split())
    assert said.endswith("held by task 'nightly-report' for 42 s (app/jobs.py:88), and 1 more")
    assert max(map(len, lines)) <= shown.width()


def test_the_page_stays_until_enter() -> None:
    terminal = Terminal("--fast", page=True)
    terminal.read(until=b"The page stays until you press Enter: ")
    output = terminal.read(until=b"/\r\n")
    address = re.findall(r"press Enter: (http://127\.0\.0\.1:\d+/)", output)[-1]
    with urllib.request.urlopen(address, timeout=PATIENCE) as page:
        assert b"cenote" in page.read()
    terminal.write(b"\n")
    assert terminal.end() == 0


def section(text: str, begin: str, end: str | None) -> str:
    start = re.search(rf"(^  |says at ){re.escape(begin)}", text, re.MULTILINE)
    assert start, text
    rest = text[start.end() :]
    return rest if end is None else rest[: rest.index(f"\n  {end}")]


def test_a_terminal_is_drawn_in_place() -> None:
    terminal = Terminal("--fast")
    assert terminal.end() == 0
    output = terminal.output.decode()
    pictures = output.count("\x1b[J")
    assert pictures > 10
    assert len(re.findall(r"\x1b\[\d+A\x1b\[J", output)) == pictures
    assert output.index("\x1b[?25l") < output.index("\x1b[J")
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[J")
    assert "\x1b[32m" in output
    assert "Summary" in output


@pytest.mark.parametrize(("arguments", "more"), [(["--no-color"], {}), ([], {"NO_COLOR": "1"})])
def test_no_color_leaves_out_every_color(arguments: list[str], more: dict[str, str]) -> None:
    terminal = Terminal("--fast", *arguments, **more)
    output = terminal.read(until=b"rush hour")
    assert "\x1b[J" in output
    assert re.search(r"\x1b\[\d*m", output) is None
    terminal.interrupt()


def test_a_narrow_terminal_is_not_overrun() -> None:
    terminal = Terminal("--fast", "--no-color", columns=44)
    assert terminal.end() == 0
    shown = re.sub(r"\x1b\[\??\d*[A-Za-z]", "", terminal.output.decode())
    assert max(len(line) for line in shown.splitlines()) <= 44


def test_an_interrupt_ends_it_cleanly() -> None:
    terminal = Terminal()
    terminal.read(until=b"calm day")
    assert terminal.interrupt() == 130
    output = terminal.output.decode()
    assert output.rstrip().endswith("interrupted")
    assert "Traceback" not in output
    assert "\x1b[?25h" in output


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM on Windows")
def test_a_termination_ends_it_cleanly(tmp_path: Path) -> None:
    terminal = Terminal(TMPDIR=str(tmp_path))
    terminal.read(until=b"calm day")
    assert os.listdir(tmp_path)
    assert terminal.interrupt(signal.SIGTERM) == 143
    output = terminal.output.decode()
    assert output.rstrip().endswith("terminated")
    assert "Traceback" not in output
    assert "\x1b[?25h" in output
    assert os.listdir(tmp_path) == []


def test_plain_characters_where_others_cannot_be_shown() -> None:
    terminal = Terminal("--fast", PYTHONIOENCODING="ascii")
    terminal.read(until=b"rush hour")
    terminal.interrupt()
    assert terminal.output.isascii()


def test_help_lists_the_options_of_the_demo() -> None:
    assert "demo" in run("--help").stdout
    assert "--fast" in run("demo", "--help").stdout
    assert "demo" in run().stdout


def test_the_page_can_be_watched_until_an_interrupt() -> None:
    process = subprocess.Popen(
        [*COMMAND, "demo", "--fast", "--serve"],
        env=environment(PYTHONUNBUFFERED="1"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        first = process.stdout.readline()
        found = re.fullmatch(r"Watch it live: (http://127\.0\.0\.1:\d+/)\n", first)
        assert found, first
        with urllib.request.urlopen(found[1], timeout=PATIENCE) as page:
            assert b"cenote" in page.read()
        summaries = 0
        while summaries < 2:  # it goes on after the end
            summaries += process.stdout.readline().startswith("Summary")
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(PATIENCE) == 130
        assert rest.rstrip().endswith("interrupted")
        assert "Traceback" not in rest
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_port_that_is_taken_costs_only_the_page() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("demo", "--fast", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 0
    assert done.stderr.startswith("no page: port ")
    assert "not a coin is lost" in done.stdout


real = pytest.mark.real_time("threads of SQLite")
SHORT = (
    play.Act("somebody forgets to commit", 8.0, query=0.04, pause=0.5, forgetful=True),
    play.Act("the end", 1.0, query=0.04, pause=0.5),
)


class Paper(io.StringIO):
    encoding = "utf-8"


def short_play(monkeypatch: pytest.MonkeyPatch, kind: type[play.Play] = play.Play) -> play.Play:
    monkeypatch.setattr(play, "ACTS", SHORT)
    return kind(random.Random(1), 0.1, screen.Screen(Paper(), color=False))


@real
async def test_the_forgetful_task_sits_in_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    held = []
    until_it_was = replace(SHORT[0], point=lambda play: play.rolled_back > 0)

    def hear(event: PoolEvent) -> None:
        if event.kind == "released" and event.task == play.FORGETFUL:
            held.append(event.duration)

    async with short_play(monkeypatch) as story:
        monkeypatch.setattr(play, "ACTS", (until_it_was, *SHORT[1:]))
        story.pool.subscribe(hear)
        await story.once()
    assert len(held) >= story.rolled_back > 0
    assert held[0] is not None
    assert held[0] > play.SIT * story.pace * 0.9  # several pictures of the page


@real
async def test_however_slow_the_machine_every_act_makes_its_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Acts that are over at once: as if nothing could happen in their time."""
    monkeypatch.setattr(play, "ACTS", [replace(act, length=0.0) for act in play.ACTS])
    story = play.Play(random.Random(1), 0.1, screen.Screen(Paper(), color=False))
    async with story:
        await story.once()
    shown = story.screen._stream.getvalue()
    assert story.rolled_back > 0
    assert re.search(r" \d+ connections cut, [1-9]\d* replaced, ", shown)
    states = [str(state) for _, state in story.tally.states]
    assert states[:3] == ["ACTIVE", "INACTIVE", "RECOVERING"]
    assert states[-2:] == ["RECOVERING", "ACTIVE"]
    assert {"AcquireTimeoutError", "ServiceUnavailableError"} <= story.tally.errors.keys()
    assert "not a coin is lost" in shown


class Thief(play.Play):
    """Has taken a coin already, and committed that."""

    async def _take_everything(self) -> None:
        await self.db.execute("update accounts set balance = balance - 1 where id = 1")
        await super()._take_everything()


@real
async def test_what_was_not_rolled_back_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with short_play(monkeypatch, Thief) as story:
        await story.once()
    shown = story.screen._stream.getvalue()
    assert re.search(r"error +NOT rolled back: 49,\d+ of 50,000 are there", shown)
    assert "rolled back: all" not in shown
    assert re.search(r"forgotten +0 transactions +rolled back", shown)
    assert "MONEY IS LOST" in shown


@real
async def test_a_round_is_summed_up_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with short_play(monkeypatch) as story:
        await story.once()
        before = story.pool.stats()
        first = story.screen._stream.getvalue()
        await story.once()
        after = story.pool.stats()
    shown = story.screen._stream.getvalue().removeprefix(first)
    leases = re.search(r"leases +([\d,]+) acquired +([\d,]+) returned", shown)
    assert leases
    acquired, released = (int(number.replace(",", "")) for number in leases.groups())
    assert acquired == after.acquired - before.acquired
    assert released == after.released - before.released
    assert re.search(rf"connections .* {after.created - before.created} created", shown)
    assert re.search(rf"forgotten +{shown.count('rolled back: all')} transactions", shown)
