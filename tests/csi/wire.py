"""The protocol buffers encoding, written a second time: what a client of another make puts on the wire.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from collections.abc import Mapping
from typing import Any

Raw = int | bytes


def written(fields: Mapping[int, Any]) -> bytes:
    """Encode a message given by field number: int, text, bytes, a message by number, or a list of these."""
    out = bytearray()
    for number, value in fields.items():
        for each in value if isinstance(value, list) else [value]:
            out += _field(number, each)
    return bytes(out)


def read_fields(raw: bytes) -> dict[int, list[Raw]]:
    """Decode a message: by field number, its values in order."""
    fields: dict[int, list[Raw]] = {}
    place = 0
    while place < len(raw):
        key, place = _varint(raw, place)
        number, place = _varint(raw, place)
        values = fields.setdefault(key >> 3, [])
        if key & 7 == 2:
            values.append(raw[place : place + number])
            place += number
        elif key & 7 == 0:
            values.append(number)
        else:
            raise ValueError(f"wire type {key & 7}")
    return fields


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, int):
        return _encoded(number << 3) + _encoded(value & (1 << 64) - 1)
    body = (
        value.encode() if isinstance(value, str) else written(value) if isinstance(value, Mapping) else value
    )
    return _encoded(number << 3 | 2) + _encoded(len(body)) + body


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _varint(raw: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
