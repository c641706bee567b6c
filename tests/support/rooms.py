"""The rooms of the tests, and the markers that every test of a room has."""

from pathlib import Path

TESTS = Path(__file__).parents[1]

ROOMS: dict[str, tuple[str, ...]] = {
    "core": (),
    "pool": (),
    "sql": (),
    "drivers": (),
    "adapters": (),
    "fleet": (),
    "extras": (),
    "c_api": (),
    "docs": ("once", "coreless"),
    "project": ("once", "coreless"),
    "support": ("once", "coreless"),
    "exhibits": ("exhibit",),
}


def room_of(path: Path) -> str:
    """The room of a test file. Raises `LookupError` if it is in none that is known."""
    room, *rest = path.relative_to(TESTS).parts
    if not rest or room not in ROOMS:
        raise LookupError(f"{path} is in no known room: see tests/support/rooms.py")
    return room
