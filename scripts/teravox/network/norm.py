"""Instance normalisation followed by a leaky ReLU, keeping only the raw input for the backward pass."""

import tensorflow as tf

from teravox.network.sums import spatial_mean, spatial_sum, voxels

EPSILON = 1e-5  # added to the variance, as in Ulyanov et al. 2016 (arXiv 1607.08022) and nnU-Net
SLOPE = 0.01  # of the leaky ReLU for negative values, as in nnU-Net


@tf.custom_gradient
def instance_norm_leaky_relu(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor):
    """leaky_relu(gamma * (x - mean) / sqrt(variance + EPSILON) + beta), statistics per sample and channel.

    x : (n, d, h, w, c) float32; gamma, beta : (c,) float32. Returns a tensor of x's shape.
    The backward pass recomputes the normalised values from x, so that no other volume stays alive between the passes.
    Gradient of the normalisation: Ioffe and Szegedy 2015 (arXiv 1502.03167), section 3, with the batch axis replaced by space.
    """
    mean = spatial_mean(x)
    rstd = tf.math.rsqrt(spatial_mean(tf.math.squared_difference(x, mean)) + EPSILON)

    def gradient(upstream: tf.Tensor):
        normalised = (x - mean) * rstd
        positive = normalised * gamma + beta > 0
        d_scaled = tf.where(positive, upstream, SLOPE * upstream)
        d_gamma = spatial_sum(d_scaled * normalised)
        d_beta = spatial_sum(d_scaled)
        count = voxels(x)
        mean_product = (d_gamma / count)[:, None, None, None, :]
        mean_gradient = (d_beta / count)[:, None, None, None, :]
        d_x = (gamma * rstd) * (d_scaled - mean_gradient - normalised * mean_product)
        return d_x, tf.reduce_sum(d_gamma, axis=0), tf.reduce_sum(d_beta, axis=0)

    scale = gamma * rstd
    return tf.nn.leaky_relu(x * scale + (beta - mean * scale), SLOPE), gradient
