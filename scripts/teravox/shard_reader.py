"""Cases out of shards, found by their indexes: whole, or some of their planes, and nothing else of a file is touched."""

import contextlib
import dataclasses
import difflib
import functools
import hashlib
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib

from teravox import codecs, files
from teravox.errors import UserError
from teravox.shards import FORMAT_VERSION, PAYLOADS, content_digest, payload_shape, shard_path
from teravox.tfrecord import EXAMPLE_LIMIT, FOOTER_BYTES, HEADER_BYTES

PAYLOAD_KEYS = ("offset", "length", "crc32")
AGAIN = "run snakemake --cores all --forcerun write_shard"
HASHED_BYTES = 1 << 20  # read at a time, so that it is hashed while the processor's cache has it
ALIGNMENT = 64  # bytes; TensorFlow takes such an array as it is, and copies any other


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array without values, in C order, that begins at a multiple of 64 bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def read_index(path: Path) -> dict[str, Any]:
    """An index whose blocks follow each other without a gap, in the file and in every case.

    Raises UserError when it is missing, of another format, changed since it was written, or when a block is missing, twice or misplaced.
    """
    index = files.read_json(path)
    version = index.get("version") if isinstance(index, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(f"{path}: shard format version {version}, expected {FORMAT_VERSION}; run snakemake --cores all to write it again")
    try:
        fault: str | None = "its content differs from the hash that it records"
        if index["provenance"]["artefacts"][shard_path(path).name] == content_digest(index):
            fault = _fault(index)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not an index of a shard ({type(error).__name__}: {' '.join(str(error).split())}); {AGAIN}") from None
    if fault:
        raise UserError(f"{path}: {fault}; {AGAIN}")
    return index


def _fault(index: dict[str, Any]) -> str | None:
    """What does not fit in an index, in words."""
    records, position = index["records"], 0
    if len(records) != index["count"]:
        return f"names {len(records)} blocks, expected {index['count']}"
    for record in records:
        _natural(record["block"], record["length"], *record["extent"], *(record[name][key] for name in PAYLOADS for key in PAYLOAD_KEYS))
        name = f"block {record['block']} of case '{record['case']}'"
        if not re.fullmatch("[0-9a-f]{64}", record["sha256"]):
            return f"{name} has SHA-256 {record['sha256']!r}"
        if record["offset"] != position + HEADER_BYTES:
            return f"{name} begins at byte {record['offset']}, expected {position + HEADER_BYTES}"
        position = record["offset"] + record["length"] + FOOTER_BYTES
        image, label = (record[payload] for payload in PAYLOADS)
        if image["offset"] + image["length"] > label["offset"] or label["offset"] + label["length"] > record["length"]:
            return f"image and label of {name} do not fit into its {record['length']} bytes"
    if position != index["bytes"]:
        return f"its blocks end at byte {position}, expected {index['bytes']}"
    own: dict[str, list[dict[str, Any]]] = {case: [] for case in index["cases"]}
    for record in records:
        if record["case"] not in own:
            return f"block of case '{record['case']}', of which nothing else is known"
        own[record["case"]].append(record)
    for case in own:
        if not re.fullmatch("[A-Za-z0-9_-]+", case):
            return f"a case called {case!r}, expected letters, digits, _ and - only"
    for case, entry in index["cases"].items():
        fault = _case_fault(entry, own[case], index["codec"]["name"])
        if fault:
            return f"case '{case}': {fault}"
    return None


def _case_fault(entry: dict[str, Any], records: list[dict[str, Any]], codec: str) -> str | None:
    """What does not fit in a case's entry and its blocks, in words."""
    z, _, _, c = entry["shape"]
    _natural(*entry["shape"])
    dtypes = {name: np.dtype(entry[f"{name}_dtype"]) for name in PAYLOADS}
    if min(entry["shape"]) < 1 or len(entry["channels"]) != c or set(entry["statistics"]) != set(entry["channels"]):
        return f"shape {entry['shape']} with channels {entry['channels']} and statistics of {sorted(entry['statistics'])}"
    if dtypes["image"].kind not in "iuf" or dtypes["label"].kind != "u" or codec not in ("none", *codecs.CODECS):
        return f"types {entry['image_dtype']} and {entry['label_dtype']}, codec {codec}"
    if np.array(entry["affine"], np.float64).shape != (4, 4) or not np.isfinite(entry["affine"]).all():
        return f"affine {entry['affine']}"
    if not all(isinstance(text, str) for text in [entry["patient"], *entry["channels"], *entry["volumes"].values()]):
        return "patient, channels and volumes are no texts"
    for record in records:
        if any(not 1 <= int(value) < 2**16 or type(count) is not int or count < 1 for value, count in record["label_voxels"].items()):
            return f"label_voxels of block {record['block']}"
        if sum(record["label_voxels"].values()) > math.prod(payload_shape(entry, record["extent"][1] - record["extent"][0], "label")):
            return f"more labels than voxels in block {record['block']}"
    planes = [0, *(record["extent"][1] for record in records)]
    expected = [(number, list(pair)) for number, pair in enumerate(itertools.pairwise(planes))]
    if [(record["block"], record["extent"]) for record in records] != expected or planes[-1] != z or planes != sorted(set(planes)):
        return f"its blocks do not follow each other up to plane {z}: one is missing, twice or misplaced"
    for record, name in itertools.product(records, PAYLOADS):
        size = math.prod(payload_shape(entry, record["extent"][1] - record["extent"][0], name)) * dtypes[name].itemsize
        if size > EXAMPLE_LIMIT or (codec == "none" and record[name]["length"] != size):
            return f"block {record['block']} has {record[name]['length']} bytes of {name} for voxels of {size}"
    return None


def _natural(*numbers: Any) -> None:
    """Raises ValueError unless all are integers from 0 on."""
    for number in numbers:
        if type(number) is not int or number < 0:
            raise ValueError(f"{number!r}, expected an integer from 0 on")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a case is. entry : what is known of it (see `shards`); records : its blocks in order; size : of the file, bytes."""

    path: Path
    codec: str
    size: int
    entry: dict[str, Any]
    records: list[dict[str, Any]]

    @property
    def affine(self) -> np.ndarray:
        """(4, 4), index (x, y, z) to RAS+ mm."""
        return np.array(self.entry["affine"], np.float64)


class ShardReader:
    """Finds cases in a set of shards by their indexes.

    indexes : the `*.index.json` documents' paths; the TFRecord of `a.index.json` is `a.tfrecord` beside it. check : "checksum" compares
    every block that is read with its SHA-256; "size" relies on the sizes of files and blocks. threads : blocks read at a time.
    Calls from several threads are welcome.
    """

    def __init__(self, indexes: Iterable[Path], check: str = "checksum", threads: int = 1) -> None:
        self.check, self.threads = check, threads
        self.places: dict[str, Place] = {}
        for path in indexes:
            index = read_index(path)
            by_case: dict[str, list[dict[str, Any]]] = {}
            for record in index["records"]:
                by_case.setdefault(record["case"], []).append(record)
            for case, entry in index["cases"].items():
                if case in self.places:
                    raise UserError(f"{path}: holds case '{case}', which is in {self.places[case].path} too; delete those of the old shard.count")
                records = by_case[case]
                self.places[case] = Place(shard_path(path), index["codec"]["name"], index["bytes"], entry, records)

    def place(self, case: str) -> Place:
        """Where a case is. Raises UserError when it is in no shard."""
        if case not in self.places:
            near = ", ".join(difflib.get_close_matches(case, self.places, n=3, cutoff=0.3))
            raise UserError(
                f"case '{case}' is in no shard{f', near to it are {near}' if near else ''}; those of the test set are in none, "
                "any other comes in with snakemake --cores all"
            )
        return self.places[case]

    def check_sizes(self, cases: Iterable[str]) -> None:
        """Raises UserError unless the shards of these cases are there, as long as their indexes say."""
        for place in {place.path: place for place in map(self.place, cases)}.values():
            with _opened(place):
                pass

    def check_sources(self, volumes: dict[str, dict[str, str]]) -> None:
        """Raises UserError unless shards were made of these volumes: case -> file's name -> content hash."""
        for case, expected in volumes.items():
            place = self.place(case)
            if place.entry["volumes"] != expected:
                raise UserError(f"{place.path}: case '{case}' was made of other volumes than those resampled now; {AGAIN}")

    def load(self, case: str, first: int = 0, last: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Planes [first, last) along z of a case: image (z, y, x, c) and label (z, y, x) in their native types. Raises UserError."""
        place = self.place(case)
        last = place.entry["shape"][0] if last is None else last
        if not 0 <= first < last <= place.entry["shape"][0]:
            raise UserError(f"case '{case}' has planes 0 to {place.entry['shape'][0]}, asked for {first} to {last}")
        out = {name: aligned(payload_shape(place.entry, last - first, name), np.dtype(place.entry[f"{name}_dtype"])) for name in PAYLOADS}
        records = [record for record in place.records if record["extent"][0] < last and record["extent"][1] > first]
        with _opened(place) as descriptor:
            read = functools.partial(self._read, descriptor, place, out, first, last)
            if self.threads == 1 or len(records) == 1:
                for record in records:
                    read(record)
            else:
                with ThreadPoolExecutor(min(self.threads, len(records))) as pool:
                    list(pool.map(read, records))
        return out["image"], out["label"]

    def load_label(self, case: str, block: int) -> np.ndarray:
        """The label of one block alone: (z, y, x). What is compared is its CRC-32, as the SHA-256 is that of the whole block."""
        place = self.place(case)
        record = place.records[block]
        label = aligned(payload_shape(place.entry, record["extent"][1] - record["extent"][0], "label"), np.dtype(place.entry["label_dtype"]))
        with _opened(place) as descriptor:
            self._block(descriptor, place, record, {"label": label})
            if self.check == "checksum" and isal_zlib.crc32(_bytes(label)) != record["label"]["crc32"]:
                raise _damaged(place, record, "CRC-32 of its label")
        return label

    def _read(self, descriptor: int, place: Place, out: dict[str, np.ndarray], first: int, last: int, record: dict[str, Any]) -> None:
        """Put the part of a block within planes [first, last) where it belongs."""
        low, high = record["extent"]
        begin, end = max(first, low), min(last, high)
        targets = {name: array[begin - first : end - first] for name, array in out.items()}
        if place.codec == "none" and self.check == "size":
            for name, target in targets.items():
                plane = record[name]["length"] // (high - low)
                files.transfer(os.preadv, descriptor, _bytes(target), record["offset"] + record[name]["offset"] + (begin - low) * plane)
        elif (begin, end) == (low, high):
            self._block(descriptor, place, record, targets)
        else:
            blocks = {name: aligned((high - low, *target.shape[1:]), target.dtype) for name, target in targets.items()}
            self._block(descriptor, place, record, blocks)
            for name, target in targets.items():
                target[:] = blocks[name][begin - low : end - low]

    def _block(self, descriptor: int, place: Place, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Fill arrays, of a block's full shape, with its image and label, or with its label alone, which only the caller can check."""
        views = {name: _bytes(array) if place.codec == "none" else memoryview(bytearray(record[name]["length"])) for name, array in arrays.items()}
        if self.check == "checksum" and len(arrays) == len(PAYLOADS):
            self._hashed(descriptor, place, record, views)
        else:
            for name, view in views.items():
                files.transfer(os.preadv, descriptor, view, record["offset"] + record[name]["offset"])
        if place.codec != "none":
            try:
                for name, array in arrays.items():
                    codecs.decode(place.codec, bytes(views[name]), array)
            except UserError as error:
                raise UserError(f"{place.path}: block {record['block']} of case '{record['case']}': {error}; {AGAIN}") from None

    def _hashed(self, descriptor: int, place: Place, record: dict[str, Any], payloads: dict[str, memoryview]) -> None:
        """Read a whole record, its payloads into buffers of their size, and compare its SHA-256."""
        sha256, position = hashlib.sha256(), 0
        ends = [record[name]["offset"] for name in PAYLOADS] + [record["length"]]
        for name, end in zip([*PAYLOADS, None], ends, strict=True):
            between = memoryview(bytearray(end - position))
            for view in (between, payloads[name]) if name else (between,):
                for start in range(0, len(view), HASHED_BYTES):
                    part = view[start : start + HASHED_BYTES]
                    files.transfer(os.preadv, descriptor, part, record["offset"] + position + start)
                    sha256.update(part)
                position += len(view)
        if sha256.hexdigest() != record["sha256"]:
            raise _damaged(place, record, "SHA-256")


def _bytes(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _damaged(place: Place, record: dict[str, Any], what: str) -> UserError:
    return UserError(f"{place.path}: block {record['block']} of case '{record['case']}' is damaged ({what} differs from the index); {AGAIN}")


@contextlib.contextmanager
def _opened(place: Place) -> Iterator[int]:
    """A shard as a descriptor, once it has the size that its index says. Raises UserError naming the file."""
    try:
        descriptor = os.open(place.path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{place.path}: {error.strerror}; run snakemake --cores all to write it again") from None
    try:
        found = os.fstat(descriptor).st_size
        if found != place.size:
            raise UserError(f"{place.path}: found {found} bytes, expected {place.size} (index); {AGAIN}")
        yield descriptor
    except EOFError as error:
        raise UserError(f"{place.path}: {error}; {AGAIN}") from None
    finally:
        os.close(descriptor)
