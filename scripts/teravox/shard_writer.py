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


def _straight(volume: Volume, records: list[dict[str, Any]], descriptor: int, position: int, threads: int) -> Iterator[dict[str, Any]]:
    """Write uncompressed blocks: as all lengths are known, each goes to its own place as it is read."""
    jobs = []
    for record in records:
        _place(volume, record, "none")
        record["offset"] = position + tfrecord.HEADER_BYTES
        jobs.append((1, functools.partial(_write, volume, record, "none", _Position(descriptor, position).write)))
        position = record["offset"] + record["length"] + tfrecord.FOOTER_BYTES
    yield from ahead(jobs, threads, 2 * threads)  # they hold no block, and the next ones go on while the file is flushed


def _packed(volume: Volume, records: list[dict[str, Any]], codec: str, descriptor: int, position: int, threads: int) -> Iterator[dict[str, Any]]:
    """Write compressed blocks, one behind the other."""

    def job(record: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        frame: list[bytes] = []
        return _write(volume, record, codec, frame.append), frame

    for record, frame in ahead(((1, functools.partial(job, record)) for record in records), threads, threads):
        record["offset"] = position + tfrecord.HEADER_BYTES
        target = _Position(descriptor, position)
        for data in frame:
            target.write(data)
        position = target.position
        yield record


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
    """Write cases to a TFRecord file, each open only while its turn is. Returns the index without its provenance.

    The same cases and settings give the same bytes whatever the threads. Without compression a block's place is known before it is
    read, so that each goes to the file by itself, a megabyte at a time; compressed ones are held, one per thread and one more.
    """
    records: list[dict[str, Any]] = []
    entries: dict[str, Any] = {}
    size = 0
    with files.atomic(path) as temporary, temporary.open("wb", buffering=0) as stream, _flushing(stream.fileno()):
        for context in volumes:
            with context as volume:
                entries[volume.case] = volume.entry
                blocks = [_record(volume, block, extent) for block, extent in enumerate(volume.extents(block_bytes))]
                if codec == "none":
                    written = _straight(volume, blocks, stream.fileno(), size, threads)
                else:
                    written = _packed(volume, blocks, codec, stream.fileno(), size, threads)
                for record in written:
                    size = record["offset"] + record["length"] + tfrecord.FOOTER_BYTES
                    records.append(record)
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
