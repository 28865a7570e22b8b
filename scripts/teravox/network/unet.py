"""The 3D U-Net (Cicek et al. 2016, arXiv 1606.06650) with instance norm, as in nnU-Net's plain encoder."""

import tensorflow as tf

from teravox.architecture import CONVOLUTIONS_PER_BLOCK, Architecture
from teravox.network.norm import instance_norm_leaky_relu
from teravox.network.sums import add_bias


class UNet(Architecture):
    """An architecture that can be run."""

    def __call__(self, weights: dict[str, tf.Variable], x: tf.Tensor) -> tf.Tensor:
        """x : (n, d, h, w, channels) float32, edges multiples of `multiple`. Returns logits (n, d, h, w, classes) float32."""
        for edge in x.shape[1:4]:
            if edge is not None and edge % self.multiple:
                raise ValueError(f"input shape {tuple(x.shape)}: edges must be multiples of {self.multiple}")

        def block(x: tf.Tensor, name: str) -> tf.Tensor:
            for i in range(CONVOLUTIONS_PER_BLOCK):
                raw = tf.nn.conv3d(x, weights[f"{name}_{i}_kernel"], strides=[1] * 5, padding="SAME")
                x = instance_norm_leaky_relu(raw, weights[f"{name}_{i}_gamma"], weights[f"{name}_{i}_beta"])
            return x

        skips = []
        for level in range(self.levels):
            if level:
                x = tf.nn.max_pool3d(x, 2, 2, "VALID")
            x = block(x, f"e{level}")
            skips.append(x)
        for level in reversed(range(self.levels - 1)):
            skip = skips[level]
            shape = tf.concat([tf.shape(skip)[:4], [self.widths[level]]], axis=0)
            up = tf.nn.conv3d_transpose(x, weights[f"u{level}_kernel"], shape, [1, 2, 2, 2, 1], "SAME")
            x = block(tf.concat([up, skip], axis=-1), f"d{level}")
        return add_bias(tf.nn.conv3d(x, weights["head_kernel"], [1] * 5, "SAME"), tf.convert_to_tensor(weights["head_bias"]))
