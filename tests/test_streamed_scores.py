"""The streamed comparison against `metrics.score` and scipy's components on whole arrays, whatever the memory, and values worked by hand."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from teravox import geometry, metrics, streamed_scores, surfaces
from teravox.errors import UserError
from test_metrics import SPACINGS, affine_of

AMPLE = 1 << 30
TOLERANCES = [0.0, 0.5, 1.0, 2.0, 5.0]


def reader_of(array: np.ndarray) -> streamed_scores.Reader:
    return lambda z0, z1, y0, y1: array.T[z0:z1, y0:y1]


def smallest_memory(shape: Sequence[int], item_bytes: int, affine: np.ndarray, tolerance: float) -> int:
    """Bytes with which blocks of one row and slabs of one plane, and no others, can be had, whichever of the two needs more."""
    x, y, z = shape
    halo = [int((tolerance + surfaces.TOLERANCE_EPSILON_MM) // step) + 1 for step in geometry.spacing_of(affine)]
    rows = min(1 + 2 * halo[1], y) * min(1 + 2 * halo[2], z)
    return max(3 * y, rows) * x * (streamed_scores.VOXEL_BYTES + item_bytes)


def compare(
    back: np.ndarray,
    native: np.ndarray,
    affine: np.ndarray,
    values: list[int],
    tolerance: float = 1.0,
    ignore: int | None = None,
    memory: int = AMPLE,
) -> dict[int, dict[str, Any]]:
    return streamed_scores.compare(reader_of(back), reader_of(native), native.shape, affine, values, tolerance, ignore, memory)


def at_any_memory(
    back: np.ndarray, native: np.ndarray, affine: np.ndarray, values: list[int], tolerance: float, ignore: int | None
) -> dict[int, dict]:
    """The result, found alike with the least memory, with more, and with plenty."""
    item_bytes = 2 * back.itemsize + native.itemsize if ignore is None else back.itemsize + 2 * max(back.itemsize, native.itemsize)
    least = smallest_memory(native.shape, item_bytes, affine, tolerance)
    results = [compare(back, native, affine, values, tolerance, ignore, memory) for memory in (least, int(1.4 * least), 3 * least, AMPLE)]
    assert results[1:] == results[:-1]
    return results[0]


def whole(back: np.ndarray, native: np.ndarray, affine: np.ndarray, value: int, tolerance: float, ignore: int | None = None) -> dict[str, Any]:
    """The same figures of one value from whole arrays."""
    excluded = np.zeros(native.shape, bool) if ignore is None else native == ignore
    mask, back_mask = (native == value) & ~excluded, (back == value) & ~excluded
    scores = metrics.score(back == value, native == value, affine, tolerance, excluded)
    voxels, back_voxels = int(mask.sum()), int(back_mask.sum())
    components, count = ndimage.label(mask, np.ones((3, 3, 3)))
    lost = [size for n in range(1, count + 1) if not back_mask[components == n].any() and (size := int((components == n).sum()))]
    return {
        "voxels": voxels,
        "back_voxels": back_voxels,
        "dice": None if math.isnan(scores["dice"]) else scores["dice"],
        "nsd": None if math.isnan(scores["nsd"]) else scores["nsd"],
        "volume_change": (back_voxels - voxels) / voxels if voxels else None,
        "components": count,
        "lost_components": len(lost),
        "lost_voxels_largest": max(lost, default=0),
    }


def smooth_labels(generator: np.random.Generator, shape: tuple[int, ...], values: list[int], sigma: float) -> np.ndarray:
    """Blobs of each value on background, touching one another and the border."""
    fields = [ndimage.gaussian_filter(generator.standard_normal(shape), sigma, mode="nearest") for _ in [0, *values]]
    return np.array([0, *values], np.uint16)[np.argmax(fields, axis=0)]


@pytest.mark.parametrize("tolerance", TOLERANCES)
@pytest.mark.parametrize(("spacing", "angles"), [*zip(SPACINGS, [(0.0, 0.0, 0.0), (20.0, -35.0, 50.0), (5.0, 80.0, 0.0)], strict=True)])
@pytest.mark.parametrize("sigma", [0.0, 0.8, 2.0])
def test_equals_the_scores_of_whole_arrays(tolerance: float, spacing: tuple[float, ...], angles: tuple[float, ...], sigma: float) -> None:
    """Noise and blobs, changed in patches; with 300 and 65535 among the labels, one in neither volume, one in one of them each."""
    generator = np.random.default_rng([int(10 * tolerance), int(10 * sigma), int(angles[0])])
    shape = tuple(int(n) for n in generator.integers(6, 15, 3))
    native = smooth_labels(generator, shape, [1, 7, 300, 65535, 12], sigma)
    back = np.where(generator.random(shape) < 0.1, smooth_labels(generator, shape, [1, 7, 300, 65535], 1.0), native)
    back[back == 7] = 0
    centre = tuple(n // 2 for n in shape)
    native[0, 0, 0], native[centre], back[centre] = 7, 1, 9
    values, affine = [1, 7, 9, 11, 300, 65535], affine_of(spacing, angles, (-1, 1, -1))
    for ignore in (None, 12):
        found = at_any_memory(back, native, affine, values, tolerance, ignore)
        assert found == {value: whole(back, native, affine, value, tolerance, ignore) for value in values}
    assert (found[11]["dice"], found[11]["nsd"], found[11]["volume_change"]) == (None, None, None)
    assert (found[7]["dice"], found[7]["nsd"], found[7]["volume_change"]) == (0, 0, -1)
    assert (found[9]["dice"], found[9]["nsd"], found[9]["volume_change"], found[9]["back_voxels"]) == (0, 0, None, 1)


@pytest.mark.parametrize(("spacing", "tolerance"), [*((1.0, tolerance) for tolerance in TOLERANCES), (0.7, 2.1), (0.3, 0.9), (1.1, 3.3)])
@pytest.mark.parametrize("shift", [(0, 0, 3), (0, 3, 0), (2, 0, 0), (1, 2, 2)])
def test_surfaces_further_apart_than_a_block(spacing: float, tolerance: float, shift: tuple[int, int, int]) -> None:
    """Moved blobs: what lies nearest is across blocks, and many distances are the tolerance but for rounding."""
    native = smooth_labels(np.random.default_rng(3), (9, 21, 22), [2, 3], 2.5)
    back = np.roll(native, shift, (0, 1, 2))
    affine = affine_of((spacing, spacing, spacing))
    assert at_any_memory(back, native, affine, [2, 3], tolerance, None) == {v: whole(back, native, affine, v, tolerance) for v in (2, 3)}


@given(
    st.tuples(*[st.integers(1, 7)] * 3).flatmap(lambda shape: st.tuples(*[hnp.arrays(np.uint8, shape, elements=st.integers(0, 3))] * 2)),
    st.sampled_from(SPACINGS),
    st.floats(0, 4),
    st.sampled_from([None, 3]),
)
@settings(max_examples=60, deadline=None)
def test_any_pair(pair: tuple[np.ndarray, np.ndarray], spacing: tuple[float, ...], tolerance: float, ignore: int | None) -> None:
    back, native = pair
    affine = affine_of(spacing)
    found = at_any_memory(back, native, affine, [2, 1], tolerance, ignore)
    assert found == {value: whole(back, native, affine, value, tolerance, ignore) for value in (1, 2)}


def spiral() -> np.ndarray:
    """One thread in two planes of x and z, thirty planes long, that winds to the middle: every slab sees many pieces of it."""
    volume = np.zeros((31, 3, 31), np.uint8)
    low, high = 0, 30
    while low < high:
        volume[low:high, 1, low] = volume[high, 1, low : high + 1] = volume[low + 2 : high + 1, 1, high] = volume[low + 2, 1, low + 2 : high + 1] = 1
        low, high = low + 2, high - 2
        volume[low : low + 1, 1, low] = 1
    return volume


def combs() -> np.ndarray:
    """Two labels as combs, teeth of one between those of the other: the one joins in the last plane only, the other in the first."""
    volume = np.zeros((17, 4, 20), np.uint8)
    volume[::4, :2, 1:], volume[2::4, :2, :-1] = 1, 2
    volume[:, :2, -1], volume[:, :2, 0] = 1, 2
    return volume


def snake() -> np.ndarray:
    """Up and down along z, joined at the two ends by turns: one component of many U."""
    volume = np.zeros((21, 2, 16), np.uint8)
    volume[::2, 0, :] = 1
    volume[1::4, 0, 0] = volume[3::4, 0, -1] = 1
    return volume


def diagonals() -> np.ndarray:
    """Voxels that touch the next plane's by corners or edges only, and beside them two that just do not touch."""
    volume = np.zeros((12, 12, 12), np.uint8)
    for n in range(12):
        volume[n, n, n] = volume[11 - n, n, n] = 1
    volume[0, 11, ::2] = 1
    volume[(0, 2, 1, 3), (5, 5, 7, 7), (4, 5, 5, 6)] = 1
    return volume


@pytest.mark.parametrize(("shape", "expected"), [(spiral, 1), (combs, 1), (snake, 1), (diagonals, None)])
@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_components_across_slabs(shape: Any, expected: int | None, axes: tuple[int, ...]) -> None:
    native = shape().transpose(axes)
    nothing = np.zeros_like(native)
    found = at_any_memory(nothing, native, np.eye(4), [1, 2], 0.0, None)
    for value in (1, 2):
        components, count = ndimage.label(native == value, np.ones((3, 3, 3)))
        largest = int(np.bincount(components.ravel())[1:].max(initial=0))
        assert (found[value]["components"], found[value]["lost_components"], found[value]["lost_voxels_largest"]) == (count, count, largest)
    assert expected in (None, found[1]["components"])
    end = nothing.copy()
    end[tuple(np.argwhere(native == 1)[-1])] = 1  # one voxel of it is enough for a component not to be lost
    assert at_any_memory(end, native, np.eye(4), [1], 0.0, None)[1]["lost_components"] == found[1]["components"] - 1


def test_components_of_noise() -> None:
    """At a density where components branch through all planes, and one where there are thousands."""
    generator = np.random.default_rng(8)
    for density in (0.02, 0.08, 0.1, 0.15):
        native = (generator.random((40, 50, 60)) < density).astype(np.uint8)
        back = native * (generator.random(native.shape) < 0.2).astype(np.uint8)
        components, count = ndimage.label(native, np.ones((3, 3, 3)))
        sizes = np.bincount(components.ravel())
        sizes[np.unique(components)[np.isin(np.unique(components), np.unique(components[back == 1]))]] = sizes[0] = 0
        found = at_any_memory(back, native, np.eye(4), [1], 0.0, None)[1]
        assert (found["components"], found["lost_components"], found["lost_voxels_largest"]) == (count, np.count_nonzero(sizes), sizes.max())


def test_by_hand() -> None:
    """A bar of four voxels shortened by one, a lone voxel lost and a pair lost; 2 mm along x, 1 mm along y and z.

    Every voxel is on a surface: 7 in native, 3 in back. The bar's fourth voxel is 2 mm from the third; the lone voxel is 6 mm
    from the bar, the pair 5 mm and more.
    """
    native, back = np.zeros((8, 6, 7), np.uint16), np.zeros((8, 6, 7), np.uint16)
    native[0:4, 0, 0] = native[6, 0, 0] = native[0, 5, 5:7] = 300
    back[0:3, 0, 0] = 300
    affine = np.diag([2.0, 1.0, 1.0, 1.0])
    expected = {"voxels": 7, "back_voxels": 3, "dice": 6 / 10, "volume_change": -4 / 7}
    lost = {"components": 3, "lost_components": 2, "lost_voxels_largest": 2}
    assert at_any_memory(back, native, affine, [300], 1.9, None) == {300: {**expected, "nsd": 6 / 10, **lost}}
    assert at_any_memory(back, native, affine, [300], 2.0, None) == {300: {**expected, "nsd": 7 / 10, **lost}}
    native[0, 5, 5] = 44  # ignored: the pair is a single voxel, and what back holds there does not count
    back[0, 5, 5] = 300
    fewer = {"voxels": 6, "volume_change": -3 / 6, "dice": 6 / 9, "nsd": 7 / 9, "lost_voxels_largest": 1}
    assert at_any_memory(back, native, affine, [300], 2.0, 44) == {300: {**expected, **lost, **fewer}}


def test_nothing_to_compare() -> None:
    assert compare(np.ones((2, 3, 4), np.uint8), np.ones((2, 3, 4), np.uint8), np.eye(4), []) == {}


@pytest.mark.parametrize(("values", "ignore"), [([0, 1], None), ([1, 2], 2)])
def test_values_that_are_no_labels(values: list[int], ignore: int | None) -> None:
    with pytest.raises(ValueError, match="values are"):
        compare(np.ones((2, 3, 4), np.uint8), np.ones((2, 3, 4), np.uint8), np.eye(4), values, ignore=ignore)


@pytest.mark.parametrize("memory", [90_000, 250_000, 2_000_000])
def test_what_is_read_at_a_time(memory: int) -> None:
    """Within the memory, counted with what is worked out from it; and the whole volume twice, at that."""
    volume = smooth_labels(np.random.default_rng(1), (20, 41, 43), [1, 2], 2.0)
    seen = np.zeros(volume.shape[1:], int)

    def read(z0: int, z1: int, y0: int, y1: int) -> np.ndarray:
        assert 0 <= z0 < z1 <= 43 and 0 <= y0 < y1 <= 41
        assert (z1 - z0) * (y1 - y0) * 20 * (3 * 2 + streamed_scores.VOXEL_BYTES) <= memory
        seen[y0:y1, z0:z1] += 1
        return volume.T[z0:z1, y0:y1]

    streamed_scores.compare(read, read, volume.shape, np.eye(4), [1, 2], 1.0, None, memory)
    assert seen.min() >= 4


@pytest.mark.parametrize("tolerance", [0.0, 30.0])
def test_too_little_memory(tolerance: float) -> None:
    """The bound named in the message is enough, and one byte less is not."""
    volume = np.ones((20, 21, 22), np.uint8)
    least = smallest_memory(volume.shape, 3, np.eye(4), tolerance)
    compare(volume, volume, np.eye(4), [1], tolerance, memory=least)
    with pytest.raises(
        UserError, match=f"20 x 21 x 22 voxels: {(least - 1) / 1e6:.3f} MB of memory, expected at least .*resample.memory_mb"
    ) as caught:
        compare(volume, volume, np.eye(4), [1], tolerance, memory=least - 1)
    assert "\n" not in str(caught.value)
