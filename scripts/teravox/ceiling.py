"""The ceiling: what a label's way onto a case's grid and back costs, before anything is learned. No prediction can score more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from teravox import bulk, files, resample, streamed_scores
from teravox.bulk import Bulk

COMPARED_BYTES = 1 << 28  # of a comparison at a time: more makes it no faster
PLANE_BYTES = 300  # of a comparison, per voxel of a plane, where planes are large


def scores(
    native: Bulk, label: Bulk, settings: dict[str, Any], scratch: Path, memory_bytes: int, threads: int, progress: Callable[[float], object]
) -> dict[str, dict[str, Any]]:
    """Per label name what `streamed_scores.compare` finds between a label map and itself after its way to a grid and back.

    native : as ingested; label : on the case's grid; settings : the configuration's labels, ignore_value and resample; scratch : a folder
    on the disk to use; progress : told which share of the way back each tile is. The way back is that of predictions.
    """
    plane = native.shape[0] * native.shape[1]
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
            min(memory_bytes, max(COMPARED_BYTES, PLANE_BYTES * plane)),
        )
    return {item["name"]: found[item["value"]] for item in settings["labels"]}
