"""NRRD (.nrrd, .nhdr) and MetaImage (.mha, .mhd) files from outside.

SimpleITK says what the geometry means, but sees only a header made here out of the fields that matter: no name, no comment, no
voxels. So it follows no link and takes no memory for what a hostile header announces; voxels are read by `voxels.read`.
"""

import math
import re
import tempfile
from pathlib import Path

import numpy as np
import SimpleITK as sitk

from teravox import checks, companions, geometry, voxels
from teravox.checks import Volume
from teravox.companions import TextHeader
from teravox.errors import RejectedCase

AXES = (3, 4, 5)  # SimpleITK knows no more; MetaIO never comes back from -1
LONGEST_EDGE = 2**31 - 1  # voxels; more is no image
UNITS = {  # of lengths, in mm; NRRD writes them as text, MetaImage as um, mm or cm
    **dict.fromkeys(("mm", "millimeter", "millimeters", "millimetre", "millimetres"), ("mm", 1.0)),
    **dict.fromkeys(("m", "meter", "meters", "metre", "metres"), ("metres", 1e3)),
    **dict.fromkeys(("um", "µm", "μm", "micron", "microns", "micrometer", "micrometers", "micrometre", "micrometres"), ("micrometres", 1e-3)),
}
SPACES = {  # those that ITK turns into LPS; it takes scanner-xyz and the like for LPS
    *("right-anterior-superior", "ras", "left-anterior-superior", "las", "left-posterior-superior", "lps"),
}
NRRD_FIELDS = {
    **{"type": "type", "dimension": "dimension", "space": "space", "sizes": "sizes", "kinds": "kinds", "spacings": "spacings"},
    **{"spacedirections": "space directions", "spaceorigin": "space origin"},
}
META_SYNONYMS = (("offset", "origin", "position"), ("transformmatrix", "rotation", "orientation"))
META_FIELDS = {
    **{"ndims": "NDims", "dimsize": "DimSize", "elementspacing": "ElementSpacing", "elementtype": "ElementType", "offset": "Offset"},
    **{"origin": "Origin", "position": "Position", "transformmatrix": "TransformMatrix", "rotation": "Rotation", "orientation": "Orientation"},
}
ONE_BYTE = {"signed char", "int8", "int8_t", "uchar", "unsigned char", "uint8", "uint8_t"}  # NRRD types without byte order
VALUE = re.compile(r"[\w\s.,()+:-]{1,1000}", re.ASCII)  # of a field that SimpleITK sees
TYPES = {
    **{sitk.sitkUInt8: "u1", sitk.sitkInt8: "i1", sitk.sitkUInt16: "u2", sitk.sitkInt16: "i2", sitk.sitkUInt32: "u4", sitk.sitkInt32: "i4"},
    **{sitk.sitkUInt64: "u8", sitk.sitkInt64: "i8", sitk.sitkFloat32: "f4", sitk.sitkFloat64: "f8"},
}


def read_itk(path: Path) -> Volume:
    """Read a .nrrd, .nhdr, .mha or .mhd file; the voxels of .nhdr and .mhd may lie in one other file of the same folder.

    Raises RejectedCase: unreadable, truncated, too large, not three-dimensional, several numbers per voxel, voxels as text, a
    scale factor, coordinates other than RAS or LPS, no voxel size, unknown units, a sheared or singular affine.
    """
    header = companions.text_header(path)
    nrrd = path.name.lower().endswith((".nrrd", ".nhdr"))
    factor, corrections = _unit(path, header.fields, nrrd)
    shape = _shape(path, header.fields, nrrd)
    known = _check_nrrd(path, header.fields) if nrrd else _check_meta(path, header.fields)
    code, affine = _geometry(path, header.fields, nrrd, shape)
    count = math.prod(shape)
    order, start, packed = (_nrrd_layout if nrrd else _meta_layout)(path, header, count * np.dtype(code).itemsize)
    affine, squared = checks.orthogonal(path, affine * [[factor], [factor], [factor], [1]], shape[:3])
    stored, behind = voxels.read(header.data or path, np.dtype(order + code), count, start=start, packed=packed)
    notes = [] if known else ["no orientation in the header: left and right may be exchanged"]
    if not header.fields.keys() & {"spaceorigin", *META_SYNONYMS[0]}:
        notes.append("no origin in the header: taken as 0")
    return Volume(
        checks.plain(stored.reshape(shape[:3], order="F")), affine, path.suffix[1:].lower(), (*notes, *behind), corrections=(*corrections, *squared)
    )


def _unit(path: Path, fields: dict[str, str], nrrd: bool) -> tuple[float, tuple[str, ...]]:
    """mm per unit of length of the header, and what is to be said about it; a header that names no unit is in mm by convention."""
    key = "distanceunits" if not nrrd else "spaceunits" if "spacedirections" in fields else "units"
    written = fields.get(key, "")
    found = {text.strip().lower() for text in (re.findall(r'"([^"]*)"', written) if nrrd else [written])} - {"", "?", "???"}
    if not found and not (nrrd and written.replace('"', "").strip(" ?")):
        return 1.0, ()
    if len(found) != 1 or not found <= UNITS.keys():
        raise RejectedCase(f"{path}: '{key}' of its header is not the same known unit along every axis, expected mm, m or um")
    name, factor = UNITS[found.pop()]
    return factor, () if factor == 1 else (f"lengths converted from {name} to mm, as '{key}' of the header says",)


def _check_nrrd(path: Path, fields: dict[str, str]) -> bool:
    """Whether the header holds an orientation. Raises RejectedCase for what SimpleITK would pass over."""
    if fields.get("space", "ras").lower() not in SPACES:
        raise RejectedCase(f"{path}: 'space' of its header is none of right-anterior-superior, left-anterior-superior and left-posterior-superior")
    if fields.get("lineskip", "0") != "0":
        raise RejectedCase(f"{path}: 'line skip' of its header is set, expected 0")
    spacings = _numbers(path, fields, "spacings")
    if "spacedirections" not in fields and not (len(spacings) >= 3 and all(edge > 0 for edge in spacings[:3])):
        raise RejectedCase(f"{path}: no voxel size in the header, expected 'space directions' or 'spacings' above 0")
    return "spacedirections" in fields and "space" in fields


def _check_meta(path: Path, fields: dict[str, str]) -> bool:
    """See `_check_nrrd`."""
    for synonyms in META_SYNONYMS:
        if len(fields.keys() & synonyms) > 1:
            raise RejectedCase(f"{path}: its header has more than one of {', '.join(synonyms)}, expected one")
    if fields.get("binarydata", "false").lower() != "true":
        raise RejectedCase(f"{path}: voxels as text, expected BinaryData = True; store it as binary data")
    for key, neutral in (("elementtointensityfunctionslope", 1.0), ("elementtointensityfunctionoffset", 0.0)):
        if _numbers(path, fields, key) not in ([], [neutral]):
            raise RejectedCase(f"{path}: '{key}' of its header is not {neutral:g}; store the scaled values")
    axes = len(fields["dimsize"].split())
    spacing = _numbers(path, fields, "elementspacing")
    if len(spacing) != axes or not all(edge > 0 for edge in spacing):
        raise RejectedCase(f"{path}: 'elementspacing' of its header is {spacing or 'missing'}, expected {axes} numbers above 0")
    for synonyms, count in zip(META_SYNONYMS, (axes, axes**2), strict=True):
        for key in fields.keys() & synonyms:
            if len(_numbers(path, fields, key)) != count:  # MetaIO would read on in the next line
                raise RejectedCase(f"{path}: '{key}' of its header has not {count} numbers; damaged file")
    if fields.get("elementnumberofchannels", "1") != "1":
        raise RejectedCase(f"{path}: several channels, expected one real number per voxel")
    return bool({"transformmatrix", "orientation", "rotation"} & set(fields))


def _numbers(path: Path, fields: dict[str, str], key: str) -> list[float]:
    """The numbers of a field, [] without it. Raises RejectedCase."""
    try:
        return [float(text) for text in fields.get(key, "").split()]
    except ValueError:
        raise RejectedCase(f"{path}: '{key}' of its header holds something else than numbers") from None


def _shape(path: Path, fields: dict[str, str], nrrd: bool) -> tuple[int, ...]:
    """Voxels along every axis, three to five of them, of which those beyond z are 1. Raises RejectedCase for any other list."""
    count, sizes = (fields.get(key, "") for key in (("dimension", "sizes") if nrrd else ("ndims", "dimsize")))
    if not re.fullmatch(r"[0-9]{1,10}( +[0-9]{1,10})*", sizes) or count != str(len(sizes.split())):
        raise RejectedCase(f"{path}: its header has no whole number of voxels for each of its axes; damaged file")
    shape = tuple(int(edge) for edge in sizes.split())
    if len(shape) not in AXES or any(edge != 1 for edge in shape[3:]):
        raise RejectedCase(f"{path}: {len(shape)} dimensions {shape[:16]}, expected one 3D volume of one real number per voxel")
    if not all(1 <= edge <= LONGEST_EDGE for edge in shape):
        raise RejectedCase(f"{path}: shape {shape}, expected 1 to {LONGEST_EDGE} voxels along every axis")
    return shape


def _geometry(path: Path, fields: dict[str, str], nrrd: bool, shape: tuple[int, ...]) -> tuple[str, np.ndarray]:
    """numpy's type without byte order, and affine (4, 4) to RAS in the header's unit. shape : as in the header."""
    names, join = (NRRD_FIELDS, ": ") if nrrd else (META_FIELDS, " = ")
    shown = [f"{names[key]}{join}{value}" for key, value in fields.items() if key in names]  # in their order, which both formats prescribe
    if not all(VALUE.fullmatch(fields[key]) for key in names if key in fields):
        raise RejectedCase(f"{path}: a field of its header holds other characters than its kind has; damaged file")
    if nrrd:
        text = ["NRRD0005", *shown, "endian: little", "encoding: raw", "", ""]
    else:
        text = ["ObjectType = Image", *shown, "BinaryData = True", "ElementDataFile = LOCAL", ""]
    reader = sitk.ImageFileReader()
    reader.SetImageIO("NrrdImageIO" if nrrd else "MetaImageIO")
    with tempfile.TemporaryDirectory(prefix="teravox-") as scratch:
        copy = Path(scratch, "header.nrrd" if nrrd else "header.mha")
        copy.write_text("\n".join(text), encoding="ascii")
        reader.SetFileName(str(copy))
        try:
            reader.ReadImageInformation()
        except RuntimeError:  # its text quotes the header
            kind = "NRRD" if nrrd else "MetaImage"
            raise RejectedCase(
                f"{path}: not readable, ITK takes no header with such a {', '.join(names[key] for key in fields if key in names)} for {kind}"
            ) from None
    kind = reader.GetPixelID()
    if kind not in TYPES or reader.GetNumberOfComponents() != 1:
        raise RejectedCase(f"{path}: voxels of type {sitk.GetPixelIDValueAsString(kind)}, expected one real number per voxel")
    if reader.GetSize() != shape:
        raise RejectedCase(f"{path}: ITK reads {reader.GetSize()} voxels where the header has {shape}; damaged file")
    return TYPES[kind], geometry.affine_from_sitk(reader)


def _nrrd_layout(path: Path, header: TextHeader, size: int) -> tuple[str, int, bool]:
    """Byte order ("<" or ">"), where the voxels' content begins in its file, and whether it is compressed. size : of the voxels, bytes."""
    fields = header.fields
    encoding = fields.get("encoding", "").lower()
    if encoding not in ("raw", "gzip", "gz"):
        raise RejectedCase(f"{path}: 'encoding' of its header is neither raw nor gzip; convert it to one of them")
    endian = fields.get("endian", "little" if fields.get("type", "").lower() in ONE_BYTE else "").lower()
    if endian not in ("little", "big"):
        raise RejectedCase(f"{path}: 'endian' of its header is neither little nor big")
    skip = fields.get("byteskip", "0")
    return {"little": "<", "big": ">"}[endian], _start(path, header, skip, size, encoding != "raw"), encoding != "raw"


def _meta_layout(path: Path, header: TextHeader, size: int) -> tuple[str, int, bool]:
    """See `_nrrd_layout`."""
    fields = header.fields
    big = {fields.get(key, "false").lower() for key in ("binarydatabyteordermsb", "elementbyteordermsb") if key in fields}
    if len(big) > 1 or not big <= {"true", "false"}:
        raise RejectedCase(f"{path}: 'binarydatabyteordermsb' of its header is neither True nor False")
    compressed = fields.get("compresseddata", "false").lower()
    if compressed not in ("true", "false"):  # MetaIO takes some other values for True
        raise RejectedCase(f"{path}: 'compresseddata' of its header is neither True nor False")
    packed = compressed == "true"
    there = (header.data or path).stat().st_size - (0 if header.data else header.start)
    if packed and fields.get("compresseddatasize", str(there)) != str(there):
        raise RejectedCase(f"{path}: found {there} bytes of compressed voxels, expected what its header says; damaged file")
    return ">" if big == {"true"} else "<", _start(path, header, fields.get("headersize", "0"), size, packed), packed


def _start(path: Path, header: TextHeader, skip: str, size: int, packed: bool) -> int:
    """skip : bytes that the header leaves out of a plain data file, -1 for all but the last `size`."""
    begin = 0 if header.data else header.start
    if skip == "0":
        return begin
    if packed or header.data is None or not re.fullmatch(r"-1|\d{1,18}", skip):
        raise RejectedCase(f"{path}: its header skips bytes before the voxels, expected that of uncompressed voxels in another file only")
    return int(skip) if skip != "-1" else max(header.data.stat().st_size - size, 0)
