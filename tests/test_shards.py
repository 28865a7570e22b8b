"""Shards: what was written comes back, whole or in part; every damage is found; plain TensorFlow reads them."""

import contextlib
import copy
import itertools
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import teravox.network  # noqa: F401, isort: skip
import tensorflow as tf

import shard_files
from shard_files import Case, native, volume, write
from teravox import codecs, files, shard_checks, shard_reader, shard_writer, sharding, shards, tfrecord
from teravox.errors import UserError
from teravox.shard_reader import ShardReader

RNG = np.random.default_rng(0)
CODECS = ["none", "gzip", "blosc"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("check", ["checksum", "size"])
@pytest.mark.parametrize("dtype", ["<i2", "u1", "<f4", ">i2", ">f4"])
def test_what_was_written_comes_back(tmp_path: Path, dtype: str, check: str, codec: str) -> None:
    for number, (planes, shape, channels) in enumerate(itertools.product((1, 2, 100), ((3, 4, 5), (7, 1, 2), (1, 1, 1)), (1, 3))):
        cases = {name: volume(RNG, shape, channels, dtype, ("u1", ">u2")[number % 2]) for name in ("b", "a")}
        cases["f"] = (np.asfortranarray(cases["a"][0]), np.asfortranarray(cases["a"][1]))
        reader = ShardReader([write(tmp_path / str(number), cases, planes, codec, threads=1 + number % 2)], check, threads=1 + number % 3)
        for name, (image, label) in cases.items():
            found = native(reader.load(name))
            np.testing.assert_array_equal(found[0], image)
            np.testing.assert_array_equal(found[1], label)
            assert found[0].dtype == np.dtype(dtype).newbyteorder("<")
            assert found[1].dtype == label.dtype.newbyteorder("<")
        assert reader.place("a").entry["statistics"]["c0"] == {"mean": 0.1, "std": 1.5, "dtype": np.dtype(dtype).name}
        np.testing.assert_array_equal(reader.place("a").affine, shard_files.AFFINE)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("check", ["checksum", "size"])
def test_any_planes_of_a_case(tmp_path: Path, check: str, codec: str) -> None:
    cases = {name: volume(RNG, (4, 3, 9), 2, "<i2") for name in "ab"}
    reader = ShardReader([write(tmp_path, cases, 2, codec)], check)
    for name, (image, label) in cases.items():
        for first, last in itertools.combinations(range(10), 2):
            found = native(reader.load(name, first, last))
            np.testing.assert_array_equal(found[0], image[:, :, first:last])
            np.testing.assert_array_equal(found[1], label[:, :, first:last])
        for block, first in enumerate(range(0, 9, 2)):
            np.testing.assert_array_equal(reader.load_label(name, block), label.T[first : first + 2])
    for first, last in ((0, 10), (-1, 3), (4, 4), (5, 4), (9, 10)):
        with pytest.raises(UserError, match=f"case 'a' has planes 0 to 9, asked for {first} to {last}"):
            reader.load("a", first, last)


def test_nothing_else_of_a_shard_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {name: volume(RNG, (4, 3, 9), 2, "<i2") for name in "abc"}
    index = files.read_json(write(tmp_path, cases, 2))
    places: list[tuple[int, int]] = []
    original = os.preadv

    def watched(descriptor: int, buffers: list[memoryview], position: int) -> int:
        places.append((position, position + sum(map(len, buffers))))
        return original(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", watched)

    def touched(**wanted: Any) -> list[tuple[int, int]]:
        return [(record["offset"], record["offset"] + record["length"]) for record in index["records"] if wanted.items() <= record.items()]

    for check, arguments, allowed in (
        ("checksum", ("b",), touched(case="b")),
        ("checksum", ("b", 2, 4), touched(case="b", block=1)),
        ("checksum", ("b", 3, 4), touched(case="b", block=1)),
        ("size", ("c", 5, 7), touched(case="c", block=2) + touched(case="c", block=3)),
    ):
        places.clear()
        ShardReader([tmp_path / "00000-of-00001.index.json"], check).load(*arguments)
        assert places and all(any(low <= first and last <= high for low, high in allowed) for first, last in places)
        read = sum(last - first for first, last in places)
        assert read == (sum(high - low for low, high in allowed) if check == "checksum" else 2 * 4 * 3 * (2 * 2 + 1))


def test_an_array_is_as_tensorflow_wants_it(tmp_path: Path) -> None:
    reader = ShardReader([write(tmp_path, {"a": volume(RNG, (3, 5, 7), 1, "<f4")}, 3)])
    assert all(array.ctypes.data % 64 == 0 and array.flags.c_contiguous for array in reader.load("a"))


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_plain_tensorflow_reads_the_same_bytes(tmp_path: Path, codec: str) -> None:
    image, label = volume(RNG, (4, 3, 5), 2, ">i2")
    index = write(tmp_path, {"a": (image, label)}, 2, codec)
    parts, masks = [], []
    for raw in tf.data.TFRecordDataset(str(tmp_path / "00000-of-00001.tfrecord")):
        texts = ("image", "label", "image_dtype", "affine", "image_crc32", "label_crc32", "codec", "case", "patient", "statistics")
        spec = {key: tf.io.FixedLenFeature([], tf.string) for key in texts}
        example = tf.io.parse_single_example(
            raw,
            {
                **spec,
                "extent": tf.io.FixedLenFeature([2], tf.int64),
                "shape": tf.io.FixedLenFeature([4], tf.int64),
                "channels": tf.io.FixedLenFeature([2], tf.string),
                "version": tf.io.FixedLenFeature([], tf.int64),
            },
        )
        assert example["image_dtype"].numpy() == b"<i2" and example["version"].numpy() == 2 and example["patient"].numpy() == b"pa"
        assert example["channels"].numpy().tolist() == [b"c0", b"c1"]
        first, last = example["extent"].numpy()
        raws = {name: tf.io.decode_compressed(example[name], "GZIP" if codec == "gzip" else "") for name in ("image", "label")}
        for name, data in raws.items():
            assert struct.pack("<I", zlib.crc32(data.numpy())) == example[f"{name}_crc32"].numpy()
        parts.append(tf.reshape(tf.io.decode_raw(raws["image"], tf.int16), [last - first, *example["shape"].numpy()[1:]]).numpy())
        masks.append(tf.reshape(tf.io.decode_raw(raws["label"], tf.uint8), [last - first, *example["shape"].numpy()[1:3]]).numpy())
        np.testing.assert_array_equal(tf.io.decode_raw(example["affine"], tf.float64).numpy().reshape(4, 4), shard_files.AFFINE)
    np.testing.assert_array_equal(np.concatenate(parts).transpose(2, 1, 0, 3), image)
    np.testing.assert_array_equal(np.concatenate(masks).transpose(2, 1, 0), label)
    assert len(parts) == len(files.read_json(index)["records"]) == 3


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_volumes_give_the_same_bytes(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the threads, the order in memory or of the bytes, and the pieces in which they are read."""
    image = np.round(RNG.normal(0, 30, (40, 30, 21, 2)).cumsum(0)).astype("<i2")
    label = (image[..., 0] > 100).astype("u1")
    write(tmp_path / "x", {"a": (image, label), "b": (image[::-1], label)}, 2, codec)
    other = np.asfortranarray(image).astype(">i2")
    monkeypatch.setattr(shard_writer.Volume.chunks, "__defaults__", (1000,))
    for threads in (1, 2, 5):
        write(tmp_path / "y", {"a": (other, np.asfortranarray(label)), "b": (other[::-1], label)}, 2, codec, threads=threads)
        assert (tmp_path / "x/00000-of-00001.tfrecord").read_bytes() == (tmp_path / "y/00000-of-00001.tfrecord").read_bytes()
        expected, found = (files.read_json(tmp_path / name / "00000-of-00001.index.json") for name in "xy")
        assert expected["records"] == found["records"]


def test_a_large_volume_is_decoded_to_the_same(tmp_path: Path) -> None:
    """Several of a codec's own parts, and threads of its own: their order must not matter."""
    array = np.round(np.random.default_rng(1).normal(0, 30, 3_000_000).cumsum()).astype("<i2")
    for codec in ("gzip", "blosc"):
        packed = {codecs.encode(codec, array) for _ in range(5)}
        assert len(packed) == 1
        out = np.empty_like(array)
        codecs.decode(codec, packed.pop(), out)
        np.testing.assert_array_equal(out, array)


@pytest.mark.parametrize("codec", ["gzip", "blosc"])
def test_what_no_codec_made_is_refused(codec: str) -> None:
    array = np.arange(5000, dtype="<i2")
    data = codecs.encode(codec, array)
    larger = codecs.encode(codec, np.arange(9000, dtype="<i2"))
    for bad in (b"", data[:10], data[:-1], data + b"\0", bytes(len(data)), b"\xff" * 200, larger, codecs.encode(codec, array[:10])):
        with pytest.raises(UserError, match=f"^{codec} data do not decode to 10000 bytes"):
            codecs.decode(codec, bad, np.empty_like(array))


def test_an_index_says_what_compressed(tmp_path: Path) -> None:
    for codec in CODECS:
        found = files.read_json(write(tmp_path / codec, {"a": volume(RNG, (3, 4, 4), 1, "<i2")}, 2, codec))["codec"]
        assert found["name"] == codec and (found["library"] == "none") == (codec == "none")


# Damage


Small = tuple[dict[str, Any], bytes, dict[str, Case]]


@pytest.fixture(scope="module", params=CODECS)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Small:
    folder = tmp_path_factory.mktemp("shard")
    cases = {name: volume(RNG, (3, 4, 4), 1, "<i2") for name in "ab"}
    index = write(folder, cases, 2, request.param)
    return files.read_json(index), (folder / "00000-of-00001.tfrecord").read_bytes(), cases


def put(folder: Path, index: dict[str, Any], data: bytes) -> Path:
    (folder / "00000-of-00001.tfrecord").write_bytes(data)
    files.write_json(folder / "00000-of-00001.index.json", index)
    return folder / "00000-of-00001.index.json"


def found_by_verify(path: Path) -> list[str]:
    return list(shard_checks.faults([path], None, None, lambda _: None))


def test_a_good_shard_has_no_fault(tmp_path: Path, small: Small) -> None:
    assert found_by_verify(put(tmp_path, *small[:2])) == []


def test_every_bit_is_checked(tmp_path: Path, small: Small) -> None:
    """Verification finds a flip anywhere; reading finds it in what it reads, and gives the right values otherwise."""
    index, data, cases = small
    spans = [(record["offset"], record["offset"] + record["length"]) for record in index["records"] if record["case"] == "a"]
    path = put(tmp_path, index, data)
    reader, frames = ShardReader([path]), 0
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        path.with_name("00000-of-00001.tfrecord").write_bytes(damaged)
        faults = found_by_verify(path)
        assert len(faults) == 1 and "\n" not in faults[0] and "00000-of-00001.tfrecord: block" in faults[0]
        if any(first <= position < last for first, last in spans):
            with pytest.raises(UserError, match=r"00000-of-00001\.tfrecord: block \d of case 'a' is damaged \(SHA-256 differs"):
                reader.load("a")
        elif position % 5 == 0:  # another case's data, or the framing that only other readers use
            frames += 1
            np.testing.assert_array_equal(native(reader.load("a"))[0], cases["a"][0])
    assert frames > 10


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_ten_thousand_random_bits(tmp_path: Path, codec: str) -> None:
    rng = np.random.default_rng(7)
    cases = {name: volume(rng, (30, 20, 25), 2, "<i2") for name in "abc"}
    path = write(tmp_path, cases, 4, codec)
    shard = shards.shard_path(path)
    size = shard.stat().st_size
    with shard.open("rb+", buffering=0) as stream:
        for place, bit in zip(rng.integers(0, size, 10_000), rng.integers(0, 8, 10_000), strict=True):
            byte = os.pread(stream.fileno(), 1, int(place))
            os.pwrite(stream.fileno(), bytes([byte[0] ^ 1 << int(bit)]), int(place))
            assert len(found_by_verify(path)) == 1, (place, bit)
            os.pwrite(stream.fileno(), byte, int(place))
    assert found_by_verify(path) == []


def test_a_flip_of_a_label_is_found_when_the_label_alone_is_read(tmp_path: Path, small: Small) -> None:
    index, data, _ = small
    record = index["records"][1]
    damaged = bytearray(data)
    damaged[record["offset"] + record["label"]["offset"] + record["label"]["length"] - 2] ^= 4
    with pytest.raises(UserError, match=r"block 1 of case 'a'.*(is damaged|do not decode)"):
        ShardReader([put(tmp_path, index, bytes(damaged))]).load_label("a", 1)


def test_every_truncation_is_found(tmp_path: Path, small: Small) -> None:
    index, data, _ = small
    path = put(tmp_path, index, data)
    shard, reader = shards.shard_path(path), ShardReader([path])
    for size in [*range(len(data)), len(data) + 1]:
        shard.write_bytes((data + b"\0")[:size])
        assert any(f"found {size} bytes, expected {len(data)}" in fault for fault in found_by_verify(path))
        if size % 7 == 0:
            for check in (lambda: reader.load("a"), lambda: reader.check_sizes(["a"]), lambda: reader.load_label("a", 0)):
                with pytest.raises(UserError, match=f"found {size} bytes, expected {len(data)}"):
                    check()
    shard.unlink()
    assert found_by_verify(path) == [f"{shard}: No such file or directory"]
    with pytest.raises(UserError, match="No such file"):
        reader.load("a")


def frames_of(index: dict[str, Any], data: bytes) -> list[bytes]:
    return [
        data[record["offset"] - tfrecord.HEADER_BYTES : record["offset"] + record["length"] + tfrecord.FOOTER_BYTES] for record in index["records"]
    ]


@pytest.mark.parametrize("kind", ["swapped", "swapped cases", "missing", "twice", "replaced", "all gone"])
def test_records_that_are_not_where_they_were(tmp_path: Path, small: Small, kind: str) -> None:
    index, data, _ = small
    frames = frames_of(index, data)
    changed = {
        "swapped": [frames[1], frames[0], *frames[2:]],
        "swapped cases": [frames[2], frames[1], frames[0], frames[3]],
        "missing": frames[:-1],
        "twice": [*frames, frames[0]],
        "replaced": [frames[0], frames[0], *frames[2:]],
        "all gone": [],
    }[kind]
    path = put(tmp_path, index, b"".join(changed))
    faults = found_by_verify(path)
    assert faults and all("\n" not in fault for fault in faults)
    with pytest.raises(UserError, match=r"is damaged|expected"):
        for case in "ab":
            ShardReader([path]).load(case)


def changed_index(index: dict[str, Any], kind: str) -> dict[str, Any]:
    index = copy.deepcopy(index)
    records = index["records"]
    if kind.startswith("without"):
        del records[int(kind[-1])]
    elif kind == "blocks swapped":
        records[0]["block"], records[1]["block"] = 1, 0
    elif kind == "extents swapped":
        records[0]["extent"], records[1]["extent"] = records[1]["extent"], records[0]["extent"]
    elif kind == "cases swapped":
        for record in records:
            record["case"] = {"a": "b", "b": "a"}[record["case"]]
    elif kind == "twice":
        records.append(records[0])
    elif kind == "offset":
        records[0]["offset"] += 1
    elif kind == "length":
        records[0]["length"] -= 1
    elif kind == "bytes":
        index["bytes"] += 1
    elif kind == "all gone":
        index["records"] = [record for record in records if record["case"] != "a"]
        index["count"] = 2
    elif kind == "case gone":
        del index["cases"]["a"]
    elif kind == "statistics":
        index["cases"]["a"]["statistics"]["c0"]["mean"] += 1e-9
    elif kind == "affine":
        index["cases"]["a"]["affine"][0][3] += 1
    elif kind == "labels":
        records[0]["label_voxels"]["1"] += 1
    elif kind == "sha":
        records[0]["sha256"] = records[1]["sha256"]
    elif kind == "version":
        index["version"] = 1
    elif kind == "no records":
        del index["records"]
    elif kind == "patient":
        index["cases"]["a"]["patient"] = "pb"
    return index


KINDS = [
    "without 0", "without 1", "blocks swapped", "extents swapped", "cases swapped", "twice", "offset", "length", "bytes", "all gone", "case gone",
    "statistics", "affine", "labels", "sha", "version", "no records", "patient",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_was_changed_is_found(tmp_path: Path, small: Small, kind: str) -> None:
    """By anyone who opens it: it records the hash of what it says."""
    path = put(tmp_path, changed_index(small[0], kind), small[1])
    expected = {"version": "version 1, expected 2", "no records": "not an index of a shard"}.get(kind, "its content differs from the hash")
    with pytest.raises(UserError, match=expected) as caught:
        ShardReader([path])
    assert "\n" not in str(caught.value)
    assert len(found_by_verify(path)) == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("version", "no records")])
def test_an_index_that_was_changed_with_its_hash_is_found(tmp_path: Path, small: Small, kind: str) -> None:
    """By verification, which compares all that it says with the records; by the reader, when blocks do not follow each other."""
    path = put(tmp_path, small[0], small[1])
    shard_files.seal(path, changed_index(small[0], kind))
    faults = found_by_verify(path)
    assert faults and all("\n" not in fault for fault in faults)
    if kind in ("statistics", "affine", "labels", "patient", "cases swapped"):
        return  # only the records know better, which are read in full by verification alone
    with pytest.raises(UserError):
        ShardReader([path]).load("a")


def test_a_case_that_went_in_and_is_not_there(tmp_path: Path) -> None:
    case = volume(RNG, (3, 4, 4), 1, "<i2")
    path = write(tmp_path, {"a": case}, 2)
    index = files.read_json(path)
    index["provenance"]["inputs"]["resample/b/image.nii"] = "0"
    files.write_json(path, index)
    assert found_by_verify(path) == [f"{path}: resample/b/image.nii is 0 by its provenance, and missing in the shard"]


def test_shards_of_other_volumes_are_refused(tmp_path: Path) -> None:
    """A good shard with its good index, made of something else, put in their place."""
    case = volume(RNG, (3, 4, 4), 1, "<i2")
    expected = {"a": files.read_json(write(tmp_path, {"a": case}, 2))["cases"]["a"]["volumes"]}
    reader = ShardReader([tmp_path / "00000-of-00001.index.json"])
    reader.check_sources(expected)
    reader = ShardReader([write(tmp_path, {"a": (case[0][::-1], case[1])}, 2)])
    with pytest.raises(UserError, match="case 'a' was made of other volumes than those resampled now"):
        reader.check_sources(expected)


def test_a_case_in_two_shards_is_found(tmp_path: Path) -> None:
    case = volume(RNG, (3, 4, 4), 1, "<i2")
    paths = [write(tmp_path, {"a": case}, 2, name=name) for name in ("00000-of-00002", "00001-of-00002")]
    (fault,) = shard_checks.faults(paths, None, None, lambda _: None)
    assert "holds case 'a', which is in" in fault


def test_a_flip_anywhere_in_an_index_is_found(tmp_path: Path) -> None:
    """But where it changes nothing that is meant: in white space, or in provenance that says nothing of the shard."""
    path = write(tmp_path, {"a": volume(RNG, (3, 4, 4), 1, "<i2")}, 2)
    data = path.read_bytes()
    missed = 0
    for position in range(len(data)):
        path.write_bytes(data[:position] + bytes([data[position] ^ 1 << position % 7]) + data[position + 1 :])
        faults = found_by_verify(path)
        assert all("\n" not in fault for fault in faults)
        missed += not faults
    assert missed < 0.02 * len(data)


def test_shards_that_are_missing_or_left_over(tmp_path: Path) -> None:
    paths = [write(tmp_path, {name: volume(RNG, (3, 4, 4), 1, "<i2")}, 2, name=f"0000{number}-of-00003") for number, name in enumerate("ab")]
    assert list(shard_checks.missing_shards(paths)) == [f"{tmp_path / '00002-of-00003.index.json'}: missing, though other shards are named -of-00003"]
    paths += [write(tmp_path, {"c": volume(RNG, (3, 4, 4), 1, "<i2")}, 2, name=name) for name in ("00002-of-00003", "00000-of-00001")]
    assert list(shard_checks.missing_shards(paths)) == [f"{tmp_path}: holds the shards of 2 numbers of shards, expected one; delete the old ones"]
    with pytest.raises(UserError, match=r"holds case 'c', which is in .*00002-of-00003\.tfrecord too"):
        ShardReader(paths)


def test_the_ledger_is_compared(tmp_path: Path) -> None:
    path = write(tmp_path / "shards", {"a": volume(RNG, (3, 4, 4), 1, "<i2")}, 2)
    ledger = {"jobs": [{"document": f"shards/{path.name}", "digest": shard_checks.hashing.file_digest(path)}], "artefacts": {}}
    assert list(shard_checks.check_ledger(path, ledger)) == []
    write(tmp_path / "shards", {"a": volume(RNG, (3, 4, 4), 1, "<i2")}, 2)  # another volume, a perfect shard
    assert found_by_verify(path) == []
    assert [fault.split(": has hash")[0] for fault in shard_checks.check_ledger(path, ledger)] == [str(path)]
    assert list(shard_checks.check_ledger(path, {"jobs": [], "artefacts": {}})) == [f"{path}: not in the ledger"]


def test_a_shard_without_cases(tmp_path: Path) -> None:
    path = write(tmp_path, {}, 1)
    index = files.read_json(path)
    assert (index["bytes"], index["count"], index["records"], index["cases"]) == (0, 0, [], {})
    assert (tmp_path / "00000-of-00001.tfrecord").stat().st_size == 0
    assert found_by_verify(path) == [] and ShardReader([path]).places == {}


@pytest.mark.parametrize("codec", CODECS)
def test_a_failure_leaves_no_shard(tmp_path: Path, codec: str) -> None:
    good = shard_files.source("a", volume(RNG, (3, 4, 9), 1, "<i2"))

    def broken(first: int, last: int) -> np.ndarray:
        if first > 4:
            raise UserError("a volume's file ends before its last voxel")
        return good.image(first, last)

    bad = shard_writer.Volume("b", good.entry, broken, good.label)
    with pytest.raises(UserError, match="ends before"):
        shard_writer.write_shard(tmp_path / "s.tfrecord", map(contextlib.nullcontext, [good, bad]), 100, codec, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_block_too_large_for_a_record_is_refused(tmp_path: Path) -> None:
    entry = {**shard_files.source("a", volume(RNG, (3, 4, 9), 1, "<i2")).entry, "shape": [2, 30000, 30000, 1]}
    huge = shard_writer.Volume("a", entry, lambda *_: np.zeros(0), lambda *_: np.zeros(0))
    with pytest.raises(UserError, match=r"case 'a': a block takes 2700000000 bytes, a record holds at most 2147483647; lower shard\.block_mb"):
        huge.extents(1)
    entry["shape"] = [2000, 1000, 1000, 1]
    with pytest.raises(UserError, match="a block takes 3000000000 bytes"):
        huge.extents(3e9)
    assert len(huge.extents(1e9)) == 7


@pytest.mark.parametrize(
    ("shape", "voxel", "size", "expected"), [((10, 10, 9), 3, 1e3, 3), ((10, 10, 9), 3, 299, 1), ((10, 10, 9), 3, 900, 3), ((1, 1, 1), 1, 1e9, 10**9)]
)
def test_a_block_is_no_larger_than_asked_but_for_one_plane(shape: tuple[int, int, int], voxel: int, size: float, expected: int) -> None:
    assert shards.block_planes(shape, voxel, size) == expected


def test_labels_are_counted(tmp_path: Path) -> None:
    image, label = volume(RNG, (5, 6, 7), 1, "<i2", "u2")
    label[label == 2] = 40000
    index = files.read_json(write(tmp_path, {"a": (image, label)}, 2))
    for record in index["records"]:
        values, counts = np.unique(label[:, :, slice(*record["extent"])], return_counts=True)
        assert record["label_voxels"] == {str(value): count for value, count in zip(values.tolist(), counts.tolist(), strict=True) if value}


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


HOSTILE: list[tuple[str, Any]] = [
    ("cases.a.shape", [10**9, 10**9, 10**9, 1]), ("cases.a.shape", [4, 4, 3]), ("cases.a.shape", [4, 4, -3, 1]), ("cases.a.shape", [4.0, 4, 3, 1]),
    ("cases.a.image_dtype", "O"), ("cases.a.image_dtype", "<c8"), ("cases.a.label_dtype", "<f4"), ("cases.a.image_dtype", "no type"),
    ("cases.a.affine", [[1, 0], [0, 1]]), ("cases.a.channels", []), ("cases.a.channels", ["x"]), ("cases.a", None), ("cases", []),
    ("records.0.offset", -5), ("records.0.length", -1), ("records.0.image.length", 10**15), ("records.0.image.offset", -3),
    ("records.0.label.offset", 0), ("records.0.extent", [0, 10**9]), ("records.0.extent", [-1, 2]), ("records.1.extent", [2, 2]),
    ("records.0.block", True), ("records.0.image.crc32", "x"), ("records.0.image", None), ("bytes", None), ("count", 10**9), ("codec", "none"),
    ("codec.name", "lzma"), ("records", {}),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), HOSTILE)
def test_a_hostile_index_is_one_line(tmp_path: Path, small: Small, key: str, value: Any) -> None:
    """Although it records the hash of what it says."""
    index = copy.deepcopy(small[0])
    *way, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    part: Any = index
    for step in way:
        part = part[step]
    part[last] = value
    path = put(tmp_path, index, small[1])
    shard_files.seal(path, index)
    with pytest.raises(UserError) as caught:
        ShardReader([path])
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
    assert len(found_by_verify(path)) == 1


def test_what_is_no_index_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "00000-of-00001.index.json"
    for text in ("[]", "{}", "3", '{"version": 2}', '{"version": 2, "provenance": 3}', "\xff"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(UserError) as caught:
            shard_reader.read_index(path)
        assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)
