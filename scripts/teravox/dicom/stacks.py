"""The volumes of a series with what rules can ask for, and the check that each is one regular stack."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from teravox import geometry
from teravox.dicom.frames import CONSTANT, RESCALES, Frame
from teravox.dicom.parting import in_sequence, parted
from teravox.errors import RejectedCase

GAP_RTOL, GAP_ATOL_MM = 0.01, 0.011  # positions rounded to two decimals have gaps 0.01 mm apart; a missing slice is far above
STEEPEST = 1.0  # drift of slices across their normal for each mm along it: 45 degrees, and gantries tilt by 30 at most
THICKNESS_RTOL = 0.01  # of two slices' distance from their thickness: beyond it nothing shows that no slice between them is missing
WIDE_GAP = 1.5  # times the slice thickness: a wider regular gap is noted, since every second slice may be missing
# Equal in every frame of a volume as well, though a series may hold several values; else two halves of two volumes are one stack.
ONE_VALUE = ("TemporalPosition", "ComplexImageComponent")
NOTED = ("gradient", "InversionTime", "ImageType", "FlipAngle", "ContrastBolusAgent", "SliceThickness", "StackID")  # may differ, which is said
PARTS_OF_A_SIGNAL = {"M", "P", "R", "I", "MAGNITUDE", "PHASE", "REAL", "IMAGINARY", "PHASE MAP", "VELOCITY"}


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
        for keyword in (*CONSTANT, RESCALES):
            if other.constant.get(keyword) != first.constant.get(keyword):
                here, there = (printable(item.constant.get(keyword)) for item in (other, first))
                raise RejectedCase(f"{other.place}: {keyword} is {here}, but {there} in {before}; expected one volume")
        for keyword in ONE_VALUE:
            if other.volume[keyword] != first.volume[keyword]:
                raise RejectedCase(f"{other.place}: {keyword} is another than in {before}; expected one volume")
        if _signal(other) != _signal(first):
            raise RejectedCase(f"{other.place}: ImageType names another part of the signal than in {before}; expected one volume")
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
    straight = np.linspace(positions[0], positions[-1], len(positions))
    off = float(np.abs(positions - straight).max())  # small differences can add up
    if off > tolerance:
        raise RejectedCase(f"{source}: a slice lies {off:.3f} mm off regular positions, expected at most {tolerance:.3f} mm; the spacing varies")
    drift = _drift(steps, normal, source, tilt)
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
    upright = (positions[-1] - positions[0]) / (len(ordered) - 1)
    along = normal * gaps.mean()
    affine[:3, 2] = along if np.linalg.norm(upright - along) > geometry.ORTHOGONAL_ATOL * step else upright
    affine[:3, 3] = positions[0]
    return Grid(ordered, geometry.LPS_FROM_RAS @ affine, drift, _remarks(ordered, step))


def _drift(steps: np.ndarray, normal: np.ndarray, source: str, tilt: str) -> np.ndarray:
    """How far each slice lies across the normal from the one before, (3,) mm, LPS; zeros when that is no more than rounding.

    steps : (n - 1, 3) mm, regular, from slice to slice. Raises RejectedCase for a tilt that is not to be sheared, or is none.
    """
    gap = float((steps @ normal).mean())
    drift = steps.mean(axis=0) - gap * normal
    size = float(np.linalg.norm(drift))
    if size * len(steps) <= GAP_ATOL_MM or size <= geometry.ORTHOGONAL_ATOL * gap:
        return np.zeros(3)
    if size > STEEPEST * gap:
        raise RejectedCase(
            f"{source}: slices shift by {size:.3f} mm across their normal and {gap:.3f} mm along it, expected a stack; damaged headers"
        )
    if tilt != "shear":
        raise RejectedCase(
            f"{source}: slices shift by {size:.3f} mm across their normal for {gap:.3f} mm along it (gantry tilt), expected none; "
            "correct it, or set ingest.tilt: shear"
        )
    return drift


def _signal(frame: Frame) -> set[Any]:
    """Magnitude, phase and their like, as ImageType has them."""
    return PARTS_OF_A_SIGNAL.intersection(frame.volume["ImageType"] or ())


def _check_plane(frame: Frame) -> None:
    if (len(frame.position), len(frame.orientation), len(frame.spacing)) != (3, 6, 2):
        raise RejectedCase(f"{frame.place}: ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing, expected all three")
    if not np.isfinite([*frame.position, *frame.orientation, *frame.spacing]).all() or min(frame.spacing) <= 0:
        raise RejectedCase(
            f"{frame.place}: PixelSpacing is {list(frame.spacing)} mm, at {list(frame.position)} mm; expected finite numbers and spacing above 0"
        )
    check_rescale(frame)


def check_rescale(frame: Frame) -> None:
    """Raises RejectedCase for a rescaling that leaves no numbers."""
    if not (np.isfinite([frame.slope, frame.intercept]).all() and frame.slope):
        raise RejectedCase(f"{frame.place}: RescaleSlope is {frame.slope}, RescaleIntercept {frame.intercept}, expected finite numbers, slope not 0")


def _remarks(frames: list[Frame], step: float) -> list[str]:
    notes = []
    thickness = frames[0].thickness
    if thickness and np.isfinite(thickness) and step > WIDE_GAP * thickness:
        notes.append(f"slices are {step:.3f} mm apart and {thickness:.3f} mm thick")
    different = [name for name in NOTED if any(frame.volume[name] != frames[0].volume[name] for frame in frames)]
    if different:
        notes.append(f"{', '.join(different)} differ(s) between slices")
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
    """The volumes of one series with what rules can ask for. A mosaic is a volume; colour frames give one volume per component."""
    members = list(frames)
    tiled = [[frame] for frame in members if frame.header.mosaic]
    parts = in_sequence([*tiled, *parted([frame for frame in members if not frame.header.mosaic])])
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
