"""Every byte of a shard against its index, the ledger and the volumes it was made from. Faults come as lines; none is a good shard."""

import hashlib
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib

from teravox import codecs, files, hashing, resampled, tfrecord
from teravox.errors import UserError
from teravox.shard_reader import ShardReader, read_index
from teravox.shard_writer import label_voxels
from teravox.shards import PAYLOADS, payload_shape, record_features, shard_path

CHUNK_BYTES = 1 << 20
NAME = re.compile(r"(\d{5})-of-(\d{5})\.index\.json")
Advance = Callable[[int], object]  # told how many bytes have been looked at


def size_of(index: Path) -> int:
    """Bytes of the shard of an index; 0 when it is not there."""
    shard = shard_path(index)
    return shard.stat().st_size if shard.exists() else 0


def faults(indexes: list[Path], ledger: dict[str, Any] | None, against: Path | None, advance: Advance) -> Iterator[str]:
    """Everything that is wrong with shards. against : folder with a subfolder per resampled case."""
    good: list[Path] = []
    yield from missing_shards(indexes)
    for path in indexes:
        found = list(check_records(path, advance))
        yield from found
        if ledger is not None:
            yield from check_ledger(path, ledger)
        if not found:
            good.append(path)
    seen: dict[str, Path] = {}
    for path in good:
        for case in read_index(path)["cases"]:
            if case in seen:
                yield f"{path}: holds case '{case}', which is in {seen[case]} too; delete those of the old shard.count"
            seen.setdefault(case, path)
    if against is not None:
        try:
            reader = ShardReader(good)
        except UserError as error:
            yield str(error)
            return
        for case in reader.places:
            yield from check_against(reader, case, against / case, advance)


def missing_shards(indexes: list[Path]) -> Iterator[str]:
    """Shards that the names of others announce: 00000-of-00002 without 00001-of-00002."""
    totals = sorted({(path.parent, match.group(2)) for path in indexes if (match := NAME.fullmatch(path.name))})
    for folder, total in totals:
        for number in range(int(total)):
            path = folder / f"{number:05d}-of-{total}.index.json"
            if not path.exists():
                yield f"{path}: missing, though other shards are named -of-{total}"
    if len(totals) > len({folder for folder, _ in totals}):
        yield f"{indexes[0].parent}: holds the shards of {len(totals)} numbers of shards, expected one; delete the old ones"


def check_ledger(index: Path, ledger: dict[str, Any]) -> Iterator[str]:
    """An index, and by it its shard, against what the ledger of the run recorded."""
    name = f"{index.resolve().parent.name}/{index.name}"
    recorded = [job["digest"] for job in ledger["jobs"] if job["document"] == name]
    if not recorded:
        yield f"{index}: not in the ledger"
    elif hashing.file_digest(index) != recorded[0]:
        yield f"{index}: has hash {hashing.file_digest(index)[:12]}, expected {recorded[0][:12]} (ledger)"


def check_records(index_path: Path, advance: Advance) -> Iterator[str]:
    """Every byte of a shard: frames and features are what the index says of them, image and label have its checksums."""
    try:
        index = read_index(index_path)
        inputs = dict(index["provenance"]["inputs"])
    except UserError as error:
        yield str(error)
        return
    except (KeyError, TypeError, ValueError):
        yield f"{index_path}: says nothing readable of what it was made from"
        return
    held = {f"resample/{case}/{name}": digest for case, entry in index["cases"].items() for name, digest in entry["volumes"].items()}
    for name in sorted(name for name in inputs.keys() | held.keys() if inputs.get(name) != held.get(name)):
        yield f"{index_path}: {name} is {inputs.get(name, 'no input')} by its provenance, and {held.get(name, 'missing')} in the shard"
    path = shard_path(index_path)
    try:
        stream = path.open("rb", buffering=0)
    except OSError as error:
        yield f"{path}: {error.strerror}"
        return
    with stream:
        found = os.fstat(stream.fileno()).st_size
        if found != index["bytes"]:
            yield f"{path}: found {found} bytes, expected {index['bytes']}"
        for record in index["records"]:
            try:
                faults = list(_record_faults(stream.fileno(), index, record, advance))
            except EOFError as error:
                faults = [str(error)]
            if faults:
                yield f"{path}: block {record['block']} of case '{record['case']}': {', '.join(faults)}"


def _record_faults(descriptor: int, index: dict[str, Any], record: dict[str, Any], advance: Advance) -> Iterator[str]:
    codec, entry = index["codec"]["name"], index["cases"][record["case"]]
    start = record["offset"]
    if _read(descriptor, start - tfrecord.HEADER_BYTES, tfrecord.HEADER_BYTES) != tfrecord.header(record["length"]):
        yield "the length before it is damaged"
    pieces = tfrecord.example(record_features(record["case"], entry, record, codec))
    sha256, crc, position = hashlib.sha256(), 0, start
    for piece, name in itertools.zip_longest(pieces, PAYLOADS):
        data = _read(descriptor, position, len(piece))
        sha256.update(data)
        crc = tfrecord.crc32c(data, crc)
        position += len(piece)
        if data != piece:
            yield "what it says of itself differs from the index"
        if name:
            payload = _Payload(entry, record, name, codec)
            for offset in range(0, record[name]["length"], CHUNK_BYTES):
                data = _read(descriptor, position + offset, min(CHUNK_BYTES, record[name]["length"] - offset))
                sha256.update(data)
                crc = tfrecord.crc32c(data, crc)
                payload.add(data)
                advance(len(data))
            position += record[name]["length"]
            yield from payload.faults()
    if position != start + record["length"]:
        yield f"it has {record['length']} bytes, its parts {position - start}"
    if sha256.hexdigest() != record["sha256"]:
        yield "SHA-256 differs"
    if _read(descriptor, start + record["length"], tfrecord.FOOTER_BYTES) != tfrecord.masked(crc):
        yield "the CRC after it differs"


class _Payload:
    """Image or label of a block as it passes: its checksum, and what labels it has."""

    def __init__(self, entry: dict[str, Any], record: dict[str, Any], name: str, codec: str) -> None:
        self.record, self.name, self.codec = record, name, codec
        self.shape = payload_shape(entry, record["extent"][1] - record["extent"][0], name)
        self.dtype = np.dtype(entry[f"{name}_dtype"])
        self.packed, self.crc, self.counts = bytearray(), 0, Counter[int]()

    def add(self, data: bytes) -> None:
        if self.codec != "none":
            self.packed += data
        else:
            self._look(np.frombuffer(data, np.uint8))

    def _look(self, raw: np.ndarray) -> None:
        self.crc = isal_zlib.crc32(raw, self.crc)
        if self.name == "label":
            self.counts.update(label_voxels(raw.view(self.dtype)))

    def faults(self) -> Iterator[str]:
        if self.codec != "none":
            array = np.empty(self.shape, self.dtype)
            try:
                codecs.decode(self.codec, bytes(self.packed), array)
            except UserError as error:
                yield f"{self.name}: {error}"
                return
            self._look(array.reshape(-1).view(np.uint8))
        if self.crc != self.record[self.name]["crc32"]:
            yield f"CRC-32 of its {self.name} differs"
        if self.name == "label" and {str(value): count for value, count in self.counts.items()} != self.record["label_voxels"]:
            yield "the voxels of its labels differ from the index"


def _read(descriptor: int, position: int, length: int) -> bytes:
    data = bytearray(length)
    files.transfer(os.preadv, descriptor, memoryview(data), position)
    return bytes(data)


def check_against(reader: ShardReader, case: str, folder: Path, advance: Advance) -> Iterator[str]:
    """A case of the shards against the resampled volumes in a folder: geometry, types, statistics, and voxel for voxel."""
    place = reader.place(case)
    try:
        with resampled.opened(folder, place.entry["channels"]) as source:
            resampled.check(folder, source)
            about = source.about(place.entry["patient"], place.entry["channels"])
            different = [key for key in sorted(about) if about[key] != place.entry[key]]
            if different not in ([], ["volumes"]):  # of volumes with other hashes the voxel is told
                yield f"{place.path}: case '{case}' differs from {folder} in {', '.join(different)}"
                return
            for record in place.records:
                first, last = record["extent"]
                for name, mine, theirs in zip(
                    PAYLOADS, reader.load(case, first, last), (source.image_planes(first, last), source.label_planes(first, last)), strict=True
                ):
                    advance(mine.nbytes)
                    if mine.tobytes() != theirs.tobytes():
                        yield f"{place.path}: {_difference(case, name, mine, theirs, first)}"
                        return
            if different:
                yield f"{place.path}: case '{case}' was made of volumes with other hashes than {folder}, and has the same voxels"
    except UserError as error:
        yield str(error)


def _difference(case: str, name: str, mine: np.ndarray, theirs: np.ndarray, first: int) -> str:
    bits = [array.reshape(-1).view(np.uint8).reshape(*array.shape, -1) for array in (mine, theirs)]
    place = np.argwhere(np.any(bits[0] != bits[1], axis=-1))[0]
    z, y, x, *channel = (int(n) for n in place)
    which = f" channel {channel[0]}" if channel else ""
    return f"{name} of case '{case}' is {mine[tuple(place)]} at voxel ({x}, {y}, {z + first}){which}, expected {theirs[tuple(place)]} as resampled"
