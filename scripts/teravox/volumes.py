"""Reading one volume from a file: which reader a file needs, and what all readers have in common."""

from pathlib import Path

from teravox.checks import Volume, check_affine, check_intensities
from teravox.errors import RejectedCase
from teravox.itk_files import read_itk
from teravox.nifti import read_nifti

__all__ = ["Volume", "check_affine", "check_intensities", "read_itk", "read_nifti", "read_volume_file"]


def read_volume_file(path: Path, volume: int | None = None) -> Volume:
    """Read a NIfTI, NRRD or MetaImage file. volume : which volume of a 4D file, None for a 3D file. Raises RejectedCase."""
    name = path.name.lower()
    if not path.exists():
        raise RejectedCase(f"{path}: missing")
    if name.endswith((".nii", ".nii.gz", ".hdr", ".hdr.gz", ".img", ".img.gz")):
        return read_nifti(path, volume)
    if name.endswith((".nrrd", ".nhdr", ".mha", ".mhd")):
        if volume is not None:
            raise RejectedCase(f"{path}: a NRRD or MetaImage file, expected a 4D NIfTI file with at least {volume + 1} volumes")
        return read_itk(path)
    raise RejectedCase(f"{path}: unknown kind of file, expected .nii, .nii.gz, .hdr with .img, .nrrd, .nhdr, .mha, .mhd or a folder of DICOM files")
