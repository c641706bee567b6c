"""Draws the pictures of the architecture into docs/images/architecture, and docs/states.md.

With --check: fails if a file is not what would be drawn now. What can be read from the code is
read from it (rooms, states, fields); tests/docs/test_pictures.py looks for the names in the others.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "src")]

import draw_database  # noqa: E402
import draw_states  # noqa: E402
from drawing import LINE, Flow, Kind, Sequence, box, document, path, width_of, words  # noqa: E402

from cenote._core import machine, records  # noqa: E402

FOLDER = ROOT / "docs" / "images" / "architecture"


# -- the rooms -----------------------------------------------------------------------------------


class Rooms:
    """The rows of tests/project/test_imports.py, which is the law of imports."""

    title = "The rooms: a module imports from its own row and from those above it"
    about: tuple[tuple[str, Kind], ...] = (
        ("words, checks, the law of the states", "plain"),
        ("decides: synchronous, calls nobody; in C and in Python", "core"),
        ("acts without suspending: acquire and release; in C and in Python", "core"),
        ("asyncio: does what was decided", "act"),
        ("what may be seen of it: the door for those that watch", "plain"),
        ("the database layer: which task has which connection, and why", "wait"),
        ("one module for each database driver", "hook"),
        ("one budget and one circuit breaker for many processes", "act"),
        ("the public names", "good"),
        ("they only watch; and the pool under the interfaces of other libraries", "plain"),
        ("what programs test themselves with", "plain"),
        ("the demo", "quiet"),
        ("the command line", "quiet"),
    )

    def rows(self) -> list[list[str]]:
        tree = ast.parse(
            (ROOT / "tests" / "project" / "test_imports.py").read_text(encoding="utf-8")
        )
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROWS":
                rows = eval(compile(ast.Expression(node.value), "ROWS", "eval"))
                return [sorted(row) for row in rows]
        raise LookupError("tests/project/test_imports.py has no ROWS")

    @property
    def texts(self) -> list[str]:
        return [self.title, *(text for text, _ in self.about)]

    def svg(self) -> str:
        parts, y, left, wide = [], 0.0, 34.0, 800.0
        for row, (text, kind) in zip(self.rows(), self.about, strict=True):
            lines = [[]]
            used = 0.0
            for module in row:
                w = width_of(f"`{module}`") + 20
                if used + w > wide - 40:
                    lines.append([])
                    used = 0.0
                lines[-1].append((module, used, w))
                used += w + 10
            h = 34 + len(lines) * 32
            parts.append(box(left, y, wide, h, kind))
            parts.append(words(left + 14, y + 17, text, cls="d", anchor="start"))
            for number, line in enumerate(lines):
                for module, x, w in line:
                    top = y + 30 + number * 32
                    parts.append(box(left + 14 + x, top, w, 25, "quiet", radius=4))
                    parts.append(words(left + 14 + x + w / 2, top + 12.5, f"`{module}`"))
            y += h + 10
        parts.append(path([(12, y - 20), (12, 6)]))
        return document(self.title, left + wide, y - 10, parts)


# -- the data structures -------------------------------------------------------------------------


class Structures:
    """The fields of the core's objects with their comments, read from the source."""

    title = "The data structures of the core"

    records: tuple[tuple[str, type, Kind, tuple[str, ...]], ...] = (
        ("`Core`: one pool", machine.Core, "core", ()),
        ("`Slot`: one place in the pool", records.Slot, "good", ()),
        ("`Claim`: one acquire", records.Claim, "wait", ()),
    )
    texts = (title, "`Core.idle`", "`Core.leased`", "`Core.first`", "`Core.last`",
             "`Core.granted`", "`Slot.same_resource`", "`Claim.next`")  # fmt: skip

    def fields(self, kind: type) -> list[tuple[str, str]]:
        source = inspect.getsource(kind)
        found = re.findall(r"^ {8}self\.(\w+)(?:: [^=]+)? = [^#\n]*  # (.+)$", source, re.M)
        return list(dict(found).items())

    def svg(self) -> str:
        parts: list[str] = []
        self._ring(parts, 0, 0)
        self._table(parts, 320, 0)
        self._queue(parts, 0, 158)
        top, left_width, right_width = 292.0, 0.0, 0.0
        cards = []
        for title, cls, kind, _ in self.records:
            rows = self.fields(cls)
            name = max(width_of(f"`{field}`") for field, _ in rows) + 14
            wide = name + max(width_of(text, 12) for _, text in rows) + 30
            cards.append((title, kind, rows, name, wide, len(rows) * LINE + 46))
        left_width = max(cards[0][4], cards[1][4])
        right_width = cards[2][4]
        y = top
        for card in cards[:2]:
            self._card(parts, 0, y, left_width, *card)
            y += card[5] + 16
        self._card(parts, left_width + 18, top, right_width, *cards[2])
        height = max(y - 16, top + cards[2][5])
        return document(self.title, left_width + 18 + right_width, height, parts)

    def _card(
        self, parts: list[str], x: float, y: float, wide: float, title: str, kind: Kind,
        rows: list[tuple[str, str]], name: float, _: float, high: float,
    ) -> None:  # fmt: skip
        parts.append(box(x, y, wide, high, kind))
        parts.append(words(x + 14, y + 20, title, cls="b", anchor="start"))
        for number, (field, text) in enumerate(rows):
            line = y + 46 + number * LINE
            parts.append(words(x + 14, line, f"`{field}`", anchor="start"))
            parts.append(words(x + 14 + name, line, text, cls="d", anchor="start"))

    def _ring(self, parts: list[str], x: float, y: float) -> None:
        parts.append(words(x, y + 8, "`Core.idle`: a ring; O(1) at both ends", anchor="start"))
        for number in range(8):
            kind: Kind = "good" if 2 <= number <= 5 else "quiet"
            parts.append(box(x + number * 32, y + 26, 32, 32, kind, radius=2))
        parts.append(words(x + 2 * 32 + 16, y + 76, "oldest", cls="d"))
        parts.append(words(x + 5 * 32 + 16, y + 76, "newest", cls="d"))
        parts.append(
            words(x, y + 104, "taken at the oldest end, or with `lifo`", cls="d", anchor="start")
        )
        parts.append(
            words(x, y + 121, "at the newest; 8 places at first, doubling", cls="d", anchor="start")
        )

    def _table(self, parts: list[str], x: float, y: float) -> None:
        text = "`Core.leased`: what is out, by identity of the resource"
        parts.append(words(x, y + 8, text, anchor="start"))
        for number, key in enumerate(("0x7f3a", "0x7f9c", "0x8101")):
            top = y + 26 + number * 30
            parts.append(box(x, top, 72, 26, "quiet", radius=2))
            parts.append(words(x + 36, top + 13, f"`{key}`"))
            parts.append(path([(x + 72, top + 13), (x + 104, top + 13)]))
            parts.append(box(x + 106, top, 50, 26, "good", radius=4))
            parts.append(words(x + 131, top + 13, "slot"))
        parts.append(path([(x + 156, y + 69), (x + 216, y + 69)], dashed=True))
        parts.append(words(x + 186, y + 58, "`twin`", cls="l"))
        parts.append(box(x + 218, y + 56, 50, 26, "good", radius=4))
        parts.append(words(x + 243, y + 69, "slot"))
        parts.append(
            words(x + 280, y + 69, "the identical resource, lent twice", cls="d", anchor="start")
        )

    def _queue(self, parts: list[str], x: float, y: float) -> None:
        text = (
            "The waiters, an intrusive list in the order of turns: append, pop and remove are O(1)"
        )
        parts.append(words(x, y + 8, text, anchor="start"))
        parts.append(words(x, y + 46, "`Core.first`", anchor="start"))
        parts.append(path([(x + 80, y + 46), (x + 110, y + 46)]))
        for number in range(4):
            left = x + 112 + number * 118
            parts.append(box(left, y + 28, 78, 36, "wait", radius=4))
            parts.append(words(left + 39, y + 46, f"turn {number + 7}"))
            if number < 3:
                parts.append(path([(left + 78, y + 40), (left + 116, y + 40)]))
                parts.append(path([(left + 118, y + 54), (left + 80, y + 54)]))
        end = x + 112 + 3 * 118 + 78
        parts.append(path([(end + 32, y + 46), (end + 2, y + 46)]))
        parts.append(words(end + 38, y + 46, "`Core.last`", anchor="start"))
        note = (
            "`Core.granted`: handed something, and not run yet. One that comes back keeps its turn."
        )
        parts.append(words(x, y + 92, note, cls="d", anchor="start"))


# -- the flows of the pool -----------------------------------------------------------------------


def acquire() -> Flow:
    f = Flow("acquire", gap=(58, 30))
    f.node("start", 0, 0, "`Pool.acquire`\nis awaited or entered", "act", "pill")
    f.node("closed", 0, 1, "closed, or draining?", "plain", "ask")
    f.node("e_closed", 1, 1, "`PoolClosedError`", "bad")
    f.node("breaker", 0, 2, "does the breaker let it in?\n`Core.admit`", "core", "ask")
    f.node("e_breaker", 1, 2, "`ServiceUnavailableError`", "bad")
    f.node("idle", 0, 3, "an idle one that no waiter is owed?\n`Core.take`", "core", "ask")
    f.node("hook", 2, 3, "`before_acquire`\naccepts it?", "hook", "ask")
    f.node("held", 3, 3, "holds it\n`Core.hold`", "good", "pill")
    f.node("room", 0, 4, "room below `max_size`, and a sync factory?\n`Core.permit`", "core", "ask")
    f.node("make", 1, 4, "`factory`, here", "hook")
    f.node("may", 0, 5, "may it wait?", "core", "ask")
    f.node("e_wait", 1, 5, "timeout 0: `AcquireTimeoutError`\nfull line: `PoolOverloadedError`\n"
           "a circle: `PoolDeadlockError`", "bad")  # fmt: skip
    f.node("wait", 0, 6, "waits, strictly first come, first served\n`Core.wait`", "wait")
    f.node("leave", 1, 6, "leaves; what it was handed\ngoes to the next\n`Claims.pass_on`", "bad")
    f.node("grant", 0, 7, "is handed what was released or made\n`Core.grant`", "core")
    f.node("pool", 1, 7.9, "async factory: the pool creates in tasks\n"
           "of its own, as many as are needed\n"
           "`Core.demand`, `Creations.start`", "act")  # fmt: skip
    f.edge("start", "closed")
    f.edge("closed", "e_closed", "yes")
    f.edge("closed", "breaker", "no")
    f.edge("breaker", "e_breaker", "no")
    f.edge("breaker", "idle", "yes")
    f.edge("idle", "hook", "yes", shift=(-10, -10), at=0.15)
    f.edge(
        "hook", "idle", "no: destroyed, and the next one is looked for", shift=(10, 10), below=True
    )
    f.edge("hook", "held", "yes")
    f.edge("idle", "room", "no")
    f.edge("room", "make", "yes")
    f.edge("make", "held", "", sides="ES", shift=(0, 14))
    f.edge("room", "may", "no")
    f.edge("may", "e_wait", "no")
    f.edge("may", "wait", "yes")
    f.edge("wait", "leave", "timeout, cancelled,\nclosed, breaker")
    f.edge("wait", "grant", "its turn")
    f.edge("grant", "hook", "a new one passes unseen", sides="ES", segment=0, at=0.72)
    f.edge("pool", "grant", "", sides="WS", dashed=True)
    return f


def release() -> Flow:
    f = Flow("release, and the end of a block", gap=(60, 30))
    f.node("start", 0, 0, "`Pool.release`, or the block ends", "act", "pill")
    f.node("out", 0, 1, "is this very resource out?\n`Core.find`", "core", "ask")
    f.node("e_out", 1, 1, "`NotAcquiredError`, nothing changes", "bad")
    f.node(
        "cut",
        0,
        2,
        "was the block left by a cancellation?\n`may_have_interrupted_use`",
        "act",
        "ask",
    )
    f.node("back", 0, 3, "in the pool's own hands\n`Core.reclaim`", "core")
    f.node("hook", 0, 4, "`before_release`\naccepts it?", "hook", "ask")
    f.node("fail", 1, 4, "`report_failure`", "act")
    f.node("good", 0, 5, "`report_success`", "act")
    f.node("fit", 0, 6, "fit to be used again?\n`Core.unfit`", "core", "ask")
    f.node("waits", 0, 7, "does somebody wait?\n`Engine.advance`", "core", "ask")
    f.node("next", 1, 7, "the oldest waiter has it\n`Core.grant`", "good", "pill")
    f.node("idle", 0, 8, "idle, in the ring\n`Core.put`", "good", "pill")
    f.node(
        "destroy",
        2,
        6,
        "`Destructions.destroy`\nthe `destructor`; async: in a task\nof the pool, bounded",
        "bad",
    )
    f.node("free", 2, 7, "its slot is free: `Core.finish`", "core")
    f.node(
        "more",
        2,
        8,
        "the next waiter creates,\nor `min_size` is restored\n`Engine.advance`",
        "act",
    )
    f.edge("start", "out")
    f.edge("out", "e_out", "no")
    f.edge("out", "cut", "yes")
    f.edge(
        "cut", "destroy", "yes, unless `reuse_after_cancel`", sides="EN", shift=(0, 40), segment=0
    )
    f.edge("cut", "back", "no")
    f.edge("back", "hook")
    f.edge("hook", "fail", "no")
    f.edge("fail", "destroy", "", sides="EN", shift=(0, -40))
    f.edge("hook", "good", "yes")
    f.edge("good", "fit")
    f.edge("fit", "destroy", "no: `max_lifetime`, `max_uses`,\n`retired`, `resized`, `closed`")
    f.edge("fit", "waits", "yes")
    f.edge("waits", "next", "yes")
    f.edge("waits", "idle", "no")
    f.edge("destroy", "free")
    f.edge("free", "more")
    return f


def health() -> Flow:
    f = Flow("The health check of idle resources", gap=(64, 32))
    f.node("timer", 0, 0, "every `healthcheck_interval`\n`Maintenance._start_round`", "act", "pill")
    f.node(
        "next",
        0,
        1,
        "one more of the round that is still idle?\n`Maintenance._check_next`",
        "act",
        "ask",
    )
    f.node("over", 1, 0, "the round is over;\nuntil the next tick", "quiet", "pill")
    f.node("take", 0, 2, "only this one is taken, and counts as active;\n"
           "the others stay available\n"
           "`Core.take_this`", "core")  # fmt: skip
    f.node("hook", 0, 3, "`healthcheck`\nwithin `hook_timeout`", "hook", "ask")
    f.node("good", 0, 4, "back, or to a waiter; its idle time goes on\n`Core.put_back`", "good")
    f.node("bad", 1, 3, "event `check_failed`, destroyed\n`Hooks.fail_check`", "bad")
    f.node("fill", 1, 4, "`min_size` is restored, with backoff\n`Maintenance.refill`", "act")
    f.edge("timer", "next")
    f.edge("next", "over", "no", sides="ES", shift=(-12, 0), segment=0)
    f.edge("next", "take", "yes")
    f.edge("take", "hook")
    f.edge("hook", "good", "accepts")
    f.edge("hook", "bad", "`False`, raises, too slow")
    f.edge("bad", "fill")
    f.edge("good", "next", "the next one", sides="WW", lane=40, segment=1, below=True)
    f.edge("bad", "next", "the next one", sides="NE", shift=(-60, 12), segment=0)
    return f


def breaker() -> Flow:
    f = Flow("The circuit breaker: who reports what to whom", gap=(150, 34))
    f.node("ok", 0, 0, "accepted on release", "good")
    f.node(
        "bad",
        0,
        1,
        "rejected by `before_release`,\n`Pool.discard` with an error,\nthe `factory` failed",
        "bad",
    )
    f.node("neither", 0, 2, "neither: a cancellation,\nan error in your SQL", "quiet")
    f.node(
        "strategy",
        1,
        1,
        "`CircuitBreakerStrategy`\n`ConsecutiveFailures`,\n`FailureRate`, or yours",
        "hook",
    )
    f.node("asks", 1, 2, "is it time to try?\n`should_recover`", "hook", "ask")
    f.node("ACTIVE", 2, 0, "ACTIVE\nall pass", "good", "pill")
    f.node("INACTIVE", 2, 1, "INACTIVE\nall fail at once", "bad", "pill")
    f.node("RECOVERING", 2, 3, "RECOVERING\n`recovering_limit` at a time", "wait", "pill")
    f.edge("ok", "strategy", "`report_success`", sides="EN", shift=(0, -40), segment=0)
    f.edge("bad", "strategy", "`report_failure`")
    f.edge(
        "strategy",
        "ACTIVE",
        "enough successes:\n`Pool.activate`",
        sides="NW",
        shift=(40, 0),
        segment=1,
    )
    f.edge("strategy", "INACTIVE", "enough failures:\n`Pool.deactivate`")
    f.edge("INACTIVE", "asks", "an acquire comes", sides="SE", shift=(-30, 0), segment=1)
    f.edge(
        "asks",
        "RECOVERING",
        "yes: that acquire is the probe\n`Pool.recover`",
        sides="SW",
        segment=1,
    )
    f.edge(
        "RECOVERING",
        "INACTIVE",
        "a failure:\nthe next try comes\ntwice as late",
        sides="NS",
        shift=(30, 30),
    )
    f.edge("RECOVERING", "ACTIVE", "successes", sides="EE", lane=34, segment=1)
    return f


def resource() -> Flow:
    f = Flow("The life of a resource, and every way in which it ends", gap=(56, 36))
    f.node("permit", 0, 0, "a permit, below `max_size`\n`Core.permit`", "core", "pill")
    f.node("factory", 1, 0, "`factory`\nwithin `create_timeout`", "hook")
    f.node(
        "failed",
        2,
        0,
        "failed: the oldest waiter is told,\nthe next one gets a try of its own",
        "bad",
    )
    f.node("made", 1, 1, "made, and counted: event `created`\n`Core.open_slot`", "core")
    f.node("idle", 0, 2, "idle", "good", "pill")
    f.node("out", 1, 2, "held by a task", "core", "pill")
    f.node("return", 2, 2, "on its way back\n`before_release`", "hook")
    f.node(
        "end0",
        0,
        3,
        "`max_idle`, `max_lifetime`,\n`check_failed`, `rejected`,\n`retired`, `resized`, `closed`",
        "quiet",
    )
    f.node("end1", 1, 3, "`discarded`, `cancelled`", "quiet")
    f.node(
        "end2",
        2,
        3,
        "`rejected`, `max_uses`,\n`max_lifetime`, `retired`,\n`resized`, `closed`",
        "quiet",
    )
    f.node("destructor", 1, 4, "`destructor`\nwithin `destructor_timeout`", "hook")
    f.node(
        "gone", 1, 5, "gone: event `destroyed` with the reason;\nthe slot is free", "bad", "pill"
    )
    f.node("late", 2, 1, "`late`, `open_failed`", "quiet")
    f.edge("permit", "factory")
    f.edge("factory", "failed")
    f.edge("factory", "made")
    f.edge("made", "late", "nobody wants it")
    f.edge("made", "out", "to a waiter")
    f.edge("made", "idle", "", sides="WN")
    f.edge("idle", "out", "`before_acquire`", shift=(0, 0))
    f.edge("out", "return")
    f.edge(
        "return",
        "idle",
        "accepted, nobody waits",
        sides="NN",
        shift=(30, 24),
        lane=26,
        segment=1,
        at=0.26,
        below=True,
    )
    f.edge("idle", "end0")
    f.edge("out", "end1")
    f.edge("return", "end2")
    f.edge("end0", "destructor", "", sides="SW")
    f.edge("end1", "destructor")
    f.edge("end2", "destructor", "", sides="SE")
    f.edge("late", "destructor", "", sides="EE", lane=70, shift=(0, 14))
    f.edge("destructor", "gone")
    return f


def cycle() -> Sequence:
    s = Sequence(
        "One cycle: acquire, use, release, and the hand-off to the next",
        [
            ("a", "task A", "plain"),
            ("pool", "the pool (`Pool`)", "act"),
            ("core", "the machine (`Core`)", "core"),
            ("hooks", "your hooks", "hook"),
            ("b", "task B", "plain"),
        ],
    )
    s.call("a", "pool", "`async with pool.acquire()`")
    s.call("pool", "core", "`Core.admit`, `Core.take`")
    s.answer("core", "pool", "an idle slot, now RESERVED")
    s.call("pool", "hooks", "`before_acquire`")
    s.answer("hooks", "pool", "fine")
    s.call("pool", "core", "`Core.hold`: LEASED to task A")
    s.answer("pool", "a", "the resource")
    s.begin("meanwhile")
    s.call("b", "pool", "`async with pool.acquire()`")
    s.call("pool", "core", "`Core.take`: nothing; `Core.wait`")
    s.note("b", "waits: a future\nthat carries nothing")
    s.end()
    s.begin("one step of the event loop: nobody can come in between")
    s.call("a", "pool", "the block ends")
    s.call("pool", "core", "`Core.reclaim`: RESERVED")
    s.call("pool", "hooks", "`before_release`")
    s.answer("hooks", "pool", "fine")
    s.call("pool", "core", "`Core.put`, `Core.grant`: to the oldest waiter")
    s.call("pool", "b", "`Waiter.wake`")
    s.end()
    s.call("pool", "core", "`Core.hold`: LEASED to task B")
    s.answer("pool", "b", "the resource")
    return s


# -- the flows of the database -------------------------------------------------------------------


PICTURES: dict[str, Callable[[], Flow | Sequence | Rooms | Structures]] = {
    "rooms": Rooms,
    "structures": Structures,
    "acquire": acquire,
    "release": release,
    "health": health,
    "breaker": breaker,
    "resource": resource,
    "cycle": cycle,
    "database": draw_database.database,
    "connection": draw_database.connection,
    "connect": draw_database.connect,
    **{
        f"state-{machine}": (lambda machine=machine: draw_states.picture(machine))
        for machine in draw_states.TRANSITIONS
    },
}


def drawn() -> dict[Path, str]:
    """What every file should contain."""
    files = {FOLDER / f"{name}.svg": make().svg() for name, make in PICTURES.items()}
    files[ROOT / "docs" / "states.md"] = draw_states.page()
    return files


def stale() -> list[Path]:
    """The files that are not what would be drawn now."""
    return [
        file
        for file, text in drawn().items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    if "--check" in sys.argv:
        if old := stale():
            names = ", ".join(str(file.relative_to(ROOT)) for file in old)
            sys.exit(f"not up to date: {names}; run python scripts/draw_pictures.py")
    else:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for file, text in drawn().items():
            file.write_text(text, encoding="utf-8")
