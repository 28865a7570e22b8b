"""DICOM SEG (PS3.3 sections A.51 and C.8.20): a segmentation onto the grid of its image."""

import itertools
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydicom

from teravox import geometry, seg_frames, segments
from teravox.errors import RejectedCase

SOP_CLASSES = {"1.2.840.10008.5.1.4.1.1.66.4": ("BINARY", "FRACTIONAL"), "1.2.840.10008.5.1.4.1.1.66.7": ("LABELMAP",)}
PLACE_ATOL_VOXELS = 10 * geometry.GRID_ATOL_VOXELS  # positions of a SEG are copied as text, often with two decimals fewer than the image's
STEP_RTOL = 0.01  # between SpacingBetweenSlices and the image's step
BACKGROUND = ("125040", "DCM")  # code of a segment that stands for no segment
Claims = Callable[[int], Iterator[tuple[int, np.ndarray]]]


def read_segmentation(
    path: Path,
    shape: tuple[int, int, int],
    affine: np.ndarray,
    labels: list[dict[str, Any]],
    frame_of_reference: str,
    options: dict[str, Any],
    instances: Collection[str] | None = None,
) -> segments.Labelled:
    """A DICOM SEG onto the grid of its image: label values (x, y, z), each frame at its own position.

    shape, affine : the image's grid in canonical order, RAS+, mm; labels : the configuration's, whose names or regular
    expressions the SegmentLabels fit; frame_of_reference : FrameOfReferenceUID of the image, "" when not known; options : the
    configuration's `ingest`, of which `fractional_threshold` and `overlap` are read. A segment that fits no label is refused,
    unless a label has a regular expression, which says that there is a choice: then it is left out and counted in the notes.
    instances : SOPInstanceUIDs of the image's slices, None when not known.
    Raises RejectedCase: made on slices that are missing, no SEG, of another frame of reference, an unknown segment, overlap, another
    grid, damaged.
    """
    with segments.refusing(path, "SEG"):
        data = segments.read_dataset(path)
        kind = segments.text(data.get("SegmentationType"))
        if kind not in SOP_CLASSES.get(str(data.get("SOPClassUID")), ()):
            raise RejectedCase(f"{path}: not usable as a DICOM SEG (other SOP class or segmentation type), expected BINARY, FRACTIONAL or LABELMAP")
        if not segments.same_frame(frame_of_reference, data.get("FrameOfReferenceUID")):
            raise RejectedCase(f"{path}: FrameOfReferenceUID is another than the image's, expected a segmentation of this image")
        _check_references(path, data, instances)
        corrections: list[str] = []
        background, matched, notes = _segments(path, data, kind, labels)
        numbers = _frame_segments(path, data, kind, {*matched, *background})
        count = len(numbers)
        frames = seg_frames.reader(path, data, count)
        if kind == "LABELMAP":
            claims = _labelmap(path, frames, matched, background)
        else:
            belongs = _threshold(path, data, options["fractional_threshold"], corrections) if kind == "FRACTIONAL" else np.arange(256) > 0
            claims = _one_segment(path, frames, belongs, numbers, matched)
        canvas = segments.Canvas(shape, labels)
        places = _places(
            path, data, shape, affine, [index for index, number in enumerate(numbers) if kind == "LABELMAP" or matched.get(number, -1) >= 0]
        )
        for (axis, plane), group in itertools.groupby(sorted(places, key=lambda place: place[:2]), key=lambda place: place[:2]):
            masks: dict[int, np.ndarray] = {}
            for _, _, index, window, turn in group:
                for position, mask in claims(index):
                    target = masks.setdefault(position, np.zeros(tuple(np.delete(shape, axis)), bool))
                    target[window] |= turn(mask)
            canvas.paint(axis, plane, masks)
        return canvas.finish(path, options["overlap"], corrections, notes)


def _check_references(path: Path, data: pydicom.Dataset, instances: Collection[str] | None) -> None:
    """Raises RejectedCase when some of the instances that a series is referred to by are among the image's, and others are not.

    The others are slices that the image has lost. Where none is, the image is another form of the series, such as one multi-frame file.
    """
    for series in data.get("ReferencedSeriesSequence") or []:
        named = [str(item.get("ReferencedSOPInstanceUID", "")) for item in series.get("ReferencedInstanceSequence") or []]
        missing = sum(uid not in (instances or ()) for uid in named)
        if instances and 0 < missing < len(named):
            raise RejectedCase(
                f"{path}: broken reference, {missing} of {len(named)} instances that it was made on are not among the image's slices, expected all; "
                "the image may have lost slices"
            )


def _segments(path: Path, data: pydicom.Dataset, kind: str, labels: list[dict[str, Any]]) -> tuple[set[int], dict[int, int], list[str]]:
    """Numbers of background; label position of each other described segment, -1 for none; notes.

    In a LABELMAP a pixel that belongs to no segment holds PixelPaddingValue, or 0, or a segment that says so.
    """
    described: dict[int, str] = {}
    background = set()
    for item in data.get("SegmentSequence") or []:
        number = int(item.SegmentNumber)
        if number in described:
            raise RejectedCase(f"{path}: SegmentSequence describes segment {number} twice, expected once; damaged file")
        described[number] = segments.text(item.get("SegmentLabel"))
        code: Any = next(iter(item.get("SegmentedPropertyTypeCodeSequence") or []), {})
        if kind == "LABELMAP" and (code.get("CodeValue"), code.get("CodingSchemeDesignator")) == BACKGROUND:
            background.add(number)
    names = {number: name for number, name in described.items() if number not in background}
    if kind == "LABELMAP":
        padding = data.get("PixelPaddingValue")
        if padding is not None and int(padding) in names:
            raise RejectedCase(f"{path}: PixelPaddingValue {int(padding)} is the number of a segment too, expected a value of its own; damaged file")
        background |= {0 if padding is None else int(padding)} - set(names)
    matched = segments.match(path, "segment", names, labels)
    wanted = ", ".join(label["name"] for label in labels)
    foreign = sorted(set(names) - set(matched))
    if foreign and not any(label.get("segment") for label in labels):
        raise RejectedCase(f"{path}: segment {foreign[0]} is named otherwise than any label, expected {wanted}")
    if not matched:
        raise RejectedCase(f"{path}: none of {len(names)} segments fits a label, expected segments for {wanted}; see `segment` of the labels")
    notes = [f"{len(foreign)} of {len(names)} segments fit no label and were left out"] if foreign else []
    notes += [f"no segment fits label {label['name']}" for position, label in enumerate(labels) if position not in matched.values()]
    return background, {**dict.fromkeys(foreign, -1), **matched}, notes


def _groups(data: pydicom.Dataset) -> tuple[list[pydicom.Dataset], list[pydicom.Dataset]]:
    return list(data.get("PerFrameFunctionalGroupsSequence") or []), list(data.get("SharedFunctionalGroupsSequence") or [])


def _value(sequence: str, keyword: str, places: list[pydicom.Dataset]) -> Any:
    """An attribute of a functional group, of the frame's own before the shared ones (PS3.3 section C.7.6.16); None when missing."""
    return next((place[sequence][0][keyword].value for place in places if place.get(sequence) and keyword in place[sequence][0]), None)


def _frame_segments(path: Path, data: pydicom.Dataset, kind: str, known: set[int]) -> list[int]:
    """Segment number of each frame, 0 in a LABELMAP, whose pixels hold it. Raises RejectedCase when a number is not known."""
    count = int(data.get("NumberOfFrames") or 1)
    frames, shared = _groups(data)
    if len(frames) != count:
        raise RejectedCase(f"{path}: {len(frames)} items in PerFrameFunctionalGroupsSequence, expected {count} (NumberOfFrames)")
    if kind == "LABELMAP":
        return [0] * count
    numbers = [int(_value("SegmentIdentificationSequence", "ReferencedSegmentNumber", [frame, *shared])) for frame in frames]
    if set(numbers) - known:
        raise RejectedCase(f"{path}: frames of segment {min(set(numbers) - known)}, which SegmentSequence does not describe; damaged file")
    return numbers


def _threshold(path: Path, data: pydicom.Dataset, threshold: float, corrections: list[str]) -> np.ndarray:
    """(maximum + 1,) whether each stored value of a FRACTIONAL SEG belongs to its segment (PS3.3 section C.8.20.2.3)."""
    kind, maximum = segments.text(data.get("SegmentationFractionalType")), int(data.MaximumFractionalValue)
    if kind not in ("PROBABILITY", "OCCUPANCY") or not 0 < maximum < 256:
        raise RejectedCase(f"{path}: SegmentationFractionalType or MaximumFractionalValue {maximum} is not the standard's; damaged file")
    corrections.append(f"{kind} of at least {threshold:g} (of MaximumFractionalValue {maximum}) taken as belonging to the segment")
    return np.arange(maximum + 1) / maximum >= threshold  # the quotient is rounded as the threshold is: 7 of 10 is 0.7


def _one_segment(path: Path, frames: Callable[[int], np.ndarray], belongs: np.ndarray, numbers: list[int], matched: dict[int, int]) -> Claims:
    def claims(index: int) -> Iterator[tuple[int, np.ndarray]]:
        values = frames(index)
        if values.max() >= len(belongs):
            raise RejectedCase(f"{path}: frame {index + 1} holds {values.max()}, expected at most {len(belongs) - 1} (MaximumFractionalValue)")
        yield matched[numbers[index]], belongs[values]

    return claims


def _labelmap(path: Path, frames: Callable[[int], np.ndarray], matched: dict[int, int], background: set[int]) -> Claims:
    def claims(index: int) -> Iterator[tuple[int, np.ndarray]]:
        values = frames(index)
        for number in np.unique(values).tolist():
            if number not in matched and number not in background:
                raise RejectedCase(f"{path}: frames of segment {number}, which SegmentSequence does not describe; damaged file")
            if matched.get(number, -1) >= 0:
                yield matched[number], values == number

    return claims


def _places(
    path: Path, data: pydicom.Dataset, shape: tuple[int, int, int], affine: np.ndarray, wanted: list[int]
) -> list[tuple[int, int, int, tuple[slice, slice], Callable[[np.ndarray], np.ndarray]]]:
    """(axis, plane, frame, window, turn) of each wanted frame: turn(pixels) is what belongs into window of the plane across axis.

    shape, affine : the image's grid, RAS+, mm. DICOM PS3.3 section C.7.6.2.1.1. Raises RejectedCase unless every frame lies on
    whole voxels inside the grid, and all across one axis.
    """
    to_index = np.linalg.inv(affine) @ geometry.LPS_FROM_RAS
    rows, columns = int(data.Rows), int(data.Columns)
    frames, shared = _groups(data)
    places = []
    for index in wanted:
        groups = [frames[index], *shared]
        position = np.array(_value("PlanePositionSequence", "ImagePositionPatient", groups), float)
        cosines = np.array(_value("PlaneOrientationSequence", "ImageOrientationPatient", groups), float)
        spacing = np.array(_value("PixelMeasuresSequence", "PixelSpacing", groups), float)  # between rows, between columns
        first = to_index[:3, :3] @ position + to_index[:3, 3]
        steps = [to_index[:3, :3] @ (cosines[3:] * spacing[0]), to_index[:3, :3] @ (cosines[:3] * spacing[1])]  # to the next row, the next column
        along = [int(np.abs(step).argmax()) for step in steps]
        signs = [int(np.sign(step[axis])) for step, axis in zip(steps, along, strict=True)]
        units = [np.eye(3)[axis] * sign for axis, sign in zip(along, signs, strict=True)]
        off = max(
            [np.abs(first - np.rint(first)).max(), *(np.abs(s - u).max() * (n - 1) for s, u, n in zip(steps, units, (rows, columns), strict=True))]
        )
        if along[0] == along[1] or not off <= PLACE_ATOL_VOXELS:
            raise RejectedCase(
                f"{path}: frames do not lie on the image's grid (frame {index + 1} begins at {np.round(first, 3).tolist()}), expected whole voxels"
            )
        last = np.rint(first) + units[0] * (rows - 1) + units[1] * (columns - 1)
        low, high = np.minimum(np.rint(first), last), np.maximum(np.rint(first), last)
        if (low < 0).any() or (high >= shape).any():
            raise RejectedCase(f"{path}: frame {index + 1} reaches outside the image of {tuple(shape)} voxels")
        axis = 3 - sum(along)
        inside = sorted(along)
        window = (slice(int(low[inside[0]]), int(high[inside[0]]) + 1), slice(int(low[inside[1]]), int(high[inside[1]]) + 1))
        places.append((axis, int(low[axis]), index, window, _turn(signs, along[0] > along[1])))
    if len({place[0] for place in places}) > 1:
        raise RejectedCase(f"{path}: its frames lie across several axes of the image, expected one orientation")
    _check_step(path, data, affine, places)
    return places


def _turn(signs: list[int], transpose: bool) -> Callable[[np.ndarray], np.ndarray]:
    def turn(pixels: np.ndarray) -> np.ndarray:
        turned = pixels[:: signs[0], :: signs[1]]
        return turned.T if transpose else turned

    return turn


def _check_step(path: Path, data: pydicom.Dataset, affine: np.ndarray, places: list[Any]) -> None:
    """Raises RejectedCase when a SEG says that its slices are farther apart than the image's, and none of them are neighbours.

    Such a SEG was made on a coarser grid: the image's slices between its own would be taken for empty.
    """
    said = _value("PixelMeasuresSequence", "SpacingBetweenSlices", [group for groups in _groups(data) for group in groups])
    planes = np.unique([place[1] for place in places])
    if said is None or not len(planes) or (np.diff(planes) == 1).any():
        return
    step = float(geometry.spacing_of(affine)[places[0][0]])
    if abs(abs(float(said)) - step) > STEP_RTOL * step:
        raise RejectedCase(
            f"{path}: SpacingBetweenSlices is {abs(float(said)):g} mm, but the image's slices are {step:g} mm apart; expected the image's grid"
        )
