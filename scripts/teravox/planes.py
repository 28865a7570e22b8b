"""Which three planes of a volume a picture shows, how they are turned, and how bright. Arrays are (x, y, z), running to R, A, S."""

import math
from collections.abc import Sequence

import numpy as np


def chosen_voxel(reference: np.ndarray, prediction: np.ndarray, spacing: np.ndarray, values: Sequence[int]) -> tuple[int, int, int]:
    """The voxel (x, y, z) to cut through: of the label with the most voxels, that nearest to the label's centroid.

    reference, prediction : integer labels (x, y, z); spacing : (3,) float, mm, order (x, y, z); values : the labels that
    count. Labels are sought in the reference, then in the prediction; without any it is the middle of the array. Ties go to
    the first value, and to the first voxel in index order.
    """
    for volume in (reference, prediction):
        counts = [int(np.count_nonzero(volume == value)) for value in values]
        if any(counts):
            return _nearest_to_centroid(volume == values[counts.index(max(counts))], spacing)
    x, y, z = (n // 2 for n in reference.shape)
    return x, y, z


def _nearest_to_centroid(mask: np.ndarray, spacing: np.ndarray) -> tuple[int, int, int]:
    """The first voxel of a mask (x, y, z), not empty, at the least distance from its centroid; one plane in memory at a time."""
    weights = [mask.sum(axis=others) for others in ((1, 2), (0, 2), (0, 1))]
    cx, cy, cz = (float(np.average(np.arange(weight.size), weights=weight)) for weight in weights)
    best, found = math.inf, (0, 0, 0)
    for x in np.flatnonzero(weights[0]):
        y, z = np.nonzero(mask[x])
        squares = ((x - cx) * spacing[0]) ** 2 + ((y - cy) * spacing[1]) ** 2 + ((z - cz) * spacing[2]) ** 2
        first = int(np.argmin(squares))
        if squares[first] < best:
            best, found = float(squares[first]), (int(x), int(y[first]), int(z[first]))
    return found


def planes_of(volume: np.ndarray, voxel: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Axial, coronal and sagittal cut through a voxel, as rows from the top and columns from the left of the picture.

    volume : (x, y, z), indices running to R, A, S. Radiological convention: the patient's right is on the left of the axial
    and the coronal plane; anterior is at the top of the axial plane and on the left of the sagittal one; superior is at the
    top of the other two. Shapes: (y, x), (z, x), (z, y).
    """
    x, y, z = voxel
    return volume[::-1, ::-1, z].T, volume[::-1, y, ::-1].T, volume[x, ::-1, ::-1].T


def window_of(planes: Sequence[np.ndarray]) -> tuple[float, float]:
    """(black, white): the 1st and 99th percentile of the finite values of the planes; never equal, also for a constant."""
    shown = np.concatenate([plane.ravel() for plane in planes]).astype(np.float64)
    shown = shown[np.isfinite(shown)]
    if not shown.size:
        return 0.0, 1.0
    low, high = (float(q) for q in np.percentile(shown, [1, 99]))
    if high <= low:
        low, high = float(shown.min()), float(shown.max())
    margin = max(1.0, 1e-3 * abs(low))  # large enough to make a difference to a large constant
    return (low, high) if high > low else (low - margin, low + margin)
