"""Operators of one axis, against SimpleITK and against what can be worked out."""

import numpy as np
import pytest
import scipy.special
import SimpleITK as sitk
from hypothesis import given
from hypothesis import strategies as st

from teravox import interpolation
from teravox.sampling import SITK

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("method", interpolation.INTERPOLATIONS)
@pytest.mark.parametrize("step", [1 / 3, 0.7, 1.0])
@pytest.mark.parametrize("old", [2, 7, 24])
def test_a_line_is_what_simpleitk_makes_of_it(method: str, step: float, old: int) -> None:
    line = RNG.random(old) * 100
    first, new = -0.5 + 0.5 * step, int(old / step)
    image = sitk.GetImageFromArray(np.broadcast_to(line, (9, 9, old)).copy())

    def once(one: sitk.Image) -> np.ndarray:
        return sitk.GetArrayFromImage(
            sitk.Resample(
                one, (new, 1, 1), sitk.Transform(), SITK[method], (first, 4, 4), (step, 1, 1), (1, 0, 0, 0, 1, 0, 0, 0, 1), 0, sitk.sitkFloat64, True
            )
        )[0, 0]

    expected = once(image)
    if method == "lanczos":  # ITK's weights do not sum to 1, ours do
        assert abs(once(image * 0 + 1.0) - 1).max() < 0.01
        expected = expected / once(image * 0 + 1.0)
    found = interpolation.axis(old, first + step * np.arange(new), method, step)
    assert found.inside.all()
    np.testing.assert_allclose(found.matrix @ line, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("shrink", [1.2, 2, 4.7, 20])
def test_the_low_pass_is_itks_discrete_gaussian(shrink: float) -> None:
    line = RNG.random(60)
    image = sitk.GetImageFromArray(np.broadcast_to(line, (3, 3, 60)).copy())
    variance = (interpolation.variance_of(shrink), 1e-12, 1e-12)
    expected = sitk.GetArrayFromImage(sitk.DiscreteGaussian(image, variance, 1000, interpolation.KERNEL_ERROR, False))[1, 1]
    np.testing.assert_allclose(
        interpolation.filter_axis(60, shrink).matrix @ line, expected, rtol=0, atol=1e-5
    )  # ITK's Bessel functions are approximations


def test_the_low_pass_has_the_variance_that_it_should() -> None:
    matrix = interpolation.filter_axis(81, 4).matrix.toarray()
    offsets = np.arange(81) - 40
    assert (matrix[40] * offsets**2).sum() == pytest.approx(15 / (8 * np.log(2)), rel=1e-4)
    np.testing.assert_allclose(matrix[40], scipy.special.ive(abs(offsets), 15 / (8 * np.log(2))), atol=1e-6)


@given(st.integers(1, 40), st.floats(0.2, 9), st.sampled_from(interpolation.INTERPOLATIONS), st.floats(0, 3))
def test_a_constant_stays_what_it_is(old: int, step: float, method: str, beyond: float) -> None:
    places = np.arange(-0.5 - beyond, old - 0.5 + beyond, step)
    found = interpolation.axis(old, places, method, step)
    np.testing.assert_allclose(found.matrix.sum(axis=1), 1, rtol=0, atol=1e-12)
    assert found.inside.tolist() == [bool(-0.5 - 1e-6 <= round(p, 9) <= old - 0.5 + 1e-6) for p in places]


@pytest.mark.parametrize("method", ["nearest", "linear", "bspline", "lanczos"])
def test_a_voxel_on_a_voxel_is_that_voxel(method: str) -> None:
    line = RNG.random(12)
    np.testing.assert_allclose(interpolation.axis(12, np.arange(12) + 1e-12, method, 1.0).matrix @ line, line, rtol=0, atol=1e-9)


def test_linear_and_nearest_copy_a_voxel_to_the_last_bit() -> None:
    line = RNG.random(12)
    for method in ("nearest", "linear"):
        assert (interpolation.axis(12, np.arange(12) + 1e-11, method, 1.0).matrix @ line == line).all()


def test_beyond_the_edge_counts_only_as_far_as_asked() -> None:
    places = np.array([-1.2, -1.0, -0.6, -0.5, 3.5, 3.6, 4.0, 4.2])
    assert interpolation.axis(4, places, "linear", 1).inside.tolist() == [False, False, False, True, True, False, False, False]
    found = interpolation.axis(4, places, "linear", 1, reach=0.5)
    assert found.inside.tolist() == [False, True, True, True, True, True, True, False]
    assert (found.matrix @ np.array([5.0, 0, 0, 7]))[found.inside].tolist() == [5, 5, 5, 7, 7, 7]


def test_a_part_holds_the_rows_it_is_asked_for() -> None:
    found = interpolation.axis(30, np.arange(60) / 2 - 0.25, "bspline", 0.5)
    line = RNG.random(30)
    for first, last in ((0, 60), (7, 8), (20, 41)):
        start, stop = found.support(first, last)
        assert (found.part(first, last) @ line[start:stop] == (found.matrix @ line)[first:last]).all()


@pytest.mark.parametrize("shrink", [1.0, 1.5, 6])
@pytest.mark.parametrize("method", interpolation.INTERPOLATIONS)
def test_no_value_depends_on_more_than_its_reach(method: str, shrink: float) -> None:
    places = 60 + np.arange(0, 8, 0.37)
    found = interpolation.axis(130, places, method, shrink).matrix
    for row, place in enumerate(places):
        used = found.indices[found.indptr[row] : found.indptr[row + 1]]
        assert used.min() >= np.floor(place) - interpolation.reach_of(method, shrink)
        assert used.max() <= np.ceil(place) + interpolation.reach_of(method, shrink)


@pytest.mark.parametrize("shrink", [50.0, 1000.0, 1e5])
def test_many_voxels_that_become_one_are_their_weighted_mean(shrink: float) -> None:
    old = 3000
    found = interpolation.axis(old, np.array([100.0, 1499.5]), "linear", shrink)
    variance = interpolation.variance_of(shrink)
    offsets = np.arange(-int(6 * variance**0.5) - 50, int(6 * variance**0.5) + 51)
    kernel = np.exp(-(offsets**2) / (2 * variance))
    expected = np.zeros((2, old))
    for row, places in enumerate(([100], [1499, 1500])):
        for place in places:
            np.add.at(expected[row], np.clip(place + offsets, 0, old - 1), kernel / kernel.sum() / len(places))
    np.testing.assert_allclose(found.matrix.toarray(), expected, rtol=0, atol=2e-4 / shrink + 2e-6)
    assert found.matrix.shape == (2, old)
