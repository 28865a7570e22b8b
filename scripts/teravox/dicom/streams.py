"""The bytes of a DICOM file: plain, inside gzip or deflated, within bounds, and where its pixels begin."""

import contextlib
import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pydicom
from pydicom.uid import DeflatedExplicitVRLittleEndian

from teravox.errors import RejectedCase

HEADER_BYTES = 1 << 28  # of a compressed file, as far as its header may reach; functional groups of 10,000 frames take some 30 MB
META_BYTES = 1 << 16  # of the file's first part, which names the transfer syntax
PIXELS = {0x7FE00008: "FloatPixelData", 0x7FE00009: "DoubleFloatPixelData", 0x7FE00010: "PixelData"}
UNDEFINED = 0xFFFFFFFF  # length of compressed pixels
# Explicit VRs whose length takes 4 bytes (PS3.5 table 7.1-1).
LONG = {b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV"}


def is_dicom_file(path: Path) -> bool:
    """Whether a file carries the DICOM prefix (PS3.10 section 7.1), itself or inside gzip."""
    with path.open("rb") as stream:
        start = stream.read(132)
    if start[:2] == b"\x1f\x8b":
        try:
            with gzip.open(path) as stream:
                start = stream.read(132)
        except (OSError, EOFError, zlib.error):
            return False
    return start[128:132] == b"DICM"


class TooLarge(OSError):
    """More bytes than may come out of a compressed file."""


class _Bounded(io.RawIOBase):
    """A decompressed stream that ends with an error instead of growing without bound."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream, self._limit = stream, limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset if whence == 0 else self._stream.tell() + offset
        if whence == 2 or target > self._limit:
            raise TooLarge("beyond the bound")
        return self._stream.seek(target)

    def read(self, size: int = -1) -> bytes:
        left = self._limit - self._stream.tell()
        if size < 0 or size > left:
            data = self._stream.read(left + 1)
            if len(data) > left:
                raise TooLarge("beyond the bound")
            return data
        return self._stream.read(size)


@contextlib.contextmanager
def open_dicom(path: Path, limit: int = HEADER_BYTES) -> Iterator[tuple[Any, bool]]:
    """A binary stream of a file, decompressed when it is a gzip file, and whether it is one. limit : bytes that may come out of it."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=raw) as stream:
                yield _Bounded(stream, limit), True  # type: ignore[arg-type]
        else:
            yield raw, False


def check_deflated(path: Path, stream: Any, limit: int = HEADER_BYTES) -> None:
    """Raises RejectedCase for a deflated data set (PS3.5 section A.5) of more than `limit` bytes, before pydicom inflates it whole."""
    start = stream.read(META_BYTES)
    stream.seek(0)
    if start[128:132] != b"DICM":
        raise RejectedCase(f"{path}: not readable as DICOM (no DICM prefix); get it again, or move it out of the series' folder")
    # (0002,0000) UL, the first element, holds the length of the rest of the file's first part.
    meta = struct.unpack_from("<I", start, 140)[0] if start[132:136] == b"\x02\x00\x00\x00" and len(start) >= 144 else META_BYTES
    if meta > META_BYTES - 144:
        raise RejectedCase(f"{path}: file meta information of {meta} bytes, expected at most {META_BYTES - 144}; damaged file")
    if DeflatedExplicitVRLittleEndian.encode() not in start[: 144 + meta]:
        return
    unpack, total = zlib.decompressobj(-zlib.MAX_WBITS), 0
    stream.seek(144 + meta)
    try:
        while not unpack.eof and (chunk := unpack.unconsumed_tail or stream.read(1 << 20)):
            total += len(unpack.decompress(chunk, 1 << 24))
            if total > limit:
                raise RejectedCase(f"{path}: deflated data set of more than {limit} bytes, expected at most that; decompress it first")
    except zlib.error as error:
        raise RejectedCase(f"{path}: damaged deflated data set ({error}); get the file again from its source") from None
    stream.seek(0)


def pixel_element(stream: Any, data: pydicom.Dataset) -> tuple[str, int, int]:
    """Keyword, offset and length of the pixel element that the stream stands before; ("", 0, 0) when there is none (PS3.5 section 7.1)."""
    start = stream.tell()
    order = "<" if data.is_little_endian else ">"
    while len(element := stream.read(12)) >= 8:
        group, number = struct.unpack_from(order + "HH", element)
        explicit = not data.is_implicit_VR
        long = explicit and element[4:6] in LONG
        if long and len(element) < 12:
            break
        length = struct.unpack_from(order + ("I" if long or not explicit else "H"), element, 8 if long else 6 if explicit else 4)[0]
        begin = start + (12 if long else 8)
        if group << 16 | number in PIXELS:
            return PIXELS[group << 16 | number], begin, length
        if group != 0x7FE0 or length == UNDEFINED:  # else something before the pixels, such as an offset table
            break
        start = stream.seek(begin + length)
    return "", 0, 0


def pixels_of_deflated(path: Path) -> tuple[str, int, int]:
    with open_dicom(path) as (stream, _):
        data = pydicom.dcmread(stream, specific_tags=["PixelData"])
    return ("PixelData", 0, len(data.PixelData)) if "PixelData" in data else ("", 0, 0)
