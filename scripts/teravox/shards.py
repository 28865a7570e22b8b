"""Volumes as blocks in TFRecord shards, with an index that finds and checks every record.

A shard is a TFRecord file. A record is a `tf.train.Example` with one block: a slab of a case's image and label along z. The
index beside it names offset, length and SHA-256 of every record, so that a reader goes straight to a case and notices any
change of its data. TFRecord's own framing around a record (length and CRCs) is written for other readers and not read here.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from teravox import files
from teravox.errors import UserError

FORMAT_VERSION = 1
HEADER_BYTES, FOOTER_BYTES = 12, 4  # around a record: its length (8) and the length's CRC (4); the data's CRC (4)


def block_planes(shape: tuple[int, int, int], voxel_bytes: int, block_bytes: float) -> int:
    """How many z planes fit into one block; at least one. shape : (x, y, z)."""
    return max(1, int(block_bytes // (shape[0] * shape[1] * voxel_bytes)))


def _bytes(*values: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def _ints(*values: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def block_example(image: np.ndarray, label: np.ndarray, first: int, last: int, about: dict[str, Any]) -> bytes:
    """One serialised block: planes [first, last) along z.

    image : (x, y, z, c); label : (x, y, z); both written in C order (z, y, x, c), little-endian, native type. about : case,
    patient (a pseudonym), block, affine (RAS+, mm), channels, statistics (the case's own, per channel).
    """
    x, y, z, c = image.shape
    image_type, label_type = image.dtype.newbyteorder("<"), label.dtype.newbyteorder("<")
    feature = {
        "version": _ints(FORMAT_VERSION),
        "case": _bytes(about["case"].encode()),
        "patient": _bytes(about["patient"].encode()),
        "block": _ints(about["block"]),
        "extent": _ints(first, last),
        "shape": _ints(z, y, x, c),
        "affine": _bytes(np.asarray(about["affine"], "<f8").tobytes()),
        "channels": _bytes(*[name.encode() for name in about["channels"]]),
        "statistics": _bytes(files.canonical_json(about["statistics"]).encode()),
        "image_dtype": _bytes(image_type.str.encode()),
        "label_dtype": _bytes(label_type.str.encode()),
        "image": _bytes(np.ascontiguousarray(image[:, :, first:last].transpose(2, 1, 0, 3), image_type).tobytes()),
        "label": _bytes(np.ascontiguousarray(label[:, :, first:last].transpose(2, 1, 0), label_type).tobytes()),
    }
    return tf.train.Example(features=tf.train.Features(feature=dict(sorted(feature.items())))).SerializeToString(deterministic=True)


def write_shard(path: Path, blocks: Iterator[tuple[str, int, bytes]]) -> dict[str, Any]:
    """Write serialised blocks (case, block number, bytes) to a TFRecord file. Returns the index."""
    records, offset = [], 0
    with files.atomic(path) as temporary:
        with tf.io.TFRecordWriter(str(temporary)) as writer:
            for case, block, data in blocks:
                writer.write(data)
                records.append(
                    {"case": case, "block": block, "offset": offset + HEADER_BYTES, "length": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                )
                offset += HEADER_BYTES + len(data) + FOOTER_BYTES
        found = temporary.stat().st_size
        if found != offset:
            raise OSError(f"{temporary}: wrote {found} bytes, expected {offset}")
    return {"version": FORMAT_VERSION, "bytes": offset, "records": records}


def read_records(path: Path, records: list[dict[str, Any]], size: int) -> Iterator[tf.train.Example]:
    """Fetch records by offset and check each against its SHA-256. Raises UserError naming the shard and what is wrong."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; run snakemake --cores all to write it again") from None
    try:
        found = os.fstat(descriptor).st_size
        if found != size:
            raise UserError(f"{path}: found {found} bytes, expected {size} (index); delete it and run snakemake --cores all")
        for record in records:
            data = os.pread(descriptor, record["length"], record["offset"])
            if hashlib.sha256(data).hexdigest() != record["sha256"]:
                raise UserError(
                    f"{path}: block {record['block']} of case '{record['case']}' is damaged (SHA-256 differs from the index); "
                    "delete the shard and run snakemake --cores all"
                )
            yield tf.train.Example.FromString(data)
    finally:
        os.close(descriptor)


def _array(example: tf.train.Example, key: str, shape: list[int], path: Path) -> np.ndarray:
    feature = example.features.feature
    values = np.frombuffer(feature[key].bytes_list.value[0], feature[f"{key}_dtype"].bytes_list.value[0].decode())
    if values.size != int(np.prod(shape, dtype=np.int64)):
        raise UserError(f"{path}: block holds {values.size} values of {key}, expected {shape}")
    return values.reshape(shape)


class ShardReader:
    """Finds cases in a set of shards by their indexes.

    indexes : the `*.index.json` documents' paths; the TFRecord of `a.index.json` is `a.tfrecord` beside it. `statistics` holds
    the intensity statistics, per channel, of every case loaded so far, `affines` its affine (4, 4), RAS+, mm.
    """

    def __init__(self, indexes: list[Path]) -> None:
        self.places: dict[str, tuple[Path, int, list[dict[str, Any]]]] = {}
        self.statistics: dict[str, dict[str, Any]] = {}
        self.affines: dict[str, np.ndarray] = {}
        for path in indexes:
            index = files.read_json(path)
            if index.get("version") != FORMAT_VERSION:
                raise UserError(
                    f"{path}: shard format version {index.get('version')}, expected {FORMAT_VERSION}; run snakemake --cores all to write it again"
                )
            shard = path.with_name(path.name.replace(".index.json", ".tfrecord"))
            for record in index["records"]:
                self.places.setdefault(record["case"], (shard, index["bytes"], []))[2].append(record)

    def load(self, case: str) -> tuple[np.ndarray, np.ndarray]:
        """A whole case: image (z, y, x, c) and label (z, y, x) in their native types. Raises UserError."""
        if case not in self.places:
            raise UserError(f"case '{case}' is in no shard; run snakemake --cores all to write the shards again")
        path, size, records = self.places[case]
        images, labels, covered = [], [], 0
        shape: list[int] = []
        for example in read_records(path, sorted(records, key=lambda record: record["block"]), size):
            feature = example.features.feature
            shape = list(feature["shape"].int64_list.value)
            self.affines[case] = np.frombuffer(feature["affine"].bytes_list.value[0], "<f8").reshape(4, 4)
            self.statistics[case] = json.loads(feature["statistics"].bytes_list.value[0])
            found = feature["case"].bytes_list.value[0].decode()
            if found != case:
                raise UserError(
                    f"{path}: a block of case '{found}' stands where the index has case '{case}'; delete both and run snakemake --cores all"
                )
            first, last = feature["extent"].int64_list.value
            if first != covered:
                raise UserError(f"{path}: case '{case}' has planes up to {covered}, then from {first}; a block is missing")
            covered = last
            images.append(_array(example, "image", [last - first, *shape[1:]], path))
            labels.append(_array(example, "label", [last - first, *shape[1:3]], path))
        if not shape or covered != shape[0]:
            raise UserError(f"{path}: case '{case}' has {covered} planes, expected {shape[:1]}; a block is missing")
        return np.concatenate(images), np.concatenate(labels)
