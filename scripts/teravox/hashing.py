"""Content hashes: of a file's bytes, and of what a volume means (voxels and geometry, whatever the file format)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from blake3 import blake3

CHUNK_BYTES = 1 << 24
MAP_BYTES = 1 << 20  # a mapping pays from about this size on


def file_digest(path: Path) -> str:
    """BLAKE3 of a file's bytes, as 64 hexadecimal digits."""
    hasher = blake3()
    path = Path(path)
    if path.stat().st_size >= MAP_BYTES:
        hasher.update_mmap(path)
    else:
        hasher.update(path.read_bytes())
    return hasher.hexdigest()


def text_digest(text: str) -> str:
    """BLAKE3 of a text in UTF-8, as 64 hexadecimal digits; a file name that is not UTF-8 counts with its own bytes."""
    return blake3(text.encode(errors="surrogateescape")).hexdigest()


def array_digest(*arrays: np.ndarray) -> str:
    """BLAKE3 over dtype, shape and values (first axis fastest, little-endian) of each array; memory order and file format do not
    matter.

    The order is that of NIfTI, and arrays are read plane by plane along their last axes, so a memory-mapped volume is read from
    end to end once and never held whole.
    """
    hasher = blake3()
    for array in arrays:
        _add(hasher, array)
    return hasher.hexdigest()


def _head(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    return f"{dtype.newbyteorder('<').str} {shape};".encode()


def _add(hasher: blake3, array: np.ndarray) -> None:
    hasher.update(_head(array.shape, array.dtype))
    for plane in _planes(array.T):
        hasher.update(np.ascontiguousarray(plane, dtype=array.dtype.newbyteorder("<")).tobytes())


def _planes(array: np.ndarray) -> Iterator[np.ndarray]:
    """The two-dimensional parts of an array in C order; an array of two axes and less is its only part."""
    if array.ndim <= 2:
        yield array
    else:
        for part in array:
            yield from _planes(part)


def volume_digest(array: np.ndarray, affine: np.ndarray) -> str:
    """Content hash of a volume: array (x, y, z[, c]) and its 4x4 affine in mm, RAS+, as float64."""
    return array_digest(array, np.asarray(affine, np.float64))


class VolumeHasher:
    """`volume_digest` of a volume that comes in parts, in the order of a little-endian NIfTI file. shape : (x, y, z[, c])."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._hasher = blake3(_head(shape, dtype))

    def update(self, part: np.ndarray) -> None:
        """The next voxels, C-contiguous; a part may end within a voxel when it comes as bytes."""
        self._hasher.update(part.reshape(-1).view(np.uint8).data)

    def digest(self, affine: np.ndarray) -> str:
        """affine : (4, 4), RAS+, mm."""
        _add(self._hasher, np.asarray(affine, np.float64))
        return self._hasher.hexdigest()
