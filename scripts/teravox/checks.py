"""What a volume is once it has been read from outside, and the checks that any volume must pass."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from teravox import geometry
from teravox.errors import RejectedCase

FAR_MM = 1e6  # a kilometre: no scanner's coordinates, and a number like 1e30 overflows later
ORTHOGONAL_NOISE = 5e-6  # cosine between axes that float32 and printing six digits leave; the most seen in real headers is 7e-7


@dataclasses.dataclass(frozen=True)
class Volume:
    """array : (x, y, z), real, native byte order; affine : (4, 4), RAS+, mm; notes : what was found or assumed, one line each.

    corrections : what of the source was changed so that it means what it says, one line each: with any the verdict is
    `corrected`, else `ok`. Of a DICOM source, empty otherwise: frame_of_reference : FrameOfReferenceUID; instances : for each slice
    along the third axis SOPInstanceUID and frame (from 0); accounts : what became of each file (teravox.dicom.sources.Account);
    checked_by : who else reads these voxels.
    """

    array: np.ndarray
    affine: np.ndarray
    format: str
    notes: tuple[str, ...] = ()
    frame_of_reference: str = ""
    corrections: tuple[str, ...] = ()
    instances: tuple[tuple[str, int], ...] = ()
    accounts: tuple[Any, ...] = ()
    checked_by: str = ""


def check_affine(path: Path, affine: np.ndarray) -> np.ndarray:
    """The affine rounded to the float32 that NIfTI stores. Raises RejectedCase when it is not finite, singular or sheared."""
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
        affine = np.asarray(affine, np.float32).astype(np.float64)
    if not np.isfinite(affine).all() or (geometry.spacing_of(affine) < 1e-6).any() or np.abs(affine).max() > FAR_MM:
        raise RejectedCase(f"{path}: affine {affine.tolist()}, expected finite numbers up to {FAR_MM:g} and voxels larger than 0 mm")
    shear = geometry.shear_of(affine)
    if shear > geometry.ORTHOGONAL_ATOL:
        raise RejectedCase(
            f"{path}: axes are not perpendicular (cosine {shear:.4f}, expected at most {geometry.ORTHOGONAL_ATOL}); resample it to an orthogonal grid"
        )
    return affine


def orthogonal(path: Path, affine: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    """`check_affine`, and axes that miss the right angle by more than float32 does made perpendicular. Returns (affine, corrections).

    The axes become the nearest orthonormal ones (the polar decomposition's, Higham 1986, SIAM J. Sci. Stat. Comput. 7:1160);
    voxel edges and the first voxel's place stay. shape : (x, y, z).
    """
    affine = check_affine(path, affine)
    shear = geometry.shear_of(affine)
    if shear <= ORTHOGONAL_NOISE:
        return affine, ()
    square = affine.copy()
    u, _, vt = np.linalg.svd(geometry.direction_of(affine))
    square[:3, :3] = (u @ vt) * geometry.spacing_of(affine)
    square = check_affine(path, square)
    moved = geometry.grid_difference(affine, square, shape)
    return square, (f"axes with a cosine of {shear:.2g} between them made perpendicular; no voxel moves by more than {moved:.2g} voxels",)


def plain(array: np.ndarray) -> np.ndarray:
    """Native byte order; integers of 8 bytes become the smallest type that holds them, floats become float32."""
    if np.issubdtype(array.dtype, np.floating) and array.dtype != np.float32:
        with np.errstate(over="ignore"):  # see check_affine
            return array.astype(np.float32)
    if array.dtype.itemsize == 8:
        low, high = int(array.min()), int(array.max())
        for dtype in (np.int16, np.int32):
            if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
                return array.astype(dtype)
        return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_intensities(array: np.ndarray, source: str) -> None:
    """Raises RejectedCase when a voxel is not finite or all voxels are equal."""
    if np.issubdtype(array.dtype, np.floating):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        if bad:
            raise RejectedCase(f"{source}: {bad} voxels are NaN or infinite, expected finite numbers; repair or leave out the image")
    if array.min() == array.max():
        raise RejectedCase(f"{source}: all voxels are {array.flat[0]}, expected an image")
