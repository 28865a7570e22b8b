"""Statistics of a fold and of a case, against numpy on all voxels at once; and the normalisation that uses them."""

from typing import Any

import numpy as np
import pytest

from teravox import fingerprint, normalise, split, statistics
from teravox.errors import UserError

RNG = np.random.default_rng(0)


def cohort(dtype: Any, offset: float = 0, count: int = 4) -> list[tuple[np.ndarray, np.ndarray]]:
    cases = []
    for i in range(count):
        shape = (5 + i, 6, 7)
        cases.append(((RNG.normal(100 + 30 * i, 20, (*shape, 2)) + offset).astype(dtype), RNG.integers(0, 3, shape).astype(np.uint8)))
    return cases


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_equals_numpy_on_all_labelled_voxels(dtype: Any) -> None:
    cases = cohort(dtype)
    found = fingerprint.fingerprint(iter(cases), ["t1", "t2"])
    for i, name in enumerate(["t1", "t2"]):
        values = np.concatenate([image[label > 0][:, i] for image, label in cases]).astype(np.float64)
        low, high = np.percentile(values, [0.5, 99.5])
        assert found[name] == pytest.approx({"voxels": values.size, "mean": values.mean(), "std": values.std(), "low": low, "high": high}, rel=1e-9)


def test_voxels_outside_the_labels_do_not_count() -> None:
    cases = cohort(np.float32)
    expected = fingerprint.fingerprint(cases, ["t1", "t2"])
    for image, label in cases:
        image[label == 0] = 1e6
    assert fingerprint.fingerprint(cases, ["t1", "t2"]) == expected


def test_only_the_training_cases_of_the_fold_are_named() -> None:
    document = {"cases": {f"c{i}": {"patient": f"p{i}", "set": "test" if i == 5 else "train", "fold": None if i == 5 else i % 2} for i in range(6)}}
    assert split.training_cases(document, 0) == ["c1", "c3"]
    assert split.training_cases(document, 1) == ["c0", "c2", "c4"]


def test_no_labelled_voxel() -> None:
    image, label = np.ones((2, 2, 2, 1), np.float32), np.zeros((2, 2, 2), np.uint8)
    found = fingerprint.fingerprint([(image, label)], ["t1"])
    assert found["t1"]["voxels"] == 0 and found["t1"]["std"] == 1


def test_percentiles_of_a_large_case_come_from_evenly_spaced_voxels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "SAMPLE", 1000)
    image = RNG.normal(0, 1, (30, 30, 30, 1)).astype(np.float32)
    found = fingerprint.fingerprint([(image, np.ones(image.shape[:3], np.uint8))], ["t1"])["t1"]
    assert found["voxels"] == 27000
    assert found["mean"] == pytest.approx(image.astype(np.float64).mean(), abs=1e-9)
    assert found["low"] == pytest.approx(-2.58, abs=0.5) and found["high"] == pytest.approx(2.58, abs=0.5)


@pytest.mark.parametrize(("dtype", "offset"), [(np.uint8, 0), (np.int16, -1000), (np.uint16, 30000), (np.float32, 0), (np.float32, 1e6)])
def test_a_case_s_own_statistics(dtype: Any, offset: float) -> None:
    array = (RNG.normal(100, 20, (20, 21, 22)) + offset).astype(dtype)
    values = array.astype(np.float64)
    found = statistics.describe(array)
    assert found["dtype"] == np.dtype(dtype).name
    assert (found["min"], found["max"]) == (values.min(), values.max())
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert found["std"] == pytest.approx(values.std(), rel=1e-9)
    assert all(type(found[key]) is float for key in ("min", "max", "mean", "std"))


def test_label_counts() -> None:
    label = np.array([0, 1, 1, 4, 300], np.uint16).reshape(1, 1, 5)
    labels = [{"name": "a", "value": 1}, {"name": "b", "value": 4}, {"name": "c", "value": 500}]
    assert statistics.label_voxels(label, labels) == {"a": 2, "b": 1, "c": 0}


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_zscore_whatever_the_unit(scale: float, offset: float) -> None:
    image = (RNG.normal(offset, 1, (12, 12, 12, 1)) * scale).astype(np.float32)
    found = normalise.normalise(image, [{"name": "t1", "normalise": "zscore"}], {"t1": statistics.describe(image[..., 0])}, {})
    assert found.dtype == np.float32
    assert found.mean() == pytest.approx(0, abs=1e-5) and found.std() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("value", [0, 0.1, -7, 123.456, 1e6])
def test_a_constant_channel_becomes_zero(value: float) -> None:
    image = np.full((7, 8, 9, 1), value, np.float32)
    found = normalise.normalise(image, [{"name": "t1", "normalise": "zscore"}], {"t1": statistics.describe(image[..., 0])}, {})
    assert np.abs(found).max() < 1e-3


def test_cohort_clips_first_and_channels_do_not_mix() -> None:
    image = np.array([[-100, 5], [0, 6], [50, 7], [900, 8]], np.int16)
    channels = [{"name": "ct", "normalise": "cohort"}, {"name": "t1", "normalise": "zscore"}]
    own, cohort = {"t1": {"mean": 6.5, "std": 0.5}}, {"ct": {"voxels": 9, "mean": 25, "std": 50, "low": 0, "high": 100}}
    np.testing.assert_allclose(normalise.normalise(image, channels, own, cohort), [[-0.5, -3], [-0.5, -1], [0.5, 1], [1.5, 3]])
    with pytest.raises(UserError, match="channel 'ct': the training cases hold no labelled voxel"):
        normalise.normalise(image, channels, own, {"ct": {**cohort["ct"], "voxels": 0}})


@pytest.mark.parametrize(("shape", "multiple"), [((5, 8, 1), 4), ((4, 4, 4), 4), ((30, 30, 30), 8), ((3, 2, 1), 1)])
def test_padding_is_zero_at_the_far_end(shape: tuple[int, ...], multiple: int) -> None:
    for array in (np.ones(shape, np.uint8), np.ones((*shape, 2), np.float32)):
        found = normalise.pad_to_multiple(array, multiple)
        assert all(edge % multiple == 0 and edge - old < multiple for edge, old in zip(found.shape, shape, strict=False))
        assert found.sum() == array.size and (found[: shape[0], : shape[1], : shape[2]] == 1).all()


@pytest.mark.parametrize("values", [[1], [4, 1, 300], list(range(1, 256)), list(range(1, 300))])
def test_labels_to_classes_and_back(values: list[int]) -> None:
    label = RNG.choice([0, *values], (4, 5, 6)).astype(np.uint16)
    classes = normalise.class_indices(label, values)
    assert classes.max() <= len(values)
    for index, value in enumerate(values, start=1):
        np.testing.assert_array_equal(classes == index, label == value)
    np.testing.assert_array_equal(normalise.label_values(classes, values, np.uint16), label)


@pytest.mark.parametrize("values", [[1], [4, 1, 300], list(range(1, 255)), list(range(1, 256))])
def test_the_value_to_ignore_becomes_an_index_that_is_no_class(values: list[int]) -> None:
    label = RNG.choice([0, *values, 999], (4, 5, 60)).astype(np.uint16)
    label[0, 0, 0] = 999
    classes = normalise.class_indices(label, values, 999)
    np.testing.assert_array_equal(classes == len(values) + 1, label == 999)
    np.testing.assert_array_equal(classes[label != 999], normalise.class_indices(label[label != 999], values))


def test_ignored_voxels_are_not_labelled() -> None:
    image, label = RNG.normal(0, 1, (6, 7, 8, 2)), RNG.choice([0, 1, 2, 255], (6, 7, 8)).astype(np.uint8)
    without = np.where(label == 255, 0, label)
    assert fingerprint.fingerprint([(image, label)], ["a", "b"], 255) == fingerprint.fingerprint([(image, without)], ["a", "b"])
    assert fingerprint.fingerprint([(image, label)], ["a", "b"]) != fingerprint.fingerprint([(image, without)], ["a", "b"])
    assert statistics.label_voxels(label, [{"name": "x", "value": 2}]) == {"x": int((label == 2).sum())}
    np.testing.assert_array_equal(statistics.counted(label, 255), without > 0)
