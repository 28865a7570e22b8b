"""The shape of the 3D U-Net (Cicek et al. 2016, arXiv 1606.06650), without TensorFlow: planning needs no more."""

import dataclasses
from typing import Any, Self

import numpy as np

CONVOLUTIONS_PER_BLOCK = 2
HEAD_GAIN = 0.1  # on the last kernel: class scores start near zero, so no class has to be unlearnt first


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What fixes a network's shape: all of it is recorded with a model.

    channels : number of input channels; classes : number of output classes, background included;
    filters : width of the first level, doubled at each level up to max_filters; levels : resolutions, the first included.
    """

    channels: int
    classes: int
    filters: int
    levels: int
    max_filters: int = 320  # as in nnU-Net

    def __post_init__(self) -> None:
        if min(self.channels, self.classes, self.filters, self.levels) < 1:
            raise ValueError(f"{self}: every count must be at least 1")

    @classmethod
    def of(cls, settings: dict[str, Any]) -> Self:
        """From a stage's settings: channels, labels, and levels and filters of `train`."""
        options = settings["train"]
        return cls(len(settings["channels"]), len(settings["labels"]) + 1, options["filters"], options["levels"])

    @property
    def parameters(self) -> int:
        """Number of trainable values."""
        return sum(int(np.prod(shape)) for shape in self.weight_shapes().values())

    @property
    def widths(self) -> list[int]:
        return [min(self.filters * 2**level, self.max_filters) for level in range(self.levels)]

    @property
    def multiple(self) -> int:
        """Edges of an input must be a multiple of this: one halving between two levels."""
        return int(2 ** (self.levels - 1))

    def convolutions(self) -> list[tuple[str, int, int, int, int]]:
        """Every convolution as (name, level, kernel edge, inputs, outputs); names begin with the part: e encoder, u up, d decoder."""
        widths, found = self.widths, []
        for level, width in enumerate(widths):
            before = self.channels if level == 0 else widths[level - 1]
            found += [(f"e{level}_{i}", level, 3, before if i == 0 else width, width) for i in range(CONVOLUTIONS_PER_BLOCK)]
        for level in reversed(range(self.levels - 1)):
            found.append((f"u{level}", level, 2, widths[level + 1], widths[level]))
            found += [
                (f"d{level}_{i}", level, 3, 2 * widths[level] if i == 0 else widths[level], widths[level]) for i in range(CONVOLUTIONS_PER_BLOCK)
            ]
        found.append(("head", 0, 1, widths[0], self.classes))
        return found

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every weight's shape by name, kernels in TensorFlow's layout (d, h, w, inputs, outputs; transposed: outputs, inputs)."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, _, edge, inputs, outputs in self.convolutions():
            shapes[f"{name}_kernel"] = (edge, edge, edge, *((outputs, inputs) if name.startswith("u") else (inputs, outputs)))
            if name == "head":
                shapes["head_bias"] = (outputs,)
            elif not name.startswith("u"):
                shapes[f"{name}_gamma"] = shapes[f"{name}_beta"] = (outputs,)
        return shapes

    def initial_weights(self, seed: int) -> dict[str, np.ndarray]:
        """He-normal kernels (He et al. 2015, arXiv 1502.01852), unit gammas, zero betas and bias; drawn in the order of names."""
        rng = np.random.default_rng(seed)
        weights = {}
        for name, shape in self.weight_shapes().items():
            if name.endswith("_kernel"):
                transposed = name.startswith("u")  # of stride 2 and edge 2: an output voxel sees one input voxel
                fan_in = shape[4] if transposed else int(np.prod(shape[:4]))
                gain = HEAD_GAIN if name == "head_kernel" else 1.0
                weights[name] = (rng.standard_normal(shape) * gain * np.sqrt(2 / fan_in)).astype(np.float32)
            else:
                weights[name] = (np.ones if name.endswith("_gamma") else np.zeros)(shape, np.float32)
        return weights


def input_edges(shape: list[int], patch_size: list[int] | None) -> list[int]:
    """Edges of what the network sees of a volume before it is padded: those of a patch, but none longer than the volume's. Both (x, y, z)."""
    return list(shape) if patch_size is None else [min(pair) for pair in zip(shape, patch_size, strict=True)]
