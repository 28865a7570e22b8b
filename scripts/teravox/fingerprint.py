"""Intensity statistics of one fold's training cases, and of no other case."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from teravox.statistics import counted

SAMPLE = 1_000_000  # labelled voxels per case that the percentiles are taken from, evenly spaced
PERCENTILES = (0.5, 99.5)  # as in nnU-Net (Isensee et al. 2021, doi 10.1038/s41592-020-01008-z)


def fingerprint(cases: Iterable[tuple[np.ndarray, np.ndarray]], channels: list[str], ignore_value: int | None = None) -> dict[str, dict[str, Any]]:
    """Per channel: mean, standard deviation and the 0.5 and 99.5 percentiles of the labelled voxels of all cases together.

    cases : pairs of image (x, y, z, c) and label (x, y, z). Sums are float64 over every labelled voxel; percentiles come from
    at most SAMPLE voxels a case. ignore_value : of voxels that nobody judged, which count as not labelled.
    """
    count, total, squares = 0, np.zeros(len(channels)), np.zeros(len(channels))
    samples = []
    for image, label in cases:
        values = np.asarray(image[counted(label, ignore_value)], np.float64)  # (n, c)
        count += len(values)
        total += values.sum(axis=0)
        squares += np.square(values).sum(axis=0)
        samples.append(values[:: max(1, -(-len(values) // SAMPLE))])
    if count == 0:
        return {name: {"voxels": 0, "mean": 0.0, "std": 1.0, "low": 0.0, "high": 0.0} for name in channels}
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    low, high = np.percentile(np.concatenate(samples), PERCENTILES, axis=0)
    return {
        name: {"voxels": count, "mean": float(mean[i]), "std": float(std[i]), "low": float(low[i]), "high": float(high[i])}
        for i, name in enumerate(channels)
    }
