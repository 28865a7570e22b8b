"""Blocks of a volume on another grid: equal to SimpleITK on the whole, to the last bit whatever their size, and within the memory."""

import itertools
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import naive_resampling as naive
from teravox import geometry, interpolation, resample, sampling
from teravox.grids import Grid
from teravox.sampling import Tile
from test_geometry import affine_of

RNG = np.random.default_rng(0)
SHAPE = (23, 31, 19)
STRAIGHT = np.diag([1.0, 1.5, 3, 1])
OBLIQUE = affine_of((0, 1, 2), (1, 1, 1), (0.7, 0.8, 2.5), (12.3, -45.6, 78.9), (10, -20, 15))
ELSEWHERE = affine_of((0, 1, 2), (1, 1, 1), (1.1, 1.1, 1.1), (14.3, -44.6, 77.9), (0, 0, 5))
GRIDS = {
    "straight, finer": (STRAIGHT, naive.grid_of(SHAPE, STRAIGHT, 0.9)),
    "straight, coarser": (STRAIGHT, naive.grid_of(SHAPE, STRAIGHT, 2.1)),
    "oblique, finer": (OBLIQUE, naive.grid_of(SHAPE, OBLIQUE, 0.61)),
    "oblique, coarser": (OBLIQUE, naive.grid_of(SHAPE, OBLIQUE, 1.9)),
    "turned, finer": (OBLIQUE, Grid((20, 26, 34), ELSEWHERE)),
    "turned, coarser": (OBLIQUE, Grid((20, 12, 14), ELSEWHERE @ np.diag([1.9, 1.9, 1.9, 1]))),
}
TILES = [(1, 40), (3, 7), (24, 13), (64, 64)]


def block_of(way: sampling.Sampler, array: np.ndarray, planes: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The whole grid from tiles of a size, and which of its voxels lie inside."""
    width, height, depth = way.new_shape
    found, inside = np.full((depth, height, width), np.nan), np.zeros((depth, height, width), bool)
    for z, y in itertools.product(range(0, depth, planes), range(0, height, rows)):
        tile = Tile(z, min(z + planes, depth), y, min(y + rows, height))
        made = sampling.block(way, sampling.reader(array), resample.as_float, tile)
        assert made.dtype == np.float64
        found[tile.z0 : tile.z1, tile.y0 : tile.y1] = made
        inside[tile.z0 : tile.z1, tile.y0 : tile.y1] = way.inside(tile)
    return found, inside


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("method", interpolation.INTERPOLATIONS)
def test_equals_simpleitk_on_the_whole_image_whatever_the_tiles(name: str, method: str) -> None:
    affine, grid = GRIDS[name]
    array = RNG.random(SHAPE) * 1000
    way = sampling.sampler(Grid(SHAPE, affine), grid, method)
    assert isinstance(way, sampling.Turned if "turned" in name else sampling.Separable)
    expected = naive.image_on(array, affine, grid, method)
    whole, inside = block_of(way, array, 1000, 1000)
    assert inside.any() and ("turned" in name or inside.all())
    np.testing.assert_allclose(whole[inside], expected[inside], rtol=0, atol=1e-5)
    for tile in TILES[2:] if "turned" in name else TILES:
        np.testing.assert_array_equal(block_of(way, array, *tile)[0][inside], whole[inside])


@pytest.mark.parametrize("name", [name for name in GRIDS if "turned" in name])
def test_parts_of_a_turned_grid_change_nothing_but_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    affine, grid = GRIDS[name]
    array = RNG.random(SHAPE) * 1000
    for method in interpolation.INTERPOLATIONS:
        whole, inside = block_of(sampling.sampler(Grid(SHAPE, affine), grid, method), array, 1000, 1000)
        monkeypatch.setattr(sampling, "PART_EDGES", (8,))
        parts, _ = block_of(sampling.sampler(Grid(SHAPE, affine), grid, method), array, 1000, 1000)
        monkeypatch.undo()
        np.testing.assert_allclose(parts[inside], whole[inside], rtol=0, atol=1e-4)


def test_inside_is_where_the_old_volume_is() -> None:
    for name, (affine, grid) in GRIDS.items():
        way = sampling.sampler(Grid(SHAPE, affine), grid, "linear")
        _, inside = block_of(way, np.zeros(SHAPE), 5, 6)
        places = np.argwhere(np.ones(grid.shape, bool)) @ grid.affine[:3, :3].T + grid.affine[:3, 3]
        old = (places - affine[:3, 3]) @ np.linalg.inv(affine[:3, :3]).T
        beyond = np.maximum(-0.5 - old, old - np.array(SHAPE) + 0.5).max(axis=1).reshape(grid.shape).T
        assert inside[beyond < -1e-5].all() and not inside[beyond > 1e-5].any(), name


def test_only_what_a_tile_needs_is_read() -> None:
    affine, grid = GRIDS["straight, finer"]
    array, read = RNG.random(SHAPE), []
    way = sampling.sampler(Grid(SHAPE, affine), grid, "linear")

    def watched(z0: int, z1: int, y0: int, y1: int) -> np.ndarray:
        read.append((z0, z1, y0, y1))
        return array.T[z0:z1, y0:y1]

    sampling.block(way, watched, resample.as_float, Tile(30, 33, 12, 14))
    # planes 30 to 32 have their centres at (30.5 * 0.9 - 1.5) / 3 = 8.65 to 9.25 of the old axis, rows 12 and 13 at 7.0 and 7.6
    assert read == [(8, 11, 7, 9)]


@pytest.mark.parametrize("name", GRIDS)
def test_a_plan_covers_the_grid_once_and_keeps_to_the_memory(name: str) -> None:
    affine, grid = GRIDS[name]
    way = sampling.sampler(Grid(SHAPE, affine), grid, "bspline")
    least = max(way.bytes_of(Tile(z, z + 1, y, y + 1)) for z in range(grid.shape[2]) for y in range(grid.shape[1]))
    for memory in (2 * least, 1 << 28):
        tiles = sampling.plan(way, memory)
        count = np.zeros(grid.shape[:0:-1], int)
        for tile in tiles:
            assert way.bytes_of(tile) <= memory
            count[tile.z0 : tile.z1, tile.y0 : tile.y1] += 1
        assert (count == 1).all()
    with pytest.raises(MemoryError):
        sampling.plan(way, 1000)


def test_tiles_that_fail_end_the_work() -> None:
    tiles = [Tile(z, z + 1, 0, 1) for z in range(100)]
    done, lock = [], threading.Lock()

    def work(tile: Tile) -> None:
        with lock:
            done.append(tile)
        time.sleep(0.001)
        if tile.z0 == 5:
            raise ValueError("five")

    with pytest.raises(ValueError, match="five"):
        list(sampling.each(tiles, work, 2))
    assert len(done) < 100
    assert sorted(tile.z0 for tile in sampling.each(tiles, lambda tile: None, 2)) == list(range(100))


def test_memory_of_a_tile_is_what_is_predicted(tmp_path: Path) -> None:
    """The arrays of one tile, as numpy counts them, stay below `bytes_of`."""
    shape = (80, 90, 70)
    affine = np.diag([1, 1, 2.0, 1])
    for method, spacing in itertools.product(("linear", "bspline"), (0.5, 3.0)):
        grid = naive.grid_of(shape, affine, spacing)
        way = sampling.sampler(Grid(shape, affine), grid, method)
        array = RNG.random(shape)
        tile = Tile(0, grid.shape[2] // 2, 0, grid.shape[1])
        sampling.block(way, sampling.reader(array), resample.as_float, tile)
        tracemalloc.start()
        sampling.block(way, sampling.reader(array), resample.as_float, tile)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 0.3 * way.bytes_of(tile) < peak < 1.1 * way.bytes_of(tile) + 2e6, (method, spacing)


def test_the_axis_that_shrinks_is_filtered_and_no_other() -> None:
    array = np.zeros((16, 16, 16))
    array[8, 8, 8] = 1
    grid = Grid((16, 16, 16), np.diag([2.0, 1, 1, 1]))
    way = sampling.sampler(Grid((16, 16, 16), np.eye(4)), grid, "linear")
    found, inside = block_of(way, array, 16, 16)
    assert set(np.argwhere((found > 1e-9) & inside)[:, 0]) == {8} and set(np.argwhere((found > 1e-9) & inside)[:, 1]) == {8}
    assert np.count_nonzero((found > 1e-6) & inside) > 1
    unfiltered = sampling.sampler(Grid((16, 16, 16), np.eye(4)), grid, "linear", low_pass=False)
    assert np.count_nonzero(block_of(unfiltered, array, 16, 16)[0] > 1e-6) == 1
    assert geometry.spacing_of(grid.affine)[0] == 2
