"""An ingested case's volumes, unpacked, and the grid that they go onto."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from teravox import bulk, files, geometry, grids, resample
from teravox.bulk import Bulk
from teravox.errors import UserError
from teravox.grids import Grid

LABEL_BYTES = 2  # of a voxel, at most


def opened(case: dict[str, Any], folder: Path, names: Sequence[str], scratch: Path, stack: contextlib.ExitStack) -> dict[str, Bulk]:
    """The named channels and the label of an accepted case for as long as the stack lasts, once the disk has room for them.

    case : its case.json, which lies in `folder`; scratch : a folder on the disk to use. Raises UserError.
    """
    for name in names:
        if name not in case["channels"]:
            raise UserError(f"{folder / 'case.json'}: no channel '{name}', expected one of {', '.join(case['channels'])}; ingest the case again")
    need = sum(Grid.of(case["channels"][name]["grid"]).voxels * np.dtype(case["channels"][name]["dtype"]).itemsize for name in names)
    files.require_space(scratch, need + Grid.of(case["grid"]).voxels * LABEL_BYTES, f"unpacking case '{case['case']}'")
    return {name: stack.enter_context(bulk.unpacked(folder / f"{name}.nii.gz", case, scratch)) for name in (*names, "label")}


def needed(settings: dict[str, Any]) -> list[str]:
    """The channels whose voxels decide the grid."""
    return [channel["name"] for channel in settings["channels"]] if settings["resample"]["crop"] == "foreground" else []


def grid_of(case: dict[str, Any], volumes: dict[str, Bulk], settings: dict[str, Any], spacing: Any) -> tuple[Grid, list[str]]:
    """The grid of a case at a spacing (mm, a number or three), and a line for what it leaves out or adds: see `grids.target`.

    volumes : those that `needed` names, at least.
    """
    options = settings["resample"]
    boxes = []
    for name in needed(settings):
        about = case["channels"][name]
        channel = next(channel for channel in settings["channels"] if channel["name"] == name)
        above = options["crop_above"] if options["crop_above"] is not None else resample.background_of(channel, (about["min"], about["max"]))
        boxes.append(grids.foreground(volumes[name].grid.shape, volumes[name].blocks(), above))
    channels = [Grid.of(case["channels"][channel["name"]]["grid"]) for channel in settings["channels"]]
    grid, lines = grids.target(channels, options, np.broadcast_to(np.array(spacing, float), 3).tolist(), boxes)
    stored = Grid(grid.shape, grid.affine.astype(np.float32).astype(np.float64))
    # A header's float32 moves nothing that counts, unless voxels are tiny and far from the origin: then what is stored is what is computed.
    near = geometry.grid_difference(grid.affine, stored.affine, grid.shape) <= geometry.GRID_ATOL_VOXELS
    return grid if near else stored, lines


def accepted(path: Path) -> dict[str, Any]:
    """The case.json of an ingested case. Raises UserError when it was rejected."""
    case = files.read_json(path)
    if not isinstance(case, dict) or "verdict" not in case:
        raise UserError(f"{path}: no verdict in it, expected the case.json of an ingested case")
    if case["verdict"] == "rejected":
        raise UserError(f"{path}: the case was rejected ({case['reason']}), expected an accepted one")
    return case
