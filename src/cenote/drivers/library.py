"""What a driver relies on in its library beyond the public interface, checked at import."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class Untyped:
        """A class of a library without types, as type checkers shall see it: all it has is Any."""

        def __init__(self, *arguments: Any, **options: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Library:
    """A library as it is installed, and the versions of it that cenote is tested with."""

    name: str
    version: str
    tested: tuple[str, str]  # oldest and newest

    def module(self, name: str, *names: str) -> Any:
        """A module of the library that is not public, with what it must have."""
        try:
            found = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise self.unfit(name) from None
        self.require(found, names)
        return found

    def require(self, owner: Any, names: Iterable[str]) -> None:
        """Raise ImportError unless a module, a class or an object has all of these names."""
        for name in names:
            if not hasattr(owner, name):
                raise self.unfit(f"{_called(owner)}.{name}")

    def require_assigned(self, owner: type, names: Iterable[str]) -> None:
        """The same for attributes that the constructor of a class written in Python sets."""
        found: set[str] = set()
        for base in owner.__mro__:
            code = getattr(vars(base).get("__init__"), "__code__", None)
            found.update(vars(base), getattr(code, "co_names", ()))
        for name in names:
            if name not in found:
                raise self.unfit(f"{_called(owner)}.{name}")

    def unfit(self, missing: str) -> ImportError:
        """The error for a version that lacks a name."""
        oldest, newest = self.tested
        return ImportError(
            f"{self.name} {self.version} has no {missing}, which cenote needs: cenote is tested "
            f"with {self.name} {oldest} to {newest}, install one of these",
            name=self.name,
        )


def _called(owner: Any) -> str:
    return str(getattr(owner, "__name__", type(owner).__name__))
