"""Predicted memory and the limit on one tensor."""

from typing import Any

import numpy as np
import pytest

from teravox import plan
from teravox.network.unet import UNet

NETWORK = UNet(4, 4, 8, 5)


@pytest.mark.parametrize(("shape", "multiple", "expected"), [([30, 32, 33], 8, [32, 32, 40]), ([1, 1, 1], 16, [16] * 3), ([7, 7, 7], 1, [7] * 3)])
def test_edges_are_rounded_up(shape: list[int], multiple: int, expected: list[int]) -> None:
    assert plan.padded(shape, multiple) == expected


def test_kept_feature_maps_of_a_small_network_counted_by_hand() -> None:
    # level 0: input 1, then raw, activation, raw, activation of 2; decoder the same, its upsampled 2 and the concatenation 4.
    # level 1: pooled 2, then four times 4.
    assert plan.kept_channels(UNet(1, 2, 2, 2)) == [1 + 8 + 8 + 2 + 4, 2 + 16]
    assert plan.kept_channels(UNet(3, 2, 2, 1)) == [3 + 8]


def test_memory_grows_with_everything_it_is_made_of() -> None:
    base = plan.training_bytes(NETWORK, [64, 64, 64])
    assert base > plan.RUNTIME_BYTES
    assert plan.training_bytes(NETWORK, [64, 64, 65]) > base
    assert plan.training_bytes(NETWORK, [63, 49, 64]) == base  # padded
    assert plan.training_bytes(UNet(4, 4, 16, 5), [64, 64, 64]) > base
    assert plan.training_bytes(UNet(4, 9, 8, 5), [64, 64, 64]) > base
    double = plan.training_bytes(NETWORK, [128, 64, 64])
    fixed = plan.RUNTIME_BYTES + 20 * NETWORK.parameters + plan.SHAPE_BYTES * len(NETWORK.convolutions())
    assert (double - fixed) / (base - fixed) == pytest.approx(2, rel=1e-6)
    assert plan.prediction_bytes(NETWORK, [64, 64, 64], [64, 64, 64]) < base


def test_parameters_are_those_of_the_weights() -> None:
    assert NETWORK.parameters == sum(value.size for value in NETWORK.initial_weights(0).values())


def test_the_plan_of_a_fold_comes_from_its_fingerprint() -> None:
    settings = {"channels": [{}], "labels": [{}], "train": {"filters": 8, "levels": 2, "patch_size": None}}
    shapes = {"a": [8, 8, 8], "b": [12, 8, 8]}
    row = plan.fold_plan({"fold": 1, "shapes": shapes}, settings, 16)
    assert row == plan.plan_rows(UNet(1, 2, 8, 2), {1: shapes}, 16)[0]
    assert row["fold"] == 1 and row["largest_case"] == "b" and row["refused"] is None


def test_a_terabyte_does_not_wrap() -> None:
    assert plan.training_bytes(NETWORK, [4096, 4096, 4096]) > 4096**3 * 4 * 50


@pytest.mark.parametrize(
    ("network", "shape", "elements"),
    [
        (UNet(1, 2, 8, 2), [512, 512, 512], 512**3 * 16),
        (UNet(1, 2, 8, 1), [512, 512, 512], 512**3 * 8),
        (UNet(1, 20, 8, 2), [10, 10, 10], 20_000),
        (UNet(30, 2, 8, 2), [10, 10, 10], 30_000),
        (UNet(1, 2, 8, 3), [9, 10, 11], 12**3 * 16),
    ],
)
def test_the_largest_tensor(network: UNet, shape: list[int], elements: int) -> None:
    assert plan.largest_tensor(network, shape) == elements
    assert (plan.refusal(network, shape) is None) == (elements < 2**31)


def test_rows_name_the_largest_case_after_padding() -> None:
    network = UNet(1, 2, 8, 4)
    shapes = {"a": [8, 8, 9], "b": [10, 8, 8], "c": [11, 8, 8]}
    (row, other) = plan.plan_rows(network, {0: shapes, 3: {"big": [512, 512, 512]}}, 16)
    assert row["largest_case"] == "c" and row["cases"] == 3 and row["fold"] == 0  # a tie of padded volumes goes to the last name
    assert row["padded"] == [16, 8, 8] and row["refused"] is None
    assert row["predicted_peak_bytes"] == plan.training_bytes(network, [11, 8, 8], 2) + plan.feed_bytes(network, [11, 8, 8], 16)
    assert row["padded_shapes"] == 2
    assert other["largest_tensor_elements"] == 2**31 and "2147483648 elements" in other["refused"]


def test_examples_ahead_are_part_of_the_plan() -> None:
    network = UNet(3, 2, 8, 4)
    assert plan.example_bytes(network, [9, 8, 8]) == 16 * 8 * 8 * 4 * 4
    assert plan.feed_bytes(network, [9, 8, 8], 20) == plan.FEED_BYTES + 20_000_000
    assert plan.feed_bytes(network, [900, 800, 800], 20) == plan.FEED_BYTES + 904 * 800 * 800 * 16  # one is always on its way


def test_patches_are_what_is_planned_for() -> None:
    network, shapes = UNet(1, 2, 8, 4), {"a": [100, 20, 33], "b": [30, 30, 30]}
    (row,) = plan.plan_rows(network, {0: shapes}, 16, [32, 24, 40])
    assert row["shape"] == [32, 20, 33] and row["largest_case"] == "a" and row["padded"] == [32, 24, 40]
    (whole,) = plan.plan_rows(network, {0: shapes}, 16)
    assert whole["largest_case"] == "a" and whole["predicted_peak_bytes"] > row["predicted_peak_bytes"]


def test_shards_of_a_target_size() -> None:
    assert plan.proposed_shards([], 100) == plan.proposed_shards([0, 0], 100) == plan.proposed_shards([60, 40], 100) == 1
    assert plan.proposed_shards([60, 41], 100) == 2 and plan.proposed_shards([10**12, 3 * 10**12], 2e9) == 2000
    case = {"dtype": "int16", "label_dtype": "uint8", "channels": {"a": {}, "b": {}}, "grid": {"shape": [2000, 2000, 2000]}}
    assert plan.native_bytes(case) == 8_000_000_000 * 5


def test_memory_of_writing_shards_grows_with_what_is_held() -> None:
    options = {"compression": "none", "block_mb": 64}
    assert plan.sharding_mb(options, 4) - plan.sharding_mb(options, 1) == 24
    assert plan.sharding_mb({**options, "compression": "gzip"}, 4) == plan.SHARDING_BYTES / 1e6 + 640


def test_memory_of_resampling_is_what_is_allowed_or_what_a_small_case_takes() -> None:
    grid = {"shape": [100, 80, 50], "affine": np.diag([1.0, 1, 2, 1]).tolist()}
    case: dict[str, Any] = {"grid": grid, "channels": {"t1": {"grid": grid}, "t2": {}}}
    options: dict[str, Any] = {"min_size": None, "axes": "own", "field_of_view": "reference"}
    small = plan.resampling_bytes(case, options, 1, 1024)
    assert small == plan.VOXEL_BYTES * (400_000 + 800_000) + plan.RESAMPLING_BYTES
    assert plan.resampling_bytes(case, options, [1, 1, 2], 1024) == plan.VOXEL_BYTES * 800_000 + plan.RESAMPLING_BYTES
    most = 300 * 10**6 + plan.RESAMPLING_BYTES
    assert plan.resampling_bytes(case, options, 0.2, 300) == most
    for change in ({"min_size": 400}, {"axes": "canonical"}, {"field_of_view": "union"}):
        assert plan.resampling_bytes(case, {**options, **change}, 1, 300) == most
