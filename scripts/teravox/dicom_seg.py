"""DICOM SEG: a binary segmentation onto the grid of its image."""

import warnings
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np

from teravox import geometry, store
from teravox.errors import RejectedCase


def _segments(path: Path, labels: list[dict[str, Any]], frame_of_reference: str) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
    """Segment numbers (x, y, z) in canonical order with their affine (4, 4), RAS+, mm, and the label value of each number."""
    segmentation = hd.seg.segread(path)
    if segmentation.segmentation_type.value != "BINARY":
        raise RejectedCase(f"{path}: segmentation type {segmentation.segmentation_type.value}, expected BINARY")
    if frame_of_reference and str(segmentation.get("FrameOfReferenceUID", "")) != frame_of_reference:
        raise RejectedCase(f"{path}: FrameOfReferenceUID is another than the image's, expected a segmentation of this image")
    values = {}
    for number in segmentation.segment_numbers:
        name = segmentation.get_segment_description(number).segment_label
        matching = [label["value"] for label in labels if label["name"].lower() == name.strip().lower()]
        if not matching:
            raise RejectedCase(f"{path}: segment {number} is named otherwise than any label, expected {', '.join(label['name'] for label in labels)}")
        values[number] = matching[0]
    groups = [*segmentation.get("PerFrameFunctionalGroupsSequence", []), *segmentation.get("SharedFunctionalGroupsSequence", [])]
    used = {int(group.SegmentIdentificationSequence[0].ReferencedSegmentNumber) for group in groups if "SegmentIdentificationSequence" in group}
    if used - set(values):
        raise RejectedCase(f"{path}: frames of segment {min(used - set(values))}, which SegmentSequence does not describe; damaged file")
    volume = segmentation.get_volume(combine_segments=True, dtype=np.uint16)
    return *geometry.to_canonical(np.asarray(volume.array), geometry.LPS_FROM_RAS @ volume.affine), values


def read_segmentation(
    path: Path, shape: tuple[int, int, int], affine: np.ndarray, labels: list[dict[str, Any]], frame_of_reference: str = ""
) -> np.ndarray:
    """A binary DICOM SEG onto the grid of its image: label values (x, y, z), each frame at its own position.

    shape, affine : the image's grid in canonical order, RAS+, mm; labels : name and value of each label. A segment belongs
    to the label of its SegmentLabel; frame_of_reference : FrameOfReferenceUID of the image, "" when not known. Raises
    RejectedCase: no binary SEG, of another frame of reference, an unknown segment, overlap, another grid.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # they quote the values of attributes
            found, grid, values = _segments(path, labels, frame_of_reference)
    except RejectedCase:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise RejectedCase(f"{path}: not usable as a DICOM SEG ({type(error).__name__}: {' '.join(str(error).split())[:200]})") from None
    index = np.linalg.inv(affine) @ grid
    step, first = index[:3, :3].copy(), index[:3, 3]
    for axis in range(3):
        if found.shape[axis] == 1:  # a single plane has no spacing of its own across
            step[:, axis] = np.eye(3)[axis]
    reach = np.abs((step - np.eye(3)) @ (np.array(found.shape) - 1)).max()
    start = np.rint(first).astype(int)
    if reach > 10 * geometry.GRID_ATOL_VOXELS or np.abs(first - start).max() > 10 * geometry.GRID_ATOL_VOXELS:
        raise RejectedCase(f"{path}: its frames do not lie on the image's grid (first voxel at {np.round(first, 3).tolist()}), expected whole voxels")
    if (start < 0).any() or (start + found.shape > shape).any():
        raise RejectedCase(f"{path}: frames reach outside the image of {tuple(shape)} voxels")
    table = np.zeros(max(values) + 1, store.label_dtype(list(values.values())))
    for number, value in values.items():
        table[number] = value
    label = np.zeros(shape, table.dtype)
    label[tuple(slice(s, s + n) for s, n in zip(start, found.shape, strict=True))] = table[found]
    return label
