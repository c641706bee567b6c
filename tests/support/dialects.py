"""The SQL dialects, the styles of their drivers, and statements converted for them."""

from cenote.sql.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect
from cenote.sql.parsing.placeholders import (
    Style,
    Template,
    compile_template,
)

DIALECTS = [POSTGRESQL, MYSQL, SQLITE]


DRIVERS: list[tuple[Dialect, Style]] = [
    (POSTGRESQL, "numeric"),
    (POSTGRESQL, "format"),
    (MYSQL, "qmark"),
    (SQLITE, "qmark"),
]


STYLES: dict[str, Style] = {"postgresql": "numeric", "mysql": "format", "sqlite": "qmark"}


def by_list(text: str, dialect: Dialect = POSTGRESQL, style: Style | None = None) -> Template:
    return compile_template(text, dialect, style or STYLES[dialect.name], mapping=False)


def by_name(text: str, dialect: Dialect = POSTGRESQL, style: Style | None = None) -> Template:
    return compile_template(text, dialect, style or STYLES[dialect.name], mapping=True)
