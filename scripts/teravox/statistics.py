"""Intensity statistics and label counts of a volume, with sums that stay right for any size."""

from typing import Any

import numpy as np


def describe(array: np.ndarray) -> dict[str, Any]:
    """Type, range, mean and standard deviation of an image (x, y, z).

    Integers of up to 16 bits are counted by value first: sums over 65,536 counts are exact in the end, and faster. Other types are summed
    in float64, plane by plane.
    """
    if array.dtype.kind in "iu" and array.dtype.itemsize <= 2:
        values, counts = _histogram(array)
        mean = np.float64(int(values @ counts) / array.size)
        variance = float(np.square(values - mean) @ counts) / array.size
        return {"dtype": array.dtype.name, "min": float(values[0]), "max": float(values[-1]), "mean": float(mean), "std": variance**0.5}
    count = array.size
    mean = np.float64(sum(float(plane.sum(dtype=np.float64)) for plane in array) / count)  # as a Python float it would be rounded to float32
    variance = sum(float(np.square(plane - mean).sum()) for plane in array) / count
    return {"dtype": array.dtype.name, "min": float(array.min()), "max": float(array.max()), "mean": float(mean), "std": variance**0.5}


def _histogram(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The values that occur in an array of small integers, in rising order, and how often (int64)."""
    bits = 8 * array.dtype.itemsize
    unsigned = array.view(f"u{array.dtype.itemsize}")
    counts = np.zeros(2**bits, np.int64)
    for plane in np.moveaxis(unsigned, int(np.argmax(array.strides)), 0):  # in the order of memory
        counts += np.bincount(plane.ravel(order="K"), minlength=2**bits)
    values = np.arange(2**bits)
    if array.dtype.kind == "i":
        values = np.where(values >= 2 ** (bits - 1), values - 2**bits, values)
    order = np.argsort(values[counts > 0])
    return values[counts > 0][order], counts[counts > 0][order]


def label_voxels(label: np.ndarray, labels: list[dict[str, Any]]) -> dict[str, int]:
    """Voxels per label name, counted plane by plane: numpy counts in copies of 8 bytes per voxel. Other values are left out."""
    size = max(*(item["value"] for item in labels), int(label.max())) + 1
    counts = sum((np.bincount(plane.ravel(), minlength=size) for plane in label), np.zeros(size, np.int64))
    return {item["name"]: int(counts[item["value"]]) for item in labels}


def counted(label: np.ndarray, ignore_value: int | None) -> np.ndarray:
    """Where a label counts as one: bool, of the label's shape, False for background and for voxels that nobody judged."""
    return label > 0 if ignore_value is None else (label > 0) & (label != ignore_value)
