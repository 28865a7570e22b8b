"""Images and labels onto another grid, from file to file, a tile at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from teravox import geometry, sampling
from teravox.bulk import Bulk
from teravox.errors import UserError
from teravox.grids import Grid
from teravox.sampling import Piece, Reader, Sampler, Tile

CT_AIR = -1000.0  # HU
TILES_SHARE = 0.75  # of the memory; the rest is for what the process keeps of earlier work
TIE = 1e-6  # of a label's weight: less decides nothing, so that rounding does not


def as_float(old: np.ndarray) -> np.ndarray:
    return old.astype(np.float64)


def as_dtype(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Round to the nearest integer and clip to the type's range; a float type is only cast."""
    if np.issubdtype(dtype, np.integer):
        limits = np.iinfo(dtype)
        array = np.clip(np.rint(array), limits.min, limits.max)
    return array.astype(dtype)


def image_tile(way: Sampler, read: Reader, tile: Tile, limits: tuple[float, float], background: float, dtype: np.dtype) -> np.ndarray:
    """A tile (z, y, x) of an image on its new grid, in the type asked for.

    limits : least and largest value of the old volume, which no interpolation leaves (B-spline and Lanczos would); background : of what
    lies outside the old volume.
    """
    block, inside = sampling.block(way, read, as_float, tile), way.inside(tile)
    outside = None if inside.all() else ~np.broadcast_to(inside, block.shape)
    found = np.empty(block.shape, dtype)
    for number, plane in enumerate(block):  # one plane stays in the processor's cache
        np.clip(plane, *limits, out=plane)
        if outside is not None:
            plane[outside[number]] = background
        found[number] = as_dtype(plane, dtype)
    return found


def label_tile(way: Sampler, read: Reader, tile: Tile) -> np.ndarray:
    """A tile (z, y, x) of a label map on its new grid, in its own type: of each label's indicator, interpolated, the largest wins.

    So no label is invented. Between equals the lowest value wins. What lies outside the old volume is 0.
    """
    found: np.ndarray | None = None
    for piece in way.pieces(tile):
        old = piece.fetch(read, way.shape[0])
        if found is None:
            found = np.empty((tile.z1 - tile.z0, tile.y1 - tile.y0, way.new_shape[0]), old.dtype)
        _winner(piece, old, found[piece.z, piece.y, piece.x])
    assert found is not None
    return np.where(way.inside(tile), found, found.dtype.type(0))


def _winner(piece: Piece, old: np.ndarray, into: np.ndarray) -> None:
    """Fill a piece with the label of the largest weight."""
    first, *others = np.unique(old)
    into[:] = first
    if others:
        best = piece.make((old == first).astype(np.float64))
        for value in others:
            weight = piece.make((old == value).astype(np.float64))
            challenge(weight, value, best, into)
            del weight  # before the next label's


def challenge(weight: np.ndarray, value: int, best: np.ndarray, into: np.ndarray) -> None:
    """Give `value` the voxels where its weight exceeds the best so far: rounding decides nothing, between equals the earlier one stays."""
    better = weight > best + TIE
    np.copyto(best, weight, where=better)
    into[better] = value


def write_image(
    source: Bulk, target: Bulk, channel: int, way: Sampler, limits: tuple[float, float], background: float, memory_bytes: int, threads: int
) -> Iterator[float]:
    """Write one channel of `target` from `source`, as `image_tile`; yields after each tile which share of the grid is done."""

    def work(tile: Tile) -> None:
        target.write(image_tile(way, source.read, tile, limits, background, target.dtype), tile.z0, tile.y0, channel)

    return _each(way, work, target.dtype.itemsize + 3, memory_bytes, threads)


def write_label(source: Bulk, target: Bulk, way: Sampler, memory_bytes: int, threads: int) -> Iterator[float]:
    """Write a label map from `source`, as `label_tile`; yields after each tile which share of the grid is done."""

    def work(tile: Tile) -> None:
        target.write(label_tile(way, source.read, tile), tile.z0, tile.y0)

    return _each(way, work, 8 + 3 * target.dtype.itemsize + 2, memory_bytes, threads)


def _each(way: Sampler, work: Callable[[Tile], None], voxel_bytes: int, memory_bytes: int, threads: int) -> Iterator[float]:
    tiles: list[Tile] = []
    while not tiles:
        try:
            tiles = sampling.plan(way, int(TILES_SHARE * memory_bytes) // threads, voxel_bytes)
        except MemoryError:
            threads -= 1  # more memory for each
            if not threads:
                found = f"resample.memory_mb: {memory_bytes / 1e6:g} MB do not hold what one row of {way.new_shape[0]} new voxels is made of"
                raise UserError(f"{found}; expected more, or a spacing nearer to the case's own") from None
    voxels = int(np.prod(way.new_shape, dtype=np.int64))
    for tile in sampling.each(tiles, work, threads):
        yield (tile.z1 - tile.z0) * (tile.y1 - tile.y0) * way.new_shape[0] / voxels


def background_of(channel: dict[str, Any], limits: tuple[float, float]) -> float:
    """The value of an image beyond its field of view: as configured, else air in CT and the image's least value otherwise.

    channel : an item of the configuration's `channels`; limits : least and largest value of the image.
    """
    if channel["background"] != "auto":
        return float(channel["background"])
    return max(limits[0], CT_AIR) if channel["match"]["modality"] == "CT" else limits[0]


def shown_on(array: np.ndarray, affine: np.ndarray, grid: Grid) -> np.ndarray:
    """An image (x, y, z) for a picture on another grid, linear, its least value beyond it; itself where the grids are one."""
    x, y, z = array.shape
    if geometry.same_grid((x, y, z), affine, grid.shape, grid.affine):
        return array
    limits = float(array.min()), float(array.max())
    whole = Tile(0, grid.shape[2], 0, grid.shape[1])
    return image_tile(sampling.sampler(Grid((x, y, z), affine), grid, "linear"), sampling.reader(array), whole, limits, limits[0], array.dtype).T


def label_way(native: Grid, grid: Grid, method: str) -> Sampler:
    """From a label map onto a case's grid. Without a low-pass: it would thin what is thin already."""
    return sampling.sampler(native, grid, method, low_pass=False)


def way_back(grid: Grid, native: Grid) -> Sampler:
    """From a case's grid onto its native one. The grid may end half a voxel of its own short of the field of view, by rounding."""
    return sampling.sampler(grid, native, "linear", low_pass=False, reach=0.5)
