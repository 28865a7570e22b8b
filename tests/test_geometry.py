"""Grids in the world, against nibabel and SimpleITK, over all axis orders and directions."""

import itertools

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
from hypothesis import given, settings
from hypothesis import strategies as st
from nibabel.affines import apply_affine, voxel_sizes
from scipy.spatial.transform import Rotation

from teravox import geometry

ORIENTATIONS = [(order, signs) for order in itertools.permutations(range(3)) for signs in itertools.product((1, -1), repeat=3)]

shapes = st.tuples(*[st.integers(1, 6)] * 3)
spacings = st.tuples(*[st.floats(0.2, 6)] * 3)
origins = st.tuples(*[st.floats(-300, 300)] * 3)


def affine_of(order: tuple[int, ...], signs: tuple[int, ...], spacing: tuple[float, ...], origin: tuple[float, ...], turn=(0, 0, 0)) -> np.ndarray:
    """Axis i runs along +-world axis order[i], turned by Euler angles in degrees."""
    axes = np.zeros((3, 3))
    for axis, (world, sign) in enumerate(zip(order, signs, strict=True)):
        axes[world, axis] = sign
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", turn, degrees=True).as_matrix() @ axes * np.array(spacing)
    affine[:3, 3] = origin
    return affine


turns = st.one_of(st.just((0.0, 0.0, 0.0)), st.tuples(*[st.floats(-35, 35)] * 3))
affines = st.builds(lambda orientation, *rest: affine_of(*orientation, *rest), st.sampled_from(ORIENTATIONS), spacings, origins, turns)


def numbered(shape: tuple[int, int, int]) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.int32).reshape(shape)


def places(array: np.ndarray, affine: np.ndarray) -> dict[int, tuple[float, ...]]:
    """Value -> world position, rounded."""
    index = np.argwhere(np.ones(array.shape, bool))
    return {int(array[tuple(i)]): tuple(np.round(p, 4) + 0.0) for i, p in zip(index, apply_affine(affine, index), strict=True)}


def same_places(a: dict[int, tuple[float, ...]], b: dict[int, tuple[float, ...]]) -> None:
    assert a.keys() == b.keys()
    np.testing.assert_allclose([a[k] for k in a], [b[k] for k in a], atol=1e-3)


def test_there_are_48_orientations() -> None:
    assert len(set(ORIENTATIONS)) == 48


@pytest.mark.parametrize(("order", "signs"), ORIENTATIONS)
def test_canonical_and_back(order: tuple[int, ...], signs: tuple[int, ...]) -> None:
    array, affine = numbered((2, 3, 4)), affine_of(order, signs, (0.7, 0.8, 2.5), (10, -20, 30))
    turned, canonical = geometry.to_canonical(array, affine)
    assert nib.aff2axcodes(canonical) == ("R", "A", "S")
    assert (np.diag(canonical[:3, :3]) > 0).all()
    same_places(places(array, affine), places(turned, canonical))
    orientation = geometry.canonical_orientation(affine)
    np.testing.assert_array_equal(geometry.from_canonical(turned, orientation), array)
    np.testing.assert_allclose(geometry.native_affine(canonical, orientation, array.shape), affine, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(shapes, affines)
def test_canonical_and_back_oblique(shape: tuple[int, int, int], affine: np.ndarray) -> None:
    array = numbered(shape)
    turned, canonical = geometry.to_canonical(array, affine)
    same_places(places(array, affine), places(turned, canonical))
    np.testing.assert_array_equal(geometry.canonical_orientation(canonical), [[0, 1], [1, 1], [2, 1]])
    orientation = geometry.canonical_orientation(affine)
    np.testing.assert_array_equal(geometry.from_canonical(turned, orientation), array)
    np.testing.assert_allclose(geometry.native_affine(canonical, orientation, shape), affine, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(shapes, affines, st.data())
def test_simpleitk_sees_the_same_world(shape: tuple[int, int, int], affine: np.ndarray, data: st.DataObject) -> None:
    array = numbered(shape)
    image = geometry.to_sitk(array, affine)
    index = [data.draw(st.integers(0, n - 1)) for n in shape]
    assert image.GetSize() == shape
    assert image[tuple(index)] == array[tuple(index)]
    x, y, z = image.TransformIndexToPhysicalPoint(index)
    np.testing.assert_allclose([-x, -y, z], apply_affine(affine, index), atol=1e-8)
    back, found = sitk.GetArrayFromImage(image).T, geometry.affine_from_sitk(image)
    np.testing.assert_array_equal(back, array)
    np.testing.assert_allclose(found, affine, atol=1e-9)


def test_one_voxel_in_both_conventions() -> None:
    array = np.zeros((4, 5, 6), np.uint8)
    array[1, 2, 3] = 1
    image = geometry.to_sitk(array, np.diag([1.0, 2, 3, 1]))
    assert sitk.GetArrayFromImage(image)[3, 2, 1] == 1
    assert image.TransformIndexToPhysicalPoint((1, 2, 3)) == (-1.0, -4.0, 9.0)


@settings(max_examples=100, deadline=None)
@given(st.tuples(*[st.integers(1, 60)] * 3), affines, st.floats(0.3, 5))
def test_the_isotropic_grid_covers_the_same_field_of_view(shape: tuple[int, int, int], affine: np.ndarray, spacing: float) -> None:
    direction = geometry.direction_of(affine)
    size, grid = geometry.grid_over(geometry.box_of(shape, affine, direction), direction, np.full(3, spacing))
    old = voxel_sizes(affine)
    np.testing.assert_allclose(voxel_sizes(grid), spacing, rtol=1e-9)
    np.testing.assert_allclose(geometry.direction_of(grid), geometry.direction_of(affine), atol=1e-9)
    corner = np.full(3, -0.5)
    away = np.abs(np.linalg.inv(affine[:3, :3]) @ (apply_affine(grid, corner) - apply_affine(affine, corner)))
    assert (away[np.array(shape) * old >= spacing / 2] < 1e-6).all()  # a thinner edge becomes one voxel about its middle
    middle = apply_affine(np.linalg.inv(affine), apply_affine(grid, np.zeros(3)))
    assert (np.abs(middle - (np.array(shape) - 1) / 2) < 1e-6)[np.array(shape) * old < spacing * 0.49].all()
    for n, s, m in zip(shape, old, size, strict=True):
        assert m == 1 or abs(m * spacing - n * s) <= spacing * (0.5 + geometry.GRID_ATOL_VOXELS) + 1e-9
        assert m >= 1


@pytest.mark.parametrize(("n", "old", "new", "expected"), [(10, 1, 4, 3), (9, 1, 2, 5), (5, 1, 2, 3), (1, 1, 10, 1), (32, 1, 4, 8), (7, 0.5, 0.5, 7)])
def test_the_number_of_voxels_is_rounded_half_up(n: int, old: float, new: float, expected: int) -> None:
    box = geometry.box_of((n, n, n), np.diag([old, old, old, 1]), np.eye(3))
    assert geometry.grid_over(box, np.eye(3), np.full(3, new))[0] == (expected,) * 3


@settings(max_examples=40, deadline=None)
@given(shapes, affines)
def test_grid_difference_is_in_voxels(shape: tuple[int, int, int], affine: np.ndarray) -> None:
    assert geometry.grid_difference(affine, affine, shape) < 1e-9
    moved = affine.copy()
    moved[:3, 3] += affine[:3, 0] * 0.25
    assert geometry.grid_difference(affine, moved, shape) == pytest.approx(0.25, abs=1e-6)
    stored = affine.astype(np.float32).astype(np.float64)
    assert geometry.grid_difference(affine, stored, shape) < geometry.GRID_ATOL_VOXELS


def test_a_wrong_spacing_is_seen_at_the_far_corner() -> None:
    assert geometry.grid_difference(np.eye(4), np.diag([1.01, 1, 1, 1]), (101, 5, 5)) == pytest.approx(1.0)


@settings(max_examples=40, deadline=None)
@given(affines)
def test_lengths_angles_and_volume(affine: np.ndarray) -> None:
    np.testing.assert_allclose(geometry.spacing_of(affine), voxel_sizes(affine))
    assert geometry.shear_of(affine) < 1e-9
    assert geometry.voxel_volume_ml(affine) == pytest.approx(np.prod(voxel_sizes(affine)) / 1000)
    spacing, _, direction = geometry.sitk_geometry(affine)
    matrix = np.array(direction).reshape(3, 3)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-14)
    np.testing.assert_allclose(spacing, voxel_sizes(affine))


def test_shear_is_a_cosine() -> None:
    affine = np.eye(4)
    affine[0, 1] = np.tan(np.deg2rad(15))
    assert geometry.shear_of(affine) == pytest.approx(np.sin(np.deg2rad(15)))
    assert geometry.voxel_volume_ml(np.diag([0.7, 0.5, 2, 1])) * 10 == pytest.approx(0.007)  # ten voxels of 0.7 mm^3


def test_what_another_volume_covers() -> None:
    unit = np.eye(4)
    assert geometry.covered((8, 8, 8), unit, (8, 8, 8), unit) == 1
    moved = np.eye(4)
    moved[:3, 3] = [2, 0, -4]
    assert geometry.covered((8, 8, 8), unit, (8, 8, 8), moved) == 0.75 * 0.5
    assert geometry.covered((8, 8, 8), unit, (8, 4, 4), unit) == 0.25
    moved[0, 3] = 9
    assert geometry.covered((8, 8, 8), unit, (8, 8, 8), moved) == 0
    thin = np.diag([1.0, 1, 0.01, 1])  # a slice between the points of the larger volume
    thin[2, 3] = 3.49
    assert geometry.covered((8, 8, 8), unit, (8, 8, 1), thin) == pytest.approx(0.01 / 8)
    turned = np.array([[0, 0, 1.0, 0], [0, 2, 0, 0.5], [1, 0, 0, 0], [0, 0, 0, 1]])
    assert geometry.covered((8, 8, 8), unit, (8, 4, 8), turned) == 1
