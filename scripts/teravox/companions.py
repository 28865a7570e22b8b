"""Volumes that lie in two files: which files belong together, and what a text header says. Reads headers only, and little of them.

A header that comes from outside may name any file: only a plain file in the header's own folder is ever taken for its voxels.
"""

import dataclasses
import re
from pathlib import Path

from teravox.errors import RejectedCase

HEADER_BYTES = 1 << 20  # longest text header read: real ones stay below a tenth of it
TEXT_ENDINGS = (".mha", ".mhd", ".nrrd", ".nhdr")
# Field identifiers of the NRRD format, in any of its spellings; teem.sourceforge.net/nrrd/format.html, sections 4 and 5.
NRRD_KEYS = {
    *("dimension", "type", "blocksize", "encoding", "endian", "content", "oldmin", "oldmax", "min", "max", "datafile", "lineskip", "byteskip"),
    *("number", "sampleunits", "sizes", "spacings", "thicknesses", "axismins", "axismaxs", "centers", "centerings", "labels", "units", "kinds"),
    *("space", "spacedimension", "spaceunits", "spaceorigin", "spacedirections", "measurementframe"),
}
META_LINE = re.compile(r"\s*([^=:]+?)\s*[=:]\s*(.*)", re.DOTALL)  # MetaIO takes both separators
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # readers differ in what they make of them
META_KEYS = (  # of what is read here; MetaIO passes over any other spelling, as over a key of somebody's own
    *("NDims", "DimSize", "ElementSpacing", "ElementType", "ElementNumberOfChannels", "ElementDataFile", "HeaderSize", "DistanceUnits", "Offset"),
    *("Origin", "Position", "TransformMatrix", "Rotation", "Orientation", "BinaryData", "BinaryDataByteOrderMSB", "ElementByteOrderMSB"),
    *("CompressedData", "CompressedDataSize", "ElementToIntensityFunctionSlope", "ElementToIntensityFunctionOffset"),
)
META_SPELLING = {key.lower(): key for key in META_KEYS}
META_LOCAL = ("LOCAL", "Local", "local")  # the spellings MetaIO knows; any other is a file's name


@dataclasses.dataclass(frozen=True)
class TextHeader:
    """fields : key, in lower case without spaces -> value as written; start : byte at which what follows the header begins.

    data : the file that holds the voxels, None when they follow the header.
    """

    fields: dict[str, str]
    start: int
    data: Path | None


def nifti_pair(path: Path) -> tuple[Path, Path] | None:
    """(header, voxels) of the .hdr/.img pair that either file names, both .gz or neither; None for another ending."""
    match = re.fullmatch(r"(.*\.)(hdr|img)(\.gz)?", path.name, re.IGNORECASE | re.DOTALL)
    if not match:
        return None
    stem, kind, packed = match[1], match[2], match[3] or ""
    other = {"hdr": "img", "img": "hdr"}[kind.lower()]
    partner = path.with_name(f"{stem}{other.upper() if kind.isupper() else other}{packed}")
    return (path, partner) if kind.lower() == "hdr" else (partner, path)


def beside(path: Path, data: Path) -> Path:
    """`data`, a name in the folder of `path`. Raises RejectedCase unless it is another file that lies in that folder itself."""
    if not data.is_file():
        raise RejectedCase(f"{path}: the other file of the volume is missing, expected it in the same folder; copy both files together")
    if data.resolve().parent != path.parent.resolve():
        raise RejectedCase(f"{path}: the other file of the volume is a link that leads out of the folder; copy both files together")
    if data.samefile(path):
        raise RejectedCase(f"{path}: names itself as the file of its voxels, expected another file")
    return data


def text_header(path: Path) -> TextHeader:
    """The header of a NRRD (.nrrd, .nhdr) or MetaImage (.mha, .mhd) file. Raises RejectedCase.

    The syntax is that of teem's NRRD format and of ITK's MetaIO. A key that stands twice is refused: readers differ in which
    one they take. .nrrd and .mha must hold their voxels themselves.
    """
    nrrd = path.name.lower().endswith((".nrrd", ".nhdr"))
    with path.open("rb") as stream:
        text = stream.read(HEADER_BYTES)
    fields: dict[str, str] = {}
    start, ended = 0, False
    while not ended and start < len(text):
        end = text.find(b"\n", start)
        raw, first = text[start : end if end >= 0 else len(text)], start == 0
        start = end + 1 if end >= 0 else len(text)
        line = raw.decode("utf-8", "surrogateescape").rstrip("\r")
        if CONTROL.search(line):
            raise RejectedCase(f"{path}: a line of its header holds other bytes than text; damaged file")
        if nrrd and first:
            if not re.fullmatch(r"NRRD000[1-5]", line.strip()):
                raise RejectedCase(f"{path}: does not begin as a NRRD file, expected NRRD0001 to NRRD0005")
            continue
        if nrrd and (line.startswith("#") or ":=" in line.split(": ")[0]):  # a comment, or free text under a key of its own
            continue
        if not line.strip():
            ended = nrrd
            continue
        match = re.fullmatch(r"([^:]+):(.*)", line, re.DOTALL) if nrrd else META_LINE.fullmatch(line)
        if not match:
            raise RejectedCase(f"{path}: a line of its header has no key and value; damaged file")
        key = "".join(match[1].lower().split())
        if nrrd and key not in NRRD_KEYS:
            raise RejectedCase(f"{path}: a field of its header is none of the NRRD format's; damaged file, or free text that needs ':='")
        if not nrrd and match[1] != META_SPELLING.get(key, match[1]):
            raise RejectedCase(f"{path}: '{META_SPELLING[key]}' of its header is spelled otherwise, which readers pass over; damaged file")
        if key in fields:
            raise RejectedCase(f"{path}: '{key[:40]}' stands twice in its header, expected it once")
        fields[key] = match[2].strip()
        ended = key == "elementdatafile" and not nrrd
    if not ended and not (nrrd and start == len(text) < HEADER_BYTES):
        raise RejectedCase(f"{path}: its header has no end within {HEADER_BYTES} bytes; damaged file")
    name = fields.get("datafile") if nrrd else fields["elementdatafile"]
    if name is None or (not nrrd and name in META_LOCAL):
        return TextHeader(fields, start, None)
    if path.name.lower().endswith((".nrrd", ".mha")):
        raise RejectedCase(f"{path}: its voxels lie in another file, expected them in the file itself; convert it to one file")
    return TextHeader(fields, start, _data_file(path, name))


def _data_file(path: Path, name: str) -> Path:
    """The file of the voxels that a header names. The name is not quoted in messages: it may be a person's."""
    name = name.removeprefix("./")
    if name.upper().split()[:1] == ["LIST"] or "%" in name:
        raise RejectedCase(f"{path}: its voxels lie in several files, expected one; convert it to one file")
    if not name or name in (".", "..") or re.search(r"[/\\\x00-\x1f]", name):
        raise RejectedCase(f"{path}: the file of its voxels lies in another folder, expected it in the same folder; mend the header")
    return beside(path, path.with_name(name))


def files_of(path: Path) -> tuple[Path, Path | None]:
    """The files of the volume that an existing file belongs to, for what must notice a change of either: (header, voxels).

    Without a second file, or with one that would be refused, (path, None).
    """
    pair = nifti_pair(path)
    try:
        if pair is not None:
            beside(path, pair[path == pair[0]])
            return pair
        return path, text_header(path).data if path.name.lower().endswith(TEXT_ENDINGS) else None
    except (RejectedCase, OSError):
        return path, None
