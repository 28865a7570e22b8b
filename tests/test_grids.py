"""The grid of a case: edges, cropping, padding and fields of view, against values worked by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teravox import geometry, grids
from teravox.grids import Grid
from test_geometry import affine_of

OPTIONS: dict[str, Any] = {
    "axes": "own",
    "field_of_view": "reference",
    "crop": "none",
    "crop_above": None,
    "crop_margin_mm": 0,
    "min_size": None,
    "max_size": None,
}
OBLIQUE = affine_of((0, 1, 2), (1, 1, 1), (0.7, 0.8, 2.5), (12.3, -45.6, 78.9), (10, -20, 15))
CUBE = Grid((12, 12, 12), np.diag([2.0, 2, 2, 1]))


def target(*channels: Grid, spacing: float | tuple[float, float, float] = 2, boxes: Any = (), **options: Any) -> Grid:
    found, lines = grids.target(channels, {**OPTIONS, **options}, np.broadcast_to(np.array(spacing, float), 3).tolist(), boxes)
    assert lines == []
    return found


def test_the_own_direction_is_kept_and_an_oblique_volume_does_not_grow() -> None:
    volume = Grid((40, 50, 20), OBLIQUE)
    own = target(volume, spacing=1)
    np.testing.assert_allclose(geometry.direction_of(own.affine), geometry.direction_of(OBLIQUE), atol=1e-12)
    assert own.shape == (28, 40, 50)
    np.testing.assert_allclose(own.affine @ [-0.5, -0.5, -0.5, 1], OBLIQUE @ [-0.5, -0.5, -0.5, 1], atol=1e-9)
    canonical = target(volume, spacing=1, axes="canonical")
    np.testing.assert_allclose(canonical.affine[:3, :3], np.eye(3), atol=1e-12)
    assert canonical.voxels > 1.5 * own.voxels
    corners = np.array(np.meshgrid([-0.5, 39.5], [-0.5, 49.5], [-0.5, 19.5], indexing="ij")).reshape(3, -1)
    places = np.linalg.inv(canonical.affine) @ OBLIQUE @ np.vstack([corners, np.ones(8)])
    assert (places[:3].min(axis=1) >= -0.5 - 1e-9).all() and (places[:3].max(axis=1) <= np.array(canonical.shape)).all()


def test_three_spacings_make_three_edges() -> None:
    found = target(CUBE, spacing=(1, 2, 4))
    assert found.shape == (24, 12, 6)
    np.testing.assert_allclose(geometry.spacing_of(found.affine), [1, 2, 4])


def test_the_union_holds_every_channel() -> None:
    moved = Grid((12, 12, 12), geometry.window_of(CUBE.affine, np.array([-3, 0, 5])))
    assert target(CUBE, moved).shape == (12, 12, 12)
    found = target(CUBE, moved, field_of_view="union")
    assert found.shape == (15, 12, 17)
    np.testing.assert_allclose(found.affine[:3, 3], [-6, 0, 0])


def test_cropping_moves_the_origin() -> None:  # C12
    """Of a cube of 12 voxels the part from (4, 4, 4) on: what was voxel (5, 6, 7) is (1, 2, 3) and lies where it lay."""
    found = target(CUBE, boxes=[np.array([[4, 4, 4], [9, 9, 9]])])
    assert found.shape == (6, 6, 6)
    np.testing.assert_allclose(found.affine @ [1, 2, 3, 1], CUBE.affine @ [5, 6, 7, 1])


@pytest.mark.parametrize(("margin", "first", "size"), [(0, 4, 6), (2, 3, 8), (3, 2, 10), (7, 0, 12), (1000, 0, 12)])
def test_a_margin_is_whole_voxels_within_the_field_of_view(margin: float, first: int, size: int) -> None:
    found = target(CUBE, boxes=[np.array([[4, 4, 4], [9, 9, 9]])], crop_margin_mm=margin)
    assert found.shape == (size,) * 3
    np.testing.assert_allclose(found.affine[:3, 3], 2 * first)


def test_the_box_is_that_of_all_channels() -> None:
    coarse = Grid((6, 6, 6), np.diag([4.0, 4, 4, 1]) + np.array([[0, 0, 0, 1.0]] * 3 + [[0] * 4]))
    found = target(CUBE, coarse, boxes=[np.array([[4, 4, 4], [5, 5, 5]]), np.array([[3, 2, 2], [4, 2, 2]])])
    # along x the coarse channel's voxels 3 and 4 are the fine ones 6 to 9; along y and z its voxel 2 is 4 to 5
    assert found.shape == (6, 2, 2)
    np.testing.assert_allclose(found.affine[:3, 3], [8, 8, 8])
    assert target(CUBE, coarse, boxes=[None, np.array([[3, 2, 2], [4, 2, 2]])]).shape == (4, 2, 2)


def test_no_foreground_is_said_and_nothing_cropped() -> None:
    found, lines = grids.target([CUBE], OPTIONS, [2, 2, 2], [None])
    assert found.shape == (12, 12, 12) and len(lines) == 1 and "nothing was cropped" in lines[0]


def test_sizes_are_padded_and_cut_evenly_and_said() -> None:
    found, lines = grids.target([CUBE], {**OPTIONS, "min_size": [16, 12, 13]}, [2, 2, 2])
    assert found.shape == (16, 12, 13) and lines == ["the grid of 12x12x12 voxels is padded evenly to 16x12x13 (min_size)"]
    np.testing.assert_allclose(found.affine @ [2, 0, 0, 1], CUBE.affine @ [0, 0, 0, 1])
    found, lines = grids.target([CUBE], {**OPTIONS, "max_size": 8}, [2, 2, 2])
    assert found.shape == (8, 8, 8) and lines == ["the grid of 12x12x12 voxels is cut evenly to 8x8x8 (max_size)"]
    np.testing.assert_allclose(found.affine @ [0, 0, 0, 1], CUBE.affine @ [2, 2, 2, 1])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 8))
def test_the_foreground_is_that_of_the_whole_array(seed: int, planes: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    volume = np.zeros((9, 8, 7), np.int16)
    index = rng.integers(0, 7, (rng.integers(0, 4), 3))
    volume[tuple(index.T)] = 5
    blocks = ((z, y, volume[z : z + planes, y : y + rows]) for z in range(0, 9, planes) for y in range(0, 8, rows))
    found = grids.foreground((7, 8, 9), blocks, 4)
    places = np.argwhere(volume > 4)[:, ::-1]
    if not len(places):
        assert found is None
    else:
        assert found is not None
        np.testing.assert_array_equal(found, [places.min(axis=0), places.max(axis=0)])
