"""Content hashes: what they depend on, and what they do not."""

from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from teravox import hashing

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("size", [0, 1, 5000, hashing.MAP_BYTES, hashing.MAP_BYTES + 1])
def test_a_file_s_hash_is_that_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = RNG.bytes(size)
    (tmp_path / "a").write_bytes(data)
    assert hashing.file_digest(tmp_path / "a") == blake3(data).hexdigest()


def test_the_published_value_of_the_empty_input() -> None:
    assert hashing.text_digest("") == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


def test_a_file_name_that_is_not_utf8_has_a_hash() -> None:
    name = b"M\xfcller.dcm".decode(errors="surrogateescape")
    assert hashing.text_digest(name) == blake3(b"M\xfcller.dcm").hexdigest()


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4", "f4", "f8"])
def test_memory_order_and_byte_order_do_not_matter(tmp_path: Path, dtype: str) -> None:
    array = (RNG.random((4, 5, 6)) * 100).astype(dtype)
    expected = hashing.array_digest(array)
    assert hashing.array_digest(np.asfortranarray(array)) == expected
    assert hashing.array_digest(array.astype(array.dtype.newbyteorder(">"))) == expected
    assert hashing.array_digest(np.repeat(array, 2, axis=2)[:, :, ::2]) == expected
    mapped = np.memmap(tmp_path / "a", array.dtype, "w+", shape=array.shape, order="F")
    mapped[:] = array
    assert hashing.array_digest(mapped) == expected


def test_values_dtype_shape_and_axis_order_matter() -> None:
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    changed = array.copy()
    changed[1, 2, 3] += 1
    others: list[np.ndarray] = [
        changed,
        array.astype(np.int32),
        array.view(np.uint16),
        array.reshape(4, 3, 2),
        array.T,
        array.ravel(),
        array[None],
        np.flip(array, 1),
    ]
    digests = {hashing.array_digest(other) for other in [array, *others]}
    assert len(digests) == 1 + len(others)


def test_two_arrays_are_not_one_array() -> None:
    a, b = np.zeros(2, np.uint8), np.zeros(3, np.uint8)
    assert len({hashing.array_digest(a, b), hashing.array_digest(b, a), hashing.array_digest(np.zeros(5, np.uint8))}) == 3


def test_a_volume_s_hash_holds_its_geometry() -> None:
    array, affine = np.zeros((2, 2, 2), np.uint8), np.eye(4)
    moved = affine.copy()
    moved[0, 3] = 1e-3
    assert hashing.volume_digest(array, affine) == hashing.volume_digest(array, affine.astype(np.float32))
    assert hashing.volume_digest(array, affine) != hashing.volume_digest(array, moved)
