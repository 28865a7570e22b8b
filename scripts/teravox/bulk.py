"""Uncompressed NIfTI files read and written a block at a time, by position, from any number of threads: no file is ever held or mapped whole.

A mapped page counts as memory of the process that touched it, a page that was read by position does not.
"""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import nibabel as nib
import numpy as np
from isal import igzip

from teravox import files, hashing, store
from teravox.errors import UserError
from teravox.grids import Grid

CHUNK_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Bulk:
    """Voxels of an open file. shape : (x, y, z) or (x, y, z, c); affine : (4, 4), RAS+, mm; offset : of the first voxel in the file, bytes.

    Blocks are arrays (z, y, x) in C order, which is the order of the file.
    """

    descriptor: int
    shape: tuple[int, ...]
    dtype: np.dtype
    affine: np.ndarray
    offset: int

    @property
    def grid(self) -> Grid:
        """Of its first three axes."""
        return Grid((self.shape[0], self.shape[1], self.shape[2]), self.affine)

    def read(self, z0: int, z1: int, y0: int, y1: int, channel: int = 0) -> np.ndarray:
        """The planes z0..z1-1 and rows y0..y1-1 at full width. Raises UserError when the file ends before."""
        block = np.empty((z1 - z0, y1 - y0, self.shape[0]), self.dtype)
        for place, part in self._parts(block, z0, y0, channel):
            _transfer(os.preadv, self.descriptor, part, place)
        return block

    def write(self, block: np.ndarray, z0: int, y0: int, channel: int = 0) -> None:
        """Put a block of the file's own type, C-contiguous and of full width, where its first plane is z0 and its first row y0."""
        for place, part in self._parts(block, z0, y0, channel):
            _transfer(os.pwritev, self.descriptor, part, place)

    def _parts(self, block: np.ndarray, z0: int, y0: int, channel: int) -> Iterator[tuple[int, np.ndarray]]:
        """Position in the file of each run of bytes of a block: the whole block if its rows are all, else its planes."""
        width, height, depth = self.shape[:3]
        row = width * self.dtype.itemsize
        first = self.offset + ((channel * depth + z0) * height + y0) * row
        if block.shape[1] == height:
            yield first, block
        else:
            yield from ((first + number * height * row, plane) for number, plane in enumerate(block))

    def blocks(self, channel: int = 0) -> Iterator[tuple[int, int, np.ndarray]]:
        """The volume in the order of the file, some planes, or some rows of a plane, at a time: (first plane, first row, array (z, y, x))."""
        row = self.shape[0] * self.dtype.itemsize
        rows = min(max(1, CHUNK_BYTES // row), self.shape[1])
        planes = max(1, CHUNK_BYTES // (row * self.shape[1]))
        for z0 in range(0, self.shape[2], planes):
            for y0 in range(0, self.shape[1], rows):
                yield z0, y0, self.read(z0, min(z0 + planes, self.shape[2]), y0, min(y0 + rows, self.shape[1]), channel)

    def parts(self, channel: int = 0) -> Iterator[np.ndarray]:
        """The arrays of `blocks`."""
        return (part for _, _, part in self.blocks(channel))

    def digest(self) -> str:
        """`hashing.volume_digest` of the file's voxels and affine."""
        hasher = hashing.VolumeHasher(self.shape, self.dtype)
        for channel in range(self.shape[3] if len(self.shape) > 3 else 1):
            for part in self.parts(channel):
                hasher.update(part)
        return hasher.digest(self.affine)


def _transfer(call: Any, descriptor: int, array: np.ndarray, position: int) -> None:
    try:
        files.transfer(call, descriptor, array.reshape(-1).view(np.uint8).data, position)
    except EOFError:
        raise UserError("a volume's file ends before its last voxel, expected all that its header announces; make it again") from None


@contextlib.contextmanager
def create(path: Path, shape: tuple[int, ...], dtype: np.dtype, affine: np.ndarray) -> Iterator[Bulk]:
    """A new NIfTI file, all voxels 0 until they are written; NIfTI-2 above 32,767 voxels along an axis. shape, affine : as of `Bulk`."""
    with path.open("w+b") as stream:
        yield _new(stream, shape, np.dtype(dtype), affine)


@contextlib.contextmanager
def temporary(folder: Path, shape: tuple[int, ...], dtype: np.dtype, affine: np.ndarray) -> Iterator[Bulk]:
    """`create` in a file without a name, which is gone however the process ends. folder : on the disk to use."""
    with files.named(folder), tempfile.TemporaryFile(dir=folder) as stream:
        yield _new(stream, shape, np.dtype(dtype), affine)


def _new(stream: BinaryIO, shape: tuple[int, ...], dtype: np.dtype, affine: np.ndarray) -> Bulk:
    header = nib.Nifti2Header() if max(shape) > np.iinfo(np.int16).max else nib.Nifti1Header()
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    header.set_xyzt_units("mm")
    header.set_sform(affine, code=1)
    header.set_qform(affine, code=1, strip_shears=True)
    header["magic"] = header.single_magic
    header.set_slope_inter(1, 0)
    offset = header.single_vox_offset
    header["vox_offset"] = offset
    header.write_to(stream)
    stream.write(bytes(offset - stream.tell()))
    stream.truncate(offset + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    stream.flush()
    return Bulk(stream.fileno(), tuple(shape), dtype, header.get_best_affine(), offset)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Bulk]:
    """An uncompressed NIfTI file that this library wrote. Raises EOFError when it is shorter than its header announces."""
    with path.open("rb") as stream:
        volume = _bulk(stream)
        need, found = volume.offset + int(np.prod(volume.shape, dtype=np.int64)) * volume.dtype.itemsize, os.fstat(stream.fileno()).st_size
        if found < need:
            raise EOFError(f"ends after {found} bytes, expected {need}")
        yield volume


@contextlib.contextmanager
def unpacked(path: Path, document: dict[str, Any], scratch: Path) -> Iterator[Bulk]:
    """A .nii.gz of this library, decompressed once into a file without a name, which is gone however the process ends.

    document : what stands beside the volume and records its content hash; scratch : a folder on the disk to use. Raises UserError as
    `store.load` does.
    """
    with files.named(scratch), tempfile.TemporaryFile(dir=scratch) as stream:
        hasher = None
        for chunk in _chunks(path, document):
            stream.write(chunk)
            if hasher is None:
                stream.flush()
                with store.guarded(path, document):
                    volume = _bulk(stream)
                stream.seek(0, os.SEEK_END)
                hasher = hashing.VolumeHasher(volume.shape, volume.dtype)
            else:
                hasher.update(np.frombuffer(chunk, np.uint8))
        stream.flush()
        assert hasher is not None
        store.check_digest(path, hasher.digest(volume.affine), document)
        yield volume


def _chunks(path: Path, document: dict[str, Any]) -> Iterator[bytes]:
    """The bytes of a .nii.gz: first all that stands before its voxels, then some megabytes at a time."""
    with store.guarded(path, document), igzip.open(path, "rb") as packed:
        head = packed.read(nib.Nifti1Header.single_vox_offset)
        if len(head) < nib.Nifti1Header.single_vox_offset:
            raise EOFError("ends within its header")
        yield head
        while chunk := packed.read(CHUNK_BYTES):
            yield chunk


def _bulk(stream: BinaryIO) -> Bulk:
    stream.seek(0)
    header_class = nib.Nifti2Header if int.from_bytes(stream.read(4), "little") == 540 else nib.Nifti1Header
    stream.seek(0)
    header = header_class.from_fileobj(stream)
    dtype = header.get_data_dtype()
    return Bulk(stream.fileno(), tuple(int(n) for n in header.get_data_shape()), dtype, header.get_best_affine(), int(header["vox_offset"]))
