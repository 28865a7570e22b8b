"""Reading one volume from a file, with the checks that a file must pass, and writing NIfTI without anything of its source."""

import dataclasses
import gzip
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import SimpleITK as sitk

from teravox import geometry, store
from teravox.errors import RejectedCase

FAR_MM = 1e6  # a kilometre: no scanner's coordinates, and a number like 1e30 overflows later
FORMS_ATOL_MM = 1e-3  # between entries of qform and sform: a float32 quaternion is good to about 1e-4 of a voxel's edge
LABEL_ATOL = 1e-3  # labels stored as float or through a scale factor come back as 1.9999999995
CHUNK_BYTES = 1 << 24
HEADER_LINE_BYTES = 1 << 16  # longest line looked at in a text header
NRRD_SPACES = {  # those that ITK turns into LPS; it takes scanner-xyz and the like for LPS
    *("right-anterior-superior", "ras", "left-anterior-superior", "las", "left-posterior-superior", "lps"),
}
SPATIAL_UNITS = {0: "unknown", 2: "mm"}  # xyzt_units & 7 that are read as mm; 1 is metre, 3 micrometre


@dataclasses.dataclass(frozen=True)
class Volume:
    """array : (x, y, z), real, native byte order; affine : (4, 4), RAS+, mm; notes : what was found or assumed, one line each.

    corrections : what of the source was changed so that it means what it says, one line each: with any the verdict is
    `corrected`, else `ok`. Of a DICOM source, empty otherwise: frame_of_reference : FrameOfReferenceUID; instances : for each slice
    along the third axis SOPInstanceUID and frame (from 0); accounts : what became of each file (teravox.dicom.sources.Account);
    checked_by : who else reads these voxels.
    """

    array: np.ndarray
    affine: np.ndarray
    format: str
    notes: tuple[str, ...] = ()
    frame_of_reference: str = ""
    corrections: tuple[str, ...] = ()
    instances: tuple[tuple[str, int], ...] = ()
    accounts: tuple[Any, ...] = ()
    checked_by: str = ""


def read_volume_file(path: Path, volume: int | None = None) -> Volume:
    """Read a NIfTI, NRRD or MetaImage file. volume : which volume of a 4D file, None for a 3D file. Raises RejectedCase."""
    name = path.name.lower()
    if not path.exists():
        raise RejectedCase(f"{path}: missing")
    if name.endswith((".nii", ".nii.gz")):
        return read_nifti(path, volume)
    if name.endswith((".nrrd", ".mha")):
        if volume is not None:
            raise RejectedCase(f"{path}: a NRRD or MetaImage file, expected a 4D NIfTI file with at least {volume + 1} volumes")
        return read_itk(path)
    raise RejectedCase(f"{path}: unknown kind of file, expected .nii, .nii.gz, .nrrd, .mha or a folder of DICOM files")


def _check_bytes(path: Path, expected: int) -> None:
    """Read a file to its end: the gzip checksum must hold and every voxel must be there."""
    total = 0
    if path.name.lower().endswith(".gz"):
        try:
            with gzip.open(path) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    total += len(chunk)
                    if total > expected + CHUNK_BYTES:
                        break
        except (OSError, EOFError, zlib.error) as error:
            raise RejectedCase(f"{path}: damaged gzip file ({error}); get the file again from its source") from None
    else:
        total = path.stat().st_size
    if total < expected:
        raise RejectedCase(f"{path}: truncated, found {total} bytes, expected {expected}; get the file again from its source")


def read_nifti(path: Path, volume: int | None = None) -> Volume:
    """Read a NIfTI-1 or NIfTI-2 file in its native type; scaled integers become float32 unless the result is an integer.

    Raises RejectedCase: unreadable, truncated, not three-dimensional, RGB or complex, sform and qform in disagreement,
    a spatial unit other than mm, a sheared or singular affine.
    """
    if path.stat().st_size == 0:
        raise RejectedCase(f"{path}: empty file, expected a NIfTI volume")
    try:
        image = nib.load(path)
        header = image.header
        if not isinstance(image, nib.Nifti1Image):
            raise RejectedCase(f"{path}: found {type(image).__name__}, expected NIfTI")
        shape, dtype, offset = image.shape, header.get_data_dtype(), int(image.dataobj.offset)
        slope, intercept = float(image.dataobj.slope), float(image.dataobj.inter)  # a loaded header's own fields are NaN
        qform, sform = header.get_qform(coded=True)[0], header.get_sform(coded=True)[0]
        with image.file_map["image"].get_prepare_fileobj("rb") as stream:
            pixdim = type(header).from_fileobj(stream, check=False)["pixdim"][1:4]  # nibabel turns 0 into 1 and -1 into 1
    except RejectedCase:
        raise
    except Exception as error:  # a damaged header can raise anything
        raise RejectedCase(f"{path}: not readable as NIfTI ({' '.join(str(error).split())})") from None
    if offset < header.single_vox_offset:
        raise RejectedCase(f"{path}: voxels begin at byte {offset}, inside the header, expected at least {header.single_vox_offset}")
    if not (np.isfinite(pixdim).all() and (pixdim > 0).all()):
        raise RejectedCase(f"{path}: pixdim is {pixdim.tolist()}, expected voxel edges above 0 mm; correct the header")
    if dtype.fields is not None or np.issubdtype(dtype, np.complexfloating):
        raise RejectedCase(f"{path}: voxels of type {dtype}, expected one real number per voxel")
    if volume is None:
        while len(shape) > 3 and shape[-1] == 1:
            shape = shape[:-1]
        if len(shape) != 3:
            raise RejectedCase(f"{path}: {len(shape)} dimensions {tuple(image.shape)}, expected one 3D volume")
    elif len(shape) != 4 or volume >= shape[3]:
        raise RejectedCase(f"{path}: shape {tuple(image.shape)}, expected a 4D file with at least {volume + 1} volumes")
    if min(image.shape) < 1:
        raise RejectedCase(f"{path}: shape {tuple(image.shape)}, expected at least one voxel along every axis")
    expected = offset + int(np.prod(image.shape, dtype=np.int64)) * dtype.itemsize
    _check_bytes(path, expected)

    unit = int(header["xyzt_units"]) & 7
    if unit not in SPATIAL_UNITS:
        raise RejectedCase(f"{path}: spatial unit code {unit} in xyzt_units, expected 2 (mm)")
    notes = []
    if qform is not None and sform is not None:
        difference = float(np.abs(qform - sform).max())
        if difference > FORMS_ATOL_MM:
            raise RejectedCase(f"{path}: sform and qform differ by {difference:.4g} mm, expected at most {FORMS_ATOL_MM} mm; correct the header")
    if qform is None and sform is None:
        notes.append("no orientation in the header (sform_code and qform_code are 0): left and right may be exchanged")
    affine = check_affine(path, image.affine)

    raw = np.asanyarray(image.dataobj.get_unscaled())
    raw = raw[..., volume] if volume is not None else raw.reshape(shape, order="F")
    if slope == 1 and intercept == 0:
        array = raw
    elif slope == 1 and intercept == round(intercept) and abs(intercept) < 2**31 and np.issubdtype(dtype, np.integer) and dtype.itemsize <= 4:
        array = raw.astype(np.int64) + int(intercept)
    else:
        with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as that
            array = (raw.astype(np.float64) * slope + intercept).astype(np.float32)
        notes.append(f"scaled by {slope:g} and {intercept:g}, as the header says")
    return Volume(_plain(array), affine, "nifti", tuple(notes))


def read_itk(path: Path) -> Volume:
    """Read a .nrrd or .mha file through SimpleITK. Raises RejectedCase."""
    notes = _check_itk_header(path)
    try:
        with tempfile.TemporaryDirectory(prefix="teravox-") as scratch:
            link = Path(scratch, f"volume{path.suffix.lower()}")  # SimpleITK ends the process on a name that is not UTF-8
            link.symlink_to(path.absolute())
            image = sitk.ReadImage(str(link))
    except RuntimeError as error:
        text = re.sub(r"\(0x[0-9a-f]+\)", "", str(error).replace(str(link), path.name))  # the same text every time
        raise RejectedCase(f"{path}: not readable ({' '.join(text.split())[-200:]})") from None
    if image.GetNumberOfComponentsPerPixel() != 1 or "complex" in image.GetPixelIDTypeAsString():
        raise RejectedCase(f"{path}: voxels of type {image.GetPixelIDTypeAsString()}, expected one real number per voxel")
    if image.GetDimension() == 4 and image.GetSize()[3] == 1:
        image = image[:, :, :, 0]
    if image.GetDimension() != 3:
        raise RejectedCase(f"{path}: {image.GetDimension()} dimensions {image.GetSize()}, expected one 3D volume")
    array, affine = geometry.from_sitk(image)
    return Volume(_plain(array), check_affine(path, affine), path.suffix[1:].lower(), notes)


def _check_itk_header(path: Path) -> tuple[str, ...]:
    """What SimpleITK would pass over in the text header of a NRRD or MetaImage file. Returns notes, raises RejectedCase.

    Refused: voxels in another file, a scale factor, units other than mm, coordinates other than RAS or LPS, negative spacing,
    and compressed voxels whose checksum fails. The fields are those of teem's NRRD format and ITK's MetaIO.
    """
    nrrd = path.name.lower().endswith(".nrrd")
    end, separator = (b"", b":") if nrrd else (b"elementdatafile", b"=")
    fields: dict[str, str] = {}
    with path.open("rb") as stream:
        for line in iter(lambda: stream.readline(HEADER_LINE_BYTES), b""):
            if nrrd and not line.strip():
                break
            key, found, value = line.partition(separator)
            if found and not line.startswith(b"#") and not value.startswith(b"="):  # "key:=value" is free text in NRRD
                fields["".join(key.decode("latin-1").lower().split())] = value.decode("latin-1").strip().lower()
            if end and key.strip().lower() == end:
                break
        start = stream.tell()

    def refuse(key: str, expected: str) -> RejectedCase:
        return RejectedCase(f"{path}: {key} is '{fields[key][:80]}', expected {expected}")

    if fields.get("elementdatafile", "local") != "local":
        raise refuse("elementdatafile", "LOCAL (voxels in the file itself)")
    if "datafile" in fields:
        raise RejectedCase(f"{path}: its voxels lie in another file, expected them in the file itself; convert it to one file")
    for name, neutral in (("elementtointensityfunctionslope", 1.0), ("elementtointensityfunctionoffset", 0.0)):
        if fields.get(name, str(neutral)) not in {str(neutral), str(int(neutral))}:
            raise refuse(name, f"{neutral:g}; store the scaled values")
    if "-" in fields.get("elementspacing", "").replace("e-", ""):
        raise refuse("elementspacing", "numbers above 0")
    if set(fields.get("spaceunits", "").replace('"', " ").split()) - {"mm"}:
        raise refuse("spaceunits", "mm")
    if fields.get("space", "ras") not in NRRD_SPACES:
        raise refuse("space", "right-anterior-superior, left-anterior-superior or left-posterior-superior")
    if fields.get("lineskip", "0") != "0":
        raise refuse("lineskip", "0")
    if fields.get("encoding") in {"gzip", "gz"} or fields.get("compresseddata") == "true":
        _check_compressed(path, start, gzip_header=nrrd)
    known = "spacedirections" in fields if nrrd else bool({"transformmatrix", "orientation", "rotation"} & set(fields))
    return () if known else ("no orientation in the header: left and right may be exchanged",)


def _check_compressed(path: Path, start: int, gzip_header: bool) -> None:
    """Decompress from byte `start` to the end, since ITK does not look at the stream's checksum. Raises RejectedCase."""
    unpack = zlib.decompressobj(zlib.MAX_WBITS + 16 if gzip_header else zlib.MAX_WBITS)
    with path.open("rb") as stream:
        stream.seek(start)
        try:
            while not unpack.eof and (chunk := unpack.unconsumed_tail or stream.read(CHUNK_BYTES)):
                unpack.decompress(chunk, CHUNK_BYTES)
        except zlib.error as error:
            raise RejectedCase(f"{path}: damaged compressed voxels ({error}); get the file again from its source") from None
    if not unpack.eof:
        raise RejectedCase(f"{path}: truncated compressed voxels; get the file again from its source")


def check_affine(path: Path, affine: np.ndarray) -> np.ndarray:
    """The affine rounded to the float32 that NIfTI stores. Raises RejectedCase when it is not finite, singular or sheared."""
    affine = np.asarray(affine, np.float32).astype(np.float64)
    if not np.isfinite(affine).all() or (geometry.spacing_of(affine) < 1e-6).any() or np.abs(affine).max() > FAR_MM:
        raise RejectedCase(f"{path}: affine {affine.tolist()}, expected finite numbers up to {FAR_MM:g} and voxels larger than 0 mm")
    shear = geometry.shear_of(affine)
    if shear > geometry.ORTHOGONAL_ATOL:
        raise RejectedCase(
            f"{path}: axes are not perpendicular (cosine {shear:.4f}, expected at most {geometry.ORTHOGONAL_ATOL}); resample it to an orthogonal grid"
        )
    return affine


def _plain(array: np.ndarray) -> np.ndarray:
    """Native byte order; integers of 8 bytes become the smallest type that holds them, floats become float32."""
    if np.issubdtype(array.dtype, np.floating) and array.dtype != np.float32:
        with np.errstate(over="ignore"):  # see read_nifti
            return array.astype(np.float32)
    if array.dtype.itemsize == 8:
        low, high = int(array.min()), int(array.max())
        for dtype in (np.int16, np.int32):
            if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
                return array.astype(dtype)
        return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def as_label(array: np.ndarray, allowed: list[int], source: str) -> np.ndarray:
    """Labels as the smallest unsigned integers. Raises RejectedCase when a value is no integer or not one of 0 and `allowed`.

    array : (x, y, z) real; allowed : foreground values; source : begins the message.
    """
    expected = f"expected 0, {', '.join(map(str, allowed))}"
    rounded = array
    if np.issubdtype(array.dtype, np.floating):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        if bad:
            raise RejectedCase(f"{source}: {bad} label voxels are NaN or infinite, {expected}")
        rounded = np.rint(array)
        off = float(np.abs(array - rounded).max())
        if off > LABEL_ATOL:
            raise RejectedCase(f"{source}: label values are not whole numbers (off by {off:.3g}), {expected}")
    foreign = [value for value in np.unique(rounded).tolist() if value not in [0, *allowed]]
    if foreign:
        raise RejectedCase(f"{source}: label value {foreign[0]:.10g}, {expected} ('labels' of the configuration)")
    return rounded.astype(store.label_dtype(allowed))


def check_intensities(array: np.ndarray, source: str) -> None:
    """Raises RejectedCase when a voxel is not finite or all voxels are equal."""
    if np.issubdtype(array.dtype, np.floating):
        bad = int(np.count_nonzero(~np.isfinite(array)))
        if bad:
            raise RejectedCase(f"{source}: {bad} voxels are NaN or infinite, expected finite numbers; repair or leave out the image")
    if array.min() == array.max():
        raise RejectedCase(f"{source}: all voxels are {array.flat[0]}, expected an image")
