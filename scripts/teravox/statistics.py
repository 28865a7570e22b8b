"""Intensity statistics and label counts of a volume, with sums that stay right for any size."""

from typing import Any

import numpy as np


def describe(array: np.ndarray) -> dict[str, Any]:
    """Type, range, mean and standard deviation (float64 sums, plane by plane) of an image (x, y, z)."""
    count = array.size
    mean = np.float64(sum(float(plane.sum(dtype=np.float64)) for plane in array) / count)  # as a Python float it would be rounded to float32
    variance = sum(float(np.square(plane - mean).sum()) for plane in array) / count
    return {"dtype": array.dtype.name, "min": float(array.min()), "max": float(array.max()), "mean": float(mean), "std": variance**0.5}


def label_voxels(label: np.ndarray, labels: list[dict[str, Any]]) -> dict[str, int]:
    """Voxels per label name, counted plane by plane: numpy counts in copies of 8 bytes per voxel. Other values are left out."""
    size = max(*(item["value"] for item in labels), int(label.max())) + 1
    counts = sum((np.bincount(plane.ravel(), minlength=size) for plane in label), np.zeros(size, np.int64))
    return {item["name"]: int(counts[item["value"]]) for item in labels}


def counted(label: np.ndarray, ignore_value: int | None) -> np.ndarray:
    """Where a label counts as one: bool, of the label's shape, False for background and for voxels that nobody judged."""
    return label > 0 if ignore_value is None else (label > 0) & (label != ignore_value)
