"""Plots as SVG, light and dark: rows of bars, spans and dots, and lines over logarithms.

cenote has the colour; everybody else is grey, and is named beside the mark instead of in a legend.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MARGIN = 24
ROW = 24  # height
LABELS = 240  # width of the names on the left
GAP = 28  # between two panels
AXIS, NAMES = 40, 216  # widths: of the numbers left of lines, of the names right of them
HEAD = 92  # title, subtitle, names of the panels


@dataclass(frozen=True, slots=True)
class Theme:
    name: str
    paper: str
    ink: str
    faint: str  # text that is not read first
    grid: str
    ours: str
    theirs: str
    band: str  # behind our rows


LIGHT = Theme("light", "#ffffff", "#1f2933", "#66727f", "#e6eaee", "#0b7a8f", "#b4bec8", "#eef7f9")
DARK = Theme("dark", "#0d1117", "#e6edf3", "#8d96a0", "#232a32", "#39c5d8", "#5b6672", "#10242b")
THEMES = (LIGHT, DARK)


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    ours: bool = False
    group: str = ""  # a heading before the first row of each


@dataclass(frozen=True, slots=True)
class Bar:
    value: float
    low: float | None = None  # the spread around it
    high: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Dots:
    """Joined by a line, the first one filled."""

    values: tuple[float, ...]
    text: str = ""


Mark = Bar | Dots


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    marks: Sequence[Mark | None]  # one for each row
    log: bool = False
    show: Callable[[float], str] = "{:g}".format  # a number of the axis
    reference: float | None = None  # a line across
    limit: float | None = None  # where the axis ends, although there may be more


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: Sequence[tuple[float, float]]
    ours: bool = False


@dataclass(frozen=True, slots=True)
class LinePanel:
    title: str
    series: Sequence[Series]


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self, most: int = 5) -> list[float]:
        if not self.log:
            return linear_ticks(self.low, self.high, most)
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        step = max(1, math.ceil((last - first + 1) / most))
        return [10.0**power for power in range(first, last + 1, step)]


def linear_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers: 1, 2 or 5 of some power of ten apart."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / step)
    return [step * number for number in range(first, math.floor(high / step * 1.0001) + 1)]


@dataclass(slots=True)
class Canvas:
    theme: Theme
    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str | None = None,
        anchor: str = "start",
        weight: int = 400,
    ) -> None:
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill or self.theme.ink}" '
            f'text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
        )

    def line(
        self, x: float, y: float, to_x: float, to_y: float, stroke: str, width: float = 1
    ) -> None:
        self.parts.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{stroke}" '
            f'stroke-width="{width:g}" stroke-linecap="round"/>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, radius: float = 3
    ) -> None:
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{height:.1f}" '
            f'rx="{radius:g}" fill="{fill}"/>'
        )

    def dot(self, x: float, y: float, radius: float, fill: str, stroke: str) -> None:
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="2"/>'
        )

    def path(self, points: Sequence[tuple[float, float]], stroke: str, width: float) -> None:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{joined}" fill="none" stroke="{stroke}" stroke-width="{width:g}" '
            f'stroke-linejoin="round" stroke-linecap="round"/>'
        )

    def __str__(self) -> str:
        theme = self.theme
        size = f'width="{self.width:.0f}" height="{self.height:.0f}"'
        box = f'viewBox="0 0 {self.width:.0f} {self.height:.0f}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="{FONT}">'
        paper = f'<rect width="100%" height="100%" rx="8" fill="{theme.paper}"/>'
        return "\n".join([head, paper, *self.parts, "</svg>"]) + "\n"


def header(canvas: Canvas, title: str, subtitle: str) -> None:
    canvas.text(MARGIN, 32, title, size=17, weight=650)
    canvas.text(MARGIN, 52, subtitle, size=12, fill=canvas.theme.faint)


# -- rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rows:
    """Names on the left, and one panel or more beside each other."""

    title: str
    subtitle: str
    rows: Sequence[Row]
    panels: Sequence[Panel]
    width: float = 980

    def draw(self, theme: Theme) -> str:
        places, bottom = self._places()
        canvas = Canvas(theme, self.width, bottom + 40)
        header(canvas, self.title, self.subtitle)
        for row, (y, heading) in zip(self.rows, places, strict=True):
            if heading is not None:
                canvas.text(MARGIN, heading, row.group, size=12, weight=650)
            if row.ours:
                canvas.box(MARGIN - 8, y - ROW / 2, self.width - 2 * MARGIN + 16, ROW, theme.band)
            weight, ink = (650, theme.ours) if row.ours else (400, theme.ink)
            canvas.text(MARGIN, y + 4, row.label, fill=ink, weight=weight)
        wide = (self.width - 2 * MARGIN - LABELS + GAP) / len(self.panels) - GAP
        for number, panel in enumerate(self.panels):
            left = MARGIN + LABELS + number * (wide + GAP)
            self._panel(canvas, panel, left, wide, [y for y, _ in places], bottom)
        return str(canvas)

    def _places(self) -> tuple[list[tuple[float, float | None]], float]:
        """The middle of each row, with that of a heading before it; and the end of all."""
        places: list[tuple[float, float | None]] = []
        y, group = HEAD + 4.0, ""
        for row in self.rows:
            heading = None
            if row.group != group:
                group = row.group
                heading = y + 18
                y += 26
            places.append((y + ROW / 2, heading))
            y += ROW
        return places, y

    def _panel(
        self,
        canvas: Canvas,
        panel: Panel,
        left: float,
        wide: float,
        middles: Sequence[float],
        bottom: float,
    ) -> None:
        theme = canvas.theme
        room = 8 + 6.4 * max((len(mark.text) for mark in panel.marks if mark), default=0)
        scale = scale_for(panel, left, left + wide - min(room, wide / 2))
        canvas.text(left, HEAD - 10, panel.title, size=11.5, fill=theme.faint, weight=600)
        most = max(2, int((scale.end - scale.start) / 56))
        for tick in scale.ticks(most):
            x = scale(tick)
            canvas.line(x, HEAD, x, bottom, theme.grid)
            canvas.text(
                x, bottom + 18, panel.show(tick), size=11, fill=theme.faint, anchor="middle"
            )
        if panel.reference is not None:
            x = scale(panel.reference)
            canvas.line(x, HEAD, x, bottom, theme.faint, 1.2)
        for row, mark, y in zip(self.rows, panel.marks, middles, strict=True):
            colour = theme.ours if row.ours else theme.theirs
            if isinstance(mark, Bar):
                draw_bar(canvas, mark, scale, y, colour, ours=row.ours)
            elif isinstance(mark, Dots):
                draw_dots(canvas, mark, scale, y, colour, ours=row.ours)


def scale_for(panel: Panel, start: float, end: float) -> Scale:
    values = [panel.reference] if panel.reference is not None else []
    for mark in panel.marks:
        if isinstance(mark, Bar):
            values += [mark.value, mark.high or mark.value]
        elif mark is not None:
            values += mark.values
    if not panel.log:
        most = max(values, default=1.0) or 1.0
        return Scale(0.0, min(most, panel.limit or most), start, end)
    positive = [value for value in values if value > 0] or [1.0]
    low = 10.0 ** math.floor(math.log10(min(positive)) - 0.15)
    return Scale(low, max(max(positive), low * 10), start, end, log=True)


def draw_bar(canvas: Canvas, bar: Bar, scale: Scale, y: float, colour: str, *, ours: bool) -> None:
    theme = canvas.theme
    end = scale(bar.value)
    if bar.value <= 0:
        write_value(canvas, end + 7, y, bar.text, ours=ours)
        return
    canvas.box(scale.start, y - 6, end - scale.start, 12, colour)
    if bar.low is not None and bar.high is not None:
        canvas.line(scale(bar.low), y, scale(bar.high), y, theme.ink, 1.2)
        end = max(end, scale(bar.high))
    write_value(canvas, end + 7, y, bar.text, ours=ours)


def draw_dots(
    canvas: Canvas, dots: Dots, scale: Scale, y: float, colour: str, *, ours: bool
) -> None:
    places = [scale(value) for value in dots.values]
    canvas.line(min(places), y, max(places), y, colour, 3)
    for number, x in enumerate(places):
        fill = colour if number == 0 else canvas.theme.paper
        canvas.dot(x, y, 4, fill, colour)
    write_value(canvas, max(places) + 10, y, dots.text, ours=ours)


def write_value(canvas: Canvas, x: float, y: float, text: str, *, ours: bool) -> None:
    theme = canvas.theme
    ink, weight = (theme.ours, 650) if ours else (theme.faint, 400)
    canvas.text(x, y + 4, text, size=11, fill=ink, weight=weight)


# -- lines ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lines:
    """Both axes are logarithms, or both begin at 0; the panels share the one on the left."""

    title: str
    subtitle: str
    panels: Sequence[LinePanel]
    across: str  # what the axis below counts
    show: Callable[[float], str] = "{:g}".format
    width: float = 980
    height: float = 430
    log: bool = True
    names: float = NAMES  # width of the names right of the lines

    def draw(self, theme: Theme) -> str:
        canvas = Canvas(theme, self.width, self.height)
        header(canvas, self.title, self.subtitle)
        points = [point for panel in self.panels for one in panel.series for point in one.points]
        up = self._up([y for _, y in points])
        wide = (self.width - 2 * MARGIN + GAP) / len(self.panels)
        for number, panel in enumerate(self.panels):
            left = MARGIN + AXIS + number * wide
            self._panel(canvas, panel, left, wide - GAP - AXIS - self.names, up)
        return str(canvas)

    def _up(self, values: Sequence[float]) -> Scale:
        start, end = self.height - 56, HEAD + 12
        if not self.log:
            return Scale(0.0, max(values), start, end)
        ends = [min(values), max(values)]
        low, high = (10.0 ** turn(math.log10(end)) for turn, end in zip(ROUND, ends, strict=True))
        return Scale(low, max(high, low * 10), start, end, log=True)

    def _panel(self, canvas: Canvas, panel: LinePanel, left: float, wide: float, up: Scale) -> None:
        theme = canvas.theme
        xs = [x for one in panel.series for x, _ in one.points]
        across = Scale(min(xs), max(xs), left, left + wide, log=self.log)
        canvas.text(left, HEAD - 4, panel.title, size=12, weight=650)
        for tick in up.ticks(6):
            y = up(tick)
            canvas.line(left, y, left + wide, y, theme.grid)
            canvas.text(left - 8, y + 4, self.show(tick), size=11, fill=theme.faint, anchor="end")
        for tick in across.ticks(6):
            below = up.start + 18
            label = f"{tick:,.0f}".replace(",000", "k") if self.log else f"{tick:g}"
            canvas.text(across(tick), below, label, size=11, fill=theme.faint, anchor="middle")
        canvas.text(
            left + wide / 2, up.start + 38, self.across, size=11, fill=theme.faint, anchor="middle"
        )
        for one in sorted(panel.series, key=lambda one: one.ours):
            colour = theme.ours if one.ours else theme.theirs
            places = [(across(x), up(y)) for x, y in one.points]
            canvas.path(places, colour, 3 if one.ours else 1.6)
        self._names(canvas, panel, up, across)

    @staticmethod
    def _names(canvas: Canvas, panel: LinePanel, up: Scale, across: Scale) -> None:
        """At the end of each line, moved apart until they can be read."""
        theme = canvas.theme
        last = [(across(one.points[-1][0]), up(one.points[-1][1])) for one in panel.series]
        order = sorted(range(len(last)), key=lambda number: last[number][1])
        heights = apart([last[number][1] for number in order], 13.5, up.end - 6, up.start + 6)
        for number, y in zip(order, heights, strict=True):
            one, (x, end) = panel.series[number], last[number]
            ink, weight = (theme.ours, 650) if one.ours else (theme.faint, 400)
            canvas.line(x + 3, end, across.end + 16, y, theme.grid if not one.ours else theme.ours)
            canvas.text(across.end + 20, y + 4, one.label, size=11, fill=ink, weight=weight)


ROUND: tuple[Callable[[float], int], Callable[[float], int]] = (math.floor, math.ceil)


def apart(places: Sequence[float], least: float, first: float, last: float) -> list[float]:
    """The same places in the same order, at least so far from each other, between two ends."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + least if moved else first))
    limit = last
    for number in range(len(moved) - 1, -1, -1):
        moved[number] = min(moved[number], limit)
        limit = moved[number] - least
    return moved


def both(name: str, chart: Rows | Lines) -> dict[str, str]:
    """With a file name, the drawing: one for light paper and one for dark."""
    return {f"{name}-{theme.name}.svg": chart.draw(theme) for theme in THEMES}
