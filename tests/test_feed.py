"""What a training sees: order, parts, reading ahead within a budget, and memory over many epochs."""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teravox.network  # noqa: F401, isort: skip
import tensorflow as tf

from shard_files import volume, write
from teravox import patches
from teravox.ahead import ahead
from teravox.errors import UserError
from teravox.feed import Feed, case_at
from teravox.shard_reader import ShardReader

CASES = [f"c{i}" for i in range(7)]
SIGNATURE = (tf.TensorSpec((None, None, None, 2), tf.float32), tf.TensorSpec((None, None, None), tf.uint8))


# Order


def test_every_epoch_is_a_permutation_and_needs_no_state() -> None:
    order = [case_at(CASES, step, 1, 0) for step in range(70)]
    epochs = [order[i : i + 7] for i in range(0, 70, 7)]
    assert all(sorted(epoch) == CASES for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 5
    assert [case_at(CASES, step, 1, 0) for step in reversed(range(70))] == order[::-1]
    assert order != [case_at(CASES, step, 2, 0) for step in range(70)] != [case_at(CASES, step, 2, 1) for step in range(70)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 9])
def test_ranks_share_what_one_would_see(ranks: int) -> None:
    alone = [case_at(CASES, step, 1, 0) for step in range(20 * ranks)]
    dealt = [[case_at(CASES, step, 1, 0, rank, ranks) for step in range(20)] for rank in range(ranks)]
    assert [case for step in zip(*dealt, strict=True) for case in step] == alone


# Reading ahead


def test_results_come_in_order_and_work_is_done_side_by_side() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def job(number: int) -> int:
        if number < 3:
            barrier.wait()  # passes only when three run at once
        time.sleep(0.01 * (5 - number % 5))
        return number

    assert list(ahead([(1, lambda number=number: job(number)) for number in range(12)], 3, 5)) == list(range(12))  # type: ignore[misc]


@pytest.mark.parametrize("budget", [0, 7, 20, 55])
def test_no_more_than_the_budget_is_held(budget: int) -> None:
    sizes = [int(size) for size in np.random.default_rng(0).integers(1, 20, 60)]
    lock, held, most, counts = threading.Lock(), 0, 0, []

    def job(size: int) -> int:
        nonlocal held, most
        with lock:
            held += size
            most = max(most, held)
            counts.append(held > budget)
        return size

    def started() -> Any:
        for size in sizes:
            yield size, lambda size=size: job(size)

    for number, size in enumerate(ahead(started(), 4, budget)):
        assert size == sizes[number]
        with lock:
            held -= size
        time.sleep(0.002)
    assert most <= max(budget, max(sizes)) + max(sizes)  # the one that was just handed out is the caller's


def test_an_error_comes_where_its_result_would_and_ends_it() -> None:
    def fail() -> int:
        raise UserError("damaged")

    jobs: list[Any] = [(1, lambda: 0), (1, lambda: 1), (1, fail), (1, lambda: 3)]
    results = ahead(jobs, 2, 10)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(UserError, match="damaged"):
        next(results)
    assert list(results) == [] == list(ahead([], 2, 10))


# The feed


def raw(case: str, image: np.ndarray, label: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    return image.astype(np.float32) + np.float32(rng.random()), label


def feed_of(folder: Path, **changes: Any) -> Feed:
    if not (folder / "00000-of-00001.index.json").exists():
        rng = np.random.default_rng(0)
        write(folder, {case: volume(rng, (5 + i, 4, 6), 2, "<i2") for i, case in enumerate(CASES)}, 2)
    reader = ShardReader([folder / "00000-of-00001.index.json"])
    return Feed(**{"reader": reader, "cases": CASES, "seed": 1, "fold": 0, "transform": raw, "signature": SIGNATURE, **changes})


def taken(feed: Feed, start: int, stop: int, budget: float = 1e4, workers: int = 2) -> list[list[Any]]:
    dataset = feed.dataset(start, stop, 1000, budget, workers)
    return [[tensor.numpy() for tensor in step] for step in feed.steps(dataset)]


def same(one: list[list[Any]], other: list[list[Any]]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def test_a_feed_gives_what_its_steps_are_whatever_the_threads(tmp_path: Path) -> None:
    feed = feed_of(tmp_path)
    expected = [feed.example(step) for step in range(20)]
    found = taken(feed, 0, 20)
    assert [step[0].decode() for step in found] == [step[0] for step in expected] == [case_at(CASES, step, 1, 0) for step in range(20)]
    for (_, image, label), (_, expected_image, expected_label) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(image, expected_image)
        np.testing.assert_array_equal(label, expected_label)
        assert image.dtype == np.float32 and label.dtype == np.uint8
    assert same(taken(feed, 0, 20, 1, 1), found) and same(taken(feed, 0, 20, 1e9, 5), found)
    assert not same(taken(feed_of(tmp_path, seed=2), 0, 20), found)


@pytest.mark.parametrize(("budget", "most"), [(0, 1), (1999, 1), (3500, 3), (8000, 8)])
def test_a_feed_is_no_further_ahead_than_its_budget(tmp_path: Path, budget: float, most: int) -> None:
    started: list[str] = []

    def counted(case: str, image: np.ndarray, label: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        started.append(case)
        return raw(case, image, label, rng)

    feed = feed_of(tmp_path, transform=counted)
    ahead_of_us = []
    for taken_so_far, _ in enumerate(feed.steps(feed.dataset(0, 30, 1000, budget)), start=1):
        time.sleep(0.03)
        ahead_of_us.append(len(started) - taken_so_far)
    assert max(ahead_of_us) == most  # it does read ahead, and stops there
    assert len(started) == 30


def test_a_feed_goes_on_at_any_step(tmp_path: Path) -> None:
    feed = feed_of(tmp_path)
    whole = taken(feed, 0, 16)
    for start in (0, 1, 6, 7, 15, 16):
        assert same(taken(feed, start, 16), whole[start:])


def test_ranks_of_a_feed_see_different_changes(tmp_path: Path) -> None:
    alone = taken(feed_of(tmp_path), 0, 12)
    dealt = [taken(feed_of(tmp_path, rank=rank, ranks=3), 0, 4) for rank in range(3)]
    assert same([step for steps in zip(*dealt, strict=True) for step in steps], alone)


def test_an_error_of_a_feed_is_raised_as_it_was(tmp_path: Path) -> None:
    def fail(case: str, image: np.ndarray, label: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        if case == "c3":
            raise UserError("block 0 of case 'c3' is damaged")
        return raw(case, image, label, rng)

    feed = feed_of(tmp_path, transform=fail)
    with pytest.raises(UserError, match=r"^block 0 of case 'c3' is damaged$"):
        taken(feed, 0, 7)


# Patches


@pytest.fixture
def spotted(tmp_path: Path) -> tuple[ShardReader, np.ndarray]:
    """Label 1 in 5 voxels, label 2 in 60, label 7 in one; blocks of two planes."""
    label = np.zeros((12, 10, 15), np.uint8)
    places = np.random.default_rng(3).permutation(label.size)
    label.ravel()[places[:5]], label.ravel()[places[5:65]], label.ravel()[places[65]] = 1, 2, 7
    image = np.arange(label.size, dtype="<i4").reshape(*label.shape, 1)
    return ShardReader([write(tmp_path, {"a": (image, label)}, 2)]), label


def test_patches_around_labels_are_balanced(spotted: tuple[ShardReader, np.ndarray]) -> None:
    """Each label alike, each of its voxels alike: a patch of one voxel is that voxel."""
    reader, label = spotted
    rng = np.random.default_rng(0)
    drawn = [tuple(first for first, _ in patches.draw(reader, "a", [1, 1, 1], 1.0, [1, 2], rng)) for _ in range(2000)]
    values = Counter(int(label.T[voxel]) for voxel in drawn)
    assert set(values) == {1, 2} and abs(values[1] - 1000) < 120  # five standard deviations
    voxels = Counter(voxel for voxel in drawn if label.T[voxel] == 1)
    assert len(voxels) == 5 and all(abs(count - 200) < 70 for count in voxels.values())
    assert len({voxel for voxel in drawn if label.T[voxel] == 2}) == 60


def test_patches_lie_within_and_everywhere(spotted: tuple[ShardReader, np.ndarray]) -> None:
    reader, label = spotted
    for foreground in (0.0, 0.5, 1.0):
        rng = np.random.default_rng(0)
        boxes = [patches.draw(reader, "a", [4, 20, 3], foreground, [1, 2, 7], rng) for _ in range(300)]
        assert all([last - first for first, last in box] == [3, 10, 4] for box in boxes)
        assert all(first >= 0 and last <= edge for box in boxes for (first, last), edge in zip(box, label.T.shape, strict=True))
        starts = {box[0][0] for box in boxes}
        assert starts == set(range(13)) or foreground
        small = [patches.draw(reader, "a", [2, 1, 2], foreground, [1, 2, 7], rng) for _ in range(300)]
        share = np.mean([label.T[tuple(slice(*edge) for edge in box)].any() for box in small])
        assert share == 1 if foreground == 1 else abs(share - (0.14 + 0.86 * foreground)) < 0.1


def test_a_case_without_labels_has_patches_anywhere(spotted: tuple[ShardReader, np.ndarray]) -> None:
    reader, _ = spotted
    boxes = {patches.draw(reader, "a", [4, 4, 4], 1.0, [3], np.random.default_rng(seed)) for seed in range(50)}
    assert len(boxes) > 40


def test_a_feed_of_patches_reads_them(spotted: tuple[ShardReader, np.ndarray]) -> None:
    reader, label = spotted
    image = np.arange(label.size).reshape(label.shape).T

    def part(case: str, rng: np.random.Generator) -> patches.Box:
        return patches.draw(reader, case, [3, 4, 5], 0.5, [1, 2], rng)

    feed = Feed(
        reader,
        ["a"],
        1,
        0,
        lambda case, image, label, rng: (image.astype(np.float32), label),
        (tf.TensorSpec((None, None, None, 1), tf.float32), SIGNATURE[1]),
        part,
    )
    found = taken(feed, 0, 30)
    assert len({step[1].tobytes() for step in found}) > 20
    for _, voxels, classes in found:
        assert voxels.shape == (5, 4, 3, 1)
        z, y, x = np.argwhere(image == int(voxels[0, 0, 0, 0]))[0]
        np.testing.assert_array_equal(voxels[..., 0], image[z : z + 5, y : y + 4, x : x + 3])
        np.testing.assert_array_equal(classes, label.T[z : z + 5, y : y + 4, x : x + 3])
    assert same(taken(feed, 11, 30), found[11:])


# Memory

EPOCHS = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
import teravox.network
import tensorflow as tf
import numpy as np, psutil
from shard_files import volume, write
from teravox.feed import Feed
from teravox.shard_reader import ShardReader
rng = np.random.default_rng(0)
path = write(Path(sys.argv[1]), {f"c{i}": volume(rng, (128, 128, 64), 2, "<i2") for i in range(2)}, 16)
signature = (tf.TensorSpec((None, None, None, None), tf.int16), tf.TensorSpec((None, None, None), tf.uint8))
feed = Feed(ShardReader([path]), ["c0", "c1"], 0, 0, lambda case, image, label, rng: (image, label), signature)
rss = []
for number, (case, image, label) in enumerate(feed.steps(feed.dataset(0, 100, 5 * 2**20, 5 * 2**20))):
    if number % 10 == 9:
        rss.append(psutil.Process().memory_info().rss)
print(json.dumps(rss))
"""


def test_memory_is_flat_over_fifty_epochs(tmp_path: Path) -> None:
    """Two volumes of 5 MB, 100 steps: one kept per epoch would be 250 MB."""
    paths = [str(Path(__file__).resolve().parents[1] / "scripts"), str(Path(__file__).resolve().parent)]
    done = subprocess.run([sys.executable, "-c", EPOCHS, str(tmp_path), *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rss = json.loads(done.stdout.splitlines()[-1])
    assert max(rss) - rss[1] < 12e6, rss  # about two volumes: those on their way
