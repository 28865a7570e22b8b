"""A volume on another grid, block by block, in memory that the caller sets.

Blocks are arrays (z, y, x) in C order. Every block can be computed alone, from the part of the old volume that it needs, and has the same
bits whatever its size: what decides a voxel's value (weights, order of the passes, size of SimpleITK's parts) follows from the two grids.
"""

import bisect
import concurrent.futures
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import scipy.sparse
import SimpleITK as sitk

from teravox import geometry, interpolation
from teravox.geometry import Shape
from teravox.grids import Grid
from teravox.interpolation import Axis

Reader = Callable[[int, int, int, int], np.ndarray]  # (z0, z1, y0, y1) -> the old volume's block, full width
Convert = Callable[[np.ndarray], np.ndarray]  # of an old block before it is interpolated

TILE_BYTES = 48 << 20  # of what a tile takes: larger ones are no faster
CHUNK = 4096  # columns of a product at a time, so that they stay in the processor's cache
PART_PREFILTER = 13  # voxels around a part that its B-spline prefilter sees: the pole's power there is 4e-8
PART_VOXELS = 3 << 19  # of the old volume under one part of a turned grid
PART_EDGES = (64, 48, 32, 24, 16, 8, 4, 2)  # of such a part: the first that fits


def reader(array: np.ndarray) -> Reader:
    """Of an array (x, y, z) in memory."""
    return lambda z0, z1, y0, y1: array.T[z0:z1, y0:y1]


@dataclasses.dataclass(frozen=True)
class Tile:
    """Planes z0..z1-1 and rows y0..y1-1 of the new grid, at full width."""

    z0: int
    z1: int
    y0: int
    y1: int


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a tile that is made at once. z, y, x : where in the tile; box : (z0, z1, y0, y1, x0, x1) of the old volume that it is made of;
    make : the float64 block of that box -> the piece (z, y, x), float64.
    """

    z: slice
    y: slice
    x: slice
    box: tuple[int, int, int, int, int, int]
    make: Callable[[np.ndarray], np.ndarray]

    def fetch(self, read: Reader, width: int) -> np.ndarray:
        """The old volume's block: plane by plane where it is not of full width, so that no more is held."""
        z0, z1, y0, y1, x0, x1 = self.box
        if x1 - x0 == width:
            return read(z0, z1, y0, y1)
        return np.concatenate([read(z, z + 1, y0, y1)[:, :, x0:x1] for z in range(z0, z1)])


class Sampler(Protocol):
    """How to bring a volume of `shape` (x, y, z) onto a grid of `new_shape`."""

    @property
    def shape(self) -> Shape: ...

    @property
    def new_shape(self) -> Shape: ...

    def pieces(self, tile: Tile) -> Iterator[Piece]:
        """What a tile is made of; beyond the old volume its voxels are not defined."""

    def inside(self, tile: Tile) -> np.ndarray:
        """Which voxels of a tile lie in the old volume: bool, broadcasts to (z, y, x)."""

    def bytes_of(self, tile: Tile) -> int:
        """Memory that `block` takes, its result included."""

    def work_of(self, tile: Tile) -> int:
        """Voxels that `block` computes, those between the passes included."""


def block(way: Sampler, read: Reader, convert: Convert, tile: Tile) -> np.ndarray:
    """A tile (z, y, x), float64; beyond the old volume it is not defined. convert : applied to what is read."""
    shape = tile.z1 - tile.z0, tile.y1 - tile.y0, way.new_shape[0]
    found = None
    for piece in way.pieces(tile):
        made = piece.make(convert(piece.fetch(read, way.shape[0])))
        if made.shape == shape:
            return made
        found = np.empty(shape) if found is None else found
        found[piece.z, piece.y, piece.x] = made
    assert found is not None
    return found


def sampler(old: Grid, new: Grid, method: str, low_pass: bool = True, reach: float = 0) -> Sampler:
    """The way from a volume's grid onto another one. method : of `interpolation.INTERPOLATIONS`.

    low_pass : whether an axis of the volume that shrinks, and no other, is low-passed first (not with `nearest`); reach : in voxels of the
    old volume, how far beyond its outer edges the edge's value extends.
    """
    matrix = np.linalg.inv(old.affine) @ new.affine  # new index to old index
    towards = np.abs(matrix[:3, :3] / np.linalg.norm(matrix[:3, :3], axis=0)).argmax(axis=1)  # the new axis that runs most along each old one
    shrinks = geometry.spacing_of(new.affine)[towards] / geometry.spacing_of(old.affine)
    shrink = [float(s) if low_pass and method != "nearest" else 1.0 for s in shrinks]
    across = np.abs(matrix[:3, :3] - np.diag(np.diag(matrix[:3, :3]))) @ np.array(new.shape)
    if (np.diag(matrix)[:3] > 0).all() and across.max() < geometry.GRID_ATOL_VOXELS:
        places = [matrix[a, a] * np.arange(new.shape[a]) + matrix[a, 3] for a in range(3)]
        x, y, z = (interpolation.axis(old.shape[a], places[a], method, shrink[a], reach) for a in range(3))
        return Separable(old.shape, x, y, z)
    return Turned(old.shape, new.shape, matrix, method, tuple(shrink), reach)


@dataclasses.dataclass(frozen=True)
class Separable:
    """Grids with parallel axes: one sparse product per axis."""

    shape: Shape
    x: Axis
    y: Axis
    z: Axis

    @property
    def new_shape(self) -> Shape:
        return self.x.matrix.shape[0], self.y.matrix.shape[0], self.z.matrix.shape[0]

    def order(self) -> list[str]:
        """The passes: axes that shrink first, and z, which is cheapest; axes that grow last, in the order x, y, z."""
        ratios = {name: getattr(self, name).matrix.shape[0] / old for name, old in zip("xyz", self.shape, strict=True)}
        return sorted("xyz", key=lambda name: (ratios[name], ord(name) if ratios[name] >= 1 else -ord(name)))

    def box(self, tile: Tile) -> tuple[int, int, int, int]:
        return *self.z.support(tile.z0, tile.z1), *self.y.support(tile.y0, tile.y1)

    def pieces(self, tile: Tile) -> Iterator[Piece]:
        def make(found: np.ndarray) -> np.ndarray:
            for name in self.order():
                if name == "z":
                    found = along_z(self.z.part(tile.z0, tile.z1), found)
                elif name == "y":
                    found = along_y(self.y.part(tile.y0, tile.y1), found)
                else:
                    found = along_x(self.x.matrix, found)
            return found

        yield Piece(slice(None), slice(None), slice(None), (*self.box(tile), 0, self.shape[0]), make)

    def inside(self, tile: Tile) -> np.ndarray:
        return self.z.inside[tile.z0 : tile.z1, None, None] & self.y.inside[tile.y0 : tile.y1, None] & self.x.inside

    def _voxels(self, tile: Tile) -> list[int]:
        """Of the block that is read, and after each pass."""
        z0, z1, y0, y1 = self.box(tile)
        size = {"x": self.shape[0], "y": y1 - y0, "z": z1 - z0}
        voxels = [size["x"] * size["y"] * size["z"]]
        for name in self.order():
            size[name] = {"x": self.x.matrix.shape[0], "y": tile.y1 - tile.y0, "z": tile.z1 - tile.z0}[name]
            voxels.append(size["x"] * size["y"] * size["z"])
        return voxels

    def bytes_of(self, tile: Tile) -> int:
        voxels = self._voxels(tile)
        return 8 * max(2 * voxels[0], *(a + b for a, b in itertools.pairwise(voxels)), 2 * voxels[-1])

    def work_of(self, tile: Tile) -> int:
        return sum(self._voxels(tile))


def along_z(matrix: scipy.sparse.csr_array, block: np.ndarray) -> np.ndarray:
    """(new, old) by (old, y, x) -> (new, y, x)."""
    flat = block.reshape(block.shape[0], -1)
    found = np.empty((matrix.shape[0], flat.shape[1]))
    for first in range(0, flat.shape[1], CHUNK):
        found[:, first : first + CHUNK] = matrix @ flat[:, first : first + CHUNK]
    return found.reshape(-1, *block.shape[1:])


def along_y(matrix: scipy.sparse.csr_array, block: np.ndarray) -> np.ndarray:
    """(new, old) by (z, old, x) -> (z, new, x)."""
    found = np.empty((block.shape[0], matrix.shape[0], block.shape[2]))
    for plane, into in zip(block, found, strict=True):
        into[:] = matrix @ plane
    return found


def along_x(matrix: scipy.sparse.csr_array, block: np.ndarray) -> np.ndarray:
    """(new, old) by (z, y, old) -> (z, y, new)."""
    lines = block.reshape(-1, block.shape[2])
    found = np.empty((lines.shape[0], matrix.shape[0]))
    height = max(1, 16 * CHUNK // max(matrix.shape))
    for first in range(0, lines.shape[0], height):
        found[first : first + height] = (matrix @ lines[first : first + height].T).T
    return found.reshape(*block.shape[:2], -1)


@dataclasses.dataclass(frozen=True)
class Turned:
    """Grids turned against each other: SimpleITK, part by part. matrix : (4, 4), new index to old index; shrink : per old axis."""

    shape: Shape
    new_shape: Shape
    matrix: np.ndarray
    method: str
    shrink: tuple[float, ...]
    reach: float

    def _old_box(self, first: Sequence[int], last: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """[start, stop) (x, y, z) of the old voxels that the new voxels first..last-1 (x, y, z) depend on."""
        corners = np.array(list(itertools.product(*[(f, e - 1) for f, e in zip(first, last, strict=True)])), float)
        places = corners @ self.matrix[:3, :3].T + self.matrix[:3, 3]
        shape = np.array(self.shape)
        start = np.floor(places.min(axis=0)).astype(int) - self.halo
        stop = np.ceil(places.max(axis=0)).astype(int) + self.halo + 1
        return np.clip(start, 0, shape - 1), np.clip(stop, 1, shape)

    @functools.cached_property
    def halo(self) -> np.ndarray:
        """Old voxels that a value can depend on, to each side of its place, the low-pass included: (3,), order (x, y, z)."""
        return np.array([interpolation.reach_of(self.method, shrink, PART_PREFILTER) for shrink in self.shrink])

    @functools.cached_property
    def low_pass(self) -> list[scipy.sparse.csr_array | None]:
        """The matrix of each old axis that shrinks."""
        return [
            interpolation.filter_axis(old, shrink).matrix if shrink > 1 + interpolation.EDGE else None
            for old, shrink in zip(self.shape, self.shrink, strict=True)
        ]

    @functools.cached_property
    def edge(self) -> int:
        """Of the cubes of new voxels that SimpleITK gets at a time, in voxels: it follows from the grids alone."""
        extent = np.abs(self.matrix[:3, :3]).sum(axis=1)
        fitting = (edge for edge in PART_EDGES if np.minimum(self.shape, edge * extent + 2 * self.halo + 2).prod() <= PART_VOXELS)
        return next(fitting, 1)

    def pieces(self, tile: Tile) -> Iterator[Piece]:
        edge, limits = self.edge, ((tile.z0, tile.z1), (tile.y0, tile.y1), (0, self.new_shape[0]))
        for corner in itertools.product(*[range(first // edge * edge, last, edge) for first, last in limits]):
            ends = [min(c + edge, n) for c, n in zip(corner, self.new_shape[::-1], strict=True)]
            own = [(max(c, low), min(e, high)) for c, e, (low, high) in zip(corner, ends, limits, strict=True)]
            z, y, x = (slice(a - low, b - low) for (a, b), (low, _) in zip(own, limits, strict=True))
            within = tuple(slice(a - c, b - c) for (a, b), c in zip(own, corner, strict=True))
            start, stop = self._old_box(corner[::-1], ends[::-1])
            box = int(start[2]), int(stop[2]), int(start[1]), int(stop[1]), int(start[0]), int(stop[0])
            yield Piece(z, y, x, box, functools.partial(self._make, corner[::-1], ends[::-1], start, stop, within))

    def _make(
        self, first: Sequence[int], last: Sequence[int], start: np.ndarray, stop: np.ndarray, within: tuple[slice, ...], old: np.ndarray
    ) -> np.ndarray:
        """The part `within` the cube of new voxels first..last-1 (x, y, z). old : the old voxels start..stop-1 (x, y, z)."""
        for a, (along, matrix) in enumerate(zip((along_x, along_y, along_z), self.low_pass, strict=True)):
            if matrix is not None:
                old = along(matrix[start[a] : stop[a], start[a] : stop[a]], np.ascontiguousarray(old))
        image = sitk.GetImageFromArray(np.ascontiguousarray(old))
        image.SetOrigin(start.astype(float).tolist())
        transform = sitk.AffineTransform(3)
        transform.SetMatrix(self.matrix[:3, :3].ravel().tolist())
        transform.SetTranslation(self.matrix[:3, 3].tolist())
        resampler = sitk.ResampleImageFilter()
        resampler.SetInterpolator(SITK[self.method])
        resampler.SetTransform(transform)
        resampler.SetOutputOrigin([float(f) for f in first])
        resampler.SetSize([int(e - f) for f, e in zip(first, last, strict=True)])
        resampler.UseNearestNeighborExtrapolatorOn()
        found = sitk.GetArrayFromImage(resampler.Execute(image))
        if self.method == "lanczos":  # a constant stays what it is, as along one axis
            found /= sitk.GetArrayFromImage(resampler.Execute(image * 0 + 1.0))
        return found[within]

    def inside(self, tile: Tile) -> np.ndarray:
        index = np.ogrid[tile.z0 : tile.z1, tile.y0 : tile.y1, 0 : self.new_shape[0]]
        found = np.ones((tile.z1 - tile.z0, tile.y1 - tile.y0, self.new_shape[0]), bool)
        beyond = 0.5 + self.reach + interpolation.EDGE
        for a in range(3):
            place = sum((self.matrix[a, b] * index[2 - b] for b in range(3)), self.matrix[a, 3])
            found &= (place >= -beyond) & (place <= self.shape[a] - 1 + beyond)
        return found

    def bytes_of(self, tile: Tile) -> int:
        voxels = (tile.z1 - tile.z0) * (tile.y1 - tile.y0) * self.new_shape[0]
        return 8 * (5 * PART_VOXELS + voxels)

    def work_of(self, tile: Tile) -> int:
        edge = self.edge
        parts = [-(-last // edge) - first // edge for first, last in ((tile.z0, tile.z1), (tile.y0, tile.y1))]
        return parts[0] * parts[1] * edge**2 * self.new_shape[0]


SITK = {"nearest": sitk.sitkNearestNeighbor, "linear": sitk.sitkLinear, "bspline": sitk.sitkBSpline3, "lanczos": sitk.sitkLanczosWindowedSinc}


def plan(way: Sampler, memory_bytes: int, extra: int = 0) -> list[Tile]:
    """The tiles of a grid, from its first voxel to its last, that fit the memory and compute least twice.

    extra : bytes that the caller needs per new voxel besides. Raises MemoryError when not even a single row fits. No tile takes more than
    TILE_BYTES above a row: larger ones are no faster, and memory stays the same for all but small volumes.
    """
    width, height, depth = way.new_shape

    def need(tile: Tile) -> int:
        return way.bytes_of(tile) + extra * width * (tile.y1 - tile.y0) * (tile.z1 - tile.z0)

    def middle(rows: int, planes: int) -> Tile:
        y, z = -(-height // rows) // 2 * rows, -(-depth // planes) // 2 * planes
        y, z = min(y, max(height - rows, 0)), min(z, max(depth - planes, 0))
        return Tile(z, z + planes, y, y + rows)

    def needed(rows: int, planes: int) -> int:
        return need(middle(rows, planes))

    limit = min(memory_bytes, TILE_BYTES + needed(1, 1))
    sizes = {}
    for rows in [height, *(1 << power for power in range((height - 1).bit_length()))]:
        planes = bisect.bisect_right(range(1, depth + 1), limit, key=functools.partial(needed, rows))
        if planes:
            sizes[rows, planes] = (way.work_of(middle(rows, planes)) / (rows * planes), -rows * planes)
    for rows, planes in sorted(sizes, key=lambda size: sizes[size]):
        tiles = _tiles(height, depth, rows, planes)
        across, along = tiles[: -(-height // rows)], tiles[:: -(-height // rows)]
        widest, highest = max(across, key=need), max(along, key=need)
        if need(Tile(highest.z0, highest.z1, widest.y0, widest.y1)) <= memory_bytes:
            return tiles
    raise MemoryError


def _tiles(height: int, depth: int, rows: int, planes: int) -> list[Tile]:
    return [Tile(z, min(z + planes, depth), y, min(y + rows, height)) for z in range(0, depth, planes) for y in range(0, height, rows)]


def each(tiles: list[Tile], work: Callable[[Tile], None], threads: int) -> Iterator[Tile]:
    """Do the work of every tile on so many threads, and yield each that is done. The first error ends it."""
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        waiting = {pool.submit(work, tile): tile for tile in tiles}
        try:
            for future in concurrent.futures.as_completed(waiting):
                future.result()
                yield waiting[future]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
