"""A small kit for pictures in SVG: boxes and arrows, sequences, rows of boxes.

No layout engine: who draws says which column and row, and the kit finds the sizes.

In texts, what is between backticks is a name of the code: it is set in a monospaced font, and
tests/docs/test_pictures.py looks for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Literal

Kind = Literal["plain", "core", "act", "hook", "good", "bad", "wait", "quiet"]
Shape = Literal["box", "ask", "pill"]
Side = Literal["N", "E", "S", "W"]
Point = tuple[float, float]

SIZE = 13  # of the text, in pixels
LINE = 17
PLAIN, CODE = 0.56, 0.61  # widths of a character, in parts of its size, on the safe side
PAD_X, PAD_Y = 14, 9
MARGIN = 24
CORNER = 7

STYLE = """\
  :root { --bg: #ffffff; --ink: #1c2526; --dim: #5b6b6d; --line: #6c7d80; --edge: #d5dddd;
    --plain: #f4f7f7; --plain-b: #a9b8ba; --core: #dff3ef; --core-b: #1d9a86;
    --act: #e3edfb; --act-b: #3f77c4; --hook: #fdf0d5; --hook-b: #c58a14;
    --good: #e2f4dd; --good-b: #4b9a3a; --bad: #fde6e4; --bad-b: #c8493c;
    --wait: #efe8fa; --wait-b: #8660bf; --quiet: #ffffff; --quiet-b: #c4cfd0; }
  @media (prefers-color-scheme: dark) { :root { --bg: #1b2124; --ink: #e5eceb; --dim: #9db0b1;
    --line: #8aa0a3; --edge: #3a4649; --plain: #273034; --plain-b: #5f7276; --core: #173c38;
    --core-b: #35b7a0; --act: #1e3350; --act-b: #6a9fe6; --hook: #43351a; --hook-b: #dba53a;
    --good: #213f1c; --good-b: #6cbf58; --bad: #4a2523; --bad-b: #e0776b; --wait: #34294a;
    --wait-b: #a98ade; --quiet: #1b2124; --quiet-b: #4a595d; } }
  text { font: 13px "Helvetica Neue", Arial, "Liberation Sans", sans-serif; fill: var(--ink); }
  .m { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
    font-size: 12px; }
  .h { font-weight: 600; font-size: 15px; }
  .b { font-weight: 600; }
  .d { fill: var(--dim); }
  .l { fill: var(--dim); font-size: 12px; paint-order: stroke; stroke: var(--bg);
    stroke-width: 5px; stroke-linejoin: round; }
  .e { fill: none; stroke: var(--line); stroke-width: 1.4; }
  .dash { stroke-dasharray: 5 4; }
  .life { stroke: var(--edge); stroke-width: 1.4; }
  .group { fill: none; stroke: var(--edge); stroke-width: 1.2; stroke-dasharray: 4 4; }
  marker path { fill: var(--line); }
"""
KINDS = ("plain", "core", "act", "hook", "good", "bad", "wait", "quiet")


def width_of(text: str, size: float = SIZE) -> float:
    """Of the longest line, in pixels."""
    return max(
        sum(
            len(part) * (CODE * (size - 1) if index % 2 else PLAIN * size)
            for index, part in enumerate(line.split("`"))
        )
        for line in text.split("\n")
    )


def spans(line: str) -> str:
    parts = line.split("`")
    return "".join(
        f'<tspan class="m">{escape(part)}</tspan>' if index % 2 else escape(part)
        for index, part in enumerate(parts)
        if part
    )


def words(
    x: float, y: float, text: str, *, cls: str = "", anchor: str = "middle", leading: float = LINE
) -> str:
    """Lines around the height y."""
    lines = text.split("\n")
    top = y - (len(lines) - 1) * leading / 2 + SIZE * 0.35
    classes = f' class="{cls}"' if cls else ""
    return "\n".join(
        f'<text x="{x:g}" y="{top + number * leading:g}" text-anchor="{anchor}"{classes}>'
        f"{spans(line)}</text>"
        for number, line in enumerate(lines)
    )


def box(x: float, y: float, w: float, h: float, kind: Kind, *, radius: float = 6) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}" '
        f'fill="var(--{kind})" stroke="var(--{kind}-b)" stroke-width="1.3"/>'
    )


def path(points: list[Point], *, dashed: bool = False, arrow: bool = True) -> str:
    """A line through these points, with round corners."""
    points = [p for i, p in enumerate(points) if i == 0 or p != points[i - 1]]
    steps = [f"M{points[0][0]:g} {points[0][1]:g}"]
    for before, here, after in zip(points, points[1:], points[2:], strict=False):
        r = min(CORNER, distance(before, here) / 2, distance(here, after) / 2)
        a, b = towards(here, before, r), towards(here, after, r)
        steps.append(f"L{a[0]:g} {a[1]:g}Q{here[0]:g} {here[1]:g} {b[0]:g} {b[1]:g}")
    steps.append(f"L{points[-1][0]:g} {points[-1][1]:g}")
    more = ' marker-end="url(#arrow)"' if arrow else ""
    return f'<path class="e{" dash" if dashed else ""}" d="{"".join(steps)}"{more}/>'


def distance(a: Point, b: Point) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def towards(a: Point, b: Point, step: float) -> Point:
    length = distance(a, b) or 1
    return a[0] + (b[0] - a[0]) * step / length, a[1] + (b[1] - a[1]) * step / length


def document(title: str, width: float, height: float, parts: list[str]) -> str:
    """The picture with its title above."""
    w, h = round(max(width, width_of(title, 17)) + 2 * MARGIN), round(height + 2 * MARGIN + 26)
    body = "\n".join(parts)
    plain = escape(title.replace("`", ""))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
        f'role="img" aria-label="{plain}">\n<title>{plain}</title>\n'
        f"<style>\n{STYLE}</style>\n"
        '<defs><marker id="arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
        'markerHeight="8" orient="auto-start-reverse"><path d="M0 1L10 5L0 9z"/></marker></defs>\n'
        f'<rect width="{w}" height="{h}" rx="10" fill="var(--bg)"/>\n'
        f"{words(MARGIN, MARGIN + 4, title, cls='h', anchor='start')}\n"
        f'<g transform="translate({MARGIN} {MARGIN + 26})">\n{body}\n</g>\n</svg>\n'
    )


def names_in(text: str) -> list[str]:
    """The names of the code in a text."""
    return re.findall(r"`([^`]+)`", text)


# -- boxes and arrows ----------------------------------------------------------------------------


@dataclass
class Node:
    col: float
    row: float
    text: str
    kind: Kind = "plain"
    shape: Shape = "box"
    x: float = 0  # of its centre
    y: float = 0
    w: float = 0
    h: float = 0

    def measure(self) -> None:
        self.w = width_of(self.text) + 2 * PAD_X + (22 if self.shape == "ask" else 0)
        self.h = len(self.text.split("\n")) * LINE + 2 * PAD_Y

    def port(self, side: Side, shift: float = 0) -> Point:
        return {
            "N": (self.x + shift, self.y - self.h / 2),
            "S": (self.x + shift, self.y + self.h / 2),
            "E": (self.x + self.w / 2, self.y + shift),
            "W": (self.x - self.w / 2, self.y + shift),
        }[side]

    def draw(self) -> str:
        x, y = self.x - self.w / 2, self.y - self.h / 2
        if self.shape == "ask":
            d, r, b = 11, x + self.w, y + self.h
            shape = (
                f'<path d="M{x + d:g} {y:g}L{r - d:g} {y:g}L{r:g} {self.y:g}L{r - d:g} {b:g}'
                f'L{x + d:g} {b:g}L{x:g} {self.y:g}z" fill="var(--{self.kind})" '
                f'stroke="var(--{self.kind}-b)" stroke-width="1.3"/>'
            )
        else:
            radius = self.h / 2 if self.shape == "pill" else 6
            shape = box(x, y, self.w, self.h, self.kind, radius=min(radius, 18))
        return f"{shape}\n{words(self.x, self.y, self.text)}"


@dataclass
class Edge:
    source: str
    target: str
    text: str = ""
    sides: str = ""  # such as "EN": leaves in the east, arrives in the north; "": found
    lane: float = 26  # how far a line of the kind "EE" or "SS" goes outside
    shift: tuple[float, float] = (0, 0)  # of the ports, along their sides
    at: float = 0.5  # of the label, along its segment
    segment: int | None = None  # of the label; None: the longest
    below: bool = False  # the label: below its line, or left of it
    dashed: bool = False


@dataclass
class Flow:
    """Boxes on a grid, and arrows between them."""

    title: str
    gap: Point = (44, 34)  # between columns, between rows
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def node(
        self, key: str, col: float, row: float, text: str, kind: Kind = "plain",
        shape: Shape = "box",
    ) -> None:  # fmt: skip
        assert key not in self.nodes, key
        self.nodes[key] = Node(col, row, text, kind, shape)

    def edge(
        self, source: str, target: str, text: str = "", sides: str = "", **more: object
    ) -> None:
        self.edges.append(Edge(source, target, text, sides, **more))  # type: ignore[arg-type]

    @property
    def texts(self) -> list[str]:
        return [self.title, *(n.text for n in self.nodes.values()), *(e.text for e in self.edges)]

    def svg(self) -> str:
        self._place()
        lines, labels, low, high = [], [], [0.0, 0.0], [0.0, 0.0]
        for node in self.nodes.values():
            high = [max(high[0], node.x + node.w / 2), max(high[1], node.y + node.h / 2)]
        for edge in self.edges:
            points = self._route(edge)
            lines.append(path(points, dashed=edge.dashed))
            for p in points:
                low = [min(low[0], p[0]), min(low[1], p[1])]
                high = [max(high[0], p[0]), max(high[1], p[1])]
            if edge.text:
                x, y, anchor = self._label(edge, points)
                w = width_of(edge.text, 12)
                left = x - (w / 2 if anchor == "middle" else w if anchor == "end" else 0)
                low[0], high[0] = min(low[0], left), max(high[0], left + w)
                labels.append(words(x, y, edge.text, cls="l", anchor=anchor, leading=14))
        boxes = [node.draw() for node in self.nodes.values()]
        inner = [f'<g transform="translate({-low[0]:g} {-low[1]:g})">', *lines, *boxes, *labels]
        return document(self.title, high[0] - low[0], high[1] - low[1], [*inner, "</g>"])

    def _place(self) -> None:
        for node in self.nodes.values():
            node.measure()
        self._spread("col", "x", "w", self.gap[0])
        self._spread("row", "y", "h", self.gap[1])

    def _spread(self, place: str, axis: str, size: str, gap: float) -> None:
        """Each whole column (row) is as wide as its widest; halves are in the middle of two."""
        nodes = list(self.nodes.values())
        last = int(max(getattr(n, place) for n in nodes)) + 1
        widths = [
            max((getattr(n, size) for n in nodes if getattr(n, place) == i), default=0)
            for i in range(last + 1)
        ]
        centres, edge = [], 0.0
        for w in widths:
            centres.append(edge + w / 2)
            edge += w + (gap if w else 0)
        for n in nodes:
            index, part = int(getattr(n, place)), getattr(n, place) % 1
            after = centres[min(index + 1, last)]
            setattr(n, axis, centres[index] + (after - centres[index]) * part)

    def _route(self, edge: Edge) -> list[Point]:
        a, b = self.nodes[edge.source], self.nodes[edge.target]
        sides = edge.sides or self._sides(a, b)
        first: Side = sides[0]  # type: ignore[assignment]
        second: Side = sides[1]  # type: ignore[assignment]
        p, q = a.port(first, edge.shift[0]), b.port(second, edge.shift[1])
        if first == second:
            outer = {
                "E": max(p[0], q[0]) + edge.lane, "W": min(p[0], q[0]) - edge.lane,
                "S": max(p[1], q[1]) + edge.lane, "N": min(p[1], q[1]) - edge.lane,
            }[first]  # fmt: skip
            if first in "EW":
                return [p, (outer, p[1]), (outer, q[1]), q]
            return [p, (p[0], outer), (q[0], outer), q]
        if first in "EW" and second in "EW":
            middle = (p[0] + q[0]) / 2
            return [p, q] if p[1] == q[1] else [p, (middle, p[1]), (middle, q[1]), q]
        if first in "NS" and second in "NS":
            middle = (p[1] + q[1]) / 2
            return [p, q] if p[0] == q[0] else [p, (p[0], middle), (q[0], middle), q]
        return [p, (q[0], p[1]) if first in "EW" else (p[0], q[1]), q]

    def _sides(self, a: Node, b: Node) -> str:
        if a.row == b.row:
            return "EW" if b.col > a.col else "WE"
        if a.col == b.col:
            return "SN" if b.row > a.row else "NS"
        return ("E" if b.col > a.col else "W") + ("N" if b.row > a.row else "S")

    def _label(self, edge: Edge, points: list[Point]) -> tuple[float, float, str]:
        pairs = list(pairwise(points))
        index = edge.segment
        if index is None:
            index = max(range(len(pairs)), key=lambda i: distance(*pairs[i]))
        (x1, y1), (x2, y2) = pairs[index]
        x, y = x1 + (x2 - x1) * edge.at, y1 + (y2 - y1) * edge.at
        lines = edge.text.count("\n")
        if abs(y2 - y1) < 1:
            return x, y + (12 + lines * 7) * (1 if edge.below else -1), "middle"
        return (x - 8, y, "end") if edge.below else (x + 8, y, "start")


# -- sequences -----------------------------------------------------------------------------------


@dataclass
class Sequence:
    """Who calls whom, from top to bottom."""

    title: str
    actors: list[tuple[str, str, Kind]]  # key, text, kind
    steps: list[tuple[str, ...]] = field(default_factory=list)
    gap: float = 40  # least room between two lines

    def call(self, source: str, target: str, text: str) -> None:
        self.steps.append(("call", source, target, text))

    def answer(self, source: str, target: str, text: str) -> None:
        self.steps.append(("answer", source, target, text))

    def note(self, actor: str, text: str) -> None:
        self.steps.append(("note", actor, actor, text))

    def begin(self, text: str) -> None:
        self.steps.append(("begin", "", "", text))

    def end(self) -> None:
        self.steps.append(("end", "", "", ""))

    @property
    def texts(self) -> list[str]:
        return [self.title, *(text for _, text, _ in self.actors), *(s[3] for s in self.steps)]

    def svg(self) -> str:
        order = [key for key, _, _ in self.actors]
        half = [width_of(text) / 2 + PAD_X for _, text, _ in self.actors]
        right = [half[i] + half[i + 1] + self.gap for i in range(len(order) - 1)]
        tail = half[-1]
        for verb, source, target, text in self.steps:
            if verb in ("begin", "end"):
                continue
            i, j = sorted((order.index(source), order.index(target)))
            need = width_of(text, 12) + 34
            if i == j:
                if i < len(right):
                    right[i] = max(right[i], need + 26)
                else:
                    tail = max(tail, need + 26)
            else:
                missing = need - sum(right[i:j])
                if missing > 0:
                    right[j - 1] += missing
        xs = [half[0] + 14]
        for gap in right:
            xs.append(xs[-1] + gap)
        at = dict(zip(order, xs, strict=True))
        width = xs[-1] + tail + 14
        head = max(len(text.split("\n")) for _, text, _ in self.actors) * LINE + 2 * PAD_Y
        parts, groups, y = [], [], head + 14.0
        for verb, source, target, text in self.steps:
            lines = text.count("\n")
            if verb == "begin":
                y += 10
                groups.append(y)
                parts.append(
                    words(8, y + 14 + lines * 7, text, cls="l b", anchor="start", leading=14)
                )
                y += 26 + lines * 14
            elif verb == "end":
                top = groups.pop()
                y += 8
                parts.append(
                    f'<rect class="group" x="0" y="{top:g}" width="{width:g}" '
                    f'height="{y - top:g}" rx="6"/>'
                )
                y += 6
            elif verb == "note":
                x, h = at[source], (lines + 1) * 15 + 10
                w = width_of(text, 12) + 20
                parts.append(box(x + 8, y + 4, w, h, "quiet", radius=4))
                parts.append(
                    words(x + 18, y + 4 + h / 2, text, cls="d", anchor="start", leading=15)
                )
                y += h + 12
            elif source == target:
                x = at[source]
                y += 12
                parts.append(path([(x, y), (x + 26, y), (x + 26, y + 18), (x, y + 18)]))
                parts.append(words(x + 34, y + 9, text, cls="l", anchor="start", leading=14))
                y += 34 + lines * 8
            else:
                a, b = at[source], at[target]
                y += 24 + lines * 14
                parts.append(path([(a, y), (b, y)], dashed=verb == "answer"))
                parts.append(words((a + b) / 2, y - 10 - lines * 7, text, cls="l", leading=14))
                y += 12
        lives = [
            f'<line class="life" x1="{x:g}" y1="{head:g}" x2="{x:g}" y2="{y + 8:g}"/>' for x in xs
        ]
        heads = [
            box(x - h, 0, 2 * h, head, kind) + "\n" + words(x, head / 2, text)
            for x, h, (_, text, kind) in zip(xs, half, self.actors, strict=True)
        ]
        return document(self.title, width, y + 8, [*lives, *heads, *parts])
