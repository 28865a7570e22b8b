"""The network's sums, normalisation, loss and gradients against float64 numpy and plain TensorFlow."""

import functools

import numpy as np
import pytest

import teravox.network  # noqa: F401, isort: skip
import tensorflow as tf

from teravox.network import loss, norm, sums
from teravox.network.unet import UNet

RNG = np.random.default_rng(0)


def test_ones_are_counted_above_2_to_the_24() -> None:
    x = tf.ones([1, 26, 900, 900, 2])  # 21 million voxels
    assert sums.spatial_sum(x).numpy().tolist() == [[21_060_000.0] * 2]
    assert sums.spatial_mean(x).numpy().ravel().tolist() == [1.0, 1.0]
    # what the nesting is for: the plain reduction stops at 2^24
    assert tf.reduce_sum(x, [1, 2, 3]).numpy().tolist() == [[16_777_216.0] * 2]


def test_the_number_of_voxels_does_not_wrap() -> None:
    empty = tf.zeros([1, 4096, 1024, 1024, 0])  # no channel, so no memory
    assert float(sums.voxels(empty)) == 2.0**32


def test_the_gradient_of_a_bias_is_exact_too() -> None:
    upstream = tf.fill([1, 26, 900, 900, 2], 0.01)
    bias = tf.Variable([1.0, 2.0])
    with tf.GradientTape() as tape:
        y = sums.add_bias(tf.zeros([1, 26, 900, 900, 2]), tf.convert_to_tensor(bias))
    assert y[0, 0, 0, 0].numpy().tolist() == [1.0, 2.0]
    np.testing.assert_allclose(tape.gradient(y, bias, upstream).numpy(), 210_600, rtol=1e-5)


def naive_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
    mean, variance = tf.nn.moments(x, [1, 2, 3], keepdims=True)
    return tf.nn.leaky_relu((x - mean) / tf.sqrt(variance + norm.EPSILON) * gamma + beta, norm.SLOPE)


@pytest.mark.parametrize("shape", [(1, 4, 5, 6, 3), (2, 3, 3, 3, 2), (1, 2, 1, 1, 1)])
@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_norm_value_and_gradient(shape: tuple[int, ...], offset: float) -> None:
    x, upstream = RNG.normal(offset, 2, shape), RNG.normal(0, 1, shape)
    gamma, beta = RNG.normal(1, 0.3, shape[-1]), RNG.normal(0, 0.3, shape[-1])
    values = [tf.constant(v, tf.float64) for v in (x, gamma, beta)]
    with tf.GradientTape() as tape:
        tape.watch(values)
        expected = naive_norm(*values)
    expected_gradients = tape.gradient(expected, values, tf.constant(upstream, tf.float64))
    values = [tf.constant(v, tf.float32) for v in (x, gamma, beta)]
    with tf.GradientTape() as tape:
        tape.watch(values)
        found = norm.instance_norm_leaky_relu(*values)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    for gradient, wanted in zip(tape.gradient(found, values, tf.constant(upstream, tf.float32)), expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, wanted, atol=1e-4, rtol=1e-4)


def test_norm_of_features_far_from_zero() -> None:
    size = [1, 128, 128, 128, 2]
    x = tf.random.stateless_normal(size, [1, 2], 100.0, 1.0)
    y = norm.instance_norm_leaky_relu(x, tf.ones(2), tf.ones(2) * 50).numpy().astype(np.float64) - 50  # far from the ReLU's bend
    assert np.abs(y.mean(axis=(0, 1, 2, 3))).max() < 1e-3 and np.abs(y.std(axis=(0, 1, 2, 3)) - 1).max() < 1e-3
    mean, variance = tf.nn.moments(x, [1, 2, 3])  # at this size the plain statistics are already wrong
    assert np.abs(mean.numpy() - 100).max() > 0.1 or np.abs(variance.numpy() - 1).max() > 0.1


def test_norm_of_a_constant_is_finite() -> None:
    x = tf.Variable(tf.fill([1, 3, 3, 3, 2], 7.0))
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(norm.instance_norm_leaky_relu(x, tf.ones(2), tf.zeros(2)))
    assert float(y) == 0 and np.isfinite(tape.gradient(y, x).numpy()).all()


def naive_loss(logits: np.ndarray, classes: np.ndarray) -> tuple[float, float]:
    """Dice loss and cross-entropy in float64; logits (n, d, h, w, k), classes (n, d, h, w), unpadded."""
    exp = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p = exp / exp.sum(axis=-1, keepdims=True)
    dice = []
    for n in range(len(p)):
        for k in range(1, p.shape[-1]):
            t = classes[n] == k
            dice.append((2 * p[n, ..., k][t].sum() + loss.DICE_SMOOTH) / (p[n, ..., k].sum() + t.sum() + loss.DICE_SMOOTH))
    return 1 - float(np.mean(dice)), float(-np.log(np.take_along_axis(p, classes[..., None], -1)).mean())


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("count", [2, 4])
def test_loss_equals_numpy_and_padding_has_no_part_in_it(samples: int, count: int) -> None:
    logits, classes = RNG.normal(0, 2, (samples, 5, 6, 7, count)), RNG.integers(0, count, (samples, 5, 6, 7))
    classes[classes == count - 1] = 0 if count == 4 else count - 1  # with four, the last label is absent
    expected = naive_loss(logits, classes)
    found = loss.dice_cross_entropy(tf.constant(logits, tf.float32), tf.constant(classes), tf.constant([5, 6, 7]))
    np.testing.assert_allclose([float(v) for v in found], expected, rtol=1e-5)
    for _ in range(2):  # whatever stands in the padding
        padded, labels = RNG.normal(0, 50, (samples, 8, 8, 8, count)), RNG.integers(0, count, (samples, 8, 8, 8))
        padded[:, :5, :6, :7], labels[:, :5, :6, :7] = logits, classes
        x = tf.Variable(padded, dtype=tf.float32)
        with tf.GradientTape() as tape:
            again = loss.dice_cross_entropy(x, tf.constant(labels), tf.constant([5, 6, 7]))
            total = again[0] + again[1]
        np.testing.assert_allclose([float(v) for v in again], expected, rtol=1e-5)
        gradient = tape.gradient(total, x).numpy()
        assert np.abs(gradient[:, :5, :6, :7]).max() > 0
        gradient[:, :5, :6, :7] = 0
        assert not gradient.any()


def naive_loss_of_voxels(logits: np.ndarray, classes: np.ndarray) -> tuple[float, float]:
    """`naive_loss` of one case over the judged voxels alone: the others are taken out of the arrays. logits (d, h, w, k)."""
    judged = classes < logits.shape[-1]
    return naive_loss(logits[judged][None, :, None, None], classes[judged][None, :, None, None])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.95])
@pytest.mark.parametrize("count", [2, 4])
def test_ignored_voxels_have_no_part_in_the_loss(share: float, count: int) -> None:
    logits, classes = RNG.normal(0, 2, (5, 6, 7, count)), RNG.integers(0, count, (5, 6, 7))
    ignored = RNG.random(classes.shape) < share
    ignored[0, 0, 0] = share > 0
    classes[ignored] = count
    expected = naive_loss_of_voxels(logits, classes)
    gradients = []
    for filler in (0.0, 50.0):  # whatever the network says there, and in the padding
        padded, labels = np.full((1, 8, 8, 8, count), filler), np.zeros((1, 8, 8, 8), np.int32)
        padded[0, :5, :6, :7] = np.where(ignored[..., None], filler * RNG.normal(0, 1, logits.shape), logits)
        labels[0, :5, :6, :7] = classes
        x = tf.Variable(padded, dtype=tf.float32)
        with tf.GradientTape() as tape:
            found = loss.dice_cross_entropy(x, tf.constant(labels), tf.constant([5, 6, 7]))
            total = found[0] + found[1]
        np.testing.assert_allclose([float(v) for v in found], expected, rtol=1e-5)
        gradients.append(tape.gradient(total, x).numpy()[0, :5, :6, :7])
        assert not gradients[-1][ignored].any() and gradients[-1][~ignored].any()
    np.testing.assert_array_equal(*gradients)


def test_a_case_without_a_judged_voxel_teaches_nothing() -> None:
    x = tf.Variable(tf.random.stateless_normal([1, 4, 4, 4, 3], [1, 2]))
    with tf.GradientTape() as tape:
        dice, cross_entropy = loss.dice_cross_entropy(x, tf.fill([1, 4, 4, 4], 3), tf.constant([4, 4, 4]))
        total = dice + cross_entropy
    assert float(dice) == 0 and float(cross_entropy) == 0
    assert not tape.gradient(total, x).numpy().any()


def test_loss_of_a_right_and_of_a_wrong_answer() -> None:
    classes = np.zeros((1, 4, 4, 4), np.int32)
    sure = 50 * np.eye(2, dtype=np.float32)
    for truth in (0, 1):  # absent and everywhere
        right = loss.dice_cross_entropy(tf.constant(sure[classes + truth]), tf.constant(classes + truth), tf.constant([4, 4, 4]))
        assert float(right[0]) == pytest.approx(0, abs=1e-6) and float(right[1]) == pytest.approx(0, abs=1e-6)
    wrong = loss.dice_cross_entropy(tf.constant(sure[classes]), tf.constant(classes + 1), tf.constant([4, 4, 4]))
    assert float(wrong[0]) == pytest.approx(1 - 1 / 65, abs=1e-5) and float(wrong[1]) == pytest.approx(50)


def test_dice_of_a_large_volume_does_not_saturate() -> None:
    """HAZARDS of one accumulator: with half of 21 million voxels true and all predicted, Dice is 2/3 and not 1."""
    shape = [1, 26, 900, 900]
    classes = tf.cast(tf.broadcast_to((tf.range(26) < 13)[None, :, None, None], shape), tf.int32)
    logits = tf.broadcast_to(tf.constant([-40.0, 40.0]), [*shape, 2])
    dice, _ = loss.dice_cross_entropy(logits, classes, tf.constant(shape[1:]))
    assert float(dice) == pytest.approx(1 / 3, abs=1e-5)


def naive_unet(network: UNet, weights: dict[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """The same U-Net from plain operations, with explicit zero padding and the transposed convolution as a sum of eight."""

    def convolve(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(x, [[0, 0], [1, 1], [1, 1], [1, 1], [0, 0]])
        d, h, w = x.shape[1:4]
        taps = [(i, j, k) for i in range(3) for j in range(3) for k in range(3)]
        return tf.add_n([tf.einsum("ndhwi,io->ndhwo", padded[:, i : i + d, j : j + h, k : k + w], kernel[i, j, k]) for i, j, k in taps])

    def block(x: tf.Tensor, name: str) -> tf.Tensor:
        for i in range(2):
            x = naive_norm(convolve(x, weights[f"{name}_{i}_kernel"]), weights[f"{name}_{i}_gamma"], weights[f"{name}_{i}_beta"])
        return x

    def upsample(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        n, d, h, w = x.shape[:4]
        y = tf.einsum("ndhwi,abcoi->ndahbwco", x, kernel)
        return tf.reshape(y, [n, 2 * d, 2 * h, 2 * w, kernel.shape[3]])

    def pool(x: tf.Tensor) -> tf.Tensor:
        octants = [x[:, i::2, j::2, k::2] for i in (0, 1) for j in (0, 1) for k in (0, 1)]
        return functools.reduce(tf.maximum, octants)

    skips = []
    for level in range(network.levels):
        x = block(pool(x) if level else x, f"e{level}")
        skips.append(x)
    for level in reversed(range(network.levels - 1)):
        x = block(tf.concat([upsample(x, weights[f"u{level}_kernel"]), skips[level]], -1), f"d{level}")
    return tf.einsum("ndhwi,io->ndhwo", x, weights["head_kernel"][0, 0, 0]) + weights["head_bias"]


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_value_and_gradient_of_the_whole_network(compiled: bool) -> None:
    network = UNet(channels=2, classes=3, filters=4, levels=3)
    start = {name: value + RNG.normal(0, 0.1, value.shape) for name, value in network.initial_weights(1).items()}
    image, classes = RNG.normal(0, 1, (1, 8, 12, 16, 2)), RNG.integers(0, 3, (1, 8, 12, 16))
    valid = tf.constant([7, 11, 16])

    exact = {name: tf.Variable(value, dtype=tf.float64) for name, value in start.items()}
    with tf.GradientTape() as tape:
        expected = naive_unet(network, exact, tf.constant(image, tf.float64))
        p = tf.nn.softmax(expected)[:, :7, :11]
        t = tf.one_hot(classes[:, :7, :11], 3, dtype=tf.float64)
        overlap, size = tf.reduce_sum(p * t, [1, 2, 3])[:, 1:], tf.reduce_sum(p + t, [1, 2, 3])[:, 1:]
        total = 1 - tf.reduce_mean((2 * overlap + 1) / (size + 1)) - tf.reduce_mean(tf.reduce_sum(t * tf.math.log(p), -1))
    wanted = tape.gradient(total, list(exact.values()))

    single = {name: tf.Variable(value, dtype=tf.float32) for name, value in start.items()}

    def step(x: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            found = network(single, x)
            dice, cross_entropy = loss.dice_cross_entropy(found, tf.constant(classes), valid)
            total = dice + cross_entropy
        return found, tape.gradient(total, list(single.values()))

    open_edges = tf.TensorSpec((1, None, None, None, 2), tf.float32)
    found, gradients = (tf.function(step, [open_edges], autograph=False) if compiled else step)(tf.constant(image, tf.float32))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    for name, gradient, right in zip(single, gradients, wanted, strict=True):
        error = np.linalg.norm(gradient.numpy() - right.numpy()) / np.linalg.norm(right.numpy())
        assert error < 1e-4, (name, error)


@pytest.mark.parametrize("levels", [1, 2, 4])
@pytest.mark.parametrize("classes", [2, 5])
def test_shapes_of_weights_and_output(levels: int, classes: int) -> None:
    network = UNet(3, classes, 2, levels, max_filters=6)
    assert network.widths == [2, 4, 6, 6][:levels] and network.multiple == 2 ** (levels - 1)
    weights = network.initial_weights(0)
    assert {name: value.shape for name, value in weights.items()} == network.weight_shapes()
    assert list(weights) == list(network.weight_shapes()) and all(value.dtype == np.float32 for value in weights.values())
    constants = {name: tf.constant(value) for name, value in weights.items()}
    for edges in ((1, 1, 1), (3, 1, 2)):
        shape = tuple(edge * network.multiple for edge in edges)
        assert network(constants, tf.zeros([1, *shape, 3])).shape == (1, *shape, classes)
    used = {name for name in constants if name.split("_")[0] in {part[0].split("_")[0] for part in network.convolutions()}}
    assert used == set(constants)


def test_an_edge_that_does_not_divide_is_refused() -> None:
    network = UNet(1, 2, 2, 3)
    constants = {name: tf.constant(value) for name, value in network.initial_weights(0).items()}
    with pytest.raises(ValueError, match="multiples of 4"):
        network(constants, tf.zeros([1, 8, 6, 8, 1]))
    with pytest.raises(ValueError, match="at least 1"):
        UNet(0, 2, 2, 3)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    network = UNet(4, 3, 8, 3)
    a, b, c = (network.initial_weights(seed) for seed in (1, 1, 2))
    assert all((a[name] == b[name]).all() for name in a)
    assert (a["e0_0_kernel"] != c["e0_0_kernel"]).any()
    assert a["e2_1_kernel"].std() == pytest.approx(np.sqrt(2 / (27 * 32)), rel=0.05)
    assert a["u1_kernel"].std() == pytest.approx(np.sqrt(2 / 32), rel=0.05)
