"""A case's sources to canonical volumes on one grid, with a verdict."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from teravox import dicom, dicom_seg, geometry, statistics, volumes
from teravox.errors import RejectedCase
from teravox.labels import as_label


@dataclasses.dataclass(frozen=True)
class Ingested:
    """images : channel -> (x, y, z) native type; label : (x, y, z) smallest unsigned integer; all in canonical RAS order.

    affine : (4, 4), RAS+, mm; orientation : how the axes lay in the source, as nibabel's (3, 2) array; formats, notes : by role.
    """

    images: dict[str, np.ndarray]
    label: np.ndarray
    affine: np.ndarray
    orientation: np.ndarray
    formats: dict[str, str]
    notes: dict[str, list[str]]


def read_source(path: Path, volume: int | None = None) -> volumes.Volume:
    """One volume from a file or from a folder with one DICOM series. Raises RejectedCase."""
    try:
        return dicom.read_series(path) if path.is_dir() else volumes.read_volume_file(path, volume)
    except OSError as error:
        raise RejectedCase(f"{path}: not readable ({error.strerror or type(error).__name__}), expected a file this user may read") from None


def ingest(images: dict[str, str], label: str, labels: list[dict[str, Any]], stacked: bool = False, ignore_value: int | None = None) -> Ingested:
    """Read all channels and the label of a case, and check that they share one grid. Raises RejectedCase with one line.

    images : channel -> path; label : path of a volume, or of a DICOM SEG; labels : name and value of each label;
    stacked : the channels are the volumes of one 4D file; ignore_value : of label voxels that nobody judged.
    """
    arrays: dict[str, np.ndarray] = {}
    formats, notes = {}, {}
    reference: tuple[str, np.ndarray] | None = None
    orientation, frame_of_reference = np.empty(0), ""
    for position, (name, source) in enumerate(images.items()):
        volume = read_source(Path(source), position if stacked else None)
        volumes.check_intensities(volume.array, source)
        array, affine = geometry.to_canonical(volume.array, volume.affine)
        formats[name], notes[name] = volume.format, list(volume.notes)
        if reference is None:
            reference, orientation = (source, affine), geometry.canonical_orientation(volume.affine)
            frame_of_reference = volume.frame_of_reference
        else:
            check_grid(source, array.shape, affine, reference[0], next(iter(arrays.values())).shape, reference[1])
        arrays[name] = array
    assert reference is not None
    shape, affine = next(iter(arrays.values())).shape, reference[1]

    segmentation = _segmentation_file(Path(label))
    if segmentation is not None:
        mask = dicom_seg.read_segmentation(segmentation, shape, affine, labels, frame_of_reference)
        formats["label"], notes["label"] = "dicom-seg", []
    else:
        volume = read_source(Path(label))
        mask, grid = geometry.to_canonical(volume.array, volume.affine)
        check_grid(label, mask.shape, grid, reference[0], shape, affine)
        mask = as_label(mask, [item["value"] for item in labels], label, ignore_value)
        formats["label"], notes["label"] = volume.format, list(volume.notes)
    if not statistics.counted(mask, ignore_value).any():
        notes["label"].append("no voxel is labelled")
    return Ingested(arrays, mask, affine, orientation, formats, notes)


def _segmentation_file(path: Path) -> Path | None:
    """The DICOM SEG that a label's path names: itself, or the only file of a folder; None when it is something else."""
    if path.is_dir():
        inside = [member for member in path.iterdir() if member.is_file() and not member.name.startswith(".")]
        if len(inside) != 1:
            return None
        path = inside[0]
    return path if path.is_file() and dicom.is_dicom_file(path) else None


def check_grid(source: str, shape: tuple[int, ...], affine: np.ndarray, reference: str, other_shape: tuple[int, ...], other: np.ndarray) -> None:
    """Raises RejectedCase unless two canonical grids are one: equal shapes, corners within GRID_ATOL_VOXELS."""
    if shape != other_shape:
        raise RejectedCase(f"{source}: grid of {tuple(shape)} voxels, expected {tuple(other_shape)} as in {reference}")
    difference = geometry.grid_difference(other, affine, shape)
    if difference > geometry.GRID_ATOL_VOXELS:
        raise RejectedCase(f"{source}: lies {difference:.4g} voxels off the grid of {reference}, expected at most {geometry.GRID_ATOL_VOXELS}")
