"""Soft Dice plus cross-entropy over whole volumes, with sums that stay right above 2^24 voxels."""

import tensorflow as tf

from teravox.network.sums import spatial_sum

DICE_SMOOTH = 1.0  # voxels added above and below, so that a label absent from reference and prediction has loss 0


def inside(padded: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """1 inside the case's own grid, 0 in the padding at the far end of each axis.

    padded : (3,) int32, (d, h, w); valid : (3,) int32, the unpadded edges. Returns (1, d, h, w, 1) float32.
    """
    edges = [tf.cast(tf.range(padded[axis]) < valid[axis], tf.float32) for axis in range(3)]
    return tf.einsum("d,h,w->dhw", *edges)[None, ..., None]


def dice_cross_entropy(logits: tf.Tensor, classes: tf.Tensor, valid: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """1 - mean soft Dice of the foreground classes, and mean cross-entropy; both over the judged voxels of the unpadded grid.

    logits : (n, d, h, w, k) float32; classes : (n, d, h, w) integer class indices, of which k and above are voxels
    that nobody judged: they have no part in either, as if they were not there, and no gradient; valid : (3,) int32 unpadded (d, h, w).
    Dice per sample and class (Milletari et al. 2016, arXiv 1606.04797, with plain instead of squared sums), then the mean.
    """
    count = logits.shape[-1]
    grid = inside(tf.shape(logits)[1:4], valid)
    ignored = grid * tf.cast(classes >= count, tf.float32)[..., None]
    mask = grid - ignored
    log_probability = tf.nn.log_softmax(logits)
    target = tf.one_hot(classes, count) * mask
    probability = tf.exp(log_probability) * mask
    voxels = tf.maximum(tf.reduce_prod(tf.cast(valid, tf.float32)) - spatial_sum(ignored)[:, 0], 1)  # a case may have none
    cross_entropy = -tf.reduce_mean(tf.reduce_sum(spatial_sum(log_probability * target), axis=-1) / voxels)
    overlap = spatial_sum(probability * target)[:, 1:]
    size = spatial_sum(probability + target)[:, 1:]
    dice = (2 * overlap + DICE_SMOOTH) / (size + DICE_SMOOTH)
    return 1 - tf.reduce_mean(dice), cross_entropy
