"""The ceiling: what a label's way onto a case's grid and back costs, before anything is learned.

It is the score of a segmentation that is perfect on the grid.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from teravox import bulk, files, resample, streamed_scores
from teravox.bulk import Bulk
from teravox.errors import UserError

COMPARED_BYTES = 1 << 28  # of a comparison at a time: more makes it no faster


def least_bytes(native: Bulk, settings: dict[str, Any]) -> int:
    """The memory that `scores` needs for its comparison."""
    tolerance = settings["resample"]["ceiling_tolerance_mm"]
    return streamed_scores.least_bytes(native.grid.shape, native.affine, native.dtype.itemsize, tolerance)


def require_memory(native: Bulk, settings: dict[str, Any], memory_bytes: int) -> None:
    """Refuse before starting what `scores` would refuse in the end. Raises UserError."""
    least = least_bytes(native, settings)
    if memory_bytes < least:
        found = f"resample.memory_mb: {memory_bytes / 1e6:g}, expected at least {least / 1e6:.0f} for the ceiling of a label with planes"
        wide = f"{native.shape[0]} x {native.shape[1]} and a tolerance of {settings['resample']['ceiling_tolerance_mm']:g} mm"
        raise UserError(f"{found} of {wide}; set it, or a smaller resample.ceiling_tolerance_mm")


def scores(
    native: Bulk, label: Bulk, settings: dict[str, Any], scratch: Path, memory_bytes: int, threads: int, progress: Callable[[float], object]
) -> dict[str, dict[str, Any]]:
    """Per label name what `streamed_scores.compare` finds between a label map and itself after its way to a grid and back.

    native : as ingested; label : on the case's grid; settings : the configuration's labels, ignore_value and resample; scratch : a folder
    on the disk to use; progress : told which share of the way back each tile is. The way back is that of predictions.
    """
    least = least_bytes(native, settings)
    files.require_space(scratch, native.grid.voxels * native.dtype.itemsize, "the label's way back")
    with bulk.temporary(scratch, native.shape, native.dtype, native.affine) as back:
        for share in resample.write_label(label, back, resample.way_back(label.grid, native.grid), memory_bytes, threads):
            progress(share)
        found = streamed_scores.compare(
            back.read,
            native.read,
            native.grid.shape,
            native.affine,
            [item["value"] for item in settings["labels"]],
            settings["resample"]["ceiling_tolerance_mm"],
            settings["ignore_value"],
            min(memory_bytes, max(COMPARED_BYTES, 2 * least)),
        )
    return {item["name"]: found[item["value"]] for item in settings["labels"]}
