"""Class probabilities of a whole volume, and their way back to the case's own grid."""

from collections.abc import Sequence

import numpy as np
import SimpleITK as sitk
import tensorflow as tf

from teravox import geometry, normalise, resample
from teravox.network.unet import UNet


def probabilities(network: UNet, models: Sequence[dict[str, np.ndarray]], images: Sequence[np.ndarray]) -> np.ndarray:
    """Mean of the models' class probabilities: (d, h, w, classes) float32, unpadded.

    models : weights per model; images : (d, h, w, c) float32, normalised for each model (their cohort statistics differ).
    """
    shape = images[0].shape[:3]
    total = np.zeros((*shape, network.classes), np.float32)
    for weights, image in zip(models, images, strict=True):
        constants = {name: tf.constant(value) for name, value in weights.items()}
        padded = normalise.pad_to_multiple(image, network.multiple)[None]
        function = tf.function(lambda x, constants=constants: tf.nn.softmax(network(constants, x)), autograph=False)
        found = function(tf.constant(padded)).numpy()
        total += found[0, : shape[0], : shape[1], : shape[2]]
    return total / len(models)


def to_native(probability: np.ndarray, grid: np.ndarray, shape: tuple[int, int, int], affine: np.ndarray) -> np.ndarray:
    """The most probable class on another grid, each class's probability interpolated linearly: (x, y, z) class indices.

    probability : (x, y, z, classes) on `grid`; shape, affine : the other grid; RAS+, mm. Between equals the lower class wins.
    """
    best = np.full(shape, -1, np.float32)
    winner = np.zeros(shape, np.uint8 if probability.shape[3] <= 256 else np.uint16)
    for index in range(probability.shape[3]):
        image = geometry.to_sitk(probability[..., index], grid)
        for first, last, slab in resample.sample(image, shape, affine, sitk.sitkLinear):
            better = slab > best[:, :, first:last]
            best[:, :, first:last][better] = slab[better]
            winner[:, :, first:last][better] = index
    return winner
