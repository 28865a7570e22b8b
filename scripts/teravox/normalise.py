"""Intensities on the scale the network sees, from statistics that shards and fingerprints carry."""

from typing import Any

import numpy as np

from teravox.errors import UserError

STD_FLOOR = 1e-6  # of the mean; below it a channel is constant but for rounding, and becomes about zero instead of NaN or noise


def normalise(image: np.ndarray, channels: list[dict[str, Any]], own: dict[str, Any], cohort: dict[str, Any]) -> np.ndarray:
    """Scale each channel to about mean 0 and standard deviation 1, as float32.

    image : (..., c) native type; channels : name and normalise of each; own : the case's mean and std per channel (zscore);
    cohort : the fold's mean, std, low and high per channel (cohort: clip to low and high first).
    """
    out = np.empty(image.shape, np.float32)
    for i, channel in enumerate(channels):
        values = image[..., i]
        if channel["normalise"] == "cohort":
            statistics = cohort[channel["name"]]
            if not statistics["voxels"]:
                raise UserError(f"channel '{channel['name']}': the training cases hold no labelled voxel, so 'normalise: cohort' has no statistics")
            values = np.clip(values, statistics["low"], statistics["high"])
        else:
            statistics = own[channel["name"]]
        varies = statistics["std"] > STD_FLOOR * abs(statistics["mean"])
        out[..., i] = (values - np.float64(statistics["mean"])) / (statistics["std"] if varies else 1.0)
    return out


def pad_to_multiple(array: np.ndarray, multiple: int) -> np.ndarray:
    """Zeros at the far end of the first three axes, up to the next multiple: the mean of a normalised image, background of a label."""
    widths = [(0, -edge % multiple) for edge in array.shape[:3]] + [(0, 0)] * (array.ndim - 3)
    return np.pad(array, widths)


def class_indices(label: np.ndarray, values: list[int], ignore_value: int | None = None) -> np.ndarray:
    """Label values -> class indices: 0 stays 0, the i-th of `values` becomes i + 1. Any shape, unsigned integers.

    ignore_value becomes len(values) + 1, the first index that is no class: see `loss.dice_cross_entropy`.
    """
    known = values if ignore_value is None else [*values, ignore_value]
    table = np.zeros(max(known) + 1, np.uint8 if len(known) < 256 else np.uint16)
    for index, value in enumerate(known, start=1):
        table[value] = index
    return table[label]


def label_values(classes: np.ndarray, values: list[int], dtype: type) -> np.ndarray:
    """Undo `class_indices`."""
    return np.array([0, *values], dtype)[classes]
