"""NIfTI-1 and NIfTI-2 files from outside, in one file or as a pair of header and voxels. The library parses the header and
nothing else: neither its extensions nor the voxels are read by it, since a hostile file makes it take any amount of memory.
"""

import math
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.nifti1 import Nifti1PairHeader
from nibabel.nifti2 import Nifti2PairHeader

from teravox import checks, companions, geometry, voxels
from teravox.checks import Volume
from teravox.errors import RejectedCase

FORMS_ATOL_MM = 1e-3  # between entries of qform and sform: a float32 quaternion is good to about 1e-4 of a voxel's edge
PIXDIM_RTOL = 1e-3  # between pixdim and the sform's voxel edges: float32 noise is 1e-6, and a grid is told apart at this
SPATIAL_UNITS = {0: ("unknown", 1.0), 1: ("metres", 1e3), 2: ("mm", 1.0), 3: ("micrometres", 1e-3)}  # xyzt_units & 7, and mm per unit
LARGEST_EDGE_MM = 100.0  # no image in metres has larger voxels: a header that says so has the wrong unit code
HEADERS = {348: (nib.Nifti1Header, Nifti1PairHeader), 540: (nib.Nifti2Header, Nifti2PairHeader)}  # sizeof_hdr -> (.nii, .hdr)
MAGIC = (b"n+", b"ni")  # of a single file, of a pair; then 1 or 2
ENDS = {348: (b"\0",), 540: (b"\0\r\n\x1a\n", bytes(5))}  # of the magic; NIfTI-2's shows whether line ends were converted
FORM_CODES = range(6)  # of qform_code and sform_code


def _header(path: Path, header_path: Path, pair: bool) -> tuple[nib.Nifti1Header, np.ndarray]:
    """The header, and pixdim (3,) as it is written: the library turns 0 and -1 into 1. Raises RejectedCase."""
    packed = header_path.name.lower().endswith(".gz")
    if header_path.stat().st_size == 0:
        raise RejectedCase(f"{path}: empty file, expected a NIfTI volume")
    block = voxels.head(header_path, max(HEADERS), packed)
    size = next((size for size in HEADERS for order in ("little", "big") if int.from_bytes(block[:4], order) == size), None)
    if size is None or len(block) < size:
        raise RejectedCase(f"{path}: not readable as NIfTI: it begins with no complete header of 348 or 540 bytes")
    magic = block[344:346] if size == 348 else block[4:6]
    if magic not in MAGIC:
        raise RejectedCase(
            f"{path}: not readable as NIfTI: no NIfTI magic, as in Analyze 7.5, where left and right cannot be known"
            " (an SPM .mat beside it is not read); convert the original again"
        )
    if magic != MAGIC[pair]:
        place, ending = ("in a file of their own", ".hdr and .img") if not pair else ("in the same file", ".nii")
        raise RejectedCase(f"{path}: its header says that the voxels lie {place}, expected the ending {ending}; rename it")
    version, end = (block[346:347], block[347:348]) if size == 348 else (block[6:7], block[7:12])
    if version != (b"1" if size == 348 else b"2") or end not in ENDS[size]:
        raise RejectedCase(f"{path}: the end of its NIfTI magic is not the format's; damaged file, get it again from its source")
    kind = HEADERS[size][pair]
    try:
        header, written = kind(block[:size]), kind(block[:size], check=False)
        _check_written(path, written, header.single_vox_offset if not pair else 0)
        return header, written["pixdim"][1:4].astype(float)
    except RejectedCase:
        raise
    except Exception as error:  # a damaged header can raise anything
        raise RejectedCase(f"{path}: not readable as NIfTI ({' '.join(str(error).split())})") from None


def _check_written(path: Path, header: nib.Nifti1Header, least: int) -> None:
    """Raises RejectedCase for what the library would mend without a word. header : as it is written; least : where voxels may begin."""
    for name in ("qform_code", "sform_code"):
        if int(header[name]) not in FORM_CODES:
            raise RejectedCase(f"{path}: {name} is {int(header[name])}, expected 0 to {FORM_CODES[-1]}; damaged header")
    offset = float(header["vox_offset"])
    if not (offset >= least and offset.is_integer()):
        raise RejectedCase(f"{path}: voxels begin at byte {offset:.9g}, inside the header or none, expected a whole number of at least {least}")


def read_nifti(path: Path, volume: int | None = None) -> Volume:
    """Read a NIfTI-1 or NIfTI-2 file in its native type; scaled integers become float32 unless the result is an integer.

    path : .nii, .nii.gz, or either file of a .hdr and .img pair; volume : which volume of a 4D file, None for a 3D file.
    Raises RejectedCase: unreadable, truncated, too large, not three-dimensional, RGB or complex, sform, qform and pixdim in
    disagreement, a spatial unit that is none, a sheared or singular affine.
    """
    pair = companions.nifti_pair(path)
    header_path, voxel_path = pair or (path, path)
    if pair is not None:
        companions.beside(path, voxel_path if path == header_path else header_path)
    header, pixdim = _header(path, header_path, pair is not None)
    try:
        shape, dtype, offset = tuple(int(n) for n in header.get_data_shape()), header.get_data_dtype(), int(header.get_data_offset())
        slope, intercept = header.get_slope_inter()
        qform, sform = header.get_qform(coded=True)[0], header.get_sform(coded=True)[0]
        affine, unit = header.get_best_affine(), int(header["xyzt_units"]) & 7
    except Exception as error:  # see _header
        raise RejectedCase(f"{path}: not readable as NIfTI ({' '.join(str(error).split())})") from None
    if not (np.isfinite(pixdim).all() and (pixdim > 0).all()):
        raise RejectedCase(f"{path}: pixdim is {pixdim.tolist()}, expected voxel edges above 0 mm; correct the header")
    if dtype.fields is not None or np.issubdtype(dtype, np.complexfloating):
        raise RejectedCase(f"{path}: voxels of type {dtype}, expected one real number per voxel")
    own, before, behind = _chosen(path, shape, volume)

    notes, corrections = [], []
    if unit not in SPATIAL_UNITS:
        raise RejectedCase(f"{path}: spatial unit code {unit} in xyzt_units, expected 1 (metre), 2 (mm) or 3 (micrometre)")
    name, factor = SPATIAL_UNITS[unit]
    if unit == 0:
        notes.append("no spatial unit in the header: taken as mm")
    if factor != 1:
        corrections.append(f"lengths converted from {name} to mm, as xyzt_units says")
    if qform is not None and sform is not None:
        difference = float(np.abs(qform - sform).max()) * factor
        if difference > FORMS_ATOL_MM:
            raise RejectedCase(f"{path}: sform and qform differ by {difference:.4g} mm, expected at most {FORMS_ATOL_MM} mm; correct the header")
    if qform is None and sform is None:
        notes.append("no orientation in the header (sform_code and qform_code are 0): left and right may be exchanged")
    affine[:3] *= factor
    edges = geometry.spacing_of(affine) / factor
    affine, squared = checks.orthogonal(path, affine, own)
    if (np.abs(edges - pixdim) > PIXDIM_RTOL * edges).any():
        raise RejectedCase(f"{path}: voxel edges {pixdim.tolist()} in pixdim and {edges.tolist()} in sform, expected the same; correct the header")
    if factor > 1 and geometry.spacing_of(affine).max() > LARGEST_EDGE_MM:
        raise RejectedCase(f"{path}: voxels of {pixdim.tolist()} {name}, as xyzt_units says, expected less; correct the unit code")

    stored, behind_notes = voxels.read(
        voxel_path,
        dtype,
        math.prod(own),
        skip=offset + before * dtype.itemsize,
        after=behind * dtype.itemsize,
        packed=voxel_path.name.lower().endswith(".gz"),
    )
    array = stored.reshape(own, order="F")
    if (slope, intercept) not in ((None, None), (1, 0)):
        if slope == 1 and intercept == round(intercept) and abs(intercept) < 2**31 and np.issubdtype(dtype, np.integer) and dtype.itemsize <= 4:
            array = array.astype(np.int64) + int(intercept)
        else:
            array = _scaled(array, slope, intercept)
            notes.append(f"scaled by {slope:g} and {intercept:g}, as the header says")
    return Volume(checks.plain(array), affine, "nifti", (*notes, *behind_notes), corrections=(*corrections, *squared))


def _chosen(path: Path, shape: tuple[int, ...], volume: int | None) -> tuple[tuple[int, ...], int, int]:
    """The shape (x, y, z) of the volume that is read, and how many values the file holds before and behind it."""
    if min(shape, default=0) < 1:
        count = f"{len(shape)} dimensions {shape}, expected one 3D volume of" if len(shape) != 3 else f"shape {shape}, expected"
        raise RejectedCase(f"{path}: {count} at least one voxel along every axis")
    kept = list(shape)
    while len(kept) > (3 if volume is None else 4) and kept[-1] == 1:
        kept.pop()
    if volume is None:
        if len(kept) != 3:
            raise RejectedCase(f"{path}: {len(shape)} dimensions {shape}, expected one 3D volume")
        return tuple(kept), 0, 0
    if len(kept) != 4 or volume >= kept[3]:
        raise RejectedCase(f"{path}: shape {shape}, expected a 4D file with at least {volume + 1} volumes")
    size = math.prod(kept[:3])
    return tuple(kept[:3]), size * volume, size * (kept[3] - volume - 1)


def _scaled(array: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """slope * array + intercept in double precision, plane by plane, kept in single. array : (x, y, z), Fortran order."""
    out = np.empty(array.shape, np.float32, order="F")
    with np.errstate(over="ignore"):  # see checks.check_affine
        for z in range(array.shape[2]):
            out[..., z] = array[..., z].astype(np.float64) * slope + intercept
    return out
