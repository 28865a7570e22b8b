"""Shards: what was written comes back, every damage is found, and plain TensorFlow reads them."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teravox.network  # noqa: F401, isort: skip
import tensorflow as tf

from teravox import files, sharding, shards
from teravox.errors import UserError

RNG = np.random.default_rng(0)
AFFINE = np.diag([2.0, 2, 2, 1])


def volume(shape: tuple[int, int, int], channels: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    return (RNG.random((*shape, channels)) * 200).astype(dtype), RNG.integers(0, 3, shape).astype(np.uint8)


def write(folder: Path, cases: dict[str, tuple[np.ndarray, np.ndarray]], planes: int, name: str = "00000-of-00001") -> Path:
    def blocks():
        for case, (image, label) in cases.items():
            about = {
                "case": case,
                "patient": "p" + case,
                "affine": AFFINE,
                "channels": [f"c{i}" for i in range(image.shape[3])],
                "statistics": {"c0": {"mean": 0.1}},
            }
            for block, first in enumerate(range(0, label.shape[2], planes)):
                yield case, block, shards.block_example(image, label, first, min(first + planes, label.shape[2]), {**about, "block": block})

    index = shards.write_shard(folder / f"{name}.tfrecord", blocks())
    files.write_json(folder / f"{name}.index.json", index)
    return folder / f"{name}.index.json"


def native(loaded: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return loaded[0].transpose(2, 1, 0, 3), loaded[1].transpose(2, 1, 0)


@pytest.mark.parametrize("dtype", ["<i2", "u1", "<f4", ">i2", ">f4"])
@pytest.mark.parametrize("planes", [1, 2, 100])
@pytest.mark.parametrize(("shape", "channels"), [((3, 4, 5), 2), ((7, 1, 2), 1), ((1, 1, 1), 3)])
def test_what_was_written_comes_back(tmp_path: Path, dtype: str, planes: int, shape: tuple[int, int, int], channels: int) -> None:
    cases = {name: volume(shape, channels, dtype) for name in ("b", "a")}
    cases["f"] = tuple(np.asfortranarray(array) for array in cases["a"])  # type: ignore[assignment]
    reader = shards.ShardReader([write(tmp_path, cases, planes)])
    for name, (image, label) in cases.items():
        found = native(reader.load(name))
        np.testing.assert_array_equal(found[0], image)
        np.testing.assert_array_equal(found[1], label)
        assert found[0].dtype == np.dtype(dtype).newbyteorder("<")
    assert reader.statistics["a"] == {"c0": {"mean": 0.1}}


def test_plain_tensorflow_reads_the_same_bytes(tmp_path: Path) -> None:
    image, label = volume((4, 3, 5), 2, ">i2")
    index = write(tmp_path, {"a": (image, label)}, 2)
    parts, masks = [], []
    for raw in tf.data.TFRecordDataset(str(tmp_path / "00000-of-00001.tfrecord")):
        spec = {key: tf.io.FixedLenFeature([], tf.string) for key in ("image", "label", "image_dtype", "affine")}
        example = tf.io.parse_single_example(
            raw, {**spec, "extent": tf.io.FixedLenFeature([2], tf.int64), "shape": tf.io.FixedLenFeature([4], tf.int64)}
        )
        assert example["image_dtype"].numpy() == b"<i2"
        first, last = example["extent"].numpy()
        parts.append(tf.reshape(tf.io.decode_raw(example["image"], tf.int16), [last - first, *example["shape"].numpy()[1:]]).numpy())
        masks.append(tf.reshape(tf.io.decode_raw(example["label"], tf.uint8), [last - first, *example["shape"].numpy()[1:3]]).numpy())
        np.testing.assert_array_equal(tf.io.decode_raw(example["affine"], tf.float64).numpy().reshape(4, 4), AFFINE)
    np.testing.assert_array_equal(np.concatenate(parts).transpose(2, 1, 0, 3), image)
    np.testing.assert_array_equal(np.concatenate(masks).transpose(2, 1, 0), label)
    assert len(parts) == len(files.read_json(index)["records"]) == 3


def test_the_same_volumes_give_the_same_bytes(tmp_path: Path) -> None:
    cases = {"a": volume((4, 3, 5), 2, "<i2")}
    for name in ("x", "y"):
        write(tmp_path / name, cases, 2)
    for suffix in ("tfrecord", "index.json"):
        assert (tmp_path / f"x/00000-of-00001.{suffix}").read_bytes() == (tmp_path / f"y/00000-of-00001.{suffix}").read_bytes()
    # and another order in memory or of the bytes gives the same as well
    write(tmp_path / "z", {"a": (np.asfortranarray(cases["a"][0]).astype(">i2"), cases["a"][1])}, 2)
    assert (tmp_path / "z/00000-of-00001.tfrecord").read_bytes() == (tmp_path / "x/00000-of-00001.tfrecord").read_bytes()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], bytes, tuple[np.ndarray, np.ndarray]]:
    folder = tmp_path_factory.mktemp("shard")
    case = volume((3, 4, 4), 1, "<i2")
    index = write(folder, {"a": case, "b": volume((3, 4, 4), 1, "<i2")}, 2)
    return index, files.read_json(index), (folder / "00000-of-00001.tfrecord").read_bytes(), case


def test_every_bit_flip_in_the_data_is_found(tmp_path: Path, small: tuple[Path, dict[str, Any], bytes, Any]) -> None:
    _, index, data, case = small
    files.write_json(tmp_path / "s.index.json", index)
    spans = [(record["offset"], record["offset"] + record["length"]) for record in index["records"] if record["case"] == "a"]
    frames = 0
    for position in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        (tmp_path / "s.tfrecord").write_bytes(damaged)
        reader = shards.ShardReader([tmp_path / "s.index.json"])
        if any(first <= position < last for first, last in spans):
            with pytest.raises(UserError, match=r"s\.tfrecord: block \d of case 'a' is damaged"):
                reader.load("a")
        else:  # another case's data, or the framing that only other readers use
            frames += 1
            np.testing.assert_array_equal(native(reader.load("a"))[0], case[0])
    assert frames > 10


def test_every_truncation_is_found(tmp_path: Path, small: tuple[Path, dict[str, Any], bytes, Any]) -> None:
    _, index, data, _ = small
    files.write_json(tmp_path / "s.index.json", index)
    boundaries = [record["offset"] + record["length"] + shards.FOOTER_BYTES for record in index["records"]]
    assert boundaries[-1] == len(data)
    for size in [0, 4, 12, *boundaries[:-1], boundaries[0] + 4, len(data) - 1, len(data) + 1]:
        (tmp_path / "s.tfrecord").write_bytes((data + b"\0")[:size])
        with pytest.raises(UserError, match=f"found {size} bytes, expected {len(data)}"):
            shards.ShardReader([tmp_path / "s.index.json"]).load("a")
    (tmp_path / "s.tfrecord").unlink()
    with pytest.raises(UserError, match="No such file"):
        shards.ShardReader([tmp_path / "s.index.json"]).load("a")


def shuffled(index: dict[str, Any], kind: str) -> dict[str, Any]:
    index = json.loads(json.dumps(index))
    records = index["records"]
    if kind.startswith("without"):
        del records[int(kind[-1])]
    elif kind == "blocks swapped":
        records[0]["block"], records[1]["block"] = 1, 0
    elif kind == "cases swapped":
        for record in records:
            record["case"] = {"a": "b", "b": "a"}[record["case"]]
    elif kind == "twice":
        records.append(records[0])
    elif kind == "offset":
        records[0]["offset"] += 1
    elif kind == "length":
        records[0]["length"] -= 1
    elif kind == "all gone":
        index["records"] = [record for record in records if record["case"] != "a"]
    elif kind == "version":
        index["version"] = 2
    return index


@pytest.mark.parametrize(("kind", "expected"), [
    ("without 0", "a block is missing"), ("without 1", "a block is missing"), ("blocks swapped", "a block is missing"),
    ("cases swapped", "a block of case 'b' stands where the index has case 'a'"), ("twice", "a block is missing"),
    ("offset", "is damaged"), ("length", "is damaged"), ("all gone", "case 'a' is in no shard"), ("version", "version 2, expected 1"),
])  # fmt: skip
def test_an_index_that_does_not_fit_is_found(tmp_path: Path, small: tuple[Path, dict[str, Any], bytes, Any], kind: str, expected: str) -> None:
    (tmp_path / "s.tfrecord").write_bytes(small[2])
    files.write_json(tmp_path / "s.index.json", shuffled(small[1], kind))
    with pytest.raises(UserError, match=expected) as caught:
        shards.ShardReader([tmp_path / "s.index.json"]).load("a")
    assert "\n" not in str(caught.value)


def test_the_frames_are_tfrecord_s(small: tuple[Path, dict[str, Any], bytes, Any]) -> None:
    _, index, data, _ = small
    for record in index["records"]:
        (length,) = struct.unpack("<Q", data[record["offset"] - shards.HEADER_BYTES :][:8])
        assert length == record["length"]


def test_a_shard_without_cases(tmp_path: Path) -> None:
    index = files.read_json(write(tmp_path, {}, 1))
    assert index == {"version": 1, "bytes": 0, "records": []}
    assert (tmp_path / "00000-of-00001.tfrecord").stat().st_size == 0


def test_a_failure_leaves_no_shard(tmp_path: Path) -> None:
    def blocks():
        yield "a", 0, b"abc"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        shards.write_shard(tmp_path / "s.tfrecord", blocks())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "voxel", "size", "expected"), [((10, 10, 9), 3, 1e3, 3), ((10, 10, 9), 3, 299, 1), ((10, 10, 9), 3, 900, 3), ((1, 1, 1), 1, 1e9, 10**9)]
)
def test_a_block_is_no_larger_than_asked_but_for_one_plane(shape: tuple[int, int, int], voxel: int, size: float, expected: int) -> None:
    assert shards.block_planes(shape, voxel, size) == expected


def test_a_patient_keeps_its_shard_when_others_come() -> None:
    patients = {f"c{i}{visit}": f"p{i}" for i in range(40) for visit in "ab"}
    cases = {name: {"patient": "a pseudonym", "set": "train"} for name in patients}
    fewer = {name: case for name, case in cases.items() if patients[name] not in ("p3", "p7")}
    found = {shard: sharding.cases_in(shard, 3, cases, patients) for shard in sharding.shard_names(3)}
    assert sorted(name for names in found.values() for name in names) == sorted(cases)
    for shard, names in found.items():
        assert {f"{name[:-1]}{visit}" for name in names for visit in "ab"} == set(names)
        assert sharding.cases_in(shard, 3, fewer, patients) == [name for name in names if name in fewer]
        assert 10 < len(names) < 45
    assert sharding.cases_in("00000-of-00001", 1, {"a": {"patient": "P", "set": "test"}}, {"a": "p"}) == []  # test cases train nothing
    assert sharding.shard_names(2) == ["00000-of-00002", "00001-of-00002"]
