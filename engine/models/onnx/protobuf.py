"""Protocol Buffers without descriptors: the fields of a message by number, and messages as bytes.

Source: Protocol Buffers, "Encoding" (messages are merged by joining bytes).
"""

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_KEY = (1 << 32) - 1
"""Largest key of a field; readers in C++ drop the bits above and see another field."""


class ProtobufError(ValueError):
    """The bytes are not a message."""


class Message:
    """The fields of one message by number: integers, and the bytes of longer values."""

    def __init__(self, data: memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for number, value in read_fields(data):
            self._fields.setdefault(number, []).append(value)

    def parts(self, number: int) -> list[memoryview]:
        """Return the bytes of a field, once for each time that it is there."""
        return [value for value in self._fields.get(number, ()) if not isinstance(value, int)]

    def messages(self, *path: int) -> list["Message"]:
        """Return the messages of a field, or of fields within each other."""
        messages = [self]
        for number in path:
            messages = [
                Message(payload) for message in messages for payload in message.parts(number)
            ]
        return messages

    def texts(self, number: int) -> tuple[str, ...]:
        """Return the texts of a field."""
        return tuple(bytes(payload).decode("utf-8", "replace") for payload in self.parts(number))

    def text(self, number: int) -> str:
        """Return the last text of a field; empty if there is none."""
        return "".join(self.texts(number)[-1:])

    def integers(self, number: int) -> tuple[int, ...]:
        """Return the integers of a field, which may be packed."""
        integers: list[int] = []
        for value in self._fields.get(number, ()):
            if isinstance(value, int):
                integers.append(value)
                continue
            position = 0
            while position < len(value):
                integer, position = _read_varint(value, position)
                integers.append(integer)
        return tuple(integers)

    def integer(self, number: int, default: int = 0) -> int:
        """Return the first integer of a field, or the default."""
        return next(iter(self.integers(number)), default)

    def pairs(self, number: int) -> dict[str, str]:
        """Return messages of a key and a value as a dictionary."""
        return {entry.text(1): entry.text(2) for entry in self.messages(number)}


def read_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the fields of one message: number with an integer or with the bytes."""
    position, end = 0, len(data)
    while position < end:
        key, position = _read_varint(data, position)
        number, kind = key >> 3, key & 7
        if number == 0 or key > _MAX_KEY:
            raise ProtobufError(f"a field numbered {number}")
        if kind == _VARINT:
            value, position = _read_varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _read_varint(data, position)
        else:
            length = {_FIXED64: 8, _FIXED32: 4}.get(kind, -1)
        if length < 0 or position + length > end:
            raise ProtobufError(f"a field that does not fit at byte {position}")
        yield number, data[position : position + length]
        position += length


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read an integer of variable length; return its value and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ProtobufError(f"a number too long at byte {position}")


def encode_bytes(number: int, payload: bytes) -> bytes:
    """Return a field of bytes, a text or a message."""
    return bytes([*_encode_varint(number << 3 | _BYTES), *_encode_varint(len(payload))]) + payload


def _encode_varint(value: int) -> list[int]:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return [*groups, value]
