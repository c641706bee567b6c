"""Values by asyncpg: JSON as dict and list, the standard library's UUID, Enums by their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID, SafeUUID

from ...sql.values import bare, bare_list, dump_json, load_json

# What asyncpg or a codec takes as it is.
KNOWN = frozenset(
    {type(None), bool, int, float, str, bytes, Decimal, date, time, datetime, timedelta, UUID, dict}
)


class Codec(NamedTuple):
    """How the values of a type of pg_catalog are sent and read, in the binary format."""

    name: str
    oid: int
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def parameters(arguments: Sequence[Any]) -> Sequence[Any]:
    """Return what is sent in the place of the arguments: an Enum goes by its value."""
    return [bare_list(each) if type(each) is list else bare(each) for each in arguments]


def _document(value: Any) -> bytes:
    # A text is a document as it is, as on the other drivers.
    return (value if isinstance(value, str) else dump_json(value)).encode()


def _encode_jsonb(value: Any) -> bytes:
    return b"\x01" + _document(value)  # the version of the format


def _decode_jsonb(data: bytes) -> Any:
    return load_json(data[1:].decode())


def _decode_json(data: bytes) -> Any:
    return load_json(data.decode())


def _encode_uuid(value: Any) -> bytes:
    return value.bytes if isinstance(value, UUID) else UUID(value).bytes


def _decode_uuid(data: bytes) -> UUID:
    """The same as `UUID(bytes=data)`, at half of its cost."""
    found = _new_uuid(UUID)
    _set_number(found, int.from_bytes(data, "big"))
    _set_safety(found, SafeUUID.unknown)
    return found


_slots: Mapping[str, Any] = vars(UUID)
if "int" in _slots and "is_safe" in _slots:
    _new_uuid = object.__new__
    _set_number, _set_safety = _slots["int"].__set__, _slots["is_safe"].__set__
else:

    def _decode_uuid(data: bytes) -> UUID:
        return UUID(bytes=data)


CODECS = (
    Codec("json", 114, _document, _decode_json),
    Codec("jsonb", 3802, _encode_jsonb, _decode_jsonb),
    Codec("uuid", 2950, _encode_uuid, _decode_uuid),
)
