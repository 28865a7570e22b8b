"""One DICOM file's header: what it is, whether its pixels are there, and its frames. Pixels stay on the disk."""

import dataclasses
import gzip
import warnings
import zlib
from pathlib import Path
from typing import Any

import pydicom
from pydicom.tag import Tag
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian

from teravox.dicom.frames import TAGS, Frame, frames_of, plain
from teravox.dicom.streams import HEADER_BYTES, UNDEFINED, TooLarge, check_deflated, is_dicom_file, open_dicom, pixel_element, pixels_of_deflated
from teravox.errors import RejectedCase

__all__ = ["Frame", "Header", "is_dicom_file", "read_header"]

SEGMENTATIONS = {"1.2.840.10008.5.1.4.1.1.66.4": "SEG", "1.2.840.10008.5.1.4.1.1.66.7": "SEG", "1.2.840.10008.5.1.4.1.1.481.3": "RTSTRUCT"}
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"
# With pixels, or rows, that are no slices of the patient: they are left out like objects without an image.
NO_SLICES = {"1.2.840.10008.5.1.4.1.1.481.2", "1.2.840.10008.5.1.4.1.1.4.2"}  # RT Dose, MR Spectroscopy
COLOURS = ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "YBR_PARTIAL_420")  # the YBR ones only where decoding gives RGB
PHOTOMETRIC = {"MONOCHROME1", "MONOCHROME2", "PALETTE COLOR", "HSV", "ARGB", "CMYK", "YBR_PARTIAL_422", *COLOURS}  # shown in messages
MOST_PIXELS = 1 << 40  # more than any memory
ONCE = (
    "StudyInstanceUID",
    "SeriesInstanceUID",
    "PatientID",
    "StudyDate",
    "StudyTime",
    "SeriesDate",
    "SeriesTime",
    "SeriesNumber",
    "SeriesDescription",
    "ProtocolName",
    "ScanningSequence",
    "SequenceVariant",
    "SequenceName",
    "PulseSequenceName",
    "BurnedInAnnotation",
    "ImagesInAcquisition",
)
NAME_TEXT = 64  # longest name of a structure kept (LO, PS3.5 section 6.2)
_TAGS: list[Any] = [  # as tags, which pydicom takes as they are; it would look up each name for each file
    Tag(name)
    for name in (
        *(*TAGS, *ONCE, "SOPInstanceUID", "InstanceNumber", "HighBit", "ModalityLUTSequence", "ReferencedSeriesSequence"),
        *("ReferencedFrameOfReferenceSequence", "SegmentSequence", "StructureSetROISequence"),
    )
]


@dataclasses.dataclass(slots=True)
class Header:
    """What one file says of itself. kind : `image`, `SEG`, `RTSTRUCT` or the name of another object, which has no slices.

    syntax : transfer syntax UID; packed : inside gzip or deflated; offset, length : of the pixels in the file (uncompressed images);
    instance : SOPInstanceUID, "" when missing; once : values of ONCE, which the files of a series mostly share, and of a segmentation or
    structure set `referenced`, `structures` and FrameOfReferenceUID.
    """

    path: Path
    kind: str
    sop_class: str
    syntax: str
    packed: bool
    offset: int
    length: int
    frame_count: int
    mosaic: bool
    instance: str
    instance_number: Any
    once: dict[str, Any]
    frames: list[Frame] = dataclasses.field(default_factory=list)

    @property
    def series(self) -> str:
        return str(self.once["SeriesInstanceUID"] or "")

    @property
    def study(self) -> str:
        return str(self.once["StudyInstanceUID"] or "")


def read_header(path: Path) -> Header:
    """Everything but the pixels of a DICOM file, gzip or not. Raises RejectedCase with one line that quotes no text of the file.

    Refused: no DICOM, an image without pixels, truncated pixels, attributes that are no numbers.
    """
    try:
        with warnings.catch_warnings(action="ignore"), open_dicom(path) as (stream, packed):  # pydicom's warnings quote values
            check_deflated(path, stream)
            data = pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=_TAGS)
            deflated = data.file_meta.get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian
            pixels = pixels_of_deflated(path) if deflated else pixel_element(stream, data)
            return _header(path, data, packed or deflated, *pixels)
    except RejectedCase:
        raise
    except TooLarge:
        raise RejectedCase(f"{path}: header of more than {HEADER_BYTES} bytes in a gzip file, expected at most that; decompress it first") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise RejectedCase(f"{path}: damaged gzip file ({type(error).__name__}); get the file again from its source") from None
    except (RecursionError, Exception) as error:  # a damaged file can raise anything, and the text can quote a patient's data
        if isinstance(error, OSError) and error.errno:
            raise RejectedCase(f"{path}: not readable ({error.strerror}), expected a file this user may read") from None
        raise RejectedCase(f"{path}: not readable as DICOM ({type(error).__name__}); get it again, or move it out of the series' folder") from None


def read_uids(path: Path) -> tuple[str, str]:
    """StudyInstanceUID and SeriesInstanceUID of a file that `read_header` refuses; "" where they cannot be told."""
    try:
        with warnings.catch_warnings(action="ignore"), open_dicom(path) as (stream, _):
            check_deflated(path, stream)
            data = pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=["StudyInstanceUID", "SeriesInstanceUID"])
            return str(data.get("StudyInstanceUID") or ""), str(data.get("SeriesInstanceUID") or "")
    except (RecursionError, Exception):  # see read_header
        return "", ""


def _header(path: Path, data: pydicom.Dataset, packed: bool, pixels: str, offset: int, length: int) -> Header:
    sop_class = str(data.file_meta.get("MediaStorageSOPClassUID") or data.get("SOPClassUID") or "")
    syntax = str(data.file_meta.get("TransferSyntaxUID") or "")
    name = UID(sop_class).name if sop_class and UID(sop_class).name != sop_class else ""
    kind = SEGMENTATIONS.get(sop_class) or ("image" if pixels and sop_class not in NO_SLICES else name or "object of a private or unknown class")
    unknown = not name and not data.get("SeriesInstanceUID")  # an image whose beginning is damaged looks so too
    if not pixels and sop_class not in NO_SLICES and ("Rows" in data or "Image Storage" in name or unknown):
        raise RejectedCase(f"{path}: image without PixelData (truncated file?); get it again, or move it out of the series' folder")
    once = {keyword: plain(data.get(keyword)) for keyword in ONCE}
    count = int(data.get("NumberOfFrames") or 1)
    mosaic = "MOSAIC" in (data.get("ImageType") or [])
    instance = str(plain(data.get("SOPInstanceUID")) or "")
    header = Header(path, kind, sop_class, syntax, packed, offset, length, count, mosaic, instance, plain(data.get("InstanceNumber")), once)
    if kind in SEGMENTATIONS.values():
        once["referenced"] = _referenced(data)
        once["structures"] = tuple(
            str(item.get("SegmentLabel", item.get("ROIName", "")))[:NAME_TEXT]
            for name in ("SegmentSequence", "StructureSetROISequence")
            for item in data.get(name) or []
        )
        once["FrameOfReferenceUID"] = plain(data.get("FrameOfReferenceUID"))
    if kind == "image":
        if pixels != "PixelData":
            raise RejectedCase(f"{path}: pixels in {pixels}, expected integers in PixelData; convert the map to NIfTI")
        _check_image(path, data, header)
        try:
            header.frames.extend(frames_of(header, data))
        except RejectedCase:
            raise
        except Exception as error:  # see read_header
            raise RejectedCase(f"{path}: attributes that cannot be read ({type(error).__name__}), expected the standard's numbers") from None
    return header


def _referenced(data: pydicom.Dataset) -> tuple[str, ...]:
    """The series that a segmentation or a structure set says it was drawn on (PS3.3 C.8.20.2, C.8.8.5)."""
    series = list(data.get("ReferencedSeriesSequence") or [])
    for frame in data.get("ReferencedFrameOfReferenceSequence") or []:
        for study in frame.get("RTReferencedStudySequence") or []:
            series += list(study.get("RTReferencedSeriesSequence") or [])
    return tuple(dict.fromkeys(str(item.get("SeriesInstanceUID", "")) for item in series))


def _check_image(path: Path, data: pydicom.Dataset, header: Header) -> None:
    """Raises RejectedCase for pixels that are truncated, or stored in a way that readers disagree about."""
    samples, bits, rows, columns = (int(data.get(keyword) or 0) for keyword in ("SamplesPerPixel", "BitsAllocated", "Rows", "Columns"))
    samples = samples or 1
    if min(rows, columns, bits) < 1 or header.frame_count < 1:
        raise RejectedCase(f"{path}: {rows} rows, {columns} columns, {header.frame_count} frames of {bits} bits, expected at least 1 of each")
    if header.frame_count * rows * columns > MOST_PIXELS:
        raise RejectedCase(f"{path}: {header.frame_count} frames of {rows} x {columns}, expected at most 2^40 pixels; damaged file")
    if not UID(header.syntax).is_transfer_syntax or UID(header.syntax).is_private:
        raise RejectedCase(f"{path}: transfer syntax is missing or unknown, expected one of the standard's; get the file again from its source")
    compressed = UID(header.syntax).is_compressed and header.syntax != DeflatedExplicitVRLittleEndian
    if compressed != (header.length == UNDEFINED):
        found, other = ("of a length", "an undefined one") if compressed else ("of undefined length", "their length")
        raise RejectedCase(f"{path}: pixels {found}, expected {other} by the transfer syntax ({UID(header.syntax).name}); damaged file")
    photometric = str(data.get("PhotometricInterpretation") or "")
    known: tuple[str, ...] = {1: ("MONOCHROME1", "MONOCHROME2"), 3: COLOURS if compressed else ("RGB",)}.get(samples, ())
    if photometric not in known:
        found = photometric if photometric in PHOTOMETRIC else "missing" if not photometric else "another text"
        raise RejectedCase(
            f"{path}: photometric interpretation {found} with {samples} samples per pixel, expected {' or '.join(known) or '1 or 3 samples'}"
        )
    stored = int(data.get("BitsStored") or 0)
    if bits not in {8, 16, 32} or not 1 <= stored <= bits:
        raise RejectedCase(f"{path}: {stored} bits stored in {bits}, expected 8, 16 or 32 allocated, and at most these stored")
    if samples == 1 and int(data.get("HighBit", stored - 1)) != stored - 1:
        raise RejectedCase(f"{path}: HighBit is {data.HighBit}, expected {stored - 1} (BitsStored - 1)")
    if data.get("PixelRepresentation") not in {0, 1}:
        raise RejectedCase(f"{path}: PixelRepresentation is missing or no number of its kind, expected 0 (unsigned) or 1 (signed)")
    if not compressed:
        _check_length(path, header, rows * columns * samples * bits // 8)
    if data.get("ModalityLUTSequence"):
        raise RejectedCase(f"{path}: ModalityLUTSequence is present, expected RescaleSlope and RescaleIntercept")


def _check_length(path: Path, header: Header, plane: int) -> None:
    """Raises RejectedCase for uncompressed pixels that are fewer than the header says, or more by a plane. plane : its bytes."""
    expected = plane * header.frame_count
    present = header.length if header.packed else min(header.length, path.stat().st_size - header.offset)
    if present < expected:
        raise RejectedCase(f"{path}: truncated, found {present} bytes of pixels, expected {expected}; get the file again from its source")
    if present >= expected + plane:
        raise RejectedCase(
            f"{path}: found {present} bytes of pixels, expected {expected}; Rows, Columns, BitsAllocated or NumberOfFrames cannot be right"
        )
