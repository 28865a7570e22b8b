"""Probabilities of models, and their way to another grid."""

import numpy as np
import pytest

import naive_resampling as naive

import teravox.network  # noqa: F401, isort: skip
import tensorflow as tf

from teravox import prediction, sampling
from teravox.network.unet import UNet
from test_geometry import affine_of

RNG = np.random.default_rng(0)


def one_hot(classes: np.ndarray, count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)[classes]


@pytest.mark.parametrize("turn", [(0, 0, 0), (10, -20, 30)])
@pytest.mark.parametrize("tile_bytes", [4000, 1 << 25])
def test_the_same_grid_changes_nothing(monkeypatch: pytest.MonkeyPatch, turn: tuple[int, int, int], tile_bytes: int) -> None:
    monkeypatch.setattr(sampling, "TILE_BYTES", tile_bytes)
    affine = affine_of((0, 1, 2), (1, 1, 1), (2, 2, 2), (5, -6, 7), turn)
    classes = RNG.integers(0, 4, (6, 7, 8))
    np.testing.assert_array_equal(prediction.to_native(one_hot(classes, 4), affine, (6, 7, 8), affine), classes)


@pytest.mark.parametrize("turn", [(0, 0, 0), (10, -20, 30)])
def test_a_class_goes_to_where_it_lies_in_the_world(turn: tuple[int, int, int]) -> None:
    native = affine_of((0, 1, 2), (1, 1, 1), (0.5, 1, 2), (5, -6, 7), turn)
    made = naive.grid_of((16, 8, 4), native, 1.0)
    shape, grid = made.shape, made.affine
    assert shape == (8, 8, 8)
    classes = np.zeros(shape, int)
    classes[2:6, 2:6, 2:6] = 1
    found = prediction.to_native(one_hot(classes, 2), grid, (16, 8, 4), native)
    expected = np.zeros((16, 8, 4), int)
    expected[4:12, 2:6, 1:3] = 1  # half a voxel of either grid would move it by a plane
    np.testing.assert_array_equal(found, expected)


def test_back_from_a_coarser_grid_keeps_classes_and_centre() -> None:
    native = np.diag([0.7, 0.8, 2.5, 1.0])
    native_shape = (40, 36, 12)
    made = naive.grid_of(native_shape, native, 1.0)
    shape, grid = made.shape, made.affine
    world = np.stack(np.meshgrid(*[np.arange(n) + grid[i, 3] for i, n in enumerate(shape)], indexing="ij"), axis=-1)
    classes = (np.linalg.norm(world - [14, 14, 14], axis=-1) < 8).astype(int) * 2
    found = prediction.to_native(one_hot(classes, 3), grid, native_shape, native)
    assert set(np.unique(found)) == {0, 2} and found.shape == native_shape
    np.testing.assert_allclose(np.argwhere(found == 2).mean(axis=0) * np.diag(native)[:3], 14, atol=0.15)


def test_between_equals_the_lower_class_wins() -> None:
    probability = np.full((3, 3, 3, 4), 0.25, np.float32)
    probability[1, 1, 1] = [0.1, 0.4, 0.1, 0.4]
    found = prediction.to_native(probability, np.eye(4), (3, 3, 3), np.eye(4))
    assert found[1, 1, 1] == 1
    found[1, 1, 1] = 0
    assert not found.any() and found.dtype == np.uint8


def test_the_winner_is_that_of_interpolated_probabilities_not_of_labels() -> None:
    # between (0.6, 0.4) and (0.1, 0.9), a third of the way: (0.433, 0.567)
    probability = np.array([[0.6, 0.4], [0.1, 0.9]], np.float32).reshape(2, 1, 1, 2)
    moved = np.eye(4)
    moved[0, 3] = 1 / 3
    assert prediction.to_native(probability, np.eye(4), (1, 1, 1), moved)[0, 0, 0] == 1
    moved[0, 3] = 0.1
    assert prediction.to_native(probability, np.eye(4), (1, 1, 1), moved)[0, 0, 0] == 0


def test_an_ensemble_is_the_mean_of_its_models() -> None:
    network = UNet(2, 3, 2, 3)
    models = [network.initial_weights(seed) for seed in (1, 2)]
    images = [RNG.normal(0, 1, (5, 6, 7, 2)).astype(np.float32) for _ in models]
    single = [prediction.probabilities(network, [weights], [image]) for weights, image in zip(models, images, strict=True)]
    for weights, image, found in zip(models, images, single, strict=True):
        padded = np.pad(image, [(0, 3), (0, 2), (0, 1), (0, 0)])[None]
        expected = tf.nn.softmax(network({name: tf.constant(value) for name, value in weights.items()}, tf.constant(padded)))
        np.testing.assert_allclose(found, expected[0, :5, :6, :7], atol=1e-5)
        np.testing.assert_allclose(found.sum(axis=-1), 1, atol=1e-5)
    both = prediction.probabilities(network, models, images)
    assert both.shape == (5, 6, 7, 3) and both.dtype == np.float32
    np.testing.assert_allclose(both, (single[0] + single[1]) / 2, atol=1e-6)
    assert np.abs(single[0] - single[1]).max() > 1e-3
