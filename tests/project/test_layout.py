"""Every test file is in a known room, and no file is too long to keep in mind."""

from pathlib import Path

import pytest

from tests.support.rooms import ROOMS, TESTS, room_of

WALL = 600  # lines


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_every_test_file_is_in_a_known_room() -> None:
    assert {room_of(path) for path in TESTS.rglob("test_*.py")} <= ROOMS.keys()


@pytest.mark.parametrize("name", ["test_x.py", "unknown/test_x.py"])
def test_a_file_outside_of_the_rooms_is_refused(name: str) -> None:
    with pytest.raises(LookupError, match="in no known room"):
        room_of(TESTS / name)


def test_no_new_test_file_exceeds_the_wall() -> None:
    longer = {
        path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py") if lines_of(path) > WALL
    }
    assert not longer, f"split by noun: {longer}"
