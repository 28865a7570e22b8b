"""Resampling along one axis as a sparse matrix: low-pass, B-spline prefilter and interpolation in a single product.

A row holds one new voxel's weights of the old voxels. It is computed from the whole axis, once, in float64, and its sum always runs in the
same order: so a voxel's value cannot depend on which block of the volume it is computed in, or on how many threads there are.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import scipy.sparse
import scipy.special

INTERPOLATIONS = ("nearest", "linear", "bspline", "lanczos")
LANCZOS_RADIUS = 5  # voxels to each side, as in SimpleITK
PREFILTER_RADIUS = 18  # the pole's power there is 5e-11
KERNEL_ERROR = 1e-6  # share of the low-pass kernel that is cut off
POSITION_DIGITS = 9  # of a voxel: what differs by less than rounding is one place
LEAST_WEIGHT = 1e-9
WIDE = 1e6  # squared voxels
EDGE = 1e-6  # voxels

Rows = tuple[np.ndarray, np.ndarray]  # indices of old voxels (may lie outside the axis) and their weights, both (new, taps)


@dataclasses.dataclass(frozen=True)
class Axis:
    """matrix : (new, old) CSR float64, rows sum to 1; inside : (new,) bool, False for voxels beyond the old axis, whose rows do not count."""

    matrix: scipy.sparse.csr_array
    inside: np.ndarray

    def support(self, first: int, last: int) -> tuple[int, int]:
        """[start, stop) of the old voxels that the new voxels first..last-1 look at."""
        used = self.matrix.indices[self.matrix.indptr[first] : self.matrix.indptr[last]]
        return int(used.min()), int(used.max()) + 1

    def part(self, first: int, last: int) -> scipy.sparse.csr_array:
        """The rows first..last-1 over their `support`."""
        start, stop = self.support(first, last)
        return self.matrix[first:last, start:stop]


def axis(old: int, positions: np.ndarray, interpolation: str, shrink: float, reach: float = 0) -> Axis:
    """The operator of one axis. Raises KeyError for another name than those of INTERPOLATIONS.

    old : number of voxels; positions : (new,) of the new voxels' centres in voxels of the old axis, centre of the first at 0; shrink : new
    spacing by old spacing, above 1 the low-pass comes first (not before `nearest`); reach : how many voxels beyond the outer edges of
    the axis the edge's value extends.
    """
    positions = np.round(np.asarray(positions, np.float64), POSITION_DIGITS)
    inside = (positions >= -0.5 - reach - EDGE) & (positions <= old - 0.5 + reach + EDGE)
    rows, boundary = {
        "nearest": (_nearest, _clamp),
        "linear": (_linear, _clamp),
        "bspline": (_bspline, _mirror),
        "lanczos": (_lanczos, _clamp),
    }[interpolation]
    positions = np.clip(positions, 0, old - 1) if boundary is _clamp and interpolation != "lanczos" else np.clip(positions, -0.5, old - 0.5)
    matrix = _matrix(rows(positions), old, boundary)
    everywhere = np.arange(old, dtype=np.float64)
    if interpolation == "bspline" and old > 1:
        matrix = matrix @ _matrix(_prefilter(everywhere), old, _mirror)
    if shrink > 1 + EDGE and interpolation != "nearest":
        used = np.unique(matrix.indices)  # few, where many voxels become one
        matrix = matrix[:, used] @ _matrix(_low_pass(everywhere[used], shrink), old, _clamp)
    matrix = scipy.sparse.csr_array(matrix)
    matrix.data[np.abs(matrix.data) < LEAST_WEIGHT * min(1, 1 / shrink)] = 0  # so that a voxel on a voxel is that voxel
    matrix.eliminate_zeros()
    matrix.sum_duplicates()
    matrix.data /= np.repeat(matrix.sum(axis=1), np.diff(matrix.indptr))
    return Axis(matrix, inside)


def filter_axis(old: int, shrink: float) -> Axis:
    """The low-pass alone, from an axis to itself; the identity when nothing shrinks."""
    return axis(old, np.arange(old), "linear", shrink)


def reach_of(interpolation: str, shrink: float, prefilter: int = PREFILTER_RADIUS) -> int:
    """How many old voxels to each side of a place its value can depend on, if the B-spline's prefilter reaches so far."""
    own = {"nearest": 1, "linear": 1, "bspline": 2 + prefilter, "lanczos": LANCZOS_RADIUS}[interpolation]
    return own + (_radius(variance_of(shrink)) if shrink > 1 + EDGE and interpolation != "nearest" else 0)


def variance_of(shrink: float) -> float:
    """Of the low-pass, in squared old voxels: (shrink^2 - 1) / (8 ln 2), which makes the old voxel's point spread that of the new one.

    Cardoso et al. 2015, "Scale factor point spread function matching", MICCAI. 0 where the spacings are equal, so there is no jump.
    """
    return max(shrink**2 - 1, 0.0) / (8 * np.log(2))


def _clamp(index: np.ndarray, old: int) -> np.ndarray:
    return np.clip(index, 0, old - 1)


def _mirror(index: np.ndarray, old: int) -> np.ndarray:
    """About the centres of the first and the last voxel."""
    period = max(2 * old - 2, 1)
    index = np.mod(index, period)
    return np.minimum(index, np.abs(period - index)) if old > 1 else np.zeros_like(index)


def _matrix(rows: Rows, old: int, boundary: Callable[[np.ndarray, int], np.ndarray]) -> scipy.sparse.csr_array:
    index, weight = rows
    new, taps = index.shape
    matrix = scipy.sparse.csr_array((weight.ravel(), boundary(index, old).ravel(), np.arange(0, new * taps + 1, taps)), shape=(new, old))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix


def _nearest(positions: np.ndarray) -> Rows:
    return np.floor(positions + 0.5).astype(np.int64)[:, None], np.ones((positions.size, 1))


def _linear(positions: np.ndarray) -> Rows:
    first = np.floor(positions).astype(np.int64)
    fraction = positions - first
    return np.stack([first, first + 1], axis=1), np.stack([1 - fraction, fraction], axis=1)


def _bspline(positions: np.ndarray) -> Rows:
    """Cubic (Unser, Aldroubi, Eden 1993, IEEE Trans. Signal Process. 41:821-833), on coefficients."""
    first = np.floor(positions).astype(np.int64)
    t = positions - first
    weights = [(1 - t) ** 3 / 6, (3 * t**3 - 6 * t**2 + 4) / 6, (-3 * t**3 + 3 * t**2 + 3 * t + 1) / 6, t**3 / 6]
    return first[:, None] + np.arange(-1, 3), np.stack(weights, axis=1)


def _lanczos(positions: np.ndarray) -> Rows:
    """Windowed sinc (Meijering et al. 1999, Med. Image Anal. 3:111-126), its weights divided by their sum: a constant stays what it is."""
    first = np.floor(positions).astype(np.int64)
    index = first[:, None] + np.arange(1 - LANCZOS_RADIUS, LANCZOS_RADIUS + 1)
    distance = positions[:, None] - index
    weights = np.sinc(distance) * np.sinc(distance / LANCZOS_RADIUS)
    return index, weights / weights.sum(axis=1, keepdims=True)


def _prefilter(positions: np.ndarray) -> Rows:
    """Samples to coefficients of the cubic B-spline: sqrt(3) z^|k| with the pole z = sqrt(3) - 2 (Unser et al. 1993)."""
    offsets = np.arange(-PREFILTER_RADIUS, PREFILTER_RADIUS + 1)
    weights = np.sqrt(3) * (np.sqrt(3) - 2) ** np.abs(offsets)
    return positions.astype(np.int64)[:, None] + offsets, np.tile(weights / weights.sum(), (positions.size, 1))


def _low_pass(positions: np.ndarray, shrink: float) -> Rows:
    """The discrete Gaussian exp(-t) I_k(t) of `variance_of` (Lindeberg 1990, IEEE TPAMI 12:234-254), as in ITK's DiscreteGaussian."""
    variance = variance_of(shrink)
    radius = _radius(variance)
    offsets = np.arange(-radius, radius + 1)
    weights = _discrete_gaussian(np.abs(offsets), variance)
    return positions.astype(np.int64)[:, None] + offsets, np.tile(weights / weights.sum(), (positions.size, 1))


def _discrete_gaussian(offsets: np.ndarray, variance: float) -> np.ndarray:
    if variance > WIDE:  # where Bessel functions lose their digits it is the Gaussian itself, but for 1 / (8 variance)
        return np.exp(-(offsets**2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
    return scipy.special.ive(offsets, variance)


def _radius(variance: float) -> int:
    """The least radius from 1 on beyond which the discrete Gaussian holds no more than KERNEL_ERROR of its sum."""
    weights = _discrete_gaussian(np.arange(int(6 * np.sqrt(variance)) + 10), variance)
    beyond = 1 - (2 * np.cumsum(weights) - weights[0])
    return max(1, int(np.argmax(beyond <= KERNEL_ERROR)))
