"""The workflow's own volumes: NIfTI files with nothing of their source but voxels and geometry, checked when they are read."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from isal import igzip, isal_zlib
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError

from teravox import files, hashing
from teravox.errors import UserError

COMPRESSION_LEVEL = 2  # of ISA-L, 0 to 3; on a CT: 4 times faster than zlib's level 1 with 3 % fewer bytes, 12 times faster than its 6 with 1 % more


def write(path: Path, array: np.ndarray, affine: np.ndarray) -> str:
    """Write an array (x, y, z) or (x, y, z, c) with a fresh header: type, shape, affine (RAS+, mm) and nothing else.

    Returns the content hash of what the file holds: NIfTI stores the affine in float32.
    """
    affine = np.asarray(affine, np.float32).astype(np.float64)
    image = nib.Nifti1Image(array, affine, dtype=array.dtype)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, code=1)
    image.set_qform(affine, code=1, strip_shears=True)
    with files.atomic(path) as temporary, temporary.open("wb") as stream:
        if path.name.endswith(".gz"):  # no name and no time in the gzip header: the same volume gives the same bytes
            with igzip.GzipFile("", "wb", COMPRESSION_LEVEL, stream, mtime=0) as packed:
                image.to_stream(packed)
        else:
            image.to_stream(stream)
    return hashing.volume_digest(array, affine)


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """A volume that this library wrote: array in its native type (memory-mapped for .nii) and affine (4, 4), RAS+, mm."""
    image = nib.load(path)
    return np.asanyarray(image.dataobj), image.affine


def load(path: Path, document: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """`read`, once the volume has the content hash that the document beside it records. Raises UserError when it has not,
    is missing or damaged.
    """
    with guarded(path, document):
        array, affine = read(path)
        check_digest(path, hashing.volume_digest(array, affine), document)
    return array, affine


def _again(document: dict[str, Any]) -> str:
    return f"run snakemake --cores all --forcerun {document['provenance']['stage']}_case"


@contextlib.contextmanager
def guarded(path: Path, document: dict[str, Any]) -> Iterator[None]:
    """What goes wrong while a volume is read, as one line that says how to make it again. Raises UserError."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: missing, expected the volume that was written there; {_again(document)}") from None
    except (ImageFileError, HeaderDataError, WrapStructError, OSError, EOFError, OverflowError, ValueError, zlib.error, isal_zlib.error) as error:  # type: ignore[misc]  # isal's stubs say no class
        raise UserError(f"{path}: damaged ({' '.join(str(error).split())}); {_again(document)}") from None


def check_digest(path: Path, digest: str, document: dict[str, Any]) -> None:
    """Raises UserError unless a volume's content hash is the one that the document beside it records."""
    expected = document["provenance"]["artefacts"][path.name]
    if digest != expected:
        raise UserError(f"{path}: content hash {digest[:12]}, expected {expected[:12]} as recorded beside it; {_again(document)}")


def label_dtype(values: list[int]) -> type[np.unsignedinteger]:
    """The smallest unsigned integer that holds every label value."""
    return np.uint8 if max(values) <= 255 else np.uint16
