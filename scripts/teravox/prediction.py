"""Class probabilities of a whole volume, and their way back to the case's own grid."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from teravox import normalise, resample, sampling
from teravox.geometry import Shape
from teravox.grids import Grid
from teravox.network.unet import UNet

TILES_BYTES = 1 << 28  # of one tile on the way to a case's own grid


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


def to_native(probability: np.ndarray, grid: np.ndarray, shape: Shape, affine: np.ndarray) -> np.ndarray:
    """The most probable class on another grid, each class's probability interpolated linearly: (x, y, z) class indices.

    probability : (x, y, z, classes) on `grid`; shape, affine : the other grid; RAS+, mm. Between equals the lower class wins; what lies
    beyond the grid is class 0.
    """
    x, y, z, classes = probability.shape
    way = resample.way_back(Grid((x, y, z), grid), Grid(shape, affine))
    winner = np.empty(shape[::-1], np.uint8 if classes <= 256 else np.uint16)
    for tile in sampling.plan(way, TILES_BYTES):
        best = np.full((tile.z1 - tile.z0, tile.y1 - tile.y0, shape[0]), -np.inf)
        part = winner[tile.z0 : tile.z1, tile.y0 : tile.y1]
        for index in range(classes):
            weight = sampling.block(way, sampling.reader(probability[..., index]), resample.as_float, tile)
            resample.challenge(weight, index, best, part)
        part[~np.broadcast_to(way.inside(tile), part.shape)] = 0
    return winner.T
