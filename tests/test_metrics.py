"""The metrics against naive references, values computed by hand, and properties that hold for every pair of masks."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from teravox import metrics, surfaces

SPACINGS = [(1.0, 1.0, 1.0), (0.7, 0.5, 2.0), (3.0, 0.9, 0.9)]
SCORES = ("dice", "iou", "hd95", "assd", "nsd")


def affine_of(spacing: tuple[float, ...], angles: tuple[float, ...] = (0.0, 0.0, 0.0), flips: tuple[int, ...] = (1, 1, 1)) -> np.ndarray:
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", angles, degrees=True).as_matrix() @ np.diag(np.array(spacing) * flips)
    affine[:3, 3] = [-12.0, 30.5, 7.0]
    return affine


def naive_surface(mask: np.ndarray) -> np.ndarray:
    """Indices (n, 3) of the voxels with a neighbour outside, one voxel at a time."""
    voxels = {tuple(int(i) for i in voxel) for voxel in np.argwhere(mask)}
    steps = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]
    return np.array([v for v in sorted(voxels) if any((v[0] + a, v[1] + b, v[2] + c) not in voxels for a, b, c in steps)])


def naive_score(prediction: np.ndarray, reference: np.ndarray, affine: np.ndarray, tolerance: float) -> dict[str, float]:
    """Both masks not empty; no cropping; distances between world coordinates through the affine, by a k-d tree."""
    a, b = (naive_surface(mask) @ affine[:3, :3].T + affine[:3, 3] for mask in (prediction, reference))
    there, back = cKDTree(b).query(a)[0], cKDTree(a).query(b)[0]
    both = np.concatenate([there, back])
    first, second = set(map(tuple, np.argwhere(prediction).tolist())), set(map(tuple, np.argwhere(reference).tolist()))
    return {
        "dice": 2 * len(first & second) / (len(first) + len(second)),
        "iou": len(first & second) / len(first | second),
        "hd95": max(np.percentile(there, 95), np.percentile(back, 95)),
        "assd": both.mean(),
        "nsd": (both <= tolerance + 1e-5).mean(),
    }


def box(shape: tuple[int, int, int], start: tuple[int, int, int], size: tuple[int, int, int]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[tuple(slice(s, s + n) for s, n in zip(start, size, strict=True))] = True
    return mask


def masks_of_one_shape(minimum: int = 1, maximum: int = 7) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    shapes = st.tuples(*[st.integers(minimum, maximum)] * 3)
    return shapes.flatmap(lambda shape: st.tuples(hnp.arrays(bool, shape), hnp.arrays(bool, shape)))


def row(case: str, label: str = "liver", space: str = "native", subset: str = "test", empty: str = "none", **values: float) -> dict[str, Any]:
    given_values = {**dict.fromkeys(metrics.METRICS, 1.0), **values}
    return {"case": case, "patient": case, "fold": 0, "set": subset, "label": label, "space": space, **given_values, "empty": empty}


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("angles", [(0.0, 0.0, 0.0), (20.0, -35.0, 50.0)])
@pytest.mark.parametrize("flips", [(1, 1, 1), (-1, -1, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_score_equals_naive_reference(spacing: tuple[float, ...], angles: tuple[float, ...], flips: tuple[int, ...], seed: int) -> None:
    generator = np.random.default_rng(seed)
    shape = tuple(int(n) for n in generator.integers(5, 14, 3))
    affine = affine_of(spacing, angles, flips)
    centre = np.indices(shape).T @ np.diag(spacing) - np.array(shape) * spacing * generator.uniform(0.3, 0.7, 3)
    ball = (np.linalg.norm(centre, axis=-1) < 0.4 * min(np.array(shape) * spacing)).T
    prediction, reference = ball ^ (generator.random(shape) < 0.05), ball | (generator.random(shape) < 0.01)
    found = metrics.score(prediction, reference, affine, 1.5)
    expected = naive_score(prediction, reference, affine, 1.5)
    assert {name: found[name] for name in SCORES} == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert found["empty"] == "none"


@pytest.mark.parametrize("seed", range(4))
def test_excluded_voxels_are_in_neither_mask(seed: int) -> None:
    """Whatever stands in them, the score is that of the masks without them; outside values by the naive reference."""
    generator = np.random.default_rng(seed)
    prediction, reference, excluded = (generator.random((8, 9, 7)) < share for share in (0.4, 0.4, 0.3))
    affine = affine_of((0.7, 0.5, 2.0))
    found = metrics.score(prediction, reference, affine, 1.0, excluded)
    assert {name: found[name] for name in SCORES} == pytest.approx(naive_score(prediction & ~excluded, reference & ~excluded, affine, 1.0), rel=1e-5)
    assert found == metrics.score(prediction | excluded, reference ^ excluded, affine, 1.0, excluded)
    assert found != metrics.score(prediction, reference, affine, 1.0)
    assert metrics.score(prediction, reference, affine, 1.0, np.zeros_like(excluded)) == metrics.score(prediction, reference, affine, 1.0)
    assert metrics.score(prediction, reference, affine, 1.0, np.ones_like(excluded))["empty"] == "both"
    for wrong in (excluded.astype(np.uint8), excluded[:-1]):
        with pytest.raises(ValueError, match="excluded has"):
            metrics.score(prediction, reference, affine, 1.0, wrong)


@pytest.mark.parametrize("order", ["C", "F"])
def test_cropping_and_memory_order_change_nothing(order: Any) -> None:
    generator = np.random.default_rng(5)
    small = [generator.random((6, 7, 5)) < 0.4 for _ in range(2)]
    padded = [np.asarray(np.pad(mask, ((9, 2), (0, 13), (4, 4))), order=order) for mask in small]
    affine = affine_of((0.7, 0.5, 2.0), (10.0, 5.0, 3.0))
    inner, outer = metrics.score(small[0], small[1], affine, 1.0), metrics.score(padded[0], padded[1], affine, 1.0)
    assert inner == outer
    assert {name: outer[name] for name in SCORES} == pytest.approx(naive_score(padded[0], padded[1], affine, 1.0), rel=1e-5)


@given(masks_of_one_shape(), st.sampled_from(SPACINGS), st.floats(0, 4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example((np.ones((1, 1, 1), bool), np.ones((1, 1, 1), bool)), (1.0, 1.0, 1.0), 0.0)
@example((np.zeros((2, 1, 1), bool), np.ones((2, 1, 1), bool)), (1.0, 1.0, 1.0), 0.0)
def test_properties_of_any_pair(masks: tuple[np.ndarray, np.ndarray], spacing: tuple[float, ...], tolerance: float) -> None:
    first, second = masks
    affine = affine_of(spacing, (3.0, 2.0, 1.0))
    forth, back = metrics.score(first, second, affine, tolerance), metrics.score(second, first, affine, tolerance)
    assert all(isinstance(forth[name], float) for name in metrics.METRICS)
    assert [forth[name] for name in SCORES] == pytest.approx([back[name] for name in SCORES], nan_ok=True, abs=1e-9)
    assert forth["volume_ml"] == back["reference_volume_ml"]
    assert forth["dice"] == pytest.approx(2 * forth["iou"] / (1 + forth["iou"]), nan_ok=True)
    if forth["empty"] != "both":
        assert 0 <= forth["dice"] <= 1 and 0 <= forth["nsd"] <= 1
        assert forth["hd95"] <= metrics.diagonal_of(first.shape, affine) + 1e-9
    axes = (2, 0, 1)
    turned = metrics.score(first.transpose(axes), second.transpose(axes), affine[:, [*axes, 3]], tolerance)
    assert [turned[name] for name in SCORES] == pytest.approx([forth[name] for name in SCORES], nan_ok=True, abs=1e-5)


@given(hnp.arrays(bool, (4, 3, 5)))
@settings(max_examples=30, deadline=None)
def test_identical_masks_are_perfect(mask: np.ndarray) -> None:
    mask[1, 2, 3] = True
    found = metrics.score(mask, mask.copy(), affine_of((0.7, 0.5, 2.0)), 0.0)
    assert [found[name] for name in SCORES] == [1, 1, 0, 0, 1]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_shifted_cube(axis: int, shift: int) -> None:
    """A cube of edge 5 against itself moved along one axis: the far face, 25 of 98 surface voxels, is the whole shift away."""
    spacing = (0.7, 0.5, 2.0)
    mask = box((12, 12, 12), (3, 3, 3), (5, 5, 5))
    moved = np.roll(mask, shift, axis)
    found = metrics.score(mask, moved, affine_of(spacing, (0.0, 0.0, 30.0)), shift * spacing[axis])
    assert found["hd95"] == pytest.approx(shift * spacing[axis], rel=1e-6)
    assert found["dice"] == (5 - shift) / 5
    assert found["nsd"] == 1, "exactly the tolerance counts as within"
    assert metrics.score(mask, moved, affine_of(spacing), shift * spacing[axis] - 0.01)["nsd"] < 1


@pytest.mark.parametrize("index", [(0, 0, 0), (3, 2, 4), (1, 1, 1)])
def test_one_voxel_masks(index: tuple[int, int, int]) -> None:
    first, second = box((4, 3, 5), index, (1, 1, 1)), box((4, 3, 5), (2, 1, 0), (1, 1, 1))
    found = metrics.score(first, second, affine_of((1.0, 2.0, 3.0)), 1.0)
    distance = math.dist(np.array(index) * (1, 2, 3), (2, 2, 0))
    assert (found["hd95"], found["assd"], found["dice"]) == pytest.approx((distance, distance, 0))


def test_masks_at_the_border_have_a_surface_there() -> None:
    """Both fill the image except for one voxel of the second: what is outside the image is outside the mask."""
    full = np.ones((3, 3, 3), bool)
    assert surfaces.surface_of(full).sum() == 26
    corner = full.copy()
    corner[0, 0, 0] = False
    found = metrics.score(full, corner, affine_of((1.0, 1.0, 1.0)), 0.5)
    assert found["nsd"] == 50 / 51  # 26 and 25 surface voxels (its centre still has 6 neighbours), of which the lone corner is 1 mm off
    assert found["assd"] == pytest.approx(1 / 51)


def test_hd95_is_the_larger_of_two_percentiles() -> None:
    """A 10-voxel bar and the same bar plus one voxel 20 away. One way all 0; back ten 0 and one 20: rank 9.5 of 0..10 is 10."""
    bar = box((30, 1, 1), (0, 0, 0), (10, 1, 1))
    more = bar.copy()
    more[29] = True
    found = metrics.score(bar, more, affine_of((1.0, 1.0, 1.0)), 1.0)
    assert found["hd95"] == 10, "the pooled form would give 0"
    assert found["assd"] == pytest.approx(20 / 21)
    assert found["nsd"] == 20 / 21
    assert found["dice"] == 20 / 21


def test_volume_in_millilitres() -> None:
    """Ten voxels of 0.7 x 0.5 x 2 mm are 7 mm^3, also on an oblique grid."""
    mask = box((10, 3, 3), (0, 1, 1), (10, 1, 1))
    for angles in [(0.0, 0.0, 0.0), (15.0, 25.0, -40.0)]:
        found = metrics.score(mask, ~mask, affine_of((0.7, 0.5, 2.0), angles), 1.0)
        assert found["volume_ml"] == pytest.approx(0.007, rel=1e-12)
        assert found["reference_volume_ml"] == pytest.approx(0.056, rel=1e-12)


def test_counts_beyond_float32_are_exact() -> None:
    """257^3 ones are 2^24 + 197,377: a float32 sum could stop at 2^24, and float32 holds no odd number beyond it."""
    n = 257**3
    reference = np.ones((257, 257, 257), bool)
    prediction = reference.copy()
    prediction[128, 128, 128:130] = False
    found = metrics.score(prediction, reference, affine_of((10.0, 10.0, 10.0)), 1.0)
    assert found["reference_volume_ml"] == pytest.approx(n, rel=1e-12)
    assert found["volume_ml"] == pytest.approx(n - 2, rel=1e-12)
    assert found["dice"] == 2 * (n - 2) / (2 * n - 2)


def test_empty_masks() -> None:
    none, some = np.zeros((3, 4, 5), bool), box((3, 4, 5), (1, 1, 1), (1, 2, 2))
    affine = affine_of((1.0, 2.0, 0.5), (0.0, 0.0, 30.0))
    diagonal = math.hypot(3, 8, 2.5)
    missed, invented = metrics.score(none, some, affine, 1.0), metrics.score(some, none, affine, 1.0)
    for found in (missed, invented):
        assert [found[name] for name in SCORES] == pytest.approx([0, 0, diagonal, diagonal, 0])
    assert (missed["empty"], invented["empty"]) == ("prediction", "reference")
    assert (missed["volume_ml"], missed["reference_volume_ml"]) == (0, pytest.approx(0.004))
    both = metrics.score(none, none, affine, 1.0)
    assert both["empty"] == "both" and both["volume_ml"] == 0
    assert all(math.isnan(both[name]) for name in SCORES)


@pytest.mark.parametrize(
    ("prediction", "reference", "message"),
    [
        (np.ones((2, 3, 4), bool), np.ones((2, 3, 1), bool), "shape"),
        (np.ones((2, 3, 4), bool), np.ones((4, 3, 2), bool), "shape"),
        (np.ones((2, 3), bool), np.ones((2, 3), bool), "three axes"),
        (np.ones((2, 0, 4), bool), np.ones((2, 0, 4), bool), "not empty"),
        (np.ones((2, 3, 4), np.uint8), np.ones((2, 3, 4), bool), "prediction has dtype uint8"),
        (np.ones((2, 3, 4), bool), np.ones((2, 3, 4), np.float32), "reference has dtype float32"),
    ],
)
def test_refuses_what_are_not_two_masks_on_one_grid(prediction: np.ndarray, reference: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metrics.score(prediction, reference, np.eye(4), 1.0)


@pytest.mark.parametrize(("affine", "tolerance"), [(np.eye(3), 1.0), (np.eye(4), -1.0), (np.eye(4), math.nan)])
def test_refuses_bad_affine_and_tolerance(affine: np.ndarray, tolerance: float) -> None:
    with pytest.raises(ValueError):
        metrics.score(np.ones((2, 2, 2), bool), np.ones((2, 2, 2), bool), affine, tolerance)


def test_columns() -> None:
    expected = "case,patient,fold,set,label,space,dice,iou,hd95,assd,nsd,volume_ml,reference_volume_ml"
    assert ",".join(metrics.COLUMNS) == expected
    found = metrics.score(np.ones((2, 2, 2), bool), np.ones((2, 2, 2), bool), np.eye(4), 1.0)
    assert tuple(found) == (*metrics.METRICS, "empty")


def test_summary_keeps_a_missed_case() -> None:
    """One good case and one missed: the mean HD95 is not the good case's, and the missed case is counted."""
    good = metrics.score(box((9, 9, 9), (2, 2, 2), (3, 3, 3)), box((9, 9, 9), (2, 2, 2), (3, 3, 4)), np.eye(4), 1.0)
    missed = metrics.score(np.zeros((9, 9, 9), bool), box((9, 9, 9), (2, 2, 2), (3, 3, 4)), np.eye(4), 1.0)
    entry = metrics.summarise([{**row("a"), **good}, {**row("b"), **missed}])[0]
    assert entry["hd95"]["mean"] == pytest.approx((good["hd95"] + math.hypot(9, 9, 9)) / 2)
    assert (entry["hd95"]["n"], entry["hd95"]["excluded"]) == (2, 0)
    assert entry["dice"]["mean"] == pytest.approx(good["dice"] / 2)
    assert entry["empty"] == {"none": 1, "both": 0, "reference": 0, "prediction": 1}


def test_summary_is_over_cases_not_voxels() -> None:
    """1000 voxels with Dice 1 and 10 voxels with Dice 0: the mean is 0.5; pooled voxels would give about 0.99."""
    affine = np.eye(4)
    big, bar = box((12, 12, 12), (1, 1, 1), (10, 10, 10)), box((12, 12, 12), (1, 1, 1), (10, 1, 1))
    rows = [{**row("a"), **metrics.score(big, big, affine, 1.0)}, {**row("b"), **metrics.score(np.roll(bar, 5, 2), bar, affine, 1.0)}]
    dice = metrics.summarise(rows)[0]["dice"]
    assert (dice["mean"], dice["n"]) == (0.5, 2)


def test_summary_figures() -> None:
    rows = [row(case, dice=value) for case, value in zip("abcde", [0.1, math.nan, 0.4, 0.5, 0.8], strict=True)]
    dice = metrics.summarise(rows)[0]["dice"]
    expected = {"n": 4, "excluded": 1, "mean": 0.45, "sd": math.sqrt(0.25 / 3), "median": 0.45, "q1": 0.325, "q3": 0.575, "minimum": 0.1}
    assert dice == pytest.approx({**expected, "maximum": 0.8})


def test_summary_of_few_values_is_json() -> None:
    rows = [row("a", empty="both", dice=math.nan), row("a", "spleen", dice=0.25)]
    liver, spleen, mean = metrics.summarise(rows)
    assert liver["dice"] == {"n": 0, "excluded": 1, **dict.fromkeys(("mean", "sd", "median", "q1", "q3", "minimum", "maximum"))}
    assert (spleen["dice"]["mean"], spleen["dice"]["sd"]) == (0.25, None)
    assert (mean["dice"]["mean"], mean["dice"]["n"], mean["dice"]["excluded"]) == (0.25, 1, 1)
    json.dumps([liver, spleen, mean], allow_nan=False)
    assert metrics.summarise([]) == []


def test_summary_groups_in_first_seen_order_and_weighs_labels_alike() -> None:
    """Three cases of one label, one of another: the mean over labels is the mean of their means. Sets and spaces never mix."""
    rows = [row("a", "4", dice=0.9), row("a", "1", dice=0.1), row("b", "4", dice=0.6), row("c", "4", dice=0.3)]
    rows += [row("a", "4", "isotropic", dice=1.0), row("d", "1", subset="validation", dice=0.2)]
    entries = metrics.summarise(rows)
    found = [(e["set"], e["space"], e["label"], e["over"]) for e in entries]
    assert found[:4] == [
        ("test", "native", "4", "cases"),
        ("test", "native", "1", "cases"),
        ("test", "isotropic", "4", "cases"),
        ("validation", "native", "1", "cases"),
    ]
    assert found[4:] == [(s, p, "mean", "labels") for s, p in [("test", "native"), ("test", "isotropic"), ("validation", "native")]]
    assert (entries[4]["dice"]["mean"], entries[4]["dice"]["n"], entries[4]["rows"]) == (pytest.approx(0.35), 2, 4)
    as_text = [{key: str(value) for key, value in one.items()} for one in rows]
    assert metrics.summarise(as_text) == entries


def test_worst_first() -> None:
    rows = [row("a", dice=0.8), row("a", "spleen", dice=0.5), row("b", dice=math.nan), row("c", dice=0.2, hd95=3.0)]
    rows += [row("c", "spleen", dice=math.nan, hd95=9.0), row("d", dice=0.5), row("a", space="isotropic", dice=0.0)]
    assert metrics.worst_first(rows) == ["c", "a", "d", "b"]
    assert metrics.worst_first(rows, "hd95")[0] == "c"
    with pytest.raises(ValueError, match="volume_ml"):
        metrics.worst_first(rows, "volume_ml")
