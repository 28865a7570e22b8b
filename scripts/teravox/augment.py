"""Random changes to a training volume, drawn from a generator that is seeded by (seed, fold, step)."""

from typing import Any

import numpy as np
from scipy.ndimage import affine_transform

AXES = {"z": 0, "y": 1, "x": 2}
SPATIAL_PROBABILITY = 0.5


def rotation(angles: np.ndarray) -> np.ndarray:
    """Rotation matrix (3, 3) about the three axes in turn; angles : (3,) radians.

    >>> bool(np.allclose(rotation(np.array([0.1, 0.2, 0.3])) @ rotation(np.array([0.1, 0.2, 0.3])).T, np.eye(3)))
    True
    """
    matrix = np.eye(3)
    for axis, angle in enumerate(angles):
        i, j = (axis + 1) % 3, (axis + 2) % 3
        turn = np.eye(3)
        turn[i, i] = turn[j, j] = np.cos(angle)
        turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
        matrix = turn @ matrix
    return matrix


def augment(
    image: np.ndarray, classes: np.ndarray, spacing: np.ndarray, options: dict[str, Any], rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Flip, rotate and scale both; change contrast and brightness of the image per channel.

    image : (z, y, x, c) float32, normalised; classes : (z, y, x); spacing : (3,), mm, order (z, y, x): bodies turn, not voxels. Outside the
    field of view the nearest voxel is taken. The same draws are made whatever the options, so switching one off does not reshuffle the
    others.
    """
    draws = rng.random(3 + 1), rng.uniform(-1, 1, 3), rng.uniform(-1, 1, 3), rng.uniform(-1, 1, (2, image.shape[3]))
    for axis in options["flip"]:
        if draws[0][AXES[axis]] < 0.5:
            image, classes = np.flip(image, AXES[axis]), np.flip(classes, AXES[axis])
    if (options["rotate_degrees"] or options["scale"]) and draws[0][3] < SPATIAL_PROBABILITY:
        matrix = rotation(np.deg2rad(options["rotate_degrees"]) * draws[1]) @ np.diag(1 + options["scale"] * draws[2])
        matrix = matrix * spacing / spacing[:, None]
        centre = (np.array(classes.shape) - 1) / 2
        offset = centre - matrix @ centre
        image = np.stack([affine_transform(image[..., c], matrix, offset, order=1, mode="nearest") for c in range(image.shape[3])], axis=-1)
        classes = affine_transform(classes, matrix, offset, order=0, mode="nearest")
    contrast, shift = (options["intensity"] * draws[3]).astype(np.float32)
    return np.ascontiguousarray(image * (1 + contrast) + shift), np.ascontiguousarray(classes)
