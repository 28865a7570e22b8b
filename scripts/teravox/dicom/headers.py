"""One DICOM file's header: what decides which volume each of its frames belongs to, and where. Pixels stay on the disk."""

import contextlib
import dataclasses
import gzip
import io
import math
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pydicom
from pydicom.uid import UID, DeflatedExplicitVRLittleEndian

from teravox.errors import RejectedCase

HEADER_BYTES = 1 << 28  # of a compressed file, as far as its header may reach; functional groups of 10,000 frames take some 30 MB
META_BYTES = 1 << 16  # of the file's first part, which names the transfer syntax
PIXELS = {0x7FE00008: "FloatPixelData", 0x7FE00009: "DoubleFloatPixelData", 0x7FE00010: "PixelData"}
UNDEFINED = 0xFFFFFFFF  # length of compressed pixels
NAME_TEXT = 64  # longest text kept of an attribute that is only compared
SEGMENTATIONS = {"1.2.840.10008.5.1.4.1.1.66.4": "SEG", "1.2.840.10008.5.1.4.1.1.66.7": "SEG", "1.2.840.10008.5.1.4.1.1.481.3": "RTSTRUCT"}
_YBR = ("FULL", "FULL_422", "PARTIAL_420", "PARTIAL_422", "ICT", "RCT")
# PS3.3 C.7.6.3.1.2: what a message may show, since another text may be anything.
PHOTOMETRIC = {*("MONOCHROME1", "MONOCHROME2", "PALETTE COLOR", "RGB", "HSV", "ARGB", "CMYK", "XYB"), *(f"YBR_{kind}" for kind in _YBR)}
SECONDARY_CAPTURE = "1.2.840.10008.5.1.4.1.1.7"

# Equal in every frame of a volume; a missing attribute counts as a value.
CONSTANT = (
    "SOPClassUID",
    "Modality",
    "Units",
    "Rows",
    "Columns",
    "SamplesPerPixel",
    "PhotometricInterpretation",
    "BitsAllocated",
    "BitsStored",
    "PixelRepresentation",
    "PixelPaddingValue",
    "PixelPaddingRangeLimit",
    "FrameOfReferenceUID",
    "RescaleType",
    "KVP",
    "ConvolutionKernel",
    "EchoTime",
)
# Differ between the volumes of one series, in the order in which they are tried; those of TIMES also rise from volume to volume.
VOLUME = (
    "b_value",
    "gradient",
    "TemporalPosition",
    "CardiacPhase",
    "InversionTime",
    "ComplexImageComponent",
    "ImageType",
    "AcquisitionNumber",
    "StackID",
    "FlipAngle",
    "ContrastBolusAgent",
    "SliceThickness",
    "TriggerTime",
)
TIMES = ("AcquisitionTime", "ContentTime", "FrameAcquisitionTime")
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
_SOURCES = {  # further names of what is asked above
    "EchoTime": ("EffectiveEchoTime", "EchoTime"),
    "b_value": ("DiffusionBValue", 0x0019100C, 0x20011003),  # private ones of Siemens and Philips, from before the standard had it
    "gradient": ("DiffusionGradientOrientation", 0x0019100E),
    "TemporalPosition": ("TemporalPositionIndex", "TemporalPositionIdentifier"),
    "CardiacPhase": ("NominalCardiacTriggerDelayTime", "NominalPercentageOfCardiacPhase"),
    "InversionTime": ("InversionTimes", "InversionTime"),
    "ImageType": ("FrameType", "ImageType"),
    "FrameAcquisitionTime": ("FrameAcquisitionDateTime", "FrameReferenceDateTime"),
    "AcquisitionTime": ("AcquisitionDateTime", "AcquisitionTime"),
}
_SPATIAL = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
_OTHER = ("NumberOfFrames", "HighBit", "ModalityLUTSequence", "RescaleSlope", "RescaleIntercept", "SpacingBetweenSlices", "PlanarConfiguration")
_GROUPS = ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence")
_TAGS: list[str | int] = [
    *dict.fromkeys(
        ["SOPInstanceUID", *CONSTANT, *(name for name in (*VOLUME, *TIMES) if name not in _SOURCES), *ONCE, *_SPATIAL, *_OTHER, *_GROUPS]
        + [name for names in _SOURCES.values() for name in names]
        + ["DiffusionGradientDirectionSequence", "ReferencedSeriesSequence", "ReferencedFrameOfReferenceSequence"]
        + ["SegmentSequence", "StructureSetROISequence"]
    )
]


@dataclasses.dataclass(frozen=True, slots=True)
class Frame:
    """One plane. A missing attribute is None, or an empty tuple.

    number : in its file, from 0; position : (3,) mm, LPS; orientation : (6,) cosines of a row and of a column; spacing : (2,) mm,
    between rows, between columns; slope, intercept : its own rescaling (PS3.3 C.11.1); constant, volume : values of CONSTANT, and of
    VOLUME and TIMES, by name.
    """

    header: "Header"
    number: int
    position: tuple[float, ...]
    orientation: tuple[float, ...]
    spacing: tuple[float, ...]
    slope: float
    intercept: float
    thickness: float | None
    step: float | None
    constant: dict[str, Any]
    volume: dict[str, Any]

    @property
    def place(self) -> str:
        """Which frame of which file, for a message."""
        return f"{self.header.path}, frame {self.number + 1}" if self.header.frame_count > 1 else str(self.header.path)


@dataclasses.dataclass(slots=True)
class Header:
    """What one file says of itself. kind : `image`, `SEG`, `RTSTRUCT` or the name of another object, which has no pixels.

    syntax : transfer syntax UID; offset, length : of the pixels in the file (uncompressed images); instance : SOPInstanceUID, "" when
    missing; once : values of ONCE, and of a segmentation or structure set `referenced`, `structures` and FrameOfReferenceUID.
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
    once: dict[str, Any]
    frames: list[Frame] = dataclasses.field(default_factory=list)

    @property
    def series(self) -> str:
        return str(self.once["SeriesInstanceUID"] or "")

    @property
    def study(self) -> str:
        return str(self.once["StudyInstanceUID"] or "")


def is_dicom_file(path: Path) -> bool:
    """Whether a file carries the DICOM prefix (PS3.10 section 7.1), itself or inside gzip."""
    with path.open("rb") as stream:
        start = stream.read(132)
    if start[:2] == b"\x1f\x8b":
        try:
            with gzip.open(path) as stream:
                start = stream.read(132)
        except (OSError, EOFError, zlib.error):
            return False
    return start[128:132] == b"DICM"


class _Bounded(io.RawIOBase):
    """A decompressed stream that ends with an error instead of growing without bound."""

    def __init__(self, stream: BinaryIO, limit: int) -> None:
        self._stream, self._limit = stream, limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        target = offset if whence == 0 else self._stream.tell() + offset
        if whence == 2 or target > self._limit:
            raise OSError("beyond the bound")
        return self._stream.seek(target)

    def read(self, size: int = -1) -> bytes:
        left = self._limit - self._stream.tell()
        if size < 0 or size > left:
            data = self._stream.read(left + 1)
            if len(data) > left:
                raise OSError("beyond the bound")
            return data
        return self._stream.read(size)


@contextlib.contextmanager
def open_dicom(path: Path, limit: int = HEADER_BYTES) -> Iterator[tuple[Any, bool]]:
    """A binary stream of a file, decompressed when it is a gzip file, and whether it is one. limit : bytes that may come out of it."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        if packed:
            with gzip.GzipFile(fileobj=raw) as stream:
                yield _Bounded(stream, limit), True  # type: ignore[arg-type]
        else:
            yield raw, False


def check_deflated(path: Path, stream: Any, limit: int = HEADER_BYTES) -> None:
    """Raises RejectedCase for a deflated data set (PS3.5 section A.5) of more than `limit` bytes, before pydicom inflates it whole."""
    start = stream.read(META_BYTES)
    stream.seek(0)
    if start[128:132] != b"DICM":
        raise RejectedCase(f"{path}: not readable as DICOM (no DICM prefix); get it again, or move it out of the series' folder")
    # (0002,0000) UL, the first element, holds the length of the rest of the file's first part.
    meta = struct.unpack_from("<I", start, 140)[0] if start[132:136] == b"\x02\x00\x00\x00" and len(start) >= 144 else META_BYTES
    if meta > META_BYTES - 144:
        raise RejectedCase(f"{path}: file meta information of {meta} bytes, expected at most {META_BYTES - 144}; damaged file")
    if DeflatedExplicitVRLittleEndian.encode() not in start[: 144 + meta]:
        return
    unpack, total = zlib.decompressobj(-zlib.MAX_WBITS), 0
    stream.seek(144 + meta)
    try:
        while not unpack.eof and (chunk := unpack.unconsumed_tail or stream.read(1 << 20)):
            total += len(unpack.decompress(chunk, 1 << 24))
            if total > limit:
                raise RejectedCase(f"{path}: deflated data set of more than {limit} bytes, expected at most that; decompress it first")
    except zlib.error as error:
        raise RejectedCase(f"{path}: damaged deflated data set ({error}); get the file again from its source") from None
    stream.seek(0)


def read_header(path: Path) -> Header:
    """Everything but the pixels of a DICOM file, gzip or not. Raises RejectedCase with one line that quotes no text of the file.

    Refused: no DICOM, an image without pixels, truncated pixels, attributes that are no numbers.
    """
    try:
        with warnings.catch_warnings(action="ignore"), open_dicom(path) as (stream, packed):  # pydicom's warnings quote values
            check_deflated(path, stream)
            data = pydicom.dcmread(stream, stop_before_pixels=True, specific_tags=_TAGS)
            deflated = data.file_meta.get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian
            pixels = _pixels_of_deflated(path) if deflated else _pixels(stream, data)
            return _header(path, data, packed or deflated, *pixels)
    except RejectedCase:
        raise
    except (RecursionError, Exception) as error:  # a damaged file can raise anything, and the text can quote a patient's data
        if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile) and error.errno:
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


def _pixels(stream: Any, data: pydicom.Dataset) -> tuple[str, int, int]:
    """Keyword, offset and length of the pixel element that the stream stands before; ("", 0, 0) when there is none (PS3.5 section 7.1)."""
    start = stream.tell()
    order = "<" if data.is_little_endian else ">"
    while len(element := stream.read(12)) >= 8:
        group, number = struct.unpack_from(order + "HH", element)
        explicit = not data.is_implicit_VR
        long = explicit and element[4:6] in {b"OB", b"OW", b"OF", b"OD", b"OL", b"OV", b"SQ", b"UC", b"UN", b"UR", b"UT"}
        if long and len(element) < 12:
            break
        length = struct.unpack_from(order + ("I" if long or not explicit else "H"), element, 8 if long else 6 if explicit else 4)[0]
        begin = start + (12 if long else 8)
        if group << 16 | number in PIXELS:
            return PIXELS[group << 16 | number], begin, length
        if group != 0x7FE0 or length == UNDEFINED:  # else something before the pixels, such as an offset table
            break
        start = stream.seek(begin + length)
    return "", 0, 0


def _pixels_of_deflated(path: Path) -> tuple[str, int, int]:
    with open_dicom(path) as (stream, _):
        data = pydicom.dcmread(stream, specific_tags=["PixelData"])
    return ("PixelData", 0, len(data.PixelData)) if "PixelData" in data else ("", 0, 0)


def _header(path: Path, data: pydicom.Dataset, packed: bool, pixels: str, offset: int, length: int) -> Header:
    sop_class = str(data.file_meta.get("MediaStorageSOPClassUID") or data.get("SOPClassUID") or "")
    syntax = str(data.file_meta.get("TransferSyntaxUID") or "")
    name = UID(sop_class).name if sop_class else ""
    kind = SEGMENTATIONS.get(sop_class) or (
        "image" if pixels else name if UID(sop_class).name != sop_class else "object of a private or unknown class"
    )
    if not pixels and ("Rows" in data or "Image Storage" in name or not sop_class):
        raise RejectedCase(f"{path}: image without PixelData (truncated file?); get it again, or move it out of the series' folder")
    once = {keyword: _plain(data.get(keyword)) for keyword in ONCE}
    contrast = data.get("ContrastBolusAgent")
    once["contrast"] = bool(contrast) or None if contrast is not None else None
    count = int(data.get("NumberOfFrames") or 1)
    mosaic = "MOSAIC" in (data.get("ImageType") or [])
    instance = str(_plain(data.get("SOPInstanceUID")) or "")
    header = Header(path, kind, sop_class, syntax, packed, offset, length, count, mosaic, instance, once)
    if kind in SEGMENTATIONS.values():
        once["referenced"] = _referenced(data)
        once["structures"] = tuple(
            str(item.get("SegmentLabel", item.get("ROIName", "")))[:NAME_TEXT]
            for name in ("SegmentSequence", "StructureSetROISequence")
            for item in data.get(name) or []
        )
        once["FrameOfReferenceUID"] = _plain(data.get("FrameOfReferenceUID"))
    if kind == "image":
        if pixels != "PixelData":
            raise RejectedCase(f"{path}: pixels in {pixels}, expected integers in PixelData; convert the map to NIfTI")
        _check_image(path, data, header)
        try:
            header.frames.extend(_frames(header, data))
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
    if header.frame_count * rows * columns > 1 << 40:
        raise RejectedCase(f"{path}: {header.frame_count} frames of {rows} x {columns}, expected at most 2^40 pixels; damaged file")
    if not UID(header.syntax).is_private and not UID(header.syntax).is_transfer_syntax:
        raise RejectedCase(f"{path}: transfer syntax is missing or unknown, expected one of the standard's; get the file again from its source")
    if not UID(header.syntax).is_compressed or header.syntax == DeflatedExplicitVRLittleEndian:
        expected = rows * columns * header.frame_count * samples * bits // 8
        present = header.length if header.packed else min(header.length, path.stat().st_size - header.offset)
        if present < expected:
            raise RejectedCase(f"{path}: truncated, found {present} bytes of pixels, expected {expected}; get the file again from its source")
    photometric = str(data.get("PhotometricInterpretation") or "")
    known = {1: ("MONOCHROME1", "MONOCHROME2"), 3: ("RGB", "YBR_FULL", "YBR_FULL_422", "YBR_ICT", "YBR_RCT", "YBR_PARTIAL_420")}.get(samples, ())
    if photometric not in known:
        found = photometric if photometric in PHOTOMETRIC else "missing" if not photometric else "another text"
        raise RejectedCase(
            f"{path}: photometric interpretation {found} with {samples} samples per pixel, expected {' or '.join(known) or '1 or 3 samples'}"
        )
    if samples == 1 and int(data.get("HighBit", data.BitsStored - 1)) != data.BitsStored - 1:
        raise RejectedCase(f"{path}: HighBit is {data.HighBit}, expected {data.BitsStored - 1} (BitsStored - 1)")
    if bits not in {8, 16, 32} or not 1 <= int(data.BitsStored) <= bits:
        raise RejectedCase(f"{path}: {data.BitsStored} bits stored in {bits}, expected 8, 16 or 32 allocated, and at most these stored")
    if data.get("ModalityLUTSequence"):
        raise RejectedCase(f"{path}: ModalityLUTSequence is present, expected RescaleSlope and RescaleIntercept")


def _frames(header: Header, data: pydicom.Dataset) -> Iterator[Frame]:
    count, path = header.frame_count, header.path
    per_frame = list(data.get("PerFrameFunctionalGroupsSequence") or [])
    shared = [part for group in data.get("SharedFunctionalGroupsSequence") or [] for part in _parts(group)]
    if count > 1 and len(per_frame) != count:
        raise RejectedCase(f"{path}: {len(per_frame)} items in PerFrameFunctionalGroupsSequence, expected {count} (NumberOfFrames)")
    common: dict[Any, Any] = {}

    def looked_up(keyword: str | int, own: list[pydicom.Dataset], top: bool) -> Any:
        for place in own:
            if keyword in place:
                return place[keyword].value
        if (keyword, top) not in common:  # the same for all frames: looked up once
            places = [*shared, data] if top else shared
            common[keyword, top] = next((place[keyword].value for place in places if keyword in place), None)
        return common[keyword, top]

    for number in range(count):
        own = _parts(per_frame[number]) if per_frame else []
        # What lies outside the functional groups cannot be the position of one frame among many.
        spatial = [looked_up(keyword, own, count == 1) for keyword in _SPATIAL]
        position, orientation, spacing = (tuple(float(part) for part in np.atleast_1d(value if value is not None else [])) for value in spatial)

        def value(name: str, own: list[pydicom.Dataset] = own) -> Any:
            found = (looked_up(keyword, own, True) for keyword in _SOURCES.get(name, (name,)))
            return _plain(next((item for item in found if item not in (None, "")), None))

        slope, intercept, thickness, step = (value(name) for name in ("RescaleSlope", "RescaleIntercept", "SliceThickness", "SpacingBetweenSlices"))
        yield Frame(
            header,
            number,
            position,
            orientation,
            spacing,
            1.0 if slope is None else float(slope),
            0.0 if intercept is None else float(intercept),
            None if thickness is None else float(thickness),
            None if step is None else float(step),
            {name: value(name) for name in CONSTANT},
            {name: value(name) for name in (*VOLUME, *TIMES)} | {"b_value": _number(value("b_value"))},
        )


def _parts(group: pydicom.Dataset) -> list[pydicom.Dataset]:
    """The data sets that hold a frame's attributes: the first item of every sequence of its functional groups, and of theirs."""
    found = []
    for element in group:
        if element.VR == "SQ":
            for part in element.value[:1]:
                found.append(part)
                if "DiffusionGradientDirectionSequence" in part:
                    found += list(part.DiffusionGradientDirectionSequence[:1])
    return found


def _number(value: Any) -> float | None:
    """A number, or a text of digits, of a private attribute that may be anything; else None."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int | float) else None


def _plain(value: Any) -> Any:
    """A number, however it is written ("1" and "1.0"), a text, or a tuple of these; None for a missing or empty value."""
    if value is None or value == "" or (isinstance(value, bytes) and not value):
        return None
    if isinstance(value, bool | int | float):
        number = float(value)
        return int(number) if math.isfinite(number) and number == int(number) else number
    if isinstance(value, bytes):  # a private attribute whose kind is not known
        text = value.decode("latin-1").strip("\0 ")
        return int(text) if text.lstrip("-").isdigit() and len(text) < 10 else None
    if isinstance(value, pydicom.multival.MultiValue | list | tuple):
        return tuple(_plain(part) for part in value)
    return str(value)
