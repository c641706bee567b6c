"""Splits scripts for mysqltest into the statements that it would send.

Commands of mysqltest are left out, whether they are written with `--` or with the delimiter; all
connections of a script become one, and what an error directive expects is ignored.
"""

import re
from pathlib import Path

from .scripts import Script, line_of, read

COMMANDS = re.compile(
    r"append_file|assert|cat_file|change_user|character_set|chdir|chmod|connect|"
    r"connection|copy_file|copy_files_wildcard|dec|delimiter|die|diff_files|"
    r"dirty_close|disable_abort_on_error|disable_column_names|disable_connect_log|"
    r"disable_cursor_protocol|disable_info|disable_metadata|disable_parsing|"
    r"disable_prepare_warnings|disable_ps2_protocol|disable_ps_protocol|disable_query_log"
    r"|disable_reconnect|disable_result_log|disable_rpl_parse|disable_service_connection"
    r"|disable_session_track_info|disable_testcase|disable_view_protocol|disable_warnings"
    r"|disconnect|echo|enable_abort_on_error|enable_column_names|enable_connect_log|"
    r"enable_cursor_protocol|enable_info|enable_metadata|enable_parsing|"
    r"enable_prepare_warnings|enable_ps2_protocol|enable_ps_protocol|enable_query_log|"
    r"enable_reconnect|enable_result_log|enable_rpl_parse|enable_service_connection|"
    r"enable_session_track_info|enable_testcase|enable_view_protocol|enable_warnings|end"
    r"|end_timer|error|eval|evalp|exec|exit|file_exists|force_cpdir|force_rmdir"
    r"|horizontal_results|if|inc|let|list_files|list_files_append_file|"
    r"list_files_write_file|lowercase_result|mkdir|move_file|optimizer_trace|"
    r"partially_sorted_result|perl|ping|query|query_attributes|query_get_value|"
    r"query_horizontal|query_vertical|real_sleep|reap|reap_require_ok|remove_file|"
    r"remove_files_wildcard|replace_column|replace_numeric_round|replace_regex|"
    r"replace_result|require|reset_connection|result|rmdir|save_master_pos|send|"
    r"send_eval|send_quit|send_shutdown|shutdown_server|skip|sleep|sorted_result|"
    r"source|start_timer|sync_slave_with_master|sync_with_master|system|system_while|"
    r"timer_output|vertical_results|wait_for_slave_to_stop|while|write_file|write_line"
)
HEREDOCS = frozenset({"append_file", "perl", "write_file"})
QUOTES = "'\"`"
WORD = re.compile(r"\s*([A-Za-z_]\w*)(?=\W|$)")
HEAD = re.compile(r"[ \t]*(if|while)\s*\(", re.IGNORECASE)


def split(name: str, text: str) -> Script:
    """The statements of a script."""
    return _Splitter(name, text).split()


def load(path: Path, name: str) -> Script:
    """The same, of a file."""
    return split(name, read(path))


class _Splitter:
    def __init__(self, name: str, text: str) -> None:
        self.script = Script(name)
        self.text = text
        self.at = 0
        self.delimiter = ";"

    def split(self) -> Script:
        while self.at < len(self.text):
            line = self._line()
            bare = line.strip()
            if not bare or bare.startswith("#") or bare in ("{", "}"):
                self.at += len(line)
            elif bare.startswith("--"):
                self.at += len(line)
                self._command(bare[2:].strip())
            elif HEAD.match(line):
                self.script.left_out["mysqltest command"] += 1
                self._skip_condition(len(line))
            elif bare.startswith(("{", "}")):
                self.at += line.index(bare[0]) + 1
            else:
                self._statement()
        return self.script

    def _line(self) -> str:
        end = self.text.find("\n", self.at)
        return self.text[self.at :] if end < 0 else self.text[self.at : end + 1]

    def _skip_condition(self, length: int) -> None:
        """Of `if` and `while`: both branches are taken, once."""
        depth, at = 0, self.text.index("(", self.at)
        while at < len(self.text):
            depth += (self.text[at] == "(") - (self.text[at] == ")")
            at += 1
            if depth == 0:
                break
        self.at = max(at, self.at + 1)

    def _statement(self) -> None:
        start = self.at
        end = self._end(start)
        body = self.text[start:end]
        self.at = end + len(self.delimiter)
        word = WORD.match(body)
        if word and COMMANDS.fullmatch(word[1].lower()) and not self._is_sql(body):
            self._command(body.strip())
        elif "$" in body and re.search(r"\$[a-zA-Z_]\w*", body) and "eval" in body[:8]:
            self.script.left_out["mysqltest command"] += 1
        else:
            blank = len(body) - len(body.lstrip())
            self.script.add(body, line_of(self.text, start + blank))

    def _is_sql(self, body: str) -> bool:
        """`if` and `end` begin statements of stored programs, too, but never a line of a script."""
        return re.match(r"\s*(query|result|ping|skip)\s*[=(.,]", body, re.IGNORECASE) is not None

    def _end(self, at: int) -> int:
        """Where the delimiter is, outside of quotes and comments."""
        text, size = self.text, len(self.text)
        beginning = False  # of a line
        while at < size:
            character = text[at]
            if text.startswith(self.delimiter, at):
                return at
            if character in QUOTES:
                at = _quote_end(text, at)
            elif character == "#" or text.startswith("-- ", at):
                at = _line_end(text, at)
            elif text.startswith("/*", at) and not text.startswith(("/*!", "/*M!"), at):
                closing = text.find("*/", at + 2)
                at = size if closing < 0 else closing + 2
            elif beginning and text.startswith("--", at):
                at = _line_end(text, at)
            else:
                at += 1
            beginning = text[at - 1 : at] == "\n"
        return size

    def _command(self, command: str) -> None:
        self.script.left_out["mysqltest command"] += 1
        words = command.rstrip().split()
        verb = words[0].lower().rstrip(";") if words else ""
        if verb == "delimiter" and len(words) > 1:
            given = words[1]
            if given != self.delimiter and given.endswith(self.delimiter):
                given = given[: -len(self.delimiter)]
            self.delimiter = given
        elif verb in HEREDOCS:
            self._skip_heredoc(words[-1].rstrip(";") if len(words) > 2 else "EOF")
        elif verb in ("disable_parsing",):
            closing = re.compile(r"^\s*(--\s*)?enable_parsing", re.MULTILINE)
            found = closing.search(self.text, self.at)
            self.at = len(self.text) if found is None else found.start()

    def _skip_heredoc(self, closing: str) -> None:
        found = re.compile(rf"^(EOF|{re.escape(closing)})\b[^\n]*$", re.MULTILINE).search(
            self.text, self.at
        )
        self.at = len(self.text) if found is None else found.end()


def _quote_end(text: str, at: int) -> int:
    quote = text[at]
    at += 1
    while at < len(text):
        if text[at] == "\\" and quote != "`":
            at += 2
        elif text[at] == quote:
            return at + 1
        else:
            at += 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1
