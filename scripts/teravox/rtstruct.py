"""RT Structure Set (PS3.3 sections A.19, C.8.8.5 and C.8.8.6): contours onto the grid of their image."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pydicom

from teravox import checks, contours, geometry, segments
from teravox.errors import RejectedCase

SOP_CLASS = "1.2.840.10008.5.1.4.1.1.481.3"
PLANE_ATOL = 0.1  # of the slice step: positions rounded to 0.1 mm stay below at 0.5 mm, contours drawn on other slices are 1/4 or more off
FILE_BYTES = 1 << 29  # structure sets of a hundred structures on a thousand slices have about 100 MB
POINTS = 10_000_000  # of all contours; a structure has some hundred in a slice
DECIMAL_BYTES = 17  # a decimal string (DS) has at most 16 characters (PS3.5 section 6.2), and a separator
STEPS = 20_000_000_000  # see contours.Budget; 20 structures on 300 slices of 512 x 512 take a tenth of it
PLANAR = ("CLOSED_PLANAR", "CLOSEDPLANAR_XOR")
SKIPPED = ("POINT", "OPEN_PLANAR", "OPEN_NONPLANAR")


@dataclasses.dataclass(frozen=True)
class Contour:
    """position : of its label in `labels`; structure : ROI number; points : (n, 3) voxels, order (x, y, z); instances : what it refers to."""

    position: int
    structure: int
    exclusive: bool
    points: np.ndarray
    instances: tuple[str, ...]


def read_structures(
    path: Path,
    shape: tuple[int, int, int],
    affine: np.ndarray,
    labels: list[dict[str, Any]],
    frame_of_reference: str,
    options: dict[str, Any],
    instances: Mapping[str, int] | None,
) -> segments.Labelled:
    """The structures of an RTSTRUCT on the grid of its image: label values (x, y, z); a voxel belongs where its centre lies inside.

    shape, affine : the image's grid in canonical order, RAS+, mm; labels : the configuration's, whose names or regular
    expressions the ROINames fit; frame_of_reference : FrameOfReferenceUID of the image, "" when not known; options : the
    configuration's `ingest`, of which `overlap` and `between_planes` are read; instances : SOPInstanceUID -> slice index in
    canonical order, None when not known. Contours of one structure in one plane are combined as contours.combine says, planes
    are not interpolated. Raises RejectedCase: no RTSTRUCT, of another frame of reference, broken references, contours outside
    the image, between slices or not planar, overlap, damaged.
    """
    with segments.refusing(path, "RTSTRUCT"):
        if path.stat().st_size > FILE_BYTES:
            raise RejectedCase(f"{path}: {path.stat().st_size} bytes, expected a structure set of at most {FILE_BYTES}")
        data = segments.read_dataset(path)
        if str(data.get("SOPClassUID")) != SOP_CLASS:
            raise RejectedCase(f"{path}: not usable as a DICOM RTSTRUCT (other SOP class), expected an RT Structure Set")
        structures, notes = _structures(path, data, labels)
        found = _contours(path, data, structures, geometry.LPS_FROM_RAS @ affine, notes)
        corrections = _references(path, data, structures, found, shape, frame_of_reference, instances, notes)
        canvas = segments.Canvas(shape, labels)
        if found:
            axis, placed = _planes(path, found, shape, options["between_planes"], corrections)
            _check_slices(path, found, axis, shape[axis], instances)
            _cut(placed, shape, axis, corrections)
            _paint(path, canvas, placed, axis)
            notes += _gaps(placed, labels)
        return canvas.finish(path, options["overlap"], corrections, notes)


def is_structure_set(path: Path) -> bool:
    """Whether a DICOM file says that it is an RT Structure Set. Raises RejectedCase when it cannot be read."""
    with segments.refusing(path, "object"):
        return str(pydicom.filereader.read_file_meta_info(path).get("MediaStorageSOPClassUID")) == SOP_CLASS


def _structures(path: Path, data: pydicom.Dataset, labels: list[dict[str, Any]]) -> tuple[dict[int, int], list[str]]:
    """ROI number -> label position, for those that fit a label, and notes."""
    names: dict[int, str] = {}
    for item in data.get("StructureSetROISequence") or []:
        if int(item.ROINumber) in names:
            raise RejectedCase(f"{path}: StructureSetROISequence has structure {int(item.ROINumber)} twice, expected once; damaged file")
        names[int(item.ROINumber)] = segments.text(item.get("ROIName"))
    matched = segments.match(path, "structure", names, labels)
    if not matched:
        wanted = ", ".join(label["name"] for label in labels)
        raise RejectedCase(f"{path}: none of {len(names)} structures fits a label, expected structures for {wanted}; see `segment` of the labels")
    foreign = len(names) - len(matched)
    notes = [f"{foreign} of {len(names)} structures fit no label and were left out"] if foreign else []
    notes += [f"no structure fits label {label['name']}" for position, label in enumerate(labels) if position not in matched.values()]
    return matched, notes


def _contours(path: Path, data: pydicom.Dataset, structures: dict[int, int], lps: np.ndarray, notes: list[str]) -> list[Contour]:
    """The closed contours of the structures. lps : (4, 4), index to LPS+ mm. Raises RejectedCase when one is damaged."""
    to_index = np.linalg.inv(lps)
    known = {int(item.ROINumber) for item in data.StructureSetROISequence}
    found: list[Contour] = []
    skipped: collections.Counter[str] = collections.Counter()
    points = 0
    if "ROIContourSequence" not in data:
        raise RejectedCase(f"{path}: ROIContourSequence is missing, expected the structures' contours in it; damaged file")
    for roi in data.ROIContourSequence or []:
        number = int(roi.ReferencedROINumber)
        if number not in known:
            raise RejectedCase(f"{path}: contours of structure {number}, which StructureSetROISequence does not have; damaged file")
        for order, item in enumerate((roi.get("ContourSequence") or []) if number in structures else [], start=1):
            kind = segments.text(item.get("ContourGeometricType"))
            if kind in SKIPPED:
                skipped[kind] += 1
                continue
            where = f"{path}: contour {order} of structure {number}"
            if kind not in PLANAR:
                raise RejectedCase(f"{where}: ContourGeometricType is not the standard's, expected CLOSED_PLANAR or CLOSEDPLANAR_XOR")
            world = _points(where, item)
            points += len(world)
            if points > POINTS:
                raise RejectedCase(f"{path}: more than {POINTS} points, expected fewer; is it a structure set?")
            named = tuple(str(image.ReferencedSOPInstanceUID) for image in item.get("ContourImageSequence") or [])
            found.append(Contour(structures[number], number, kind == PLANAR[1], world @ to_index[:3, :3].T + to_index[:3, 3], named))
    notes += [f"{count} contours of type {kind} were left out, since they hold no voxels" for kind, count in sorted(skipped.items())]
    empty = len(set(structures) - {contour.structure for contour in found})
    if empty:
        notes.append(f"{empty} of {len(structures)} structures that fit a label have no closed contour")
    return found


def _points(where: str, item: pydicom.Dataset) -> np.ndarray:
    """ContourData (n, 3), LPS+, mm, from the text as it is stored: as objects of pydicom a number takes a hundred times its bytes."""
    element = item.get_item("ContourData")
    raw = bytes(element.value or b"") if element is not None else b""
    if len(raw) > 3 * POINTS * DECIMAL_BYTES:
        raise RejectedCase(f"{where}: more than {POINTS} points, expected fewer; is it a structure set?")
    try:
        numbers = np.array([float(part) for part in raw.split(b"\\")])
    except ValueError:
        raise RejectedCase(f"{where}: ContourData holds what is no number, expected coordinates in mm; damaged file") from None
    said = item.get("NumberOfContourPoints")
    if len(numbers) % 3 or (said is not None and int(said) * 3 != len(numbers)):
        raise RejectedCase(f"{where}: {len(numbers)} coordinates, expected {'three for each point' if said is None else 3 * int(said)}; damaged file")
    if len(numbers) < 9:
        raise RejectedCase(f"{where}: {len(numbers) // 3} point(s), expected at least 3 of a closed contour; damaged file")
    if not (np.abs(numbers) <= checks.FAR_MM).all():
        raise RejectedCase(f"{where}: coordinates that are not finite or beyond {checks.FAR_MM:g} mm, expected a patient's; damaged file")
    return numbers.reshape(-1, 3)


def _references(
    path: Path,
    data: pydicom.Dataset,
    structures: dict[int, int],
    found: list[Contour],
    shape: tuple[int, int, int],
    frame_of_reference: str,
    instances: Mapping[str, int] | None,
    notes: list[str],
) -> list[str]:
    """Corrections, after the references to the image have been checked: frame of reference and instances. Raises RejectedCase.

    A structure set with another frame of reference than its image's contradicts itself where each of its contours names a slice
    of that image: some writers make up a new identifier. Then the slices decide, and it is said.
    """
    named = {uid for contour in found for uid in contour.instances}
    listed = [
        {str(image.ReferencedSOPInstanceUID) for image in series.get("ContourImageSequence") or []}
        for frame in data.get("ReferencedFrameOfReferenceSequence") or []
        for study in frame.get("RTReferencedStudySequence") or []
        for series in study.get("RTReferencedSeriesSequence") or []
    ]
    unnamed = sum(not contour.instances for contour in found)
    if instances is None:
        notes.append("the image's instances are not known: contours were placed by their coordinates alone")
    else:
        named |= set().union(*([group for group in listed if group & set(instances)] or listed))
        broken = len(named - set(instances))
        if broken:
            raise RejectedCase(
                f"{path}: broken reference, {broken} of {len(named)} instances it refers to are not in the image; expected the series it was drawn on"
            )
        if unnamed:
            notes.append(f"{unnamed} of {len(found)} contours name no slice and were placed by their coordinates alone")
    frames = {segments.text(item.get("ReferencedFrameOfReferenceUID")) for item in data.StructureSetROISequence if int(item.ROINumber) in structures}
    if "" in frames:
        frames |= {segments.text(item.get("FrameOfReferenceUID")) for item in data.get("ReferencedFrameOfReferenceSequence") or []}
        frames.discard("")
    if not frames or not frame_of_reference:
        notes.append("frame of reference not known: taken to be the image's")
    elif frames != {frame_of_reference}:
        if instances is None or unnamed or not found or len(set(instances.values())) not in shape:
            raise RejectedCase(f"{path}: its frame of reference is another than the image's, expected a structure set of this image")
        return ["its frame of reference is another than the image's, but each contour names the image's slice that it lies on: these decide"]
    return []


def _planes(
    path: Path, found: list[Contour], shape: tuple[int, int, int], between: str, corrections: list[str]
) -> tuple[int, list[tuple[int, int, Contour]]]:
    """The axis across the contours, and (slice, plane, contour) of each; plane : numbers the planes of a structure.

    The axis is the one along which contours extend least. Raises RejectedCase: not planar across it, outside, between slices.
    """
    extents = np.array([np.ptp(contour.points, axis=0) for contour in found])
    axis = int(np.median(extents, axis=0).argmin())
    if extents[:, axis].max() > PLANE_ATOL:
        contour = found[int(extents[:, axis].argmax())]
        raise RejectedCase(
            f"{path}: a contour of structure {contour.structure} spans {extents[:, axis].max():.3g} slices, expected at most {PLANE_ATOL}; "
            "contours must lie in slices of the image"
        )
    heights = np.array([contour.points[:, axis].mean() for contour in found])
    slices = np.floor(heights + 0.5).astype(int)
    for height, index, contour in zip(heights, slices, found, strict=True):
        if not 0 <= index < shape[axis]:
            raise RejectedCase(
                f"{path}: a contour of structure {contour.structure} lies at slice {height:.2f}, outside the image of slices 0 to {shape[axis] - 1}"
            )
    off = np.abs(heights - slices)
    if off.max() > PLANE_ATOL:
        if between == "reject":
            raise RejectedCase(
                f"{path}: {np.count_nonzero(off > PLANE_ATOL)} of {len(found)} contours lie between slices, up to {off.max():.2f} of the step away; "
                f"expected at most {PLANE_ATOL}, or ingest.between_planes `nearest`"
            )
        corrections.append(
            f"{np.count_nonzero(off > PLANE_ATOL)} of {len(found)} contours lay between slices and were moved to the nearer one, "
            f"by up to {off.max():.2f} of the step"
        )
    placed = []
    order = sorted(range(len(found)), key=lambda n: (found[n].position, found[n].structure, heights[n]))
    plane = 0
    for before, number in zip([None, *order], order, strict=False):
        if before is None or found[before].structure != found[number].structure or heights[number] - heights[before] > PLANE_ATOL:
            plane += 1
        placed.append((int(slices[number]), plane, found[number]))
    return axis, placed


def _check_slices(path: Path, found: list[Contour], axis: int, count: int, instances: Mapping[str, int] | None) -> None:
    """Raises RejectedCase when a contour names slices of the image but lies on another; between two slices it may name either.

    An image whose instances are not its slices (multi-frame) says nothing about this.
    """
    if instances is None or len(set(instances.values())) != count:
        return
    for contour in found:
        height = contour.points[:, axis].mean()
        distance = min((abs(instances[uid] - height) for uid in contour.instances), default=0)
        if distance > 1 - PLANE_ATOL:
            raise RejectedCase(
                f"{path}: broken reference, a contour of structure {contour.structure} refers to an instance {distance:.1f} slices from where it lies"
            )


def _cut(placed: list[tuple[int, int, Contour]], shape: tuple[int, int, int], axis: int, corrections: list[str]) -> None:
    size = np.delete(shape, axis)
    flat = [np.delete(contour.points, axis, axis=1) for _, _, contour in placed]
    outside = sum(bool((points < -0.5 - contours.SNAP_VOXELS).any() or (points > size - 0.5 + contours.SNAP_VOXELS).any()) for points in flat)
    if outside:
        corrections.append(f"{outside} of {len(placed)} contours reach beyond the edge of the image and were cut there")


def _paint(path: Path, canvas: segments.Canvas, placed: list[tuple[int, int, Contour]], axis: int) -> None:
    """Each structure's contours of one plane together, then the planes of a slice united by label.

    Axes are counted along L, P and S, as in DICOM, so that a centre on an edge goes to the same side as in the image's own order
    of an axial series: contours.rasterise gives it to the higher index.
    """
    size = tuple(np.delete(canvas.label.shape, axis).tolist())
    turned = [other < 2 for other in range(3) if other != axis]  # the canonical x and y run to R and A
    turn = tuple(slice(None, None, -1 if flip else None) for flip in turned)
    budget = contours.Budget(STEPS)
    for index, on_slice in _grouped(placed, lambda item: item[0]):
        masks: dict[int, np.ndarray] = {}
        for _, in_plane in _grouped(on_slice, lambda item: item[1]):
            first = in_plane[0][2]
            if len({contour.exclusive for _, _, contour in in_plane}) > 1:
                raise RejectedCase(
                    f"{path}: structure {first.structure} mixes CLOSED_PLANAR and CLOSEDPLANAR_XOR in a plane, expected one of them; damaged file"
                )
            flat = [np.delete(contour.points, axis, axis=1) for _, _, contour in in_plane]
            polygons = [contours.snap(np.where(turned, np.array(size) - 1 - points, points)) for points in flat]
            try:
                mask = contours.combine(polygons, size, first.exclusive, budget)[turn]
            except ValueError as error:
                raise RejectedCase(f"{path}: {error}, expected a structure set drawn on slices") from None
            masks[first.position] = masks.get(first.position, False) | mask
        canvas.paint(axis, index, masks)


def _grouped(items: list[tuple[int, int, Contour]], key: Any) -> Iterator[tuple[int, list[tuple[int, int, Contour]]]]:
    for value, group in itertools.groupby(sorted(items, key=key), key=key):
        yield value, list(group)


def _gaps(placed: list[tuple[int, int, Contour]], labels: list[dict[str, Any]]) -> list[str]:
    """A note for each structure with slices between its contours that have none; they stay empty."""
    notes = []
    for number, group in _grouped([(contour.structure, index, contour) for index, _, contour in placed], lambda item: item[0]):
        used = {index for _, index, _ in group}
        gap = max(used) - min(used) + 1 - len(used)
        if gap:
            notes.append(f"structure {number} ({labels[group[0][2].position]['name']}): {gap} slices between its contours have none and stay empty")
    return notes
