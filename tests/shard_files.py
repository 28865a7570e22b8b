"""Shards out of arrays, and damage to them."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from teravox import files, hashing, shard_writer, shards

AFFINE = np.array([[2.0, 0, 0, -10], [0, 2, 0, 20], [0, 0, 2, 30.5], [0, 0, 0, 1]])
Case = tuple[np.ndarray, np.ndarray]  # image (x, y, z, c), label (x, y, z)


def volume(rng: np.random.Generator, shape: tuple[int, int, int], channels: int, dtype: str, label: str = "u1") -> Case:
    return (rng.random((*shape, channels)) * 200).astype(dtype), rng.integers(0, 3, shape).astype(label)


def source(name: str, case: Case) -> shard_writer.Volume:
    image, label = (array.T for array in case)  # (c, z, y, x) and (z, y, x)
    entry = {
        "patient": f"p{name}",
        "shape": [*label.shape, len(image)],
        "affine": AFFINE.tolist(),
        "channels": [f"c{i}" for i in range(len(image))],
        "image_dtype": image.dtype.newbyteorder("<").str,
        "label_dtype": label.dtype.newbyteorder("<").str,
        "volumes": {f"{kind}.nii": hashing.volume_digest(array, AFFINE) for kind, array in zip(("image", "label"), case, strict=True)},
        "statistics": {f"c{i}": {"mean": 0.1 + i, "std": 1.5, "dtype": image.dtype.name} for i in range(len(image))},
    }
    return shard_writer.Volume(name, entry, lambda first, last: np.moveaxis(image[:, first:last], 0, -1), lambda first, last: label[first:last])


def write(folder: Path, cases: dict[str, Case], planes: int = 2, codec: str = "none", name: str = "00000-of-00001", threads: int = 1) -> Path:
    """A shard whose blocks have some planes (of the first case, when they differ in size). Returns the path of its index."""
    size = 1.0
    for image, label in cases.values():
        size = planes * (image[:, :, 0].nbytes + label[:, :, 0].nbytes)
        break
    index = shard_writer.write_shard(
        folder / f"{name}.tfrecord", (contextlib.nullcontext(source(case, arrays)) for case, arrays in cases.items()), size, codec, threads
    )
    inputs = {
        f"resample/{case}/{kind}.nii": hashing.volume_digest(array, AFFINE)
        for case, arrays in cases.items()
        for kind, array in zip(("image", "label"), arrays, strict=True)
    }
    return seal(folder / f"{name}.index.json", index, inputs)


def seal(path: Path, index: dict[str, Any], inputs: dict[str, str] | None = None) -> Path:
    """Write an index with the hash of its own content, as it would be had it been written so."""
    index.setdefault("provenance", {"inputs": inputs or {}})
    index["provenance"]["artefacts"] = {shards.shard_path(path).name: shards.content_digest(index)}
    files.write_json(path, index)
    return path


def native(loaded: Case) -> Case:
    """(z, y, x, c) and (z, y, x) as they were given."""
    return loaded[0].transpose(2, 1, 0, 3), loaded[1].transpose(2, 1, 0)
