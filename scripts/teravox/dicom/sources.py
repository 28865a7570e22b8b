"""The files of a DICOM source: a folder that is walked, or a list of files; every one is used, or left out for a reason."""

import dataclasses
import gzip
import os
import shutil
import warnings
import zlib
from pathlib import Path

import pydicom
from pydicom.uid import ExplicitVRLittleEndian

from teravox import hashing, numa
from teravox.dicom.frames import Frame
from teravox.dicom.headers import SECONDARY_CAPTURE, Header, read_header
from teravox.dicom.streams import UNDEFINED, TooLarge, is_dicom_file, open_dicom
from teravox.errors import RejectedCase

DICOM_SUFFIXES = {".dcm", ".ima", ".dicom", ".dic", ".img"}  # names that promise an image, whatever the file holds
DOCUMENTS = {"dicomdir", "readme", "license", "licence", "changes", "copying", "notes", "thumbs.db", "desktop.ini", "autorun.inf", "index.htm"}
MAGIC = {b"%PDF": "PDF", b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"PK\x03\x04": "ZIP archive", b"Rar!": "RAR archive"}
VOLUMES = (".nii", ".nii.gz", ".nrrd", ".mha", ".mhd", ".json", ".json.gz")  # beside a series, as converters leave them
TEXT_BYTES = 4096  # of a file's beginning, looked at to tell a text
AFTER_PIXELS = 1 << 24  # bytes that may follow the pixels of a gzip file: other elements and padding take far less


@dataclasses.dataclass(frozen=True)
class Account:
    """What became of one file of a source: `used`, or `skipped` for a reason."""

    path: Path
    status: str
    reason: str = ""
    series: str = ""  # SeriesInstanceUID of an object without an image


def walk(folder: Path) -> list[Path]:
    """Every file of a folder and its subfolders; a file is its only one. Raises RejectedCase.

    A symbolic link to nowhere may stand for a lost slice, one to a folder is not walked, and one that leads out of the folder may lead
    anywhere: all three are refused.
    """
    if folder.is_file():
        return [folder]
    root = folder.resolve()

    def refuse(error: OSError) -> None:
        raise RejectedCase(f"{error.filename}: not readable ({error.strerror}), expected a folder this user may read") from None

    inside = [(Path(place) / name, name in names) for place, folders, names in os.walk(folder, onerror=refuse) for name in (*folders, *names)]
    for path, file in sorted(inside):
        if path.is_symlink() and not (path.is_file() and path.resolve().is_relative_to(root)):
            raise RejectedCase(f"{path}: symbolic link to a folder, to nothing or out of the source, expected files; copy the files into the folder")
        if file and not path.is_file():
            raise RejectedCase(f"{path}: pipe, socket or device, expected files; move it out of the folder")
    return sorted(path for path, file in inside if file)


def harmless(path: Path) -> str:
    """Why a file that is no DICOM is surely no lost slice either; "" when it may be one."""
    with path.open("rb") as stream:
        start = stream.read(TEXT_BYTES)
    for magic, name in MAGIC.items():
        if start.startswith(magic) and path.suffix.lower() not in DICOM_SUFFIXES:
            return f"{name}, no DICOM"
    if path.name.lower().endswith(VOLUMES) or path.name.startswith(".") or path.stem.lower() in DOCUMENTS or path.name.lower() in DOCUMENTS:
        return "no DICOM"
    text = bool(start) and b"\0" not in start
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        text = text and error.start > len(start) - 4 and len(start) == TEXT_BYTES  # cut within a character
    if text and path.suffix and not path.suffix[1:].isdigit() and path.suffix.lower() not in DICOM_SUFFIXES:
        return "text, no DICOM"
    return ""


def read_headers(paths: list[Path], source: Path) -> tuple[list[Header], list[Account]]:
    """The header of every image among some files, and an account of the others. Raises RejectedCase.

    A file that is neither DICOM nor surely something else is refused rather than left out, and so is an image without pixels: it may be
    a damaged slice.
    """
    images, accounts = [], []
    for path in paths:
        try:
            reason = "" if is_dicom_file(path) else harmless(path)
        except OSError as error:
            raise RejectedCase(f"{path}: not readable ({error.strerror}), expected a file this user may read") from None
        if reason:
            accounts.append(Account(path, "skipped", reason))
            continue
        header = read_header(path)
        if header.kind == "image":
            images.append(header)
        else:
            accounts.append(Account(path, "skipped", f"object without an image: {header.kind}", header.series))
    if not images:
        raise RejectedCase(f"{source}: found no DICOM image, expected one series")
    return images, accounts


def is_copy(header: Header, other: Header) -> bool:
    """Whether two files are two, and equal."""
    return header is not other and hashing.file_digest(header.path) == hashing.file_digest(other.path)


def without_copies(images: list[Header]) -> tuple[list[Header], list[Account]]:
    """Images without identical copies of one instance. Raises RejectedCase for two instances of one UID that differ."""
    first: dict[str, Header] = {}
    kept, accounts = [], []
    for header in images:
        other = first.setdefault(header.instance, header) if header.instance else header
        if other is header:
            kept.append(header)
        elif is_copy(header, other):
            accounts.append(Account(header.path, "skipped", "identical copy of another file"))
        else:
            raise RejectedCase(f"{header.path}: has the SOPInstanceUID of {other.path}, but other content; expected one of the two")
    return kept, accounts


def without_scouts(images: list[Header]) -> tuple[list[Frame], list[Account]]:
    """Frames that can be slices of a volume, when there are any: no localizers, no secondary captures that lie nowhere in space."""

    def reason(frame: Frame) -> str:
        if "LOCALIZER" in (frame.volume["ImageType"] or ()):
            return "localizer"
        if frame.header.sop_class.startswith(SECONDARY_CAPTURE) and not frame.position:
            return "secondary capture without a position"
        return ""

    frames = [frame for header in images for frame in header.frames]
    kept = [frame for frame in frames if not reason(frame)]
    if not kept:
        return frames, []
    left, used = {frame.header.path: reason(frame) for frame in frames if reason(frame)}, {frame.header.path for frame in kept}
    return kept, [Account(path, "skipped", why) for path, why in left.items() if path not in used]


def plain_files(headers: list[Header], scratch: Path) -> dict[Path, Header]:
    """For each file a header of one that decoders can read: itself, or a copy in `scratch` without gzip and without deflation.

    Raises RejectedCase for a damaged gzip file, or one that grows far beyond what its header says, or beyond half of the memory that
    this process may use.
    """
    found = {}
    for number, header in enumerate(headers):
        if not header.packed:
            found[header.path] = header
            continue
        copy = scratch / f"plain{number}.dcm"
        limit = numa.granted_bytes() // 2
        if header.offset and header.length != UNDEFINED:
            limit = min(limit, header.offset + header.length + AFTER_PIXELS)
        try:
            with open_dicom(header.path, limit) as (stream, _), copy.open("wb") as target:
                shutil.copyfileobj(stream, target, 1 << 20)
        except TooLarge:
            raise RejectedCase(f"{header.path}: gzip file of more than {limit} bytes, its header says less; decompress it first") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise RejectedCase(f"{header.path}: damaged gzip file ({type(error).__name__}); get the file again from its source") from None
        try:
            found[header.path] = _inflated(copy)
        except RejectedCase as error:
            raise RejectedCase(str(error).replace(str(copy), str(header.path))) from None
        except Exception as error:  # a damaged file can raise anything
            raise RejectedCase(f"{header.path}: damaged compressed file ({type(error).__name__}); get the file again from its source") from None
    return found


def _inflated(copy: Path) -> Header:
    """The header of a plain file, which is rewritten without deflation when it has any."""
    inner = read_header(copy)
    if not inner.packed:
        return inner
    with warnings.catch_warnings(action="ignore"):
        data = pydicom.dcmread(copy)
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.save_as(copy, enforce_file_format=True)
    return read_header(copy)
