"""TFRecord files and `tf.train.Example` messages as bytes, without TensorFlow and without a copy of what they carry.

A TFRecord file is a row of frames: length (uint64, little-endian), CRC of these 8 bytes, data, CRC of the data (TensorFlow,
"TFRecord and tf.train.Example", section on the format). An Example is a protocol buffer: Example {Features features = 1},
Features {map<string, Feature> feature = 1}, Feature {BytesList = 1 | FloatList = 2 | Int64List = 3}. Keys are sorted, so
equal features give equal bytes.
"""

import dataclasses
import struct

import google_crc32c

HEADER_BYTES, FOOTER_BYTES = 12, 4  # around a record
EXAMPLE_LIMIT = 2**31 - 1  # bytes of one protobuf message
DELIMITED = 2  # the wire type of bytes, texts and messages


@dataclasses.dataclass(frozen=True)
class Payload:
    """The place of a bytes feature whose content is written by the caller. length : bytes."""

    length: int


Values = list[bytes] | list[int] | Payload  # a bytes list, an int64 list, or one value of a bytes list that follows later


def varint(number: int) -> bytes:
    """Seven bits a byte, lowest first; a negative int64 counts as its two's complement.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    number &= 2**64 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _head(field: int, length: int) -> bytes:
    return varint(field << 3 | DELIMITED) + varint(length)


def _field(field: int, body: bytes) -> bytes:
    return _head(field, len(body)) + body


def _feature(values: Values) -> tuple[bytes, int]:
    """The bytes of a Feature up to its payload, and how long the payload after them is."""
    if isinstance(values, Payload):
        inner = _head(1, values.length)
        return _head(1, len(inner) + values.length) + inner, values.length
    if values and isinstance(values[0], int):
        return _field(3, _field(1, b"".join(varint(int(value)) for value in values))), 0
    return _field(1, b"".join(_field(1, bytes(value)) for value in values)), 0


def example(features: dict[str, Values]) -> list[bytes]:
    """The pieces of a serialised Example: its payloads, in the order of their sorted keys, belong between them.

    A feature is a list of int, a list of bytes, or a `Payload`. n payloads give n + 1 pieces.
    """
    pieces, entries = [b""], 0
    for key in sorted(features, key=str.encode):
        name = _field(1, key.encode())
        value, payload = _feature(features[key])
        size = len(value) + payload
        entry = name + _head(2, size) + value
        total = len(entry) + payload
        pieces[-1] += _head(1, total) + entry
        entries += len(_head(1, total)) + total
        if isinstance(features[key], Payload):
            pieces.append(b"")
    pieces[0] = _head(1, entries) + pieces[0]
    return pieces


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of bytes, continued from `crc`."""
    return google_crc32c.extend(crc, data)


def masked(crc: int) -> bytes:
    """A CRC-32C as TFRecord stores it: rotated right by 15 bits, plus a constant, so that no CRC is taken of a bare CRC."""
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def header(length: int) -> bytes:
    """What stands before a record of `length` bytes."""
    size = struct.pack("<Q", length)
    return size + masked(crc32c(size))
