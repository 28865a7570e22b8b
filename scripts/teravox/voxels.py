"""Voxels out of a file, plain or compressed, within bounds that are checked before memory is taken."""

import io
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from teravox import numa
from teravox.errors import RejectedCase

CHUNK_BYTES = 1 << 24  # unpacked at a time
PACKED_BYTES = 1 << 16  # read at a time from a compressed file
DEFLATE_RATIO = 1032  # the most that one byte of a zlib stream can unpack to (zlib.net/zlib_tech.html)
GZIP_MAGIC = b"\x1f\x8b"
ANY_HEADER = zlib.MAX_WBITS + 32  # zlib tells gzip from zlib by itself
SOURCE = "get the file again from its source"


class Unpacked(io.RawIOBase):
    """What a zlib stream, or the gzip members of a file, unpack to. Every checksum is compared when a stream ends.

    trailing : bytes of the file behind the last stream, known once all is read. Reading raises zlib.error or EOFError.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.unpack = zlib.decompressobj(ANY_HEADER)
        self.waiting = b""
        self.trailing: int | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        view = memoryview(buffer).cast("B")
        while self.trailing is None and len(view):
            if self.unpack.eof:
                rest = self.unpack.unused_data
                rest += self.stream.read(PACKED_BYTES) if len(rest) < len(GZIP_MAGIC) else b""
                if not rest.startswith(GZIP_MAGIC):
                    here = self.stream.tell()
                    self.trailing = len(rest) + self.stream.seek(0, io.SEEK_END) - here
                    break
                self.unpack, self.waiting = zlib.decompressobj(ANY_HEADER), rest
            data = self.waiting or self.stream.read(PACKED_BYTES)
            found = self.unpack.decompress(data, min(len(view), CHUNK_BYTES))
            self.waiting = self.unpack.unconsumed_tail
            if found:
                view[: len(found)] = found
                return len(found)
            if not data and not self.unpack.eof:
                raise EOFError("it ends in the middle")
        return 0


def open_stream(file: BinaryIO, start: int, packed: bool) -> io.RawIOBase | BinaryIO:
    """The bytes of an open file from byte `start` on, unpacked when `packed`."""
    file.seek(start)
    return Unpacked(file) if packed else file


def head(path: Path, count: int, packed: bool) -> bytes:
    """The first bytes of a file's content, fewer when it is shorter. packed : by gzip. Raises RejectedCase."""
    buffer = bytearray(count)
    with path.open("rb") as file:
        if packed and file.read(len(GZIP_MAGIC)) != GZIP_MAGIC:
            raise RejectedCase(f"{path}: not a gzip file, expected one by its ending; {SOURCE}")
        try:
            found = _fill(open_stream(file, 0, packed), memoryview(buffer))
        except (zlib.error, EOFError) as error:
            raise _damaged(path, error) from None
    return bytes(buffer[:found])


def read(
    path: Path, dtype: np.dtype, count: int, *, start: int = 0, skip: int = 0, after: int = 0, packed: bool = False
) -> tuple[np.ndarray, tuple[str, ...]]:
    """`count` values of a file, as (count,) in `dtype`, and notes on what lies behind them.

    start : byte of the file at which its (compressed) content begins; skip, after : bytes of the content before and behind
    these values that it must hold too. Compressed content is unpacked once, to its checksum, but at most CHUNK_BYTES beyond
    what is asked for. Raises RejectedCase: truncated, damaged, or too large for the memory granted.
    """
    expected = skip + count * dtype.itemsize + after
    size = path.stat().st_size - start
    if not packed and size < expected:
        raise RejectedCase(f"{path}: truncated, found {max(size, 0)} bytes, expected {expected}; {SOURCE}")
    _require_memory(path, dtype, count, expected, start, packed)
    with path.open("rb") as file:
        stream = open_stream(file, start, packed)
        try:
            found = _discard(stream, skip) if packed else file.seek(skip, io.SEEK_CUR) - start
            array = np.empty(count, dtype)
            found += _fill(stream, array.view(np.uint8).data)
            found += _discard(stream, after)
            if found < expected:
                raise RejectedCase(f"{path}: truncated, found {found} bytes, expected {expected}; {SOURCE}")
            surplus = _discard(stream, CHUNK_BYTES) if packed else size - expected
        except (zlib.error, EOFError) as error:
            raise _damaged(path, error) from None
        except MemoryError:
            raise RejectedCase(f"{path}: {count * dtype.itemsize} bytes of voxels, more than this process can get; use more memory") from None
    notes = []
    if surplus:
        notes.append(f"{surplus if not packed or surplus < CHUNK_BYTES else f'at least {surplus}'} bytes behind the voxels are not used")
    if isinstance(stream, Unpacked) and stream.trailing:
        notes.append(f"{stream.trailing} bytes behind the compressed voxels are not used")
    return array, tuple(notes)


def _require_memory(path: Path, dtype: np.dtype, count: int, expected: int, start: int, packed: bool) -> None:
    """Values are held as they are stored and once more as they are used, in at least four bytes each."""
    need, granted = count * (dtype.itemsize + max(dtype.itemsize, 4)), numa.granted_bytes()
    if packed and need > granted:  # whether it is the file that lacks the bytes
        ratio_bytes = (path.stat().st_size - start) * DEFLATE_RATIO
        if ratio_bytes < expected:
            raise RejectedCase(f"{path}: truncated, found at most {ratio_bytes} bytes, expected {expected}; {SOURCE}")
    if need > granted:
        raise RejectedCase(f"{path}: reading it needs {need} bytes of memory, {granted} are available; use more memory or a coarser image")


def _fill(stream: io.RawIOBase | BinaryIO, view: memoryview) -> int:
    """Read until `view` is full or the stream ends; how many bytes there were."""
    found = 0
    while found < len(view) and (more := stream.readinto(view[found:])):  # type: ignore[union-attr]
        found += more
    return found


def _discard(stream: io.RawIOBase | BinaryIO, count: int) -> int:
    """Read `count` bytes, or as many as there are, and keep none."""
    buffer = memoryview(bytearray(min(count, CHUNK_BYTES)))
    found = 0
    while found < count and (more := _fill(stream, buffer[: count - found])):
        found += more
    return found


def _damaged(path: Path, error: Exception) -> RejectedCase:
    return RejectedCase(f"{path}: damaged compressed file ({error}); {SOURCE}")
