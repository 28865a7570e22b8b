"""One training: a fixed schedule of whole volumes, one per step, deterministic for a seed and a number of threads."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from teravox.errors import UserError
from teravox.network.loss import dice_cross_entropy
from teravox.network.unet import UNet

GRADIENT_NORM = 12.0  # gradients are clipped to this global norm, as in nnU-Net


def learning_rate_at(step: int, steps: int, start: float) -> float:
    """Half a cosine from `start` to 0 (Loshchilov and Hutter 2017, arXiv 1608.03983, without restarts)."""
    return start * 0.5 * (1 + float(np.cos(np.pi * step / steps)))


class Trainer:
    """Weights, optimiser and moving average of one training. network : the U-Net; options : the configuration's `train`."""

    def __init__(self, network: UNet, options: dict[str, Any], seed: int) -> None:
        self.network = network
        self.options = options
        self.weights = {name: tf.Variable(value, name=name) for name, value in network.initial_weights(seed).items()}
        self.averages = {name: tf.Variable(value) for name, value in self.weights.items()} if options["average"] else self.weights
        self.optimiser = tf.keras.optimizers.AdamW(learning_rate=options["learning_rate"], weight_decay=options["weight_decay"])
        self.optimiser.build(list(self.weights.values()))
        self.signature = (  # edges are left open: one trace serves volumes of every shape
            tf.TensorSpec((1, None, None, None, network.channels), tf.float32),
            tf.TensorSpec((1, None, None, None), tf.int32),
            tf.TensorSpec((3,), tf.int32),
            tf.TensorSpec((), tf.float32),
        )
        self.compiled = tf.function(self._step, self.signature, autograph=False)

    def _step(self, image: tf.Tensor, classes: tf.Tensor, valid: tf.Tensor, decay: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        variables = list(self.weights.values())
        with tf.GradientTape() as tape:
            dice_loss, cross_entropy = dice_cross_entropy(self.network(self.weights, image), classes, valid)
            loss = dice_loss + cross_entropy
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, variables), GRADIENT_NORM)
        self.optimiser.apply(gradients, variables)
        if self.options["average"]:
            for name, average in self.averages.items():
                average.assign(decay * average + (1 - decay) * self.weights[name])
        return dice_loss, cross_entropy, norm

    def step(self, image: Any, classes: Any, valid: Any, number: int) -> tuple[float, float, float, float]:
        """One optimiser step on one padded volume. Returns (Dice loss, cross-entropy, gradient norm before clipping, learning rate).

        image : (1, d, h, w, c) float32, classes : (1, d, h, w) int32, valid : unpadded (d, h, w), int32;
        number : of the step, from 0.
        """
        rate = learning_rate_at(number, self.options["steps"], self.options["learning_rate"])
        self.optimiser.learning_rate.assign(rate)
        # The average forgets its start: early steps weigh it by how many there were (as in Polyak averaging).
        decay = min(self.options["average"], (1 + number) / (10 + number))
        found = self.compiled(image, classes, valid, np.float32(decay))
        dice_loss, cross_entropy, norm = (float(value) for value in found)
        return dice_loss, cross_entropy, norm, rate

    def result(self) -> dict[str, np.ndarray]:
        """The weights to keep: the moving average, or the last ones when train.average is 0."""
        return {name: value.numpy() for name, value in self.averages.items()}


def train(trainer: Trainer, examples: Iterable[tuple[Any, ...]], first: int = 0) -> Iterator[dict[str, Any]]:
    """Run the schedule from a step on; yields a row per step: step (from 1), case, dice_loss, cross_entropy, learning_rate.

    examples : (case, image, classes, valid) of each step, see `Trainer.step`; an index of `classes` that is no class of the network has no
    part in the loss. Raises UserError naming the case when a loss or its gradient is not finite: no step after it could be.
    """
    for number, (name, image, classes, valid) in enumerate(examples, first):
        case = name.numpy().decode()
        dice_loss, cross_entropy, norm, rate = trainer.step(image, classes, valid, number)
        if not np.isfinite(dice_loss + cross_entropy + norm):
            raise UserError(
                f"training: the loss or its gradient is not finite at step {number + 1} on case '{case}'; "
                "look at its images, or lower train.learning_rate"
            )
        yield {"step": number + 1, "case": case, "dice_loss": dice_loss, "cross_entropy": cross_entropy, "learning_rate": rate}
