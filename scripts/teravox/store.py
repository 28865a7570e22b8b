"""The workflow's own volumes: NIfTI files with nothing of their source but voxels and geometry, checked when they are read."""

import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from isal import igzip
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError

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
    provenance = document["provenance"]
    again = f"run snakemake --cores all --forcerun {provenance['stage']}_case"
    try:
        array, affine = read(path)
        digest = hashing.volume_digest(array, affine)
    except FileNotFoundError:
        raise UserError(f"{path}: missing, expected the volume that was written there; {again}") from None
    except (ImageFileError, HeaderDataError, OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f"{path}: damaged ({' '.join(str(error).split())}); {again}") from None
    if digest != provenance["artefacts"][path.name]:
        raise UserError(f"{path}: content hash {digest[:12]}, expected {provenance['artefacts'][path.name][:12]} as recorded beside it; {again}")
    return array, affine


def label_dtype(values: list[int]) -> type[np.unsignedinteger]:
    """The smallest unsigned integer that holds every label value."""
    return np.uint8 if max(values) <= 255 else np.uint16
