"""Splits scripts for psql into the statements that psql would send.

As psql does it: a semicolon ends a statement unless it is inside quotes, dollar quotes, comments,
parentheses or the body of a function in standard SQL; variables are put in; a meta-command ends
with its line. Meta-commands are left out, but for those that send a statement (`\\g` and its like),
set a variable from plain words, or read one from the environment.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from .scripts import Script, line_of, read

# What is at a position outside of quotes; the first alternative that fits.
TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\* )
    | (?P<escaped> [eE]'(?:[^'\\]|\\.|'')*(?:'|\Z) )
    | (?P<quoted>  '(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z) )
    | (?P<dollar>  \$(?P<tag>[A-Za-z_\x80-\uffff][\w\x80-\uffff]*)?\$ )
    | (?P<cast>    :: )
    | (?P<variable> :(?:(?P<plain>[A-Za-z_]\w*)|'(?P<literal>\w+)'|"(?P<name>\w+)") )
    | (?P<word>    [A-Za-z_\x80-\uffff][\w$\x80-\uffff]* )
    | (?P<number>  [0-9][\w.]* )
    | (?P<join>    \\; )
    | (?P<meta>    \\[^\n]* )
    | (?P<symbol>  . )
    """,
    re.VERBOSE | re.DOTALL,
)
COMMENT_MARK = re.compile(r"/\*|\*/")
SENDS = re.compile(r"\\(g|gx|gset|gexec|gdesc|watch|crosstabview|bind)\b")
COPY_DATA = re.compile(r"\s*copy\b.*\bfrom\s+std(in|out)\b", re.IGNORECASE | re.DOTALL)
COPY_OUT = re.compile(r"\s*copy\b.*\bto\s+std(in|out)\b", re.IGNORECASE | re.DOTALL)
UNSENT = re.compile(r"(?:\s+|--[^\n]*(?:\n|\Z))*")  # before a statement
LEADING = re.compile(r"(?:\s+|--[^\n]*(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*\*/)*")


def split(name: str, text: str, environment: Mapping[str, str] | None = None) -> Script:
    """The statements of a script; `environment` is what `\\getenv` reads."""
    return _Splitter(name, text, environment or {}).split()


def load(path: Path, name: str, environment: Mapping[str, str] | None = None) -> Script:
    """The same, of a file."""
    return split(name, read(path), environment)


class _Splitter:
    def __init__(self, name: str, text: str, environment: Mapping[str, str]) -> None:
        self.script = Script(name)
        self.text = text
        self.environment = environment
        self.variables: dict[str, str] = {}
        self.unknown: set[str] = set()  # variables whose value only a server could tell
        self._begin(0)

    def _begin(self, at: int) -> None:
        """A new statement."""
        self.buffer: list[str] = []
        self.start = at
        self.words: list[str] = []  # the first few, in upper case
        self.parentheses = 0
        self.blocks = 0  # of BEGIN ATOMIC and CASE that are open
        self.lacks: str | None = None  # a variable whose value is not known

    def split(self) -> Script:
        at = 0
        while at < len(self.text):
            token = TOKEN.match(self.text, at)
            assert token is not None
            at = self._take(token)
        self._send(len(self.text))
        return self.script

    def _take(self, token: re.Match[str]) -> int:
        """Put the token into the statement; returns where the next one begins."""
        kind, value, end = token.lastgroup, token[0], token.end()
        if token["comment"]:
            end = self._comment_end(token)
            value = self.text[token.start() : end]
        elif token["dollar"]:
            closing = self.text.find(value, end)
            end = len(self.text) if closing < 0 else closing + len(value)
            value = self.text[token.start() : end]
        elif token["variable"]:
            value = self._variable(token)
        elif token["word"]:
            self._word(value.upper())
        elif token["join"]:
            value = ";"
        elif token["meta"]:
            return self._meta(token)
        elif kind == "symbol":
            if value == ";" and self.parentheses <= 0 and self.blocks == 0:
                return self._send(end)
            self.parentheses += (value == "(") - (value == ")")
        self.buffer.append(value)
        return end

    def _comment_end(self, token: re.Match[str]) -> int:
        if token[0] != "/*":
            return token.end()
        depth, at = 1, token.end()
        while depth:
            mark = COMMENT_MARK.search(self.text, at)
            if mark is None:
                return len(self.text)
            depth += 1 if mark[0] == "/*" else -1
            at = mark.end()
        return at

    def _word(self, word: str) -> None:
        if len(self.words) < 4:
            self.words.append(word)
        if not {"FUNCTION", "PROCEDURE"} & {*self.words} or self.words[0] != "CREATE":
            return
        if word == "BEGIN" or (word == "CASE" and self.blocks):
            self.blocks += 1
        elif word == "END" and self.blocks:
            self.blocks -= 1

    def _variable(self, token: re.Match[str]) -> str:
        name = token["plain"] or token["literal"] or token["name"]
        if name in self.unknown:
            self.lacks = name
        if name not in self.variables:
            return token[0]  # as psql does: it may be a slice of an array
        value = self.variables[name]
        if token["literal"]:
            return "'" + value.replace("'", "''") + "'"
        if token["name"]:
            return '"' + value.replace('"', '""') + '"'
        return value

    def _meta(self, token: re.Match[str]) -> int:
        command = token[0]
        following = re.search(r"\\(?=[a-z?!.])", command[1:])
        # Two on a line: the words of the first end where the second begins.
        end = token.end() if following is None else token.start() + 1 + following.start()
        command = command[: end - token.start()]
        words = command[1:].split()
        verb = words[0] if words else ""
        self.script.left_out["psql command"] += 1
        if SENDS.match(command):
            if verb == "gset":
                prefix = words[1] if len(words) > 1 else ""
                self._promise(prefix)
            return self._send(end)
        if verb in ("r", "reset"):
            self._begin(end)
        elif verb == "copy":
            self.script.left_out["client COPY"] += 1
            if re.search(r"\bfrom\s+p?stdin\b", command, re.IGNORECASE):
                end = self._skip_data(end)
        elif verb == "getenv" and len(words) > 2 and words[2] in self.environment:
            self._set(words[1], self.environment[words[2]])
        elif verb == "set" and len(words) > 1:
            self._set(words[1], "".join(self._word_value(word) for word in words[2:]))
        if not "".join(self.buffer).strip():
            self._begin(end)
        return end

    def _set(self, name: str, value: str | None) -> None:
        self.variables[name] = value or ""
        self.unknown.discard(name)

    def _word_value(self, word: str) -> str:
        if word.startswith("'") and word.endswith("'") and len(word) > 1:
            return word[1:-1].replace("''", "'")
        if word.startswith(":"):
            return self.variables.get(word[1:].strip("'\""), word)
        return word

    def _promise(self, prefix: str) -> None:
        """`\\gset` gives values to the names of the columns, which only the server knows."""
        text = "".join(self.buffer)
        for name in re.findall(r"""\bas\s+"?(\w+)"?|\b(\w+)\s*$""", text, re.IGNORECASE):
            for each in filter(None, name):
                self.unknown.add(prefix + each)
                self.variables.pop(prefix + each, None)

    def _send(self, end: int) -> int:
        text = "".join(self.buffer)
        skipped = LEADING.match(text)
        assert skipped is not None
        if skipped.end() == len(text):
            pass  # nothing but comments
        elif self.lacks is not None:
            self.script.left_out["variable of a result"] += 1
        elif COPY_DATA.match(text, skipped.end()):
            self.script.left_out["client COPY"] += 1
            end = self._skip_data(end)
        elif COPY_OUT.match(text, skipped.end()):
            self.script.left_out["client COPY"] += 1
        else:
            line = line_of(self.text, self.start + skipped.end())
            self.script.add(UNSENT.sub("", text, count=1), line)
        self._begin(end)
        return end

    def _skip_data(self, end: int) -> int:
        """The lines after COPY ... FROM STDIN; a client that does not copy must not see them."""
        closing = re.compile(r"^\\\.[^\n]*$", re.MULTILINE).search(self.text, end)
        return end if closing is None else closing.end()
