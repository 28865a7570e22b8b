"""Resampling as SimpleITK does it with whole images, and volumes on disk for what is done in tiles."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from teravox import bulk, geometry, interpolation, sampling
from teravox.bulk import Bulk
from teravox.grids import Grid


def grid_of(shape: tuple[int, ...], affine: np.ndarray, spacing: float) -> Grid:
    """The isotropic grid over a volume, in its own direction."""
    direction = geometry.direction_of(affine)
    return Grid(*geometry.grid_over(geometry.box_of(shape, affine, direction), direction, np.full(3, spacing)))


def low_passed(image: sitk.Image, factors: list[float]) -> sitk.Image:
    """Each axis that shrinks filtered by ITK's discrete Gaussian. factors : new spacing by old spacing along the image's axes."""
    for axis, factor in enumerate(factors):
        if factor > 1 + 1e-6:
            variance = [1e-12] * 3
            variance[axis] = interpolation.variance_of(factor)
            image = sitk.DiscreteGaussian(image, variance, 1000, interpolation.KERNEL_ERROR, False)
    return image


def resampled(image: sitk.Image, grid: Grid, method: str) -> np.ndarray:
    """(z, y, x) float64; the edge's value extends."""
    target = geometry.to_sitk(np.zeros(grid.shape, np.uint8), grid.affine)

    def once(one: sitk.Image) -> np.ndarray:
        return sitk.GetArrayFromImage(sitk.Resample(one, target, sitk.Transform(), sampling.SITK[method], 0, sitk.sitkFloat64, True))

    found = once(image)
    return found / once(image * 0 + 1.0) if method == "lanczos" else found  # ITK's weights do not sum to 1


def image_on(array: np.ndarray, affine: np.ndarray, grid: Grid, method: str) -> np.ndarray:
    """An image (x, y, z) on a grid in about its own direction, low-passed where it shrinks: (z, y, x) float64."""
    image = geometry.to_sitk(array.astype(np.float64), affine)
    if method != "nearest":
        image = low_passed(image, list(geometry.spacing_of(grid.affine) / geometry.spacing_of(affine)))
    return resampled(image, grid, method)


def label_weights(label: np.ndarray, affine: np.ndarray, grid: Grid, method: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of a label map (x, y, z) and each one's weight on the grid, (values, z, y, x)."""
    values = np.unique(label)
    return values, np.stack([resampled(geometry.to_sitk((label == value).astype(np.float64), affine), grid, method) for value in values])


@contextlib.contextmanager
def on_disk(folder: Path, array: np.ndarray, affine: np.ndarray) -> Iterator[Bulk]:
    """An array (x, y, z) as an uncompressed file."""
    with bulk.temporary(folder, array.shape, array.dtype, affine) as volume:
        volume.write(np.ascontiguousarray(array.T), 0, 0)
        yield volume
