"""Images and labels on a case's grid, in tiles and from file to file."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given, settings
from hypothesis import strategies as st

import naive_resampling as naive
from teravox import bulk, geometry, resample, sampling
from teravox.errors import UserError
from teravox.grids import Grid
from teravox.sampling import Tile
from test_geometry import ORIENTATIONS, affine_of

RNG = np.random.default_rng(0)
OBLIQUE = affine_of((0, 1, 2), (1, 1, 1), (0.7, 0.8, 2.5), (12.3, -45.6, 78.9), (10, -20, 15))
MEMORY = 1 << 28


def whole(grid: Grid) -> Tile:
    return Tile(0, grid.shape[2], 0, grid.shape[1])


def image_on(array: np.ndarray, affine: np.ndarray, spacing: float, method: str = "linear") -> np.ndarray:
    """(x, y, z)"""
    x, y, z = array.shape
    grid = naive.grid_of(array.shape, affine, spacing)
    way = sampling.sampler(Grid((x, y, z), affine), grid, method)
    limits = float(array.min()), float(array.max())
    return resample.image_tile(way, sampling.reader(array), whole(grid), limits, -7, array.dtype).T


def label_on(array: np.ndarray, affine: np.ndarray, spacing: float, method: str = "bspline") -> np.ndarray:
    """(x, y, z)"""
    x, y, z = array.shape
    grid = naive.grid_of(array.shape, affine, spacing)
    return resample.label_tile(resample.label_way(Grid((x, y, z), affine), grid, method), sampling.reader(array), whole(grid)).T


@pytest.mark.parametrize("affine", [np.diag([1.0, 1.5, 3, 1]), OBLIQUE], ids=["straight", "oblique"])
@pytest.mark.parametrize("spacing", [0.61, 1.37])
@pytest.mark.parametrize("method", ["nearest", "linear", "bspline"])
def test_labels_are_exactly_those_of_simpleitk(affine: np.ndarray, spacing: float, method: str) -> None:
    label = RNG.integers(0, 4, (13, 11, 9)).astype(np.uint8) * np.uint8(20)
    grid = naive.grid_of(label.shape, affine, spacing)
    values, weights = naive.label_weights(label, affine, grid, method)
    second, first = np.sort(weights, axis=0)[-2:]
    clear = first - second > 1e-5  # between equals rounding decides in SimpleITK
    assert clear.mean() > 0.95
    found = label_on(label, affine, spacing, method).T
    np.testing.assert_array_equal(found[clear], values[weights.argmax(axis=0)][clear])


@pytest.mark.parametrize("affine", [np.diag([1.0, 1.5, 3, 1]), OBLIQUE], ids=["straight", "oblique"])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("method", ["nearest", "linear", "bspline"])
def test_files_have_the_same_bits_whatever_the_memory_and_the_threads(tmp_path: Path, affine: np.ndarray, turned: bool, method: str) -> None:
    image, label = RNG.integers(-1000, 3000, (27, 25, 19)).astype(np.int16), RNG.integers(0, 4, (27, 25, 19)).astype(np.uint8)
    grid = naive.grid_of(image.shape, affine, 0.8)
    if turned:
        grid = Grid(grid.shape, grid.affine @ affine_of((0, 1, 2), (1, 1, 1), (1, 1, 1), (0, 0, 0), (5, 0, 9)))
    found = []
    with naive.on_disk(tmp_path, image, affine) as images, naive.on_disk(tmp_path, label, affine) as labels:
        way = sampling.sampler(images.grid, grid, method)
        floor = threads_floor(way)
        for memory, threads in itertools.product((floor, MEMORY), (1, 2, 3)):
            with bulk.temporary(tmp_path, (*grid.shape, 2), np.dtype(np.int16), grid.affine) as out:
                done = sum(resample.write_image(images, out, 1, way, (-1000, 2999), -7, int(memory * threads / resample.TILES_SHARE), threads))
                assert done == pytest.approx(1)
                found.append(out.digest())
                assert (out.read(0, grid.shape[2], 0, grid.shape[1], 0) == 0).all()
            with bulk.temporary(tmp_path, grid.shape, np.dtype(np.uint8), grid.affine) as out:
                assert sum(
                    resample.write_label(
                        labels, out, resample.label_way(labels.grid, grid, method), int(memory * threads / resample.TILES_SHARE), threads
                    )
                ) == pytest.approx(1)
                found.append(out.digest())
    assert set(found[::2]) == {found[0]} and set(found[1::2]) == {found[1]}


def threads_floor(way: sampling.Sampler) -> int:
    """Memory for tiles of about three planes."""
    return way.bytes_of(Tile(0, 3, 0, way.new_shape[1])) + 30 * 3 * way.new_shape[0] * way.new_shape[1]


def test_memory_for_not_even_a_row_is_one_line(tmp_path: Path) -> None:
    with naive.on_disk(tmp_path, np.zeros((9, 9, 9), np.uint8), np.eye(4)) as volume:
        way = sampling.sampler(volume.grid, naive.grid_of((9, 9, 9), np.eye(4), 0.5), "linear")
        with pytest.raises(UserError, match=r"resample\.memory_mb: 0.0001 MB do not hold what one row of 18 new voxels is made of; expected more"):
            list(resample.write_label(volume, volume, way, 100, 2))


def test_fewer_threads_where_the_memory_is_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    label = RNG.integers(0, 3, (9, 9, 9)).astype(np.uint8)
    with naive.on_disk(tmp_path, label, np.eye(4)) as volume, naive.on_disk(tmp_path, np.zeros((18, 18, 18), np.uint8), np.eye(4) / 2) as out:
        way = resample.label_way(volume.grid, naive.grid_of((9, 9, 9), np.eye(4), 0.5), "linear")
        used: list[int] = []
        each = sampling.each

        def watched(tiles: list[Tile], work: Callable[[Tile], None], threads: int) -> Iterator[Tile]:
            used.append(threads)
            return each(tiles, work, threads)

        monkeypatch.setattr(sampling, "each", watched)
        enough = way.bytes_of(Tile(9, 10, 9, 10)) + 18 * 13
        assert sum(resample.write_label(volume, out, way, int((3 * enough - 1) / resample.TILES_SHARE), 3)) == pytest.approx(1)
        assert used == [2]
        expected = resample.label_tile(way, volume.read, Tile(0, 18, 0, 18))
        np.testing.assert_array_equal(out.read(0, 18, 0, 18), expected)


def centroid(array: np.ndarray, affine: np.ndarray) -> np.ndarray:
    index = np.argwhere(np.ones(array.shape, bool))
    return np.average(index @ affine[:3, :3].T + affine[:3, 3], axis=0, weights=array.ravel().astype(float))


@pytest.mark.parametrize("spacing", [4.0, 2.0, 0.25, 1.0])
@pytest.mark.parametrize("method", ["linear", "bspline", "lanczos"])
def test_an_object_stays_where_it_is(spacing: float, method: str) -> None:
    array = np.zeros((32, 32, 32), np.float32)
    array[8:24, 8:24, 8:24] = 1000
    grid = naive.grid_of(array.shape, np.eye(4), spacing).affine
    np.testing.assert_allclose(centroid(image_on(array, np.eye(4), spacing, method), grid), 15.5, atol=1e-3)
    np.testing.assert_allclose(centroid(label_on((array > 0).astype(np.uint8), np.eye(4), spacing), grid), 15.5, atol=1e-6)


@pytest.mark.parametrize("method", ["linear", "bspline", "lanczos"])
def test_a_fine_pattern_becomes_its_mean_and_not_an_alias(method: str) -> None:
    array = np.zeros((64, 8, 8), np.float32)
    array[::2] = 1000
    for spacing in (2.0, 3.0):
        middle = image_on(array, np.eye(4), spacing, method)[5:-5]
        assert abs(middle.mean() - 500) < 10
        assert np.ptp(middle) < 160


@pytest.mark.parametrize(("value", "dtype", "expected"), [
    (40000.0, np.int16, 32767), (-40000.0, np.int16, -32768), (-1.0, np.uint8, 0), (255.6, np.uint8, 255),
    (1.5, np.int16, 2), (2.5, np.int16, 2), (-1.6, np.int16, -2), (0.4999, np.uint8, 0), (2**31 - 1.0, np.int32, 2**31 - 1),
])  # fmt: skip
def test_values_are_rounded_and_clipped_never_wrapped(value: float, dtype: type, expected: int) -> None:
    assert resample.as_dtype(np.array([value]), np.dtype(dtype))[0] == expected


def test_a_float_type_keeps_its_fraction() -> None:
    assert resample.as_dtype(np.array([1.25]), np.dtype(np.float32))[0] == 1.25


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.float32])
@pytest.mark.parametrize("spacing", [0.4, 1.0, 2.3])
@pytest.mark.parametrize("method", ["linear", "bspline", "lanczos"])
def test_a_step_stays_within_its_range(dtype: type, spacing: float, method: str) -> None:
    array: np.ndarray = np.zeros((20, 20, 20), dtype)
    array[10:] = 255
    found = image_on(array, np.eye(4), spacing, method)
    assert found.dtype == dtype
    assert found.min() == 0 and found.max() == 255


def test_what_lies_beyond_the_old_volume_is_background() -> None:
    array = np.full((4, 4, 4), 50, np.int16)
    grid = Grid((8, 4, 4), np.diag([1.0, 1, 1, 1]) + np.array([[0, 0, 0, -2.0]] + 3 * [[0] * 4]))
    way = sampling.sampler(Grid((4, 4, 4), np.eye(4)), grid, "linear")
    found = resample.image_tile(way, sampling.reader(array), whole(grid), (50, 50), -1000, array.dtype)
    np.testing.assert_array_equal(found[0, 0], [-1000, -1000, 50, 50, 50, 50, -1000, -1000])
    label = resample.label_tile(way, sampling.reader(array.astype(np.uint8)), whole(grid))
    np.testing.assert_array_equal(label[3, 3], [0, 0, 50, 50, 50, 50, 0, 0])


@pytest.mark.parametrize(("background", "modality", "limits", "expected"), [
    ("auto", "CT", (-3024, 3000), -1000), ("auto", "CT", (-900, 3000), -900), ("auto", "MR", (3, 700), 3), ("auto", None, (-1024, 5), -1024),
    (0, "CT", (-3024, 3000), 0), (-5.5, None, (0, 1), -5.5),
])  # fmt: skip
def test_the_background_goes_by_modality_unless_configured(
    background: object, modality: str | None, limits: tuple[float, float], expected: float
) -> None:
    assert resample.background_of({"background": background, "match": {"modality": modality}}, limits) == expected


UNTURNED = [
    np.eye(4),
    affine_of((2, 0, 1), (1, -1, 1), (1, 1, 1), (-3.5, 20.25, 7)),
    affine_of((0, 1, 2), (1, 1, 1), (0.7, 0.7, 0.7), (0.1, 0.2, 0.3), (10, 20, 30)),
]


@pytest.mark.parametrize("affine", UNTURNED, ids=["unit", "turned axes", "oblique"])
@pytest.mark.parametrize("dtype", [np.int16, np.uint8, np.float32])
def test_a_grid_that_is_isotropic_already_changes_nothing(affine: np.ndarray, dtype: type) -> None:
    affine = affine.astype(np.float32).astype(np.float64)  # as read from a NIfTI file
    array: np.ndarray = (RNG.random((9, 8, 7)) * 200).astype(dtype)
    label = RNG.integers(0, 4, array.shape).astype(np.uint8)
    spacing = float(geometry.spacing_of(affine)[0])
    np.testing.assert_allclose(image_on(array, affine, spacing), array, rtol=0, atol=1e-4 if affine[0, 1] and affine[0, 0] else 0)
    for method in ("nearest", "linear", "bspline"):
        np.testing.assert_array_equal(label_on(label, affine, spacing, method), label)


@pytest.mark.parametrize("shape", [(1, 8, 9), (8, 1, 9), (8, 9, 1), (1, 1, 1), (2, 3, 3)])
@pytest.mark.parametrize("spacing", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("method", ["linear", "bspline", "lanczos"])
def test_axes_of_one_voxel(shape: tuple[int, int, int], spacing: float, method: str) -> None:
    array = np.full(shape, 7, np.int16)
    assert (image_on(array, np.eye(4), spacing, method) == 7).all()
    assert (label_on(np.full(shape, 3, np.uint8), np.eye(4), spacing) == 3).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1, 2, 4, 300]), st.floats(0.6, 3), st.sampled_from(["nearest", "linear", "bspline"]))
def test_no_label_is_invented(seed: int, scale: int, spacing: float, method: str) -> None:
    label = np.random.default_rng(seed).choice([0, 2, 4], (7, 6, 5)).astype(np.uint16) * np.uint16(scale)
    assert set(np.unique(label_on(label, OBLIQUE, spacing, method))) <= set(np.unique(label))


@pytest.mark.parametrize("method", ["nearest", "linear", "bspline"])
def test_a_label_next_to_a_far_value_does_not_become_one_between(method: str) -> None:
    label = np.zeros((8, 8, 8), np.uint8)
    label[4:] = 4
    np.testing.assert_array_equal(label_on(label, np.eye(4), 0.5, method)[:, 0, 0], [0] * 8 + [4] * 8)


def test_between_equals_the_lowest_label_wins() -> None:
    label = np.array([3, 2, 0, 2], np.uint8).reshape(4, 1, 1)
    way = sampling.sampler(Grid((4, 1, 1), np.eye(4)), Grid((3, 1, 1), np.eye(4) + np.eye(4, k=3) * 0.5), "linear")
    assert resample.label_tile(way, sampling.reader(label), Tile(0, 1, 0, 1)).ravel().tolist() == [2, 0, 0]


@pytest.mark.parametrize(("order", "signs"), ORIENTATIONS[::5])
def test_the_files_lie_where_the_case_lies(tmp_path: Path, order: tuple[int, ...], signs: tuple[int, ...]) -> None:
    affine = affine_of(order, signs, (1, 1.5, 2), (10, 20, -30), (5, 6, 7)).astype(np.float32).astype(np.float64)
    grid = naive.grid_of((6, 5, 4), affine, 1.0)
    assert grid.shape == (6, 8, 8)
    path = tmp_path / "l.nii"
    with bulk.create(path, grid.shape, np.dtype(np.uint8), grid.affine):
        pass
    assert path.stat().st_size == 352 + 6 * 8 * 8
    # SimpleITK finds the file's first voxel at the same place
    x, y, z = sitk.ReadImage(str(path)).TransformIndexToPhysicalPoint((0, 0, 0))
    np.testing.assert_allclose([-x, -y, z], grid.affine[:3, 3], atol=1e-4)


@pytest.mark.slow
def test_more_than_two_to_the_31_voxels(tmp_path: Path) -> None:
    """A cube of 1400 voxels a side: every label in its place, and the last voxel too."""
    label = np.zeros((350, 350, 350), np.uint8)
    label[-1, -1, -1], label[0, 0, 0], label[100:200, 120:180, 140:160] = 7, 5, 3
    grid = naive.grid_of(label.shape, np.eye(4), 0.25)
    assert grid.shape == (1400, 1400, 1400)
    path = tmp_path / "label.nii"
    with naive.on_disk(tmp_path, label, np.eye(4)) as source, bulk.create(path, grid.shape, np.dtype(np.uint8), grid.affine) as out:
        for _ in resample.write_label(source, out, resample.label_way(source.grid, grid, "nearest"), MEMORY, os.cpu_count() or 1):
            pass
        counts = np.sum([np.bincount(slab.ravel(), minlength=8) for slab in out.parts()], axis=0)
        assert counts.tolist() == [
            1400**3 - 64 * 120_002,
            0,
            0,
            64 * 120_000,
            0,
            64,
            0,
            64,
        ]
        assert out.read(1399, 1400, 1396, 1400)[0, :, 1395:].tolist() == 4 * [[0, 7, 7, 7, 7]]
    stored = sitk.ImageFileReader()
    stored.SetFileName(str(path))
    stored.SetExtractIndex((1390, 1390, 1399))
    stored.SetExtractSize((10, 10, 1))
    assert np.count_nonzero(sitk.GetArrayFromImage(stored.Execute()) == 7) == 16
