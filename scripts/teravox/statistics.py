"""Intensity statistics and label counts of a volume, with sums that stay right for any size."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def describe(array: np.ndarray) -> dict[str, Any]:
    """Type, range, mean and standard deviation of an image (x, y, z)."""
    planes = np.moveaxis(array, int(np.argmax(array.strides)), 0)  # in the order of memory
    return describe_parts(lambda: planes, array.dtype)


def describe_parts(parts: Callable[[], Iterable[np.ndarray]], dtype: np.dtype) -> dict[str, Any]:
    """`describe` of an image that comes in parts, twice if asked to.

    Integers of up to 16 bits are counted by value first: sums over 65,536 counts are exact in the end, and faster. Other types are summed
    in float64, part by part.
    """
    if dtype.kind in "iu" and dtype.itemsize <= 2:
        values, counts = _histogram(parts(), dtype)
        size = int(counts.sum())
        mean = np.float64(int(values @ counts) / size)
        variance = float(np.square(values - mean) @ counts) / size
        return {"dtype": dtype.name, "min": float(values[0]), "max": float(values[-1]), "mean": float(mean), "std": variance**0.5}
    size, total, low, high = 0, 0.0, np.inf, -np.inf
    for part in parts():
        size, total = size + part.size, total + float(part.sum(dtype=np.float64))
        low, high = min(low, float(part.min())), max(high, float(part.max()))
    mean = np.float64(total / size)  # as a Python float it would be rounded to float32
    variance = sum(float(np.square(part - mean).sum()) for part in parts()) / size
    return {"dtype": dtype.name, "min": low, "max": high, "mean": float(mean), "std": variance**0.5}


def _histogram(parts: Iterable[np.ndarray], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The values that occur in parts of small integers, in rising order, and how often (int64)."""
    bits = 8 * dtype.itemsize
    counts = np.zeros(2**bits, np.int64)
    for part in parts:
        counts += np.bincount(part.view(f"u{dtype.itemsize}").ravel(order="K"), minlength=2**bits)
    values = np.arange(2**bits)
    if dtype.kind == "i":
        values = np.where(values >= 2 ** (bits - 1), values - 2**bits, values)
    order = np.argsort(values[counts > 0])
    return values[counts > 0][order], counts[counts > 0][order]


def label_voxels(parts: Iterable[np.ndarray], labels: list[dict[str, Any]]) -> dict[str, int]:
    """Voxels per label name of a label map that comes in parts (its planes are parts too). Other values are left out."""
    counts = np.zeros(1, np.int64)
    for part in parts:
        found = np.bincount(part.ravel(), minlength=counts.size)
        found[: counts.size] += counts
        counts = found
    return {item["name"]: int(counts[item["value"]]) if item["value"] < counts.size else 0 for item in labels}


def counted(label: np.ndarray, ignore_value: int | None) -> np.ndarray:
    """Where a label counts as one: bool, of the label's shape, False for background and for voxels that nobody judged."""
    return label > 0 if ignore_value is None else (label > 0) & (label != ignore_value)
