"""Print requirements for the oldest or the newest libraries that pyproject.toml allows.

`driver_versions.py oldest` pins each lower bound; `newest` leaves the range as it is, for
`pip install --upgrade`.
"""

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = ("postgresql", "psycopg", "mysql", "redis", "sqlalchemy")
LOWER = re.compile(r"(?P<name>[\w.-]+(?:\[[\w,-]+\])?)\s*>=\s*(?P<version>[\w.]+)")


def requirements(age: str) -> list[str]:
    path = Path(__file__).parents[1] / "pyproject.toml"
    extras = tomllib.loads(path.read_text("utf-8"))["project"]["optional-dependencies"]
    found = [requirement for extra in EXTRAS for requirement in extras[extra]]
    return [oldest(requirement) for requirement in found] if age == "oldest" else found


def oldest(requirement: str) -> str:
    match = LOWER.match(requirement)
    if match is None:
        raise ValueError(f"{requirement!r} has no lower bound")
    return f"{match['name']}=={match['version']}"


if __name__ == "__main__":
    if sys.argv[1:] not in (["oldest"], ["newest"]):
        sys.exit(f"usage: {sys.argv[0]} oldest|newest")
    print("\n".join(requirements(sys.argv[1])))
