"""The frames of a DICOM image: what decides which volume each belongs to, and where. Classic slices and functional groups alike."""

import dataclasses
import datetime
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pydicom
from pydicom.datadict import tag_for_keyword
from pydicom.tag import BaseTag

from teravox.errors import RejectedCase

if TYPE_CHECKING:
    from teravox.dicom.headers import Header

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
RESCALES = "number of RescaleSlope and RescaleIntercept"  # 0 to 2 of them present: a slice that lacks what others have is damaged
# Differ between the volumes of one series, in the order in which they are tried.
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
# Rise from volume to volume: when a frame was acquired, as far as it says, in seconds.
TIMES = ("AcquisitionDateTime", "FrameAcquisitionDateTime", "FrameReferenceDateTime", "AcquisitionTime", "ContentTime")
_SOURCES: dict[str, tuple[str | tuple[str, int], ...]] = {  # further names of what is asked above; (creator, tag) of private ones
    "EchoTime": ("EffectiveEchoTime", "EchoTime"),
    "b_value": ("DiffusionBValue", ("SIEMENS MR HEADER", 0x0019100C), ("Philips Imaging DD 001", 0x20011003)),
    "gradient": ("DiffusionGradientOrientation", ("SIEMENS MR HEADER", 0x0019100E)),
    "TemporalPosition": ("TemporalPositionIndex", "TemporalPositionIdentifier"),
    "CardiacPhase": ("NominalCardiacTriggerDelayTime", "NominalPercentageOfCardiacPhase"),
    "InversionTime": ("InversionTimes", "InversionTime"),
    "ImageType": ("FrameType", "ImageType"),
    "AcquisitionNumber": ("FrameAcquisitionNumber", "AcquisitionNumber"),
}
_NUMBERS = {"EchoTime", "b_value", "KVP", "Rows", "Columns", "SamplesPerPixel", "BitsAllocated", "BitsStored", "PixelRepresentation"}
_DATES = {"AcquisitionTime": "AcquisitionDate", "ContentTime": "ContentDate"}  # the day of a time of day
_SPATIAL = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
_GROUPS = ("PerFrameFunctionalGroupsSequence", "SharedFunctionalGroupsSequence")
_PRIVATE = [source for sources in _SOURCES.values() for source in sources if isinstance(source, tuple)]
TAGS: list[str | int] = [
    *dict.fromkeys(
        [*CONSTANT, *TIMES, *_DATES.values(), *_SPATIAL, *_GROUPS, "NumberOfFrames", "RescaleSlope", "RescaleIntercept", "SpacingBetweenSlices"]
        + [name for name in VOLUME if name not in _SOURCES]
        + [source for sources in _SOURCES.values() for source in sources if isinstance(source, str)]
        + ["DiffusionGradientDirectionSequence"]
    ),
    *(tag for _, private in _PRIVATE for tag in (private & 0xFFFF0000 | 0x10, private)),
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


Index = dict[int, pydicom.Dataset]  # tag -> the data set that holds its value


def frames_of(header: "Header", data: pydicom.Dataset) -> Iterator[Frame]:
    """Every frame of an image. Raises RejectedCase when its functional groups do not count as many."""
    count = header.frame_count
    per_frame = list(data.get("PerFrameFunctionalGroupsSequence") or [])
    if count > 1 and len(per_frame) != count:
        raise RejectedCase(f"{header.path}: {len(per_frame)} items in PerFrameFunctionalGroupsSequence, expected {count} (NumberOfFrames)")
    shared = _index([part for group in data.get("SharedFunctionalGroupsSequence") or [] for part in _parts(group)])
    everywhere = _index([data]) | shared
    common: dict[str, Any] = {}
    for number in range(count):
        own = _index(_parts(per_frame[number])) if per_frame else {}
        # What lies outside the functional groups cannot be the position of one frame among many.
        places = (everywhere if count == 1 else shared) | own
        position, orientation, spacing = (tuple(float(part) for part in np.atleast_1d(_found(places, name) or [])) for name in _SPATIAL)

        def value(name: str, own: Index = own) -> Any:
            if any(_tag(source) in own for source in _SOURCES.get(name, (name,))):
                return _value(everywhere | own, name)
            if name not in common:  # the same for all frames: looked up once
                common[name] = _value(everywhere, name)
            return common[name]

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
            {name: value(name) for name in CONSTANT} | {RESCALES: sum(value(name) is not None for name in ("RescaleSlope", "RescaleIntercept"))},
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


def _index(parts: list[pydicom.Dataset]) -> Index:
    """Where to find each tag: the first part that holds it."""
    return {int(tag): part for part in reversed(parts) for tag in part.keys()}  # noqa: SIM118  (a data set yields its elements)


def _tag(source: str | tuple[str, int]) -> int:
    return _TAG_OF[source] if isinstance(source, str) else source[1]


_TAG_OF = {name: int(tag_for_keyword(name) or 0) for name in TAGS if isinstance(name, str)}


def _found(places: Index, source: str | tuple[str, int]) -> Any:
    """A value as pydicom gives it, None for a missing one; a private one counts only in the block of its creator (PS3.5 section 7.8.1)."""
    tag = _tag(source)
    if tag not in places:
        return None
    if isinstance(source, tuple):
        creator = places[tag].get(tag & 0xFFFF0000 | 0x10)
        if creator is None or str(creator.value).strip() != source[0]:
            return None
    return places[tag][BaseTag(tag)].value  # of its own kind: pydicom takes its time to make a tag of a number


def _value(places: Index, name: str) -> Any:
    if name in TIMES:
        return _seconds(_found(places, name), _found(places, _DATES[name]) if name in _DATES else None)
    found = (plain(_found(places, source)) for source in _SOURCES.get(name, (name,)))
    value = next((item for item in found if item is not None), None)
    return value if name not in _NUMBERS or isinstance(value, int | float) else None


def _seconds(text: Any, date: Any) -> float | None:
    """A DT, or a TM with its DA, in seconds (PS3.5 section 6.2), offsets from UTC left out; None when it is none."""
    digits, _, fraction = str(text or "").partition("+")[0].partition("-")[0].replace(":", "").strip().partition(".")
    day = digits[:8] if len(digits) >= 8 else str(date or "").replace(".", "")
    digits = digits[8:] if len(digits) >= 8 else digits
    try:
        days = datetime.datetime.strptime(day, "%Y%m%d").toordinal() if day else 0
        hours, minutes, seconds = int(digits[:2]), int(digits[2:4] or 0), int(digits[4:6] or 0)
        return days * 86400.0 + hours * 3600 + minutes * 60 + seconds + float(f"0.{fraction or 0}")
    except ValueError:
        return None


def _number(value: Any) -> float | None:
    """A number, or a text of digits, of a private attribute that may be anything; else None."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        return int(value)
    return value if isinstance(value, int | float) else None


def plain(value: Any) -> Any:
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
        return tuple(plain(part) for part in value)
    return str(value)
