"""Placeholders: `?` with a sequence, `:name` with a mapping, rewritten for the driver."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from .tokens import LETTER, QUOTED, landmarks, readings

if TYPE_CHECKING:
    from ..dialects.dialect import Dialect


@dataclass(frozen=True, slots=True)
class PlaceholderStyle:
    """How a driver writes its placeholders."""

    first: str  # the first one of a statement: "?", "%s", "$1", ":1"

    @property
    def numbered(self) -> bool:
        """Whether placeholders have numbers, so that a repeated name is one parameter."""
        return "1" in self.first

    @property
    def percent(self) -> bool:
        """Whether placeholders begin with %, so that a literal percent sign is written %%."""
        return self.first.startswith("%")

    def write(self, number: int) -> str:
        """Return the placeholder with a number, which counts from 1."""
        return self.first.replace("1", str(number))


# The styles that PEP 249 has a name for may be given by it.
Style = Literal["numeric", "format", "qmark"] | PlaceholderStyle
STYLES = {
    "numeric": PlaceholderStyle("$1"),  # asyncpg
    "format": PlaceholderStyle("%s"),  # psycopg
    "qmark": PlaceholderStyle("?"),  # MySQL, SQLite
}
SHOWN = 5  # names of placeholders in a message


class UsualText(str):
    """A converted text that is valid only in a session with the usual settings.

    With other settings the server would find the placeholders at other places.
    """

    __slots__ = ()


class Template:
    """The text of a statement, rewritten for a sequence or for a mapping of parameters."""

    __slots__ = ("_anything", "_counts", "_hint", "_keys", "count", "mapping", "names", "native",
                 "text")  # fmt: skip

    def __init__(
        self,
        text: str,
        *,
        mapping: bool,
        names: tuple[str, ...] = (),
        count: int = 0,
        native: bool,
        anything: bool,
        hint: str,
    ) -> None:
        self.text: str = text  # for the driver
        self.mapping: bool = mapping  # :name was looked for, else ?
        # One for each parameter of the driver, in order; () with a sequence.
        self.names: tuple[str, ...] = names
        self.count: int = count  # of ?; 0 with a mapping
        self.native: bool = native  # nothing was converted
        self._anything = anything  # the driver's own placeholders: the driver checks
        self._hint = hint  # ends the message of a mismatch
        self._keys = frozenset(names)
        self._counts: frozenset[int] = frozenset()  # of ? in other sessions

    def agree(self, others: Sequence[Template]) -> None:
        """Compare with the templates of the same text in sessions with other settings.

        If all of them have the same text for the driver, any of their counts of parameters is
        accepted, and the server checks it. Otherwise the text is marked as a `UsualText`, which
        the connection checks, since it knows the settings of its session.
        """
        if all(each.text == self.text and each.names == self.names for each in others):
            self._counts = frozenset(each.count for each in others)
        else:
            self.text = UsualText(self.text)

    def __repr__(self) -> str:
        return f"<Template {self.text!r}>"

    def bind(
        self, parameters: Sequence[Any] | Mapping[str, Any]
    ) -> Sequence[Any] | Mapping[str, Any]:
        """Check the parameters, and return what to pass to the driver: if possible the same object.

        Raises ValueError if they do not fit the statement, TypeError if they are of a wrong kind.
        """
        if self.mapping:
            return self._bind_mapping(parameters)
        if not isinstance(parameters, (list, tuple)):
            parameters = _as_tuple(parameters)
        if len(parameters) == self.count or self._anything or len(parameters) in self._counts:
            return parameters
        raise ValueError(self._miscounted(len(parameters)))

    def _bind_mapping(self, parameters: Any) -> Sequence[Any] | Mapping[str, Any]:
        if type(parameters) is not dict and not isinstance(parameters, Mapping):
            kind = type(parameters).__name__
            raise TypeError(f"parameters must be a mapping for :name, not {kind}: pass a dict")
        if self._anything:
            return parameters
        if parameters.keys() != self._keys:
            raise ValueError(self._mismatched(parameters))
        return [parameters[name] for name in self.names]

    def _miscounted(self, given: int) -> str:
        were = "was" if given == 1 else "were"
        return (
            f"the statement has {_plural(self.count, 'placeholder')} (?), "
            f"but {_plural(given, 'parameter')} {were} given{self._hint}"
        )

    def _mismatched(self, parameters: Mapping[str, Any]) -> str:
        missing = [name for name in dict.fromkeys(self.names) if name not in parameters]
        left_over = [name for name in parameters if name not in self._keys]
        parts = []
        if missing:
            parts.append(f"missing: {_listed(missing)}")
        if left_over:
            parts.append(f"left over, not in the statement: {_listed(left_over)}")
        return f"parameters do not match the statement: {'; '.join(parts)}{self._hint}"


def compile_template(text: str, dialect: Dialect, style: Style, *, mapping: bool) -> Template:
    """Rewrite the placeholders of `text` for parameters that are a mapping, or a sequence.

    Raises ValueError if the text mixes them with placeholders of the driver's own.
    """
    written = _style(style)
    template = _compile(text, dialect, written, mapping)
    others = readings(text, dialect)[1:]
    if others:
        try:
            template.agree([_compile(text, each, written, mapping) for each in others])
        except ValueError:  # it would be refused there
            template.text = UsualText(template.text)
    return template


def marks(text: str, dialect: Dialect) -> list[int]:
    """Return the positions of the placeholders `?` in a text."""
    return [start for kind, start, _ in landmarks(text, dialect) if kind == "mark"]


def _style(style: Style) -> PlaceholderStyle:
    return style if isinstance(style, PlaceholderStyle) else STYLES[style]


def _compile(text: str, dialect: Dialect, style: PlaceholderStyle, mapping: bool) -> Template:
    found = _Found()
    if dialect.quotes or _WORTH_A_LOOK.search(text):
        found.look(text, dialect, style, mapping=mapping)
    if found.converted and (style.percent or dialect.percent_marks) and "%" in text:
        found.own = found.own or next(_percent_marks(text, dialect), "")
    elif dialect.percent_marks and style.first == "?" and "%" in text:
        text = found.look_for_percents(text, dialect, mapping=mapping)
    if found.converted and found.own:
        raise ValueError(
            f"the statement mixes {':name' if mapping else '?'} with {found.own}, the driver's own "
            "placeholder: use one style, and ?? for a literal question mark"
        )
    return Template(
        found.rewritten(text, double=style.percent),
        mapping=mapping,
        names=found.names(style) if mapping else (),
        count=0 if mapping else len(found.converted),
        native=not found.converted,
        anything=not found.converted and found.leaves_to_driver(text, style, mapping=mapping),
        hint=found.hint(dialect, style, mapping=mapping),
    )


def describe_placeholders(text: str, dialect: Dialect, style: Style) -> str:
    """Return words such as "2 placeholders (:a, :b)" for a text; "" if it has none."""
    found: list[str] = []  # each by its number: every ? and every %s is one
    if dialect.quotes or _WORTH_A_LOOK.search(text):
        kinds = ("mark", "named", "own")
        seen = landmarks(text, dialect)
        found += (text[start:end] for kind, start, end in seen if kind in kinds)
    if "%" in text and (_style(style).percent or dialect.percent_marks):
        found += _percent_marks(text, dialect)
    names = dict.fromkeys(found)
    number = len(names) + sum(found.count(each) - 1 for each in ("?", "%s") if each in names)
    shown = [*names][:SHOWN]
    more = ", ..." if len(names) > SHOWN else ""
    return f"{_plural(number, 'placeholder')} ({', '.join(shown)}{more})" if found else ""


class _Found:
    """The placeholders that a scan of a text has found, and the text rewritten so far."""

    __slots__ = ("converted", "marks", "named", "own", "own_name", "parts", "rest")

    def __init__(self) -> None:
        self.converted: list[str] = []  # ? or the name, for each placeholder of the wanted kind
        self.parts: list[str] = []  # text as it is, replacement, text as it is, replacement...
        self.rest = 0  # where the text begins that is not in parts
        self.marks = False  # there is a ?
        self.named = False  # there is a :name
        self.own = ""  # the first placeholder of the driver's own
        self.own_name = False  # one of them has a name

    def look(self, text: str, dialect: Dialect, style: PlaceholderStyle, *, mapping: bool) -> None:
        numbers: dict[str, int] = {}
        for kind, start, end in landmarks(text, dialect):
            if kind == "mark":
                self.marks = True
                if not mapping:
                    self.converted.append("?")
                    self._replace(text, start, end, style, len(self.converted))
            elif kind == "named":
                self.named = True
                if mapping:
                    name = text[start + 1 : end]
                    self.converted.append(name)
                    number = numbers.setdefault(name, len(numbers) + 1)
                    self._replace(text, start, end, style, number)
            elif kind == "escape":
                self.parts += (text[self.rest : start + 1], "")
                self.rest = end
            elif kind == "own":
                self.own = self.own or text[start:end]
                self.own_name = self.own_name or text[start] in "@$#"

    def look_for_percents(self, text: str, dialect: Dialect, *, mapping: bool) -> str:
        """Return the text with `?` for %s, or for %(name)s, if those are its placeholders."""
        found = [*_OWN_PERCENT.finditer(text)]
        inside = {
            at
            for kind, start, end in landmarks(text, dialect)
            if kind in QUOTED
            for at in range(start, end)
            if text[at] == "%"
        }
        own = [each for each in found if each["kind"] == "s" and each.start() not in inside]
        if not any((each["key"] is not None) == mapping for each in own):
            return text

        def replaced(percent: re.Match[str]) -> str:
            if percent["kind"] == "%" and percent["key"] is None:
                return "%"
            wanted = percent["kind"] == "s" and (percent["key"] is not None) == mapping
            if not wanted or percent.start() in inside:
                raise ValueError(
                    f"the statement has the driver's own placeholders, and {percent[0]!r} as well: "
                    f"write %% for a literal percent sign, and no placeholder inside quotes"
                )
            self.converted.append("?" if percent["key"] is None else percent["key"])
            return "?"

        self.parts.clear()  # ?? is two of them here
        return _OWN_PERCENT.sub(replaced, text)

    def rewritten(self, text: str, *, double: bool) -> str:
        if not self.parts:
            return text
        parts = [*self.parts, text[self.rest :]]
        if double and self.converted:
            parts[::2] = [part.replace("%", "%%") for part in parts[::2]]
        return "".join(parts)

    def names(self, style: PlaceholderStyle) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.converted) if style.numbered else self.converted)

    def leaves_to_driver(self, text: str, style: PlaceholderStyle, *, mapping: bool) -> bool:
        """Whether the driver checks the parameters of a text that was not converted."""
        if style.percent:
            return bool((_BY_NAME if mapping else _BY_PLACE).search(text))
        return not style.numbered and self.own_name if mapping else bool(self.own)

    def hint(self, dialect: Dialect, style: PlaceholderStyle, *, mapping: bool) -> str:
        if mapping:
            listed = self.marks and not self.named
            return "; the placeholder ? takes a list: pass a list" if listed else ""
        if self.named:
            return "; the placeholder :name takes a mapping: pass a mapping"
        if self.marks:
            return " (?? is a literal question mark)"
        own = "?1" if dialect.numbered_marks else "%s" if dialect.percent_marks else style.first
        return f"; known are ? with a list, :name with a mapping, and the driver's own {own}"

    def _replace(
        self, text: str, start: int, end: int, style: PlaceholderStyle, number: int
    ) -> None:
        self.parts += (text[self.rest : start], _replacement(text, start, end, style, number))
        self.rest = end


def _replacement(text: str, start: int, end: int, style: PlaceholderStyle, number: int) -> str:
    """Return the driver's placeholder, with a space between it and a word that it would touch."""
    mark = style.write(number)
    if mark == "?":
        return mark
    if start and text[start - 1] not in _APART:
        mark = f" {mark}"
    if end < len(text) and text[end] not in _APART:
        mark = f"{mark} "
    return mark


def _percent_marks(text: str, dialect: Dialect) -> Iterator[str]:
    """Yield every %s and %(name)s that is not quoted."""
    rest = 0
    for kind, start, end in landmarks(text, dialect):
        if kind in QUOTED:
            yield from (found[0] for found in _PERCENT.finditer(text, rest, start))
            rest = end
    yield from (found[0] for found in _PERCENT.finditer(text, rest))


def _as_tuple(parameters: Any) -> tuple[Any, ...]:
    refused = (str, bytes, bytearray, memoryview)
    if isinstance(parameters, refused) or not isinstance(parameters, Sequence):
        kind = type(parameters).__name__
        raise TypeError(f"parameters must be a sequence for ?, not {kind}: pass a list")
    return tuple(parameters)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(repr, names))


_APART = frozenset(re.findall(rf"[^{LETTER}0-9$]", "".join(map(chr, range(128)))))
_WORTH_A_LOOK = re.compile(r"[?:@$#]")
_OWN_PERCENT = re.compile(r"%(?:\((?P<key>[^)]*)\))?(?P<kind>.?)", re.DOTALL)

# psycopg also knows %b and %t, and looks for all of them in quotes, too.
_BY_PLACE = re.compile(r"%[sbt]")
_BY_NAME = re.compile(r"%\([^)]*\)[sbt]")
_PERCENT = re.compile(r"%(?:\(\w+\))?s(?!\w)")
