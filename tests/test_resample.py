"""Resampling, against SimpleITK on whole images and against values that can be worked out."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given, settings
from hypothesis import strategies as st

from teravox import geometry, resample
from test_geometry import ORIENTATIONS, affine_of

RNG = np.random.default_rng(0)
OBLIQUE = affine_of((0, 1, 2), (1, 1, 1), (0.7, 0.8, 2.5), (12.3, -45.6, 78.9), (10, -20, 15))


def whole(slabs, shape: tuple[int, int, int]) -> np.ndarray:
    """The slabs put together; every plane must come once."""
    planes: list[int] = []
    arrays = []
    for first, last, slab in slabs:
        assert slab.shape == (*shape[:2], last - first)
        planes += range(first, last)
        arrays.append(slab)
    assert planes == list(range(shape[2]))
    return np.concatenate(arrays, axis=2)


def image_on(array: np.ndarray, affine: np.ndarray, spacing: float) -> np.ndarray:
    shape, grid = geometry.isotropic_grid(array.shape, affine, spacing)
    return whole(resample.resample_image(array, affine, shape, grid), shape)


def label_on(array: np.ndarray, affine: np.ndarray, spacing: float) -> np.ndarray:
    shape, grid = geometry.isotropic_grid(array.shape, affine, spacing)
    return whole(resample.resample_label(array, affine, shape, grid), shape)


def reference(image: sitk.Image, shape: tuple[int, int, int], grid: np.ndarray, interpolator: int) -> np.ndarray:
    """SimpleITK's own resampling of the whole image onto a grid given as an image, edge voxels extended."""
    target = geometry.to_sitk(np.zeros(shape, np.uint8), grid)
    return sitk.GetArrayFromImage(sitk.Resample(image, target, sitk.Transform(), interpolator, 0, image.GetPixelID(), True)).T


@pytest.mark.parametrize("affine", [np.diag([1.0, 1.5, 3, 1]), OBLIQUE], ids=["straight", "oblique"])
@pytest.mark.parametrize("spacing", [0.9, 2.0])
@pytest.mark.parametrize("slab_bytes", [1, 3000, 1 << 26])
def test_equals_simpleitk_on_the_whole_image(monkeypatch: pytest.MonkeyPatch, affine: np.ndarray, spacing: float, slab_bytes: int) -> None:
    monkeypatch.setattr(resample, "SLAB_BYTES", slab_bytes)
    array = RNG.random((13, 11, 9)) * 1000
    label = RNG.integers(0, 4, array.shape).astype(np.uint8)
    shape, grid = geometry.isotropic_grid(array.shape, affine, spacing)
    blurred = resample.blur(geometry.to_sitk(array, affine), spacing)
    expected = np.clip(reference(blurred, shape, grid, sitk.sitkLinear), array.min(), array.max())
    np.testing.assert_allclose(image_on(array, affine, spacing), expected, rtol=0, atol=1e-8)
    # A voxel at equal distance from two labels may get either: rounding decides, so the winner is compared by its weight.
    weights = np.stack([reference(geometry.to_sitk((label == value).astype(float), affine), shape, grid, sitk.sitkLinear) for value in range(4)])
    found = np.take_along_axis(weights, label_on(label, affine, spacing)[None], axis=0)[0]
    np.testing.assert_allclose(found, weights.max(axis=0), rtol=0, atol=1e-9)


@pytest.mark.parametrize("affine", [np.diag([1.0, 1.5, 3, 1]), OBLIQUE], ids=["straight", "oblique"])
def test_slab_height_changes_no_voxel(monkeypatch: pytest.MonkeyPatch, affine: np.ndarray) -> None:
    array, label = RNG.integers(-1000, 3000, (17, 15, 19)).astype(np.int16), RNG.integers(0, 4, (17, 15, 19)).astype(np.uint8)
    expected = image_on(array, affine, 1.3), label_on(label, affine, 1.3)
    for slab_bytes in (1, 5000):
        monkeypatch.setattr(resample, "SLAB_BYTES", slab_bytes)
        np.testing.assert_array_equal(image_on(array, affine, 1.3), expected[0])
        np.testing.assert_array_equal(label_on(label, affine, 1.3), expected[1])


def centroid(array: np.ndarray, affine: np.ndarray) -> np.ndarray:
    index = np.argwhere(np.ones(array.shape, bool))
    return np.average(nib.affines.apply_affine(affine, index), axis=0, weights=array.ravel().astype(float))


@pytest.mark.parametrize("spacing", [4.0, 2.0, 0.25, 1.0])
def test_an_object_stays_where_it_is(spacing: float) -> None:
    array = np.zeros((32, 32, 32), np.float32)
    array[8:24, 8:24, 8:24] = 1000
    _, grid = geometry.isotropic_grid(array.shape, np.eye(4), spacing)
    np.testing.assert_allclose(centroid(image_on(array, np.eye(4), spacing), grid), 15.5, atol=0.02)
    if spacing <= 1 or spacing == 2:  # at 4 mm the object's edges are voxel edges too
        np.testing.assert_allclose(centroid(label_on((array > 0).astype(np.uint8), np.eye(4), spacing), grid), 15.5, atol=0.05)


def test_a_fine_pattern_becomes_its_mean_and_not_an_alias() -> None:
    array = np.zeros((64, 8, 8), np.float32)
    array[::2] = 1000
    for spacing in (2.0, 3.0):
        middle = image_on(array, np.eye(4), spacing)[5:-5]
        assert abs(middle.mean() - 500) < 10
        assert np.ptp(middle) < 150


def test_the_low_pass_takes_only_axes_that_shrink() -> None:
    array = np.zeros((16, 16, 16), np.float64)
    array[8, 8, 8] = 1
    blurred = sitk.GetArrayFromImage(resample.blur(geometry.to_sitk(array, np.diag([1.0, 2.0, 4.0, 1])), 2.0)).T
    assert np.count_nonzero(np.abs(blurred) > 1e-6) > 1
    assert set(np.argwhere(np.abs(blurred) > 1e-9)[:, 1]) == {8} and set(np.argwhere(np.abs(blurred) > 1e-9)[:, 2]) == {8}
    line = blurred[:, 8, 8]
    variance = (line * (np.arange(16) - 8.0) ** 2).sum() / line.sum()
    assert variance == pytest.approx((2.0**2 - 1.0**2) / (8 * np.log(2)), rel=0.1)
    assert line.sum() == pytest.approx(1, abs=0.01)


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
def test_a_step_stays_within_its_range(dtype: type, spacing: float) -> None:
    array: np.ndarray = np.zeros((20, 20, 20), dtype)
    array[10:] = 255
    found = image_on(array, np.eye(4), spacing)
    assert found.dtype == dtype
    assert found.min() == 0 and found.max() == 255


UNTURNED = [
    np.eye(4),
    affine_of((2, 0, 1), (1, -1, 1), (1, 1, 1), (-3.5, 20.25, 7)),
    affine_of((0, 1, 2), (1, 1, 1), (0.5, 0.5, 0.5), (0.1, 0.2, 0.3)),
]


@pytest.mark.parametrize("affine", UNTURNED, ids=["unit", "turned axes", "half"])
@pytest.mark.parametrize("dtype", [np.int16, np.uint8, np.float32])
def test_a_grid_that_is_isotropic_already_changes_nothing(tmp_path: Path, affine: np.ndarray, dtype: type) -> None:
    affine = affine.astype(np.float32).astype(np.float64)  # as read from a NIfTI file
    array: np.ndarray = (RNG.random((9, 8, 7)) * 200).astype(dtype)
    label = RNG.integers(0, 4, array.shape).astype(np.uint8)
    shape, grid = resample.resample_case([array, array], label, affine, float(geometry.spacing_of(affine)[0]), tmp_path / "i.nii", tmp_path / "l.nii")
    image = np.asanyarray(nib.load(tmp_path / "i.nii").dataobj)
    assert shape == array.shape and image.dtype == dtype
    np.testing.assert_allclose(grid, affine, atol=1e-6)
    for channel in range(2):
        np.testing.assert_array_equal(image[..., channel], array)
    np.testing.assert_array_equal(np.asanyarray(nib.load(tmp_path / "l.nii").dataobj), label)


@pytest.mark.parametrize("shape", [(1, 8, 9), (8, 1, 9), (8, 9, 1), (1, 1, 1), (2, 3, 3)])
@pytest.mark.parametrize("spacing", [0.5, 1.0, 3.0])
def test_axes_of_one_voxel(shape: tuple[int, int, int], spacing: float) -> None:
    array = np.full(shape, 7, np.int16)
    assert (image_on(array, np.eye(4), spacing) == 7).all()
    assert (label_on(np.full(shape, 3, np.uint8), np.eye(4), spacing) == 3).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1, 2, 4, 300]), st.floats(0.6, 3))
def test_no_label_is_invented(seed: int, scale: int, spacing: float) -> None:
    label = np.random.default_rng(seed).choice([0, 2, 4], (7, 6, 5)).astype(np.uint16) * np.uint16(scale)
    assert set(np.unique(label_on(label, OBLIQUE, spacing))) <= set(np.unique(label))


def test_a_label_next_to_a_far_value_does_not_become_one_between() -> None:
    label = np.zeros((8, 8, 8), np.uint8)
    label[4:] = 4
    found = label_on(label, np.eye(4), 0.5)
    assert set(np.unique(found)) == {0, 4}
    np.testing.assert_array_equal(found[:, 0, 0], [0] * 8 + [4] * 8)


@pytest.mark.parametrize(("order", "signs"), ORIENTATIONS[::5])
def test_the_files_lie_where_the_case_lies(tmp_path: Path, order: tuple[int, ...], signs: tuple[int, ...]) -> None:
    affine = affine_of(order, signs, (1, 1.5, 2), (10, 20, -30), (5, 6, 7)).astype(np.float32).astype(np.float64)
    images = [RNG.integers(0, 100, (6, 5, 4)).astype(dtype) for dtype in (np.uint8, np.int16)]
    label = RNG.integers(0, 3, (6, 5, 4)).astype(np.uint8)
    shape, grid = resample.resample_case(images, label, affine, 1.0, tmp_path / "i.nii", tmp_path / "l.nii")
    assert shape == (6, 8, 8)
    stored = nib.load(tmp_path / "i.nii")
    assert stored.shape == (6, 8, 8, 2) and stored.get_data_dtype() == np.int16
    np.testing.assert_array_equal(stored.affine, grid)
    np.testing.assert_allclose(nib.load(tmp_path / "l.nii").get_qform(), grid, atol=1e-4)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes == {"i.nii": 352 + 6 * 8 * 8 * 2 * 2, "l.nii": 352 + 6 * 8 * 8}
    # SimpleITK finds the file's first voxel at the same place
    x, y, z = sitk.ReadImage(str(tmp_path / "l.nii")).TransformIndexToPhysicalPoint((0, 0, 0))
    np.testing.assert_allclose([-x, -y, z], grid[:3, 3], atol=1e-4)


def test_a_smallest_type_holds_every_channel(tmp_path: Path) -> None:
    images = [np.full((4, 4, 4), value, dtype) for value, dtype in ((-5, np.int16), (60000, np.uint16))]
    resample.resample_case(images, np.zeros((4, 4, 4), np.uint8), np.eye(4), 1.0, tmp_path / "i.nii", tmp_path / "l.nii")
    image = nib.load(tmp_path / "i.nii")
    assert image.get_data_dtype() == np.int32
    assert np.unique(image.dataobj).tolist() == [-5, 60000]


def test_a_failure_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(resample, "sample", fails)
    with pytest.raises(RuntimeError):
        resample.resample_case([np.zeros((4, 4, 4))], np.zeros((4, 4, 4), np.uint8), np.eye(4), 1.0, tmp_path / "i", tmp_path / "l")
    assert list(tmp_path.iterdir()) == []
