"""Surfaces of masks and the distances between them."""

import edt
import numpy as np

# Distances are float32 and spacings come from float32 headers (0.7 mm reads as 0.69999999): both err by less than 1e-4 mm over
# any organ, and no two distances that matter differ by so little.
TOLERANCE_EPSILON_MM = 1e-4


def surface_of(mask: np.ndarray) -> np.ndarray:
    """The surface voxels of a boolean mask (x, y, z): those with at least one of 6 neighbours outside the mask.

    What lies outside the array counts as outside the mask.
    """
    inside = mask.copy()
    for axis in range(3):
        line = np.moveaxis(inside, axis, 0)
        source = np.moveaxis(mask, axis, 0)
        line[1:] &= source[:-1]
        line[:-1] &= source[1:]
        line[0] = line[-1] = False
    return mask & ~inside


def directed_distances(start: np.ndarray, target: np.ndarray, spacing: np.ndarray) -> np.ndarray:
    """From each True voxel of `start` to the nearest True voxel of `target`, centre to centre: (n,) float64, mm.

    start, target : boolean (x, y, z), of one shape, `target` not empty; spacing : (3,) float, mm, order (x, y, z).
    """
    field = edt.edt(np.ascontiguousarray(~target), anisotropy=tuple(float(s) for s in spacing), black_border=False)
    return field[start].astype(np.float64)
