"""Frames and Examples as bytes: equal to what TensorFlow writes."""

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import teravox.network  # noqa: F401, isort: skip
import tensorflow as tf

from teravox import tfrecord

FEATURES = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.one_of(
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
        st.lists(st.binary(max_size=200), max_size=3),
        st.binary(max_size=300).map(bytearray),
    ),
    max_size=6,
)


def by_tensorflow(features: dict[str, list[int] | list[bytes] | bytearray]) -> tf.train.Example:
    feature = {}
    for key, values in features.items():
        if isinstance(values, bytearray):
            feature[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[bytes(values)]))
        elif values and isinstance(values[0], int):
            feature[key] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            feature[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    return tf.train.Example(features=tf.train.Features(feature=feature))


@settings(deadline=None, max_examples=300)
@given(FEATURES)
def test_an_example_is_what_tensorflow_makes_of_it(features: dict[str, list[int] | list[bytes] | bytearray]) -> None:
    payloads = [bytes(features[key]) for key in sorted(features, key=str.encode) if isinstance(features[key], bytearray)]  # type: ignore[arg-type]
    pieces = tfrecord.example({key: tfrecord.Payload(len(values)) if isinstance(values, bytearray) else values for key, values in features.items()})
    assert len(pieces) == len(payloads) + 1
    joined = b"".join(piece + payload for piece, payload in zip(pieces, [*payloads, b""], strict=True))
    expected = by_tensorflow(features)
    assert tf.train.Example.FromString(joined) == expected and len(joined) == expected.ByteSize()
    keys = sorted(features)  # protobuf puts a key before another that it begins with
    if not any(later.startswith(key) for key, later in itertools.pairwise(keys)):
        assert joined == expected.SerializeToString(deterministic=True)


def test_sizes_around_each_byte_of_a_length() -> None:
    for size in (0, 1, 116, 117, 118, 119, 120, 121, 122, 126, 127, 128, 16370, 16383, 16384, 2**21):
        data = bytes(size)
        first, last = tfrecord.example({"image": tfrecord.Payload(size), "z": [1]})
        assert first + data + last == by_tensorflow({"image": bytearray(data), "z": [1]}).SerializeToString(deterministic=True)


def test_a_length_beyond_the_limit_of_a_message_is_still_written_right() -> None:
    piece = tfrecord.example({"image": tfrecord.Payload(2**33)})[0]
    assert piece.endswith(tfrecord.varint(2**33)) and tfrecord.varint(2**33).hex() == "8080808020"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_frames_are_what_tensorflow_writes(records: list[bytes]) -> None:
    path = Path(tempfile.mkdtemp()) / "frames"
    try:
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        assert path.read_bytes() == b"".join(tfrecord.header(len(data)) + data + tfrecord.masked(tfrecord.crc32c(data)) for data in records)
    finally:
        shutil.rmtree(path.parent)


def test_a_crc_may_come_in_parts() -> None:
    assert tfrecord.crc32c(b"6789", tfrecord.crc32c(b"12345")) == tfrecord.crc32c(b"123456789") == 0xE3069283  # the catalogue's check value
