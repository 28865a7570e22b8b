"""Memory a training will take, predicted from shapes alone, before it runs."""

import math
from typing import Any

import numpy as np

from teravox.architecture import Architecture, input_edges

FLOAT = 4  # bytes
RUNTIME_BYTES = 800_000_000  # Python, TensorFlow, its thread pools, the traced graph and one case on its way in, as measured
FEED_BYTES = 50_000_000  # the libraries that read and change volumes, and their threads, as measured
SHAPE_BYTES = 750_000  # per convolution and distinct volume shape: oneDNN keeps three compiled kernels, as measured over 18 shapes
ELEMENT_LIMIT = 2**31 - 1  # TensorFlow's kernels count in 32 bits; oneDNN falls back to a reference kernel at 2^31


RESAMPLING_BYTES = 220_000_000  # Python, numpy, scipy and SimpleITK
SHARDING_BYTES = 190_000_000  # Python, numpy and what opens NIfTI files
VOXEL_BYTES = 64  # of a case that is resampled in one piece, per voxel before and after


def resampling_bytes(case: dict[str, Any], options: dict[str, Any], spacing: Any, memory_mb: float) -> int:
    """Predicted peak of resampling one case: what `resample.memory_mb` allows, or less for a small case on a grid of its own size.

    case : its case.json after ingestion; options : the configuration's `resample`; spacing : of the new grid, mm, a number or three.
    """
    if options["min_size"] is not None or options["axes"] != "own" or options["field_of_view"] != "reference":
        return int(memory_mb * 1e6) + RESAMPLING_BYTES
    grids = [channel.get("grid", case["grid"]) for channel in case["channels"].values()]  # earlier versions had one for all
    native = [(np.array(grid["shape"]), np.array(grid["affine"])) for grid in grids]
    old = max(float(np.prod(shape, dtype=float)) for shape, _ in native)
    volume = max(float(np.prod(shape, dtype=float) * abs(np.linalg.det(affine[:3, :3]))) for shape, affine in native)
    new = volume / float(np.prod(np.broadcast_to(np.array(spacing, float), 3)))
    return int(min(memory_mb * 1e6, VOXEL_BYTES * (old + new))) + RESAMPLING_BYTES


def native_bytes(case: dict[str, Any]) -> int:
    """Bytes of the voxels of a resampled case, image and label, in their native types. case : its case.json."""
    voxel = np.dtype(case["dtype"]).itemsize * len(case["channels"]) + np.dtype(case["label_dtype"]).itemsize
    return int(np.prod(case["grid"]["shape"], dtype=np.int64)) * voxel


def proposed_shards(sizes: list[int], target_bytes: float) -> int:
    """How many shards would have about `target_bytes` each, on average. sizes : of the shards as they are, bytes without compression."""
    return max(1, math.ceil(sum(sizes) / target_bytes))


def sharding_mb(options: dict[str, Any], threads: int) -> int:
    """Predicted peak of writing a shard, MB (10^6 bytes). options : the configuration's `shard`.

    Some pieces of a megabyte per thread; with compression a block and what it is compressed to, per thread and for the one that is written.
    """
    held = 8 * threads if options["compression"] == "none" else 2 * (threads + 1) * options["block_mb"]
    return math.ceil(SHARDING_BYTES / 1e6 + held)


def padded(shape: list[int], multiple: int) -> list[int]:
    """Edges rounded up to a multiple."""
    return [edge + -edge % multiple for edge in shape]


def kept_channels(network: Architecture) -> list[int]:
    """Per level, how many feature maps stay alive between the forward and the backward pass of a step.

    Each of two convolutions of a block keeps its raw output and the activation made of it (the input of what follows); the
    decoder keeps the transposed convolution's output and the concatenation as well; the encoder the pooled input.
    """
    kept = []
    for level, width in enumerate(network.widths):
        encoder = 4 * width + (network.channels if level == 0 else network.widths[level - 1])
        decoder = 4 * width + width + 2 * width if level < network.levels - 1 else 0
        kept.append(encoder + decoder)
    return kept


def example_bytes(network: Architecture, shape: list[int]) -> int:
    """Bytes of a training volume as the network gets it: channels and classes of 4 bytes each, padded. shape : (x, y, z)."""
    return FLOAT * (network.channels + 1) * int(np.prod(padded(shape, network.multiple), dtype=np.int64))


def feed_bytes(network: Architecture, shape: list[int], prefetch_mb: float) -> int:
    """What a training holds beside the network's own: examples made ready ahead, as many as fit into `prefetch_mb`, but one at least."""
    return FEED_BYTES + max(int(prefetch_mb * 1e6), example_bytes(network, shape))


def training_bytes(network: Architecture, shape: list[int], shapes: int = 1) -> int:
    """Predicted peak resident memory of a training whose largest volume has `shape`, in bytes. shapes : how many distinct padded
    shapes its volumes have.

    Kept feature maps, plus at full resolution what the backward pass of the widest block and the loss hold at once: three
    times the concatenation (its gradient, the convolution's workspace, the normalised values) and six copies of the classes;
    plus five copies of the weights (value, gradient, two moments of Adam, moving average), the runtime, and what it keeps
    for each shape.
    """
    voxels = int(np.prod(padded(shape, network.multiple), dtype=np.int64))
    kept = sum(channels * voxels // 8**level for level, channels in enumerate(kept_channels(network)))
    transient = (3 * 2 * network.widths[0] + 6 * network.classes) * voxels
    return FLOAT * (kept + transient + 5 * network.parameters) + RUNTIME_BYTES + SHAPE_BYTES * len(network.convolutions()) * shapes


def largest_tensor(network: Architecture, shape: list[int]) -> int:
    """Elements of the largest tensor of a step, at full resolution: the decoder's concatenation, the input or the class scores."""
    width = 2 * network.widths[0] if network.levels > 1 else network.widths[0]
    return max(width, network.channels, network.classes) * int(np.prod(padded(shape, network.multiple), dtype=np.int64))


def refusal(network: Architecture, shape: list[int]) -> str | None:
    """Why a volume of `shape` cannot pass through the network, in words; None when it can."""
    elements = largest_tensor(network, shape)
    return f"a tensor of {elements} elements, at most {ELEMENT_LIMIT} are possible" if elements > ELEMENT_LIMIT else None


def prediction_bytes(network: Architecture, shape: list[int], native: list[int]) -> int:
    """Predicted peak of predicting one case, in bytes: skips and one block at full resolution, then class scores on both grids."""
    voxels = int(np.prod(padded(shape, network.multiple), dtype=np.int64))
    skips = sum(width * voxels // 8**level for level, width in enumerate(network.widths))
    block = 6 * network.widths[0] * voxels
    scores = 3 * network.classes * voxels + 4 * int(np.prod(native, dtype=np.int64))
    return FLOAT * (skips + block + scores + network.parameters) + RUNTIME_BYTES


def fold_plan(fingerprint: dict[str, Any], settings: dict[str, Any], prefetch_mb: float) -> dict[str, Any]:
    """The plan of one training from its fold's fingerprint: an entry of `plan_rows`."""
    shapes = {fingerprint["fold"]: fingerprint["shapes"]}
    return plan_rows(Architecture.of(settings), shapes, prefetch_mb, settings["train"]["patch_size"])[0]


def plan_rows(
    network: Architecture, fold_shapes: dict[int, dict[str, list[int]]], prefetch_mb: float, patch_size: list[int] | None = None
) -> list[dict[str, Any]]:
    """One entry per training: its largest volume, predicted peak, and whether a tensor would pass the 2^31 limit.

    fold_shapes : fold -> training case -> shape (x, y, z) on the isotropic grid; prefetch_mb : of the configuration;
    patch_size : (x, y, z), of what is trained on.
    """
    rows = []
    for fold, whole in fold_shapes.items():
        shapes = {name: input_edges(shape, patch_size) for name, shape in whole.items()}
        case = max(shapes, key=lambda name: (int(np.prod(padded(shapes[name], network.multiple), dtype=np.int64)), name))
        distinct = len({tuple(padded(shape, network.multiple)) for shape in shapes.values()})
        rows.append(
            {
                "fold": fold,
                "cases": len(shapes),
                "largest_case": case,
                "shape": shapes[case],
                "padded": padded(shapes[case], network.multiple),
                "padded_shapes": distinct,
                "predicted_peak_bytes": training_bytes(network, shapes[case], distinct) + feed_bytes(network, shapes[case], prefetch_mb),
                "largest_tensor_elements": largest_tensor(network, shapes[case]),
                "refused": refusal(network, shapes[case]),
            }
        )
    return rows
