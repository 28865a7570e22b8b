"""The format of shards: volumes as blocks in TFRecord files, and the index that finds and checks every block.

A record is a `tf.train.Example` with one block: a slab of a case's image and label along z. The index beside the file names
the place and the SHA-256 of every record, and all that is known of each case; see docs/shards.md.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from teravox import files, hashing
from teravox.tfrecord import Payload, Values

FORMAT_VERSION = 2
CONTENT = ("version", "codec", "bytes", "count", "cases", "records")  # of an index: what the shard holds
PAYLOADS = ("image", "label")


def block_planes(shape: tuple[int, int, int], voxel_bytes: int, block_bytes: float) -> int:
    """How many z planes fit into one block; at least one. shape : (x, y, z)."""
    return max(1, int(block_bytes // (shape[0] * shape[1] * voxel_bytes)))


def record_features(case: str, entry: dict[str, Any], record: dict[str, Any], codec: str) -> dict[str, Values]:
    """The features of a block's Example, its image and label as payloads. entry, record : the case's and the block's in the index."""
    return {
        "version": [FORMAT_VERSION],
        "case": [case.encode()],
        "patient": [entry["patient"].encode()],
        "block": [record["block"]],
        "extent": list(record["extent"]),
        "shape": list(entry["shape"]),
        "affine": [np.asarray(entry["affine"], "<f8").tobytes()],
        "channels": [name.encode() for name in entry["channels"]],
        "statistics": [files.canonical_json(entry["statistics"]).encode()],
        "codec": [codec.encode()],
        **{f"{name}_dtype": [entry[f"{name}_dtype"].encode()] for name in PAYLOADS},
        **{f"{name}_crc32": [struct.pack("<I", record[name]["crc32"])] for name in PAYLOADS},
        **{name: Payload(record[name]["length"]) for name in PAYLOADS},
    }


def payload_shape(entry: dict[str, Any], planes: int, name: str) -> tuple[int, ...]:
    """(planes, y, x, c) of an image, (planes, y, x) of a label."""
    _, *edges = entry["shape"]
    return (planes, *(edges if name == "image" else edges[:2]))


def content_digest(index: dict[str, Any]) -> str:
    """What an index says of its shard, as one hash: it covers the hash of every record and all that is known of each case."""
    return hashing.text_digest(files.canonical_json({key: index[key] for key in CONTENT}))


def shard_path(index: Path) -> Path:
    """The TFRecord file of an index: a.index.json -> a.tfrecord"""
    return index.with_name(index.name.removesuffix(".index.json") + ".tfrecord")
