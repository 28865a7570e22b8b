"""The volumes of a series: its frames parted by what differs between volumes, and each part checked to be one regular stack."""

import dataclasses
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np

from teravox import geometry
from teravox.dicom.headers import CONSTANT, TIMES, VOLUME, Frame
from teravox.errors import RejectedCase

GAP_RTOL, GAP_ATOL_MM = 0.01, 0.011  # positions rounded to two decimals have gaps 0.01 mm apart; a missing slice is far above
TILT_ATOL_MM = 0.01  # drift of slice origins across the slice normal, per slice: 0.3 degrees at 2 mm
ORIENTATION_ATOL = 1e-4  # direction cosines written by one scanner for one series
SPACING_RTOL = 1e-4  # of PixelSpacing within a volume
THICKNESS_RTOL = 0.01  # of two slices' distance from their thickness: beyond it nothing shows that no slice between them is missing
WIDE_GAP = 1.5  # times the slice thickness: a wider regular gap is noted, since every second slice may be missing


@dataclasses.dataclass(frozen=True)
class Stack:
    """One volume's frames, as parted. frames : in the order of the files; attributes : what rules can ask for, see teravox.dicom.match."""

    frames: list[Frame]
    attributes: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Grid:
    """A regular stack. frames : ordered along the normal; affine : (4, 4), RAS+, mm, for index (column, row, slice).

    drift : (3,) mm, LPS, how far each slice lies across the normal from the one before (gantry tilt), zeros for an upright stack, and
    the affine's third column is then along the normal; notes : one line each.
    """

    frames: list[Frame]
    affine: np.ndarray
    drift: np.ndarray
    notes: list[str]


def parted(frames: list[Frame]) -> list[list[Frame]]:
    """The frames of one series as volumes, in the order of acquisition: the number of a volume counts from here.

    Frames of another size, spacing, orientation, echo time or b-value are always of another volume. Where a position is still held
    more than once, the attributes of VOLUME are tried in their order, then the times; what no attribute parts stays together.
    """
    groups: list[list[Frame]] = []
    for frame in frames:  # orientation and spacing by tolerance, so no dictionary
        for group in groups:
            if _alike(group[0], frame):
                group.append(frame)
                break
        else:
            groups.append([frame])
    return [part for group in groups for part in _by_attributes(group)]


def _alike(first: Frame, other: Frame) -> bool:
    if (len(first.orientation), len(first.spacing), len(first.position)) != (len(other.orientation), len(other.spacing), len(other.position)):
        return False
    fixed = ("Rows", "Columns", "SamplesPerPixel", "EchoTime")
    if any(first.constant[name] != other.constant[name] for name in fixed) or first.volume["b_value"] != other.volume["b_value"]:
        return False
    return bool(
        np.allclose(first.orientation, other.orientation, rtol=0, atol=ORIENTATION_ATOL)
        and np.allclose(first.spacing, other.spacing, rtol=SPACING_RTOL)
    )


def _places(frames: list[Frame]) -> list[int]:
    """For each frame the number of its position: equal where positions are less than GAP_ATOL_MM apart along the normal and across it."""
    if any(len(frame.position) != 3 for frame in frames) or len(frames[0].orientation) != 6:
        return list(range(len(frames)))
    positions = np.array([frame.position for frame in frames])
    normal = np.cross(frames[0].orientation[:3], frames[0].orientation[3:])
    heights = positions @ normal
    order = np.argsort(heights, kind="stable")
    steps = np.diff(heights[order]) >= GAP_ATOL_MM
    numbers = np.empty(len(frames), int)
    numbers[order] = np.concatenate([[0], np.cumsum(steps)])
    return numbers.tolist()


def _by_attributes(frames: list[Frame]) -> list[list[Frame]]:
    places = _places(frames)
    if max(Counter(places).values()) == 1:
        return [frames]
    for name in VOLUME:
        parts = _grouped(frames, name)
        if len(parts) == 1:
            continue
        held = [Counter(places[index] for index in part) for part in parts]
        if all(set(one) == set(held[0]) for one in held) or all(max(one.values()) == 1 for one in held):
            return [finer for part in parts for finer in _by_attributes([frames[index] for index in part])]
    for name in TIMES:
        if volumes := _by_time(frames, places, name):
            return volumes
    return [frames]


def _grouped(frames: list[Frame], name: str) -> list[list[int]]:
    """Indices of frames by the value of an attribute of VOLUME, parts in rising order of numbers, else in the order of the files."""
    parts: dict[Any, list[int]] = defaultdict(list)
    for index, frame in enumerate(frames):
        parts[frame.volume[name]].append(index)
    values = list(parts)
    if all(isinstance(value, int | float) for value in values):
        values.sort()
    return [parts[value] for value in values]


def _by_time(frames: list[Frame], places: list[int], name: str) -> list[list[Frame]]:
    """The n-th frame in time of every position to the n-th volume, when no volume begins before the one before it ended; else nothing."""
    times = [_seconds(frame.volume[name]) for frame in frames]
    count = Counter(places)
    if any(math.isnan(time) for time in times) or len(set(count.values())) != 1:
        return []
    parts: list[list[int]] = [[] for _ in range(max(count.values()))]
    seen: Counter[int] = Counter()
    for index in sorted(range(len(frames)), key=lambda index: times[index]):
        parts[seen[places[index]]].append(index)
        seen[places[index]] += 1
    spans = [[times[index] for index in part] for part in parts]
    if any(max(before) >= min(after) for before, after in itertools.pairwise(spans)):
        return []
    return [[frames[index] for index in sorted(part)] for part in parts]


def _seconds(value: Any) -> float:
    """A DICOM DT or TM, or a number, as something that orders times of one day or of one notation (PS3.5 section 6.2); else NaN."""
    text = str(value if value is not None else "").partition("+")[0].partition("-")[0]
    try:
        return float(text)
    except ValueError:
        return math.nan


def regular(frames: list[Frame], source: str, tilt: str = "reject") -> Grid:
    """The slices in their order along the normal, and their grid (PS3.3 section C.7.6.2.1.1, equation C.7.6.2.1-1).

    source : begins a message about the whole; tilt : `shear` lets a regular drift across the normal pass, for the voxels to be shifted.
    Raises RejectedCase unless the frames form one regular stack: equal attributes, positions all different, equally far apart along the
    normal, no tilt.
    """
    first = frames[0]
    before = f"frame {first.number + 1}" if first.header.frame_count > 1 else str(first.header.path)
    for other in frames:
        _check_plane(other)
        for keyword in CONSTANT:
            if other.constant[keyword] != first.constant[keyword]:
                here, there = (printable(item.constant[keyword]) for item in (other, first))
                raise RejectedCase(f"{other.place}: {keyword} is {here}, but {there} in {before}; expected one volume")
    row, column = np.array(first.orientation[:3]), np.array(first.orientation[3:])
    if np.abs([row @ row - 1, column @ column - 1, row @ column]).max() > geometry.ORTHOGONAL_ATOL:
        raise RejectedCase(f"{first.place}: ImageOrientationPatient is {list(first.orientation)}, expected two perpendicular unit vectors")
    normal = np.cross(row, column)
    ordered = sorted(frames, key=lambda item: float(np.dot(item.position, normal)))
    positions = np.array([item.position for item in ordered])
    steps = np.diff(positions, axis=0)
    gaps = steps @ normal
    if len(frames) < 2:
        raise RejectedCase(f"{source}: found 1 slice, expected at least 2; one slice has no distance to another")
    step = float(np.median(gaps))
    tolerance = max(GAP_ATOL_MM, GAP_RTOL * step)
    for gap, after in zip(gaps, ordered[1:], strict=True):
        if gap < GAP_ATOL_MM:
            raise RejectedCase(
                f"{after.place}: second slice at one position ({gap:.3f} mm from another), and no attribute tells volumes apart; "
                f"expected one volume, leave the copies or the other volumes out"
            )
        if abs(gap - step) > tolerance:
            raise RejectedCase(f"{after.place}: slice gap {gap:.3f} mm, expected {step:.3f} mm; a slice is missing or the spacing varies")
    across = steps - np.outer(gaps, normal)
    drift = across.mean(axis=0)
    if np.abs(across).max() <= TILT_ATOL_MM:
        drift = np.zeros(3)
    elif tilt != "shear":
        raise RejectedCase(
            f"{source}: slices shift by {np.abs(across).max():.3f} mm across their normal (gantry tilt), expected at most {TILT_ATOL_MM} mm; "
            "correct it, or set ingest.tilt: shear"
        )
    straight = np.linspace(positions[0], positions[-1], len(positions))
    off = float(np.abs(positions - straight).max())  # small differences can add up
    if off > tolerance:
        raise RejectedCase(f"{source}: a slice lies {off:.3f} mm off regular positions, expected at most {tolerance:.3f} mm; the spacing varies")
    if len(frames) == 2:
        known = {value for frame in frames for value in (frame.thickness, frame.step) if value}
        if not any(abs(abs(value) - step) <= max(GAP_ATOL_MM, THICKNESS_RTOL * step) for value in known):
            raise RejectedCase(
                f"{source}: found 2 slices {step:.3f} mm apart, and neither SliceThickness nor SpacingBetweenSlices says so; "
                "expected at least 3, or such an attribute: a slice between them may be missing"
            )
    affine = np.eye(4)
    affine[:3, 0] = row * first.spacing[1]  # PixelSpacing is (between rows, between columns)
    affine[:3, 1] = column * first.spacing[0]
    affine[:3, 2] = (positions[-1] - positions[0]) / (len(ordered) - 1) if not drift.any() else normal * gaps.mean()
    affine[:3, 3] = positions[0]
    return Grid(ordered, geometry.LPS_FROM_RAS @ affine, drift, _remarks(ordered, step))


def _check_plane(frame: Frame) -> None:
    if (len(frame.position), len(frame.orientation), len(frame.spacing)) != (3, 6, 2):
        raise RejectedCase(f"{frame.place}: ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing, expected all three")
    if not np.isfinite([*frame.position, *frame.orientation, *frame.spacing]).all() or min(frame.spacing) <= 0:
        raise RejectedCase(
            f"{frame.place}: PixelSpacing is {list(frame.spacing)} mm, at {list(frame.position)} mm; expected finite numbers and spacing above 0"
        )
    if not (np.isfinite([frame.slope, frame.intercept]).all() and frame.slope):
        raise RejectedCase(f"{frame.place}: RescaleSlope is {frame.slope}, RescaleIntercept {frame.intercept}, expected finite numbers, slope not 0")


def _remarks(frames: list[Frame], step: float) -> list[str]:
    notes = []
    thickness = frames[0].thickness
    if thickness and np.isfinite(thickness) and step > WIDE_GAP * thickness:
        notes.append(f"slices are {step:.3f} mm apart and {thickness:.3f} mm thick")
    planned = frames[0].header.once["ImagesInAcquisition"]
    if isinstance(planned, int) and planned > len(frames) and frames[0].header.frame_count == 1:
        notes.append(f"ImagesInAcquisition is {planned}, found {len(frames)} slices")
    if any(str(frame.header.once["BurnedInAnnotation"] or "").upper() == "YES" for frame in frames):
        notes.append("BurnedInAnnotation is YES: the pixels may show who the patient is")
    return notes


def printable(value: Any) -> str:
    """A number as it is; of a text only that there is one, since messages are kept and a text can hold a patient's data."""
    return "missing" if value is None else str(value) if isinstance(value, int | float) else "another text"


def stacks(frames: Iterable[Frame]) -> list[Stack]:
    """The volumes of one series with what rules can ask for. Colour frames give one volume per component."""
    parts = parted(list(frames))
    echoes = sorted({part[0].constant["EchoTime"] for part in parts if isinstance(part[0].constant["EchoTime"], int | float)})
    found = []
    for part in parts:
        components = ("red", "green", "blue") if part[0].constant["SamplesPerPixel"] == 3 else (None,)
        for component in components:
            found.append(Stack(part, _attributes(part, echoes, component)))
    return found


def _attributes(frames: list[Frame], echoes: list[float], component: str | None) -> dict[str, Any]:
    first, once = frames[0], frames[0].header.once

    def texts(*values: Any) -> str:
        parts = [part for value in values if value is not None for part in (value if isinstance(value, tuple) else (value,))]
        return "\\".join(str(part) for part in parts if part is not None)

    orientation = None
    if len(first.orientation) == 6 and np.isfinite(first.orientation).all():
        normal = np.abs(np.cross(first.orientation[:3], first.orientation[3:]))
        orientation = ("sagittal", "coronal", "axial")[int(np.argmax(normal))]
    echo_time = first.constant["EchoTime"]
    return {
        "modality": first.constant["Modality"],
        "description": texts(once["SeriesDescription"], once["ProtocolName"]),
        "sequence": texts(once["ScanningSequence"], once["SequenceVariant"], once["SequenceName"], once["PulseSequenceName"]),
        "image_type": texts(first.volume["ImageType"]),
        "orientation": orientation,
        "contrast": first.volume["ContrastBolusAgent"] is not None,
        "echo": echoes.index(echo_time) + 1 if echo_time in echoes else None,
        "echo_time_ms": echo_time,
        "b_value": first.volume["b_value"],
        "component": component,
        "pixels": f"{first.constant['Columns']} x {first.constant['Rows']}",
        "spacing": " x ".join(f"{value:g}" for value in first.spacing),
        "slices": len(frames),
        "when": texts(once["SeriesDate"] or once["StudyDate"]) + texts(once["SeriesTime"] or once["StudyTime"]),
        "number": once["SeriesNumber"] if isinstance(once["SeriesNumber"], int) else 0,
    }
