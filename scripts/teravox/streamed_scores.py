"""Two label volumes that may be far larger than memory, compared label by label: how much of a label a way there and back loses.

Both volumes are read twice, in pieces: in slabs of whole planes for what is counted, and in blocks with a halo for distances
between surfaces, which need be right only up to the tolerance. The figures are those of `metrics.score` on the whole arrays.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.ndimage import find_objects, label
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from teravox.errors import UserError
from teravox.geometry import spacing_of
from teravox.surfaces import TOLERANCE_EPSILON_MM, directed_distances, surface_of

Reader = Callable[[int, int, int, int], np.ndarray]  # (z0, z1, y0, y1) -> (z, y, x): planes z0..z1-1, rows y0..y1-1, all of x
PairReader = Callable[[int, int, int, int], tuple[np.ndarray, np.ndarray]]  # the same of two volumes
Box = tuple[slice, ...]

# Of a voxel, beside the volumes themselves. In a slab: masks, components as int32 and, to be counted, as int64, a table of them.
# In a block: masks, surfaces, distances as float32 and, of a surface, as float64. Measured: 20 at most.
VOXEL_BYTES = 28


@dataclass
class Tally:
    """What has been counted of one label so far. `sizes` and `kept` are of the components that the next slab may continue."""

    voxels: int = 0
    back_voxels: int = 0
    common: int = 0
    surface: int = 0
    near: int = 0
    components: int = 0
    lost: int = 0
    largest_lost: int = 0
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))


def _boxes(volumes: Sequence[np.ndarray], values: Sequence[int]) -> Iterator[tuple[int, Box]]:
    """Each value that any of the volumes (z, y, x) holds, with the box around its voxels in all of them."""
    found = [find_objects(volume, max(values)) for volume in volumes]
    for value in values:
        if boxes := [objects[value - 1] for objects in found if objects[value - 1]]:
            yield value, tuple(slice(min(s.start for s in sides), max(s.stop for s in sides)) for sides in zip(*boxes, strict=True))


def _grown(box: Box, margin: Sequence[int], shape: Sequence[int]) -> Box:
    """A box with a margin on every side, in voxels, as far as the array reaches."""
    return tuple(slice(max(s.start - m, 0), min(s.stop + m, n)) for s, m, n in zip(box, margin, shape, strict=True))


def _within(inner: Box, outer: Box) -> Box:
    """A box as seen from the corner of another that holds it."""
    return tuple(slice(i.start - o.start, i.stop - o.start) for i, o in zip(inner, outer, strict=True))


def _join(tally: Tally, mask: np.ndarray, common: np.ndarray, opened: np.ndarray, fresh: int, last: bool) -> np.ndarray:
    """Add the components of a slab's mask (z, y, x) to those of the slabs before, and number those in its last plane.

    common : the voxels that carry the label after the way back too. fresh : 1 where the first plane is the last one of the slab
    before, whose components `opened` (y, x) numbers from 1, else 0. last : no slab follows. Returns (y, x) int32, 0 outside.
    """
    here, count = label(mask, np.ones((3, 3, 3)), np.int32)
    sizes = np.concatenate([tally.sizes, np.bincount(here[fresh:].ravel(), minlength=count + 1)[1:]])
    kept = np.zeros(count + 1, bool)
    kept[here[fresh:][common[fresh:]]] = True
    kept = np.concatenate([tally.kept, kept[1:]])

    # One graph of the components before and here: two are one where they share a voxel of the plane that both slabs hold.
    shared, edge, before = mask[0] & bool(fresh), mask[-1] & (not last), tally.sizes.size
    pairs = opened[shared] - 1, here[0][shared] + (before - 1)
    graph = coo_array((np.ones(pairs[0].size, bool), pairs), shape=(sizes.size, sizes.size))
    groups, group = connected_components(graph, directed=False)
    total, survives, closed = np.zeros(groups, np.int64), np.zeros(groups, bool), np.ones(groups, bool)
    np.add.at(total, group, sizes)
    survives[group[kept]] = True

    going_on, number = np.unique(group[before - 1 + here[-1][edge]], return_inverse=True)
    closed[going_on] = False
    lost = total[closed & ~survives]
    tally.components += int(np.count_nonzero(closed))
    tally.lost += lost.size
    tally.largest_lost = max(tally.largest_lost, int(lost.max(initial=0)))
    tally.sizes, tally.kept = total[going_on], survives[going_on]
    plane = np.zeros(edge.shape, np.int32)
    plane[edge] = number + 1
    return plane


def _count_slabs(read: PairReader, shape: tuple[int, int, int], height: int, tallies: dict[int, Tally]) -> None:
    """Voxels and components of every label, `height` planes at a time and the plane before them. shape : (z, y, x)."""
    opened = np.zeros(shape[1:], np.int32)
    for start in range(0, shape[0], height):
        stop, fresh = min(start + height, shape[0]), min(start, 1)
        back, native = read(start - fresh, stop, 0, shape[1])
        following = np.zeros_like(opened)
        for value, (_, *sides) in _boxes((back, native), list(tallies)):
            box, tally = (slice(None), *sides), tallies[value]
            mask, back_mask = native[box] == value, back[box] == value
            tally.voxels += int(np.count_nonzero(mask[fresh:]))
            tally.back_voxels += int(np.count_nonzero(back_mask[fresh:]))
            back_mask &= mask
            tally.common += int(np.count_nonzero(back_mask[fresh:]))
            following[box[1:]] += _join(tally, mask, back_mask, opened[box[1:]], fresh, stop == shape[0])
        opened = following


def _count_near(tally: Tally, masks: Sequence[np.ndarray], core: Box, spacing: np.ndarray, limit: float) -> None:
    """Add the surface voxels of a core, and how many of them lie within `limit` (mm) of the other mask's surface.

    masks : two, (z, y, x), reaching further than `limit` around the core, where the grid does: where they are cut, what looks
    like a surface is too far away to count. spacing : (3,), mm, order (z, y, x).
    """
    surfaces = [surface_of(mask) for mask in masks]
    for start, target in (surfaces, surfaces[::-1]):
        apart = np.zeros_like(start)  # what lies on both surfaces needs no distance
        apart[core] = start[core] & ~target[core]
        surface, elsewhere = int(np.count_nonzero(start[core])), int(np.count_nonzero(apart))
        tally.surface += surface
        tally.near += surface - elsewhere
        if elsewhere and target.any():
            tally.near += int(np.count_nonzero(directed_distances(apart, target, spacing) <= limit))


def _block_size(shape: Sequence[int], halo: Sequence[int], rows: int) -> tuple[int, int]:
    """Planes and rows of the largest core of a block that has at most `rows` rows, halo included. shape, halo : (z, y)."""

    def width(height: int) -> int:
        wide = rows // min(height + 2 * halo[0], shape[0])
        return shape[1] if wide >= shape[1] else max(wide - 2 * halo[1], 0)

    return max(((height, width(height)) for height in range(1, shape[0] + 1)), key=math.prod)


def _count_surfaces(
    read: PairReader,
    shape: tuple[int, int, int],
    block: tuple[int, int],
    halo: Sequence[int],
    spacing: np.ndarray,
    limit: float,
    tallies: dict[int, Tally],
) -> None:
    """Surface voxels of every label, block by block. shape, halo (voxels), spacing (mm) : (z, y, x); block : (z, y), without halo."""
    for z in range(0, shape[0], block[0]):
        for y in range(0, shape[1], block[1]):
            core = (slice(z, min(z + block[0], shape[0])), slice(y, min(y + block[1], shape[1])), slice(0, shape[2]))
            region = _grown(core, halo, shape)
            pair = read(region[0].start, region[0].stop, region[1].start, region[1].stop)
            offset, extent = _within(core, region), pair[0].shape
            for value, found in _boxes([volume[offset] for volume in pair], list(tallies)):
                inner = tuple(slice(o.start + f.start, o.start + f.stop) for o, f in zip(offset, found, strict=True))
                outer = _grown(inner, halo, extent)
                _count_near(tallies[value], [volume[outer] == value for volume in pair], _within(inner, outer), spacing, limit)


def _halo(affine: np.ndarray, tolerance_mm: float) -> list[int]:
    """How many voxels around a block can decide whether a surface of it is within the tolerance: order (z, y, x)."""
    return [int((tolerance_mm + TOLERANCE_EPSILON_MM) / step) + 1 for step in spacing_of(affine)[::-1]]


def least_bytes(shape: tuple[int, int, int], affine: np.ndarray, itemsize: int, tolerance_mm: float) -> int:
    """The memory that `compare` needs for two volumes of a type of `itemsize` bytes; other arguments as there.

    A slab is a plane and the one before; joining the components that meet in it takes about as much as another plane.
    """
    size, halo = shape[::-1], _halo(affine, tolerance_mm)
    rows = max(3 * size[1], math.prod(min(1 + 2 * h, n) for h, n in zip(halo[:2], size[:2], strict=True)))
    return rows * shape[0] * (3 * itemsize + VOXEL_BYTES)


def compare(
    back: Reader,
    native: Reader,
    shape: tuple[int, int, int],
    affine: np.ndarray,
    values: Sequence[int],
    tolerance_mm: float,
    ignore_value: int | None,
    memory_bytes: int,
) -> dict[int, dict[str, Any]]:
    """Compare a label volume, after a way there and back, with what it was, in bounded memory.

    back, native : readers of integer labels on one grid.
    shape : (x, y, z).
    affine : (4, 4), RAS+, mm; orthogonal, in any direction and with any spacing.
    values : the labels to compare, each at least 1.
    tolerance_mm : float, mm, at least 0; as in `metrics.score`.
    ignore_value : voxels where native has it are left out of both masks before anything is counted; None for none.
    memory_bytes : bound on the arrays held at a time, those that the readers return included, what they hold inside not.

    Returns for each value, all figures those of the two masks of that value:

    voxels, back_voxels : number of voxels in native and in back.
    dice, nsd : as `metrics.score` defines them, 0 where exactly one mask is empty, None where both are.
    volume_change : (back_voxels - voxels) / voxels, None where there are no voxels.
    components : number of 26-connected components of native.
    lost_components : those of which no voxel carries the label in back.
    lost_voxels_largest : voxels of the largest of these, 0 without any.

    Raises UserError where the memory does not hold three planes, or one row with the halo of the tolerance;
    ValueError for a value below 1 or equal to ignore_value.
    """
    if min(values, default=1) < 1 or ignore_value in values:
        raise ValueError(f"values are {list(values)}, expected at least 1 each and none equal to ignore_value, {ignore_value}")
    size = shape[::-1]
    spacing, limit = spacing_of(affine)[::-1], tolerance_mm + TOLERANCE_EPSILON_MM
    halo = _halo(affine, tolerance_mm)

    def read(*window: int) -> tuple[np.ndarray, np.ndarray]:
        """Both volumes, (z, y, x); where native has the value to ignore, so has back."""
        after, before = back(*window), native(*window)
        return after if ignore_value is None else np.where(before == ignore_value, before, after), before

    itemsize = max(volume.itemsize for volume in read(0, 1, 0, 1))
    row_bytes = shape[0] * (3 * itemsize + VOXEL_BYTES)
    least = least_bytes(shape, affine, itemsize, tolerance_mm)
    if memory_bytes < least:
        found = f"comparing labels of {shape[0]} x {shape[1]} x {shape[2]} voxels: {memory_bytes / 1e6:.3f} MB of memory"
        needed = f"expected at least {least / 1e6:.3f} MB for a tolerance of {tolerance_mm:g} mm"
        raise UserError(f"{found}, {needed}; set a larger resample.memory_mb or a smaller resample.ceiling_tolerance_mm")
    tallies = {value: Tally() for value in values}
    if tallies:
        _count_slabs(read, size, memory_bytes // (size[1] * row_bytes) - 2, tallies)
        _count_surfaces(read, size, _block_size(size[:2], halo[:2], memory_bytes // row_bytes), halo, spacing, limit, tallies)
    return {
        value: {
            "voxels": tally.voxels,
            "back_voxels": tally.back_voxels,
            "dice": 2 * tally.common / (tally.voxels + tally.back_voxels) if tally.voxels + tally.back_voxels else None,
            "nsd": tally.near / tally.surface if tally.surface else None,
            "volume_change": (tally.back_voxels - tally.voxels) / tally.voxels if tally.voxels else None,
            "components": tally.components,
            "lost_components": tally.lost,
            "lost_voxels_largest": tally.largest_lost,
        }
        for value, tally in tallies.items()
    }
