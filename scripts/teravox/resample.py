"""All channels and the label of a case on one isotropic grid, written slab by slab."""

from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import SimpleITK as sitk

from teravox import files, geometry

SLAB_BYTES = 1 << 26  # of output held at a time, as float64
RUNTIME_BYTES = 200_000_000  # Python, numpy and SimpleITK


def peak_bytes(shape: tuple[int, int, int], channel_bytes: int) -> int:
    """Memory of resampling one case, predicted from its native grid: all channels and the label as they are, and at a time one
    channel in float64 as SimpleITK's image, its source and two steps of the low-pass. channel_bytes : of a voxel, all together.
    """
    voxels = int(np.prod(shape, dtype=np.int64))
    return voxels * (channel_bytes + 4 * 8) + 3 * SLAB_BYTES + RUNTIME_BYTES


def blur(image: sitk.Image, spacing_mm: float) -> sitk.Image:
    """Low-pass an image before a coarser grid, along each axis that shrinks and no other.

    A Gaussian of variance (new^2 - old^2) / (8 ln 2) makes the old voxel's point spread that of the new one (Cardoso et al.
    2015, "Scale factor point spread function matching", MICCAI): 0 where the grids are equal, so there is no jump.
    """
    for axis, old in enumerate(image.GetSpacing()):
        if spacing_mm > old * (1 + 1e-6) and image.GetSize()[axis] >= 4:  # the recursive filter needs four voxels
            sigma = float(np.sqrt((spacing_mm**2 - old**2) / (8 * np.log(2))))
            image = sitk.RecursiveGaussian(image, sigma, False, sitk.RecursiveGaussianImageFilter.ZeroOrder, axis)
    return image


def slabs(shape: tuple[int, int, int]) -> Iterator[tuple[int, int]]:
    """[first, last) planes along z of each slab."""
    height = max(1, SLAB_BYTES // (8 * shape[0] * shape[1]))
    for first in range(0, shape[2], height):
        yield first, min(first + height, shape[2])


def sample(image: sitk.Image, shape: tuple[int, int, int], affine: np.ndarray, interpolator: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """An image on another grid, slab by slab: (first plane, last plane, array (x, y, z)).

    shape, affine : the new grid, RAS+, mm. What lies beyond the image's edge (at most half a new voxel on a grid of
    `isotropic_grid`) takes the value of the nearest voxel.
    """
    spacing, _, direction = geometry.sitk_geometry(affine)
    resampler = sitk.ResampleImageFilter()
    resampler.SetInterpolator(interpolator)
    resampler.SetOutputSpacing(spacing)
    resampler.SetOutputDirection(direction)
    resampler.UseNearestNeighborExtrapolatorOn()
    for first, last in slabs(shape):
        corner = affine @ np.array([0, 0, first, 1.0])
        resampler.SetOutputOrigin((geometry.LPS_FROM_RAS @ corner)[:3].tolist())
        resampler.SetSize((shape[0], shape[1], last - first))
        yield first, last, sitk.GetArrayFromImage(resampler.Execute(image)).T


def as_dtype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to the nearest integer and clip to the type's range; a float type is only cast."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        array = np.clip(np.rint(array), limits.min, limits.max)
    return array.astype(dtype)


def resample_image(array: np.ndarray, affine: np.ndarray, shape: tuple[int, int, int], grid: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """An intensity image (x, y, z) on the grid, linear in float64 after the low-pass, in its own type: slabs as in `sample`.

    The result stays within the image's own range: the recursive low-pass can overshoot by a part in a thousand.
    """
    low, high = float(array.min()), float(array.max())
    image = blur(geometry.to_sitk(array.astype(np.float64), affine), float(geometry.spacing_of(grid).min()))
    for first, last, slab in sample(image, shape, grid, sitk.sitkLinear):
        yield first, last, as_dtype(np.clip(slab, low, high), array.dtype)


def resample_label(label: np.ndarray, affine: np.ndarray, shape: tuple[int, int, int], grid: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """A label map (x, y, z) on the grid: each label's indicator is interpolated linearly and the largest wins, so none is invented.

    Between equals, to the last bit, either may win.
    """
    yield from sample(geometry.to_sitk(label, affine), shape, grid, sitk.sitkLabelLinear)


def create_nifti(path: Path, shape: tuple[int, ...], dtype: np.dtype, affine: np.ndarray) -> np.memmap:
    """An uncompressed NIfTI file of zeros, and its voxels as a writable memory map in Fortran order. affine : RAS+, mm."""
    header = nib.Nifti2Header() if max(shape) > 32767 else nib.Nifti1Header()
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    header.set_xyzt_units("mm")
    header.set_sform(affine, code=1)
    header.set_qform(affine, code=1, strip_shears=True)
    header["magic"] = header.single_magic
    header.set_slope_inter(1, 0)
    offset = header.single_vox_offset
    header["vox_offset"] = offset
    with path.open("wb") as stream:
        header.write_to(stream)
        stream.write(bytes(offset - stream.tell()))
        stream.truncate(offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return np.memmap(path, dtype=dtype, mode="r+", offset=offset, shape=shape, order="F")


def resample_case(
    images: list[np.ndarray], label: np.ndarray, affine: np.ndarray, spacing_mm: float, image_path: Path, label_path: Path
) -> tuple[tuple[int, int, int], np.ndarray]:
    """Write image.nii (x, y, z, c) in channel order and label.nii (x, y, z) on the isotropic grid. Returns (shape, affine).

    images : (x, y, z) each, on one grid with `label` and `affine` (RAS+, mm). The image file's type is the smallest that
    holds every channel's.
    """
    shape, grid = geometry.isotropic_grid(label.shape, affine, spacing_mm)
    grid = np.asarray(grid, np.float32).astype(np.float64)  # what the NIfTI header will hold
    dtype = np.result_type(*images)
    with files.atomic(image_path) as temporary:
        out = create_nifti(temporary, (*shape, len(images)), dtype, grid)
        for channel, array in enumerate(images):
            for first, last, slab in resample_image(array, affine, shape, grid):
                out[:, :, first:last, channel] = slab
        out.flush()
    with files.atomic(label_path) as temporary:
        mask = create_nifti(temporary, shape, label.dtype, grid)
        for first, last, slab in resample_label(label, affine, shape, grid):
            mask[:, :, first:last] = slab
        mask.flush()
    return shape, grid
