"""`db.connection()`: the driver's own connection, behind a guard that ends with its block.

A connection that is used after its block may be another task's by then. The guard stands in for the
connection: it passes everything on while the block is open, and raises afterwards, in the task that
made the mistake. For each class of connections there is one class of guards, with the methods of
that class: a method that was looked up inside the block is checked as well when it is called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import iscoroutinefunction, ismethod
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ..errors import PoolError
from . import messages
from .driver import DriverConnection
from .session import Session

if TYPE_CHECKING:
    from .scope import AnyTransaction

# What a guard answers by itself, or must not take over from the class that it stands for.
OWN = frozenset(
    {"__annotate__", "__annotate_func__",
     "__class__", "__class_getitem__", "__copy__", "__deepcopy__", "__del__", "__delattr__",
     "__dict__", "__dir__", "__doc__", "__eq__", "__getattr__", "__getattribute__", "__getstate__",
     "__hash__", "__init__", "__init_subclass__", "__module__", "__ne__", "__new__", "__reduce__",
     "__reduce_ex__", "__repr__", "__setattr__", "__setstate__", "__sizeof__", "__slots__",
     "__subclasshook__", "__weakref__", "__wrapped__"}
)  # fmt: skip


class Guard:
    """Stands in for the driver's connection as long as its block is open.

    `isinstance()` and `==` take it for the connection, `__wrapped__` is the connection itself.
    Every other use is passed on inside the block, and raises `NotAcquiredError` afterwards. In a
    task that joined an inner block it raises `TransactionClosedError` after the end of that.
    """

    __slots__ = (
        "__weakref__",
        "_cenote_hash",
        "_cenote_joined",
        "_cenote_kind",
        "_cenote_label",
        "_cenote_left",
        "_cenote_raw",
        "_cenote_session",
    )  # fmt: skip

    _cenote_finalizers: ClassVar[frozenset[str]] = frozenset()
    _cenote_members: ClassVar[frozenset[str]] = frozenset()  # what is found on the guard's class
    _cenote_hash: int
    _cenote_joined: AnyTransaction | None  # by the task of the block
    _cenote_kind: type  # of the connection
    _cenote_label: str  # of the database
    _cenote_left: weakref.ref[Any] | None  # to the connection, for finalizers after the end
    _cenote_session: Session | None  # None: the block is over
    _cenote_raw: Any  # None: the same

    @property
    def __wrapped__(self) -> Any:
        """The driver's own object."""
        return _checked(self, "__wrapped__")

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._cenote_kind

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("_cenote_", "__")):
            return object.__getattribute__(self, name)
        raw = _checked(self, name)
        if name in type(self)._cenote_members:
            return object.__getattribute__(self, name)
        value = getattr(raw, name)
        return self if value is raw else value

    def __getattr__(self, name: str) -> Any:  # of dunder names alone
        raw = _checked(self, name)
        value = getattr(raw, name)
        return self if value is raw else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_checked(self, name), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_checked(self, name), name)

    def __dir__(self) -> list[str]:
        return dir(self._cenote_kind if self._cenote_raw is None else self._cenote_raw)

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if issubclass(type(other), Guard):
            other = object.__getattribute__(other, "_cenote_raw")
        return other is not None and self._cenote_raw is other

    def __hash__(self) -> int:
        return self._cenote_hash

    def __repr__(self) -> str:
        raw, kind = self._cenote_raw, self._cenote_kind
        what = f"{kind.__module__}.{kind.__qualname__}, over" if raw is None else repr(raw)
        return f"<guard of {what}>"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a connection cannot be copied or pickled")


def stand_in(
    connection: DriverConnection, session: Session, joined: AnyTransaction | None = None
) -> Guard:
    """A new guard of the connection's connection."""
    raw = connection.raw
    kind: type = type(raw)
    guard = _guards_of(kind, type(connection))()
    put = object.__setattr__
    put(guard, "_cenote_raw", raw)
    put(guard, "_cenote_kind", kind)
    put(guard, "_cenote_hash", hash(raw))
    put(guard, "_cenote_joined", joined)
    put(guard, "_cenote_session", session)
    put(guard, "_cenote_label", session.loop_db.label)
    put(guard, "_cenote_left", weakref.ref(raw) if connection.finalizers else None)
    return guard


def dismiss(guard: Any) -> None:
    """Its block is over: it leads nowhere for code that still has it."""
    object.__setattr__(guard, "_cenote_joined", None)
    object.__setattr__(guard, "_cenote_session", None)
    object.__setattr__(guard, "_cenote_raw", None)


# Read past `__getattribute__`: whatever a cursor does with its connection goes through here.
_raw, _session, _joined = (
    vars(Guard)[f"_cenote_{name}"].__get__ for name in ("raw", "session", "joined")
)


def _checked(guard: Guard, name: str) -> Any:
    session = _session(guard)
    joined = _joined(guard)
    if session is None or session.ended or session.task.done():
        error: PoolError = messages.connection_over(guard._cenote_label, name)
    elif joined is not None and not joined.is_open:
        error = messages.transaction_over()
    else:
        return _raw(guard)
    if guard._cenote_left is not None and name in guard._cenote_finalizers:
        return guard._cenote_left()  # the finalizer of what was made inside; None: it is gone
    raise error


@lru_cache(maxsize=64)
def _guards_of(kind: type, connection: type[DriverConnection]) -> type[Guard]:
    """The class of the guards for connections of this class."""
    members: dict[str, Any] = {
        "__slots__": (),
        "__doc__": kind.__doc__,
        "_cenote_finalizers": connection.finalizers,
    }
    for base in reversed(kind.__mro__[:-1]):
        for name, value in vars(base).items():
            if name in OWN:
                continue
            if callable(value) and hasattr(type(value), "__get__") and not isinstance(value, type):
                members[name] = _method(name, value, name in connection.keeping)
            else:
                members.pop(name, None)
    bases = (Guard, *connection.guard_bases)
    members["_cenote_members"] = frozenset(members).union(*map(dir, bases))
    return type(kind.__name__, bases, members)


def _method(name: str, original: Callable[..., Any], keeping: bool) -> Callable[..., Any]:
    """The same method of the guard. What a method that is `keeping` makes has the guard for its
    connection, and so it ends with the guard."""

    def bound(guard: Guard, raw: Any) -> Any:
        method = getattr(raw, name)
        return MethodType(method.__func__, guard) if keeping and ismethod(method) else method

    if iscoroutinefunction(original):

        @wraps(original)
        async def call_async(self: Guard, /, *arguments: Any, **options: Any) -> Any:
            raw = _checked(self, name)
            result = await bound(self, raw)(*arguments, **options)
            return self if result is raw else result

        return call_async

    @wraps(original)
    def call(self: Guard, /, *arguments: Any, **options: Any) -> Any:
        raw = _checked(self, name)
        if raw is None:
            return None
        result = bound(self, raw)(*arguments, **options)
        return self if result is raw else result

    return call
