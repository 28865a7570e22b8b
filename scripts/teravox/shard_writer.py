"""Cases written as the blocks of a shard, with little in memory whatever the size of a case or a block."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib

from teravox import codecs, files, tfrecord
from teravox.ahead import ahead
from teravox.errors import UserError
from teravox.shards import FORMAT_VERSION, PAYLOADS, block_planes, payload_shape, record_features

CHUNK_BYTES = 1 << 20  # at a time, so that what reads, checksums and writes them finds them in the processor's cache
FLUSH_SECONDS = 0.02
OTHER_BYTES = 1 << 20  # what a record may hold beside image and label
Planes = Callable[[int, int], np.ndarray]  # planes [first, last) along z


@dataclasses.dataclass(frozen=True)
class Volume:
    """A case to write. entry : patient (a pseudonym), shape (z, y, x, c), affine (RAS+, mm, index (x, y, z)), channels, image_dtype,
    label_dtype (little-endian numpy type strings), statistics (of the whole volume, per channel). image gives (z, y, x, c), label (z, y, x).
    """

    case: str
    entry: dict[str, Any]
    image: Planes
    label: Planes

    def extents(self, block_bytes: float) -> list[tuple[int, int]]:
        """First plane of each block, and one past its last. Raises UserError when a block would be too large for a record."""
        z, y, x, c = self.entry["shape"]
        voxel = np.dtype(self.entry["image_dtype"]).itemsize * c + np.dtype(self.entry["label_dtype"]).itemsize
        planes = block_planes((x, y, z), voxel, block_bytes)
        if min(planes, z) * x * y * voxel + OTHER_BYTES > tfrecord.EXAMPLE_LIMIT:
            raise UserError(
                f"case '{self.case}': a block takes {min(planes, z) * x * y * voxel} bytes, a record holds at most {tfrecord.EXAMPLE_LIMIT}; "
                "lower shard.block_mb, or choose a coarser grid"
            )
        return [(first, min(first + planes, z)) for first in range(0, z, planes)]

    def chunks(self, name: str, extent: tuple[int, int], chunk_bytes: int = CHUNK_BYTES) -> Iterator[np.ndarray]:
        """Its image or label within an extent, as little-endian arrays in C order, some planes at a time."""
        dtype = np.dtype(self.entry[f"{name}_dtype"])
        plane = int(np.prod(payload_shape(self.entry, 1, name), dtype=np.int64)) * dtype.itemsize
        step = max(1, chunk_bytes // plane)
        read: Planes = getattr(self, name)
        for first in range(*extent, step):
            last = min(first + step, extent[1])
            array = np.ascontiguousarray(read(first, last), dtype)
            if array.shape != payload_shape(self.entry, last - first, name):
                raise ValueError(f"{name} {array.shape}, expected {payload_shape(self.entry, last - first, name)}")
            yield array


class _Frame:
    """A record on its way into a file: what passes is summed up and handed to `write`."""

    def __init__(self, length: int, write: Callable[[bytes], object]) -> None:
        self.sha256, self.crc, self.write = hashlib.sha256(), 0, write
        write(tfrecord.header(length))

    def add(self, data: bytes) -> None:
        self.sha256.update(data)
        self.crc = tfrecord.crc32c(data, self.crc)
        self.write(data)

    def end(self) -> str:
        """Returns the SHA-256 of the record."""
        self.write(tfrecord.masked(self.crc))
        return self.sha256.hexdigest()


def _record(volume: Volume, block: int, extent: tuple[int, int]) -> dict[str, Any]:
    """What is known of a block before it is read: the lengths are those without compression."""
    record: dict[str, Any] = {"case": volume.case, "block": block, "extent": list(extent)}
    for name in PAYLOADS:
        voxels = int(np.prod(payload_shape(volume.entry, extent[1] - extent[0], name), dtype=np.int64))
        record[name] = {"length": voxels * np.dtype(volume.entry[f"{name}_dtype"]).itemsize, "crc32": 0}
    return record


def _pieces(volume: Volume, record: dict[str, Any], codec: str) -> list[bytes]:
    return tfrecord.example(record_features(volume.case, volume.entry, record, codec))


def _place(volume: Volume, record: dict[str, Any], codec: str) -> None:
    """Fill in where image and label are within a record, and its length."""
    before, between, after = map(len, _pieces(volume, record, codec))
    record["image"]["offset"] = before
    record["label"]["offset"] = before + record["image"]["length"] + between
    record["length"] = record["label"]["offset"] + record["label"]["length"] + after


def _write(volume: Volume, record: dict[str, Any], codec: str, write: Callable[[bytes], object]) -> dict[str, Any]:
    """Read a block and write its frame. Returns its record, complete but for its offset in the file."""
    extent, counts = record["extent"], Counter[int]()

    def read(name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[np.ndarray]:
        for array in volume.chunks(name, extent, chunk_bytes):
            record[name]["crc32"] = isal_zlib.crc32(array.reshape(-1).view(np.uint8), record[name]["crc32"])
            if name == "label":
                counts.update(label_voxels(array))
            yield array

    packed = {}
    if codec != "none":
        for name in PAYLOADS:
            (array,) = read(name, tfrecord.EXAMPLE_LIMIT)
            packed[name] = codecs.encode(codec, array)
            record[name]["length"] = len(packed[name])
    _place(volume, record, codec)
    frame = _Frame(record["length"], write)
    for number, name in enumerate(PAYLOADS):
        frame.add(_pieces(volume, record, codec)[number])  # the second holds the checksum of the image, the last that of the label
        for data in [packed[name]] if packed else (array.tobytes() for array in read(name)):
            frame.add(data)
    frame.add(_pieces(volume, record, codec)[-1])
    record["sha256"] = frame.end()
    record["label_voxels"] = {str(value): counts[value] for value in sorted(counts)}
    return record


def label_voxels(label: np.ndarray) -> dict[int, int]:
    """How many voxels each label value has that is not 0 and occurs. label : unsigned integers of any shape."""
    counts = np.bincount(label[label > 0])
    return {int(value): int(counts[value]) for value in np.flatnonzero(counts)}


class _Position:
    """Writes to a file from a position on."""

    def __init__(self, descriptor: int, position: int) -> None:
        self.descriptor, self.position = descriptor, position

    def write(self, data: bytes) -> None:
        files.transfer(os.pwritev, self.descriptor, memoryview(data), self.position)
        self.position += len(data)


def _held(volume: Volume, record: dict[str, Any], codec: str) -> tuple[dict[str, Any], list[bytes]]:
    frame: list[bytes] = []
    return _write(volume, record, codec, frame.append), frame


def _straight(volume: Volume, record: dict[str, Any], target: _Position) -> tuple[dict[str, Any], list[bytes]]:
    return _write(volume, record, "none", target.write), []


Job = tuple[int, Callable[[], tuple[dict[str, Any], list[bytes]]]]


def _jobs(volumes: Iterable[Volume], block_bytes: float, codec: str, descriptor: int) -> Iterator[Job]:
    """The blocks to write, one after the other; each gives its record, and its frame where it is not in the file yet.

    Without compression all lengths are known: each block has its place in the file before it is read, and goes there by itself.
    """
    position = 0
    for volume in volumes:
        for block, extent in enumerate(volume.extents(block_bytes)):
            record = _record(volume, block, extent)
            if codec == "none":
                _place(volume, record, codec)
                record["offset"] = position + tfrecord.HEADER_BYTES
                yield 1, functools.partial(_straight, volume, record, _Position(descriptor, position))
                position = _end(record)
            else:
                yield 1, functools.partial(_held, volume, record, codec)


def _end(record: dict[str, Any]) -> int:
    """Where the next record's frame begins."""
    return int(record["offset"] + record["length"] + tfrecord.FOOTER_BYTES)


@contextlib.contextmanager
def _flushing(descriptor: int) -> Iterator[None]:
    """Keep the disk at work while a file is made, instead of once in the end."""
    done = threading.Event()

    def flush() -> None:
        while not done.wait(FLUSH_SECONDS):
            os.fdatasync(descriptor)

    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(flush)
        try:
            yield
        finally:
            done.set()
        flushed.result()


def write_shard(
    path: Path, volumes: Iterable[contextlib.AbstractContextManager[Volume]], block_bytes: float, codec: str, threads: int = 1
) -> dict[str, Any]:
    """Write cases to a TFRecord file. Returns the index without its provenance.

    volumes : each is opened when its turn comes, and closed after its last block. The same cases and settings give the same bytes
    whatever the threads. An uncompressed block passes a megabyte at a time; compressed ones are held, one per thread and one more.
    """
    records: list[dict[str, Any]] = []
    opened: dict[str, tuple[Volume, contextlib.ExitStack]] = {}
    entries: dict[str, Any] = {}
    size = 0
    with files.atomic(path) as temporary, temporary.open("wb", buffering=0) as stream, _flushing(stream.fileno()), contextlib.ExitStack() as stack:

        def in_turn() -> Iterator[Volume]:
            for context in volumes:
                own = stack.enter_context(contextlib.ExitStack())
                volume = own.enter_context(context)
                opened[volume.case] = volume, own
                entries[volume.case] = volume.entry
                yield volume

        jobs = _jobs(in_turn(), block_bytes, codec, stream.fileno())
        # The blocks that go to their own places take no memory: more of them may be under way.
        with contextlib.closing(ahead(jobs, threads, 2 * threads if codec == "none" else threads)) as done:
            for record, frame in done:
                record["offset"] = size + tfrecord.HEADER_BYTES
                target = _Position(stream.fileno(), size)
                for data in frame:
                    target.write(data)
                size = _end(record)
                records.append(record)
                volume, own = opened[record["case"]]
                if record["extent"][1] == volume.entry["shape"][0]:
                    own.close()
                    del opened[record["case"]]
        found = temporary.stat().st_size
        if found != size:
            raise OSError(f"{temporary}: wrote {found} bytes, expected {size}")
    return {
        "version": FORMAT_VERSION,
        "codec": {"name": codec, "library": codecs.library(codec)},
        "bytes": size,
        "count": len(records),
        "cases": entries,
        "records": records,
    }
