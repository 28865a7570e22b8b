"""Sums over whole volumes that stay right.

TensorFlow's float32 reduction over the spatial axes of a channels-last tensor keeps one accumulator per channel, and an
accumulator stops growing at 2^24: the mean of ones over [1, 512, 512, 512, 2] comes out as 0.125. Adding up one axis at a
time keeps every accumulator as short as one edge of the volume.
"""

import tensorflow as tf


def spatial_sum(x: tf.Tensor) -> tf.Tensor:
    """Sum over depth, height and width, one axis at a time.

    x : (n, d, h, w, c) float32. Returns (n, c) float32.
    """
    return tf.reduce_sum(tf.reduce_sum(tf.reduce_sum(x, axis=3), axis=2), axis=1)


def spatial_mean(x: tf.Tensor) -> tf.Tensor:
    """Mean over depth, height and width; x : (n, d, h, w, c) float32. Returns (n, 1, 1, 1, c) float32."""
    return (spatial_sum(x) / voxels(x))[:, None, None, None, :]


@tf.custom_gradient
def add_bias(x: tf.Tensor, bias: tf.Tensor):
    """x + bias, whose gradient for the bias is a sum over the volume too. x : (n, d, h, w, c) float32; bias : (c,) float32."""
    return x + bias, lambda upstream: (upstream, tf.reduce_sum(spatial_sum(upstream), axis=0))


def voxels(x: tf.Tensor) -> tf.Tensor:
    """Depth x height x width as float32, multiplied as floats: an integer product would wrap at 2^31."""
    return tf.reduce_prod(tf.cast(tf.shape(x)[1:4], tf.float32))
