"""Grids in the world: shapes (x, y, z) and 4x4 affines, RAS+ in mm, as in the NIfTI standard (nifti1.h, method 3).

This is the only module that knows about SimpleITK's conventions: arrays (z, y, x) and LPS world coordinates.
"""

import nibabel as nib
import numpy as np
import SimpleITK as sitk

GRID_ATOL_VOXELS = 1e-3  # two writers' float32 headers of one grid differ by about 1e-5 of a voxel; a real shift is larger
ORTHOGONAL_ATOL = 1e-3  # cosine between two axes: rounding in headers stays below, a gantry tilt of 0.06 degrees does not
Shape = tuple[int, int, int]  # (x, y, z)

LPS_FROM_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


def spacing_of(affine: np.ndarray) -> np.ndarray:
    """Edge lengths of a voxel: affine (4, 4) -> (3,) float64, mm, order (x, y, z).

    >>> spacing_of(np.diag([-2.0, 3.0, 4.0, 1.0])).tolist()
    [2.0, 3.0, 4.0]
    """
    return np.linalg.norm(np.asarray(affine, float)[:3, :3], axis=0)


def direction_of(affine: np.ndarray) -> np.ndarray:
    """Unit vectors of the three axes as columns: affine (4, 4) -> (3, 3), RAS+."""
    return np.asarray(affine, float)[:3, :3] / spacing_of(affine)


def voxel_volume_ml(affine: np.ndarray) -> float:
    """|det| of the affine's 3x3 part in millilitres (1 ml = 1000 mm^3)."""
    return float(abs(np.linalg.det(np.asarray(affine, float)[:3, :3]))) / 1000


def shear_of(affine: np.ndarray) -> float:
    """Largest |cosine| between two different axes: 0 for an orthogonal grid."""
    direction = direction_of(affine)
    return float(np.abs(direction.T @ direction - np.eye(3)).max())


def grid_difference(affine: np.ndarray, other: np.ndarray, shape: tuple[int, ...]) -> float:
    """How far apart two grids of one shape lie: the largest distance between same-index corners, in voxels of `affine`.

    affine, other : (4, 4), RAS+, mm; shape : (x, y, z).
    """
    corners = np.array(np.meshgrid(*[[0, n - 1] for n in shape[:3]], indexing="ij")).reshape(3, -1)
    corners = np.vstack([corners, np.ones(corners.shape[1])])
    offsets = np.linalg.inv(affine) @ (np.asarray(other, float) @ corners) - corners
    return float(np.abs(offsets[:3]).max())


def same_grid(shape: tuple[int, ...], affine: np.ndarray, other_shape: tuple[int, ...], other: np.ndarray) -> bool:
    """Whether two grids are one: equal shapes (x, y, z), corners within GRID_ATOL_VOXELS. affine, other : (4, 4), RAS+, mm."""
    return shape == other_shape and grid_difference(affine, other, shape) <= GRID_ATOL_VOXELS


def covered(shape: tuple[int, ...], affine: np.ndarray, other_shape: tuple[int, ...], other: np.ndarray) -> float:
    """Share of a volume's field of view that another volume covers, 0 to 1, from 32^3 evenly spaced points of the smaller of both.

    shape, other_shape : (x, y, z); affine, other : (4, 4), RAS+, mm. Outer edges of voxels bound both.
    """
    ratio = voxel_volume_ml(other) * float(np.prod(other_shape[:3])) / (voxel_volume_ml(affine) * float(np.prod(shape[:3])))
    if ratio < 1:  # points of the larger one could miss a thin slice
        return ratio * covered(other_shape, other, shape, affine)
    lines = [(np.arange(32) + 0.5) / 32 * n - 0.5 for n in shape[:3]]
    points = np.stack([*(axis.ravel() for axis in np.meshgrid(*lines, indexing="ij")), np.ones(32**3)])
    places = (np.linalg.inv(other) @ (affine @ points))[:3]
    ends = np.array(other_shape[:3])[:, None] - 0.5
    return float(((places >= -0.5) & (places <= ends)).all(axis=0).mean())


def canonical_orientation(affine: np.ndarray) -> np.ndarray:
    """nibabel's orientation array (3, 2) of the axes; `to_canonical` and `from_canonical` apply it and undo it."""
    return nib.orientations.io_orientation(affine)


def to_canonical(array: np.ndarray, affine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Permute and flip axes so that they run as nearly as possible to R, A, S: no voxel changes. array (x, y, z)."""
    orientation = canonical_orientation(affine)
    turned = nib.orientations.apply_orientation(array, orientation)
    return turned, affine @ nib.orientations.inv_ornt_aff(orientation, array.shape)


def from_canonical(array: np.ndarray, orientation: np.ndarray) -> np.ndarray:
    """Undo `to_canonical`: array (x, y, z) in RAS order -> the axis order and direction described by `orientation`."""
    identity = np.array([[0, 1], [1, 1], [2, 1]])
    return nib.orientations.apply_orientation(array, nib.orientations.ornt_transform(identity, orientation))


def native_affine(affine: np.ndarray, orientation: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The affine before `to_canonical`. affine : of the canonical volume; orientation, shape : of the volume as it was."""
    return affine @ np.linalg.inv(nib.orientations.inv_ornt_aff(orientation, shape))


def box_of(shape: tuple[int, ...], affine: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """Where a volume begins and ends along three axes of the world, outer edges of its voxels: (2, 3), mm.

    shape : (x, y, z); affine : (4, 4), RAS+, mm; direction : (3, 3), unit vectors of the axes as columns.
    """
    corners = np.array(np.meshgrid(*[[-0.5, n - 0.5] for n in shape[:3]], indexing="ij")).reshape(3, -1)
    along = np.linalg.solve(direction, affine[:3, :3] @ corners + affine[:3, 3:])
    return np.stack([along.min(axis=1), along.max(axis=1)])


def grid_over(box: np.ndarray, direction: np.ndarray, spacing: np.ndarray) -> tuple[tuple[int, int, int], np.ndarray]:
    """The grid over a box as of `box_of`, the outer corners of its first voxel and of the box aligned: (shape, affine).

    spacing : (3,), mm. An edge of L mm becomes round(L / spacing) voxels, halves rounded up: the one rounding rule that images and labels
    share. What misses a half by less than a header's rounding is a half, however the volume is turned. An edge of less than half a voxel
    becomes one voxel about its middle.
    """
    low, high = box
    size = np.floor((high - low) / spacing + 0.5 + GRID_ATOL_VOXELS).astype(int)
    low = np.where(size < 1, (low + high - spacing) / 2, low)
    size = np.maximum(size, 1)
    affine = np.eye(4)
    affine[:3, :3] = direction * spacing
    affine[:3, 3] = direction @ (low + 0.5 * np.asarray(spacing))
    return (int(size[0]), int(size[1]), int(size[2])), affine


def window_of(affine: np.ndarray, first: np.ndarray) -> np.ndarray:
    """The affine of a grid that begins at the voxel `first` (x, y, z) of another one, which may lie outside it."""
    moved = np.array(affine, float)
    moved[:3, 3] = (affine @ np.array([*first, 1.0]))[:3]
    return moved


def sitk_geometry(affine: np.ndarray) -> tuple[list[float], list[float], list[float]]:
    """(spacing, origin, direction) for SimpleITK, LPS, from an affine (4, 4) in RAS+; the direction is made exactly orthonormal."""
    lps = LPS_FROM_RAS @ np.asarray(affine, float)
    u, _, vt = np.linalg.svd(direction_of(lps))
    return spacing_of(affine).tolist(), lps[:3, 3].tolist(), (u @ vt).ravel().tolist()


def to_sitk(array: np.ndarray, affine: np.ndarray) -> sitk.Image:
    """SimpleITK image of an array (x, y, z) with an affine in RAS+."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(array.T))
    spacing, origin, direction = sitk_geometry(affine)
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    image.SetDirection(direction)
    return image


def affine_from_sitk(image: sitk.Image | sitk.ImageFileReader) -> np.ndarray:
    """Affine (4, 4) in RAS+ of the first three axes of a SimpleITK image, or of the header that a reader has read."""
    axes = image.GetDimension()
    lps = np.eye(4)
    lps[:3, :3] = np.array(image.GetDirection()).reshape(axes, axes)[:3, :3] * np.array(image.GetSpacing())[:3]
    lps[:3, 3] = image.GetOrigin()[:3]
    return LPS_FROM_RAS @ lps
