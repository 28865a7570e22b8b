"""The grid that all channels and the label of a case are brought onto."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from teravox import geometry
from teravox.geometry import Shape


@dataclasses.dataclass(frozen=True)
class Grid:
    """shape : (x, y, z); affine : (4, 4), RAS+, mm."""

    shape: Shape
    affine: np.ndarray

    @classmethod
    def of(cls, document: dict[str, Any]) -> "Grid":
        """From the `grid` of a case.json."""
        x, y, z = document["shape"]
        return cls((x, y, z), np.array(document["affine"], np.float64))

    @property
    def voxels(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]

    def document(self) -> dict[str, Any]:
        """As it stands in a case.json."""
        return {"shape": list(self.shape), "affine": self.affine.tolist()}


def foreground(shape: Shape, blocks: Iterable[tuple[int, int, np.ndarray]], above: float) -> np.ndarray | None:
    """The box of the voxels brighter than `above`: (2, 3), first and last index, order (x, y, z); None without any.

    shape : (x, y, z) of the volume; blocks : first plane, first row, array (z, y, x) at full width; together the volume.
    """
    lines = [np.zeros(n, bool) for n in shape]
    for z0, y0, block in blocks:
        mask = block > above
        lines[0] |= np.any(mask, axis=(0, 1))
        lines[1][y0 : y0 + block.shape[1]] |= np.any(mask, axis=(0, 2))
        lines[2][z0 : z0 + block.shape[0]] |= np.any(mask, axis=(1, 2))
    found = [np.flatnonzero(line) for line in lines]
    return np.array([[line[0] for line in found], [line[-1] for line in found]]) if all(line.size for line in found) else None


def target(
    channels: Sequence[Grid], settings: dict[str, Any], spacing: Sequence[float], boxes: Sequence[np.ndarray | None] = ()
) -> tuple[Grid, list[str]]:
    """The new grid of a case, and a line for everything that it leaves out or adds.

    channels : the reference channel's grid first; settings : the configuration's `resample`; spacing : (3,), mm; boxes : per channel the
    `foreground` that the field of view is cropped to. The axes are the reference's own, or the world's with `axes: canonical`; the field of
    view is the reference's or that of all channels. Cropping, padding and trimming go by whole voxels of that grid, so they move no voxel.
    """
    direction = np.eye(3) if settings["axes"] == "canonical" else geometry.direction_of(channels[0].affine)
    seen = channels if settings["field_of_view"] == "union" else channels[:1]
    shape, affine = geometry.grid_over(_union(geometry.box_of(grid.shape, grid.affine, direction) for grid in seen), direction, np.array(spacing))
    first, size = np.zeros(3, int), np.array(shape)
    lines = []
    if boxes:
        found = [_part(grid, box) for grid, box in zip(channels, boxes, strict=True) if box is not None]
        if found:
            low, high = _union(geometry.box_of(grid.shape, grid.affine, direction) for grid in found)
            origin = np.linalg.solve(direction, affine[:3, 3]) - 0.5 * np.array(spacing)
            margin = settings["crop_margin_mm"]
            slack = geometry.GRID_ATOL_VOXELS
            first = np.clip(np.floor((low - margin - origin) / spacing + slack).astype(int), 0, size - 1)
            last = np.clip(np.ceil((high + margin - origin) / spacing - slack).astype(int), first + 1, size)
            size = last - first
        else:
            lines.append("no voxel is brighter than the threshold of the foreground, so nothing was cropped")
    for key, enough in (("min_size", np.maximum), ("max_size", np.minimum)):
        if settings[key] is not None:
            wanted = enough(size, np.broadcast_to(settings[key], 3))
            first, changed = first + np.trunc((size - wanted) / 2).astype(int), wanted - size
            if changed.any():
                word = "padded" if key == "min_size" else "cut"
                lines.append(f"the grid of {_by(size)} voxels is {word} evenly to {_by(wanted)} ({key})")
            size = wanted
    return Grid((int(size[0]), int(size[1]), int(size[2])), geometry.window_of(affine, first)), lines


def _union(boxes: Iterable[np.ndarray]) -> np.ndarray:
    stacked = np.stack(list(boxes))
    return np.stack([stacked[:, 0].min(axis=0), stacked[:, 1].max(axis=0)])


def _part(grid: Grid, box: np.ndarray) -> Grid:
    x, y, z = (int(n) for n in box[1] - box[0] + 1)
    return Grid((x, y, z), geometry.window_of(grid.affine, box[0]))


def _by(size: np.ndarray) -> str:
    return "x".join(str(int(n)) for n in size)
