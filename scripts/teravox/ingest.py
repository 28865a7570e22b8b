"""A case's sources to canonical volumes on one grid, with a verdict."""

import concurrent.futures
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from teravox import checks, dicom_seg, file_lists, geometry, hashing, manifest, rtstruct, statistics, store, volumes
from teravox.dicom import match, series, sources
from teravox.dicom.headers import is_dicom_file
from teravox.errors import RejectedCase
from teravox.labels import as_label


@dataclasses.dataclass(frozen=True)
class Read:
    """What a role's source gave besides its voxels. format : of the file; notes, corrections : one line each.

    instances : SOPInstanceUID and frame (from 0) of every slice of a DICOM series in canonical order, slice_axis : the canonical axis
    along which they lie; accounts : what became of each file, see teravox.dicom.sources.Account; checked_by : the second reader of a series.
    """

    format: str
    notes: list[str]
    corrections: list[str]
    instances: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    slice_axis: int | None = None
    accounts: list[sources.Account] = dataclasses.field(default_factory=list)
    checked_by: str = ""


@dataclasses.dataclass(frozen=True)
class Ingested:
    """images : channel -> (x, y, z) native type; label : (x, y, z) smallest unsigned integer; all in canonical RAS order.

    affine : (4, 4), RAS+, mm; orientation : how the axes lay in the source, as nibabel's (3, 2) array; read : by role.
    """

    images: dict[str, np.ndarray]
    label: np.ndarray
    affine: np.ndarray
    orientation: np.ndarray
    read: dict[str, Read]


def directly(function: Callable[..., Any], *args: Any, about: str, megabytes: float) -> Any:
    """Call a reader in this process; `contained.call` is the same in a process of its own."""
    return function(*args)


def read_source(path: Path, rules: dict[str, Any], options: dict[str, Any], volume: int | None = None) -> checks.Volume:
    """One volume from a file, a folder of DICOM files, or a list of such files. Raises RejectedCase.

    rules : an item of `channels[].match`; options : the configuration's `ingest`; volume : which one of a 4D file.
    """
    try:
        if path.is_dir() or file_lists.is_list(path) or (path.is_file() and is_dicom_file(path)):
            return series.read_series(path, rules, options)
        return volumes.read_volume_file(path, volume)
    except OSError as error:
        raise RejectedCase(f"{path}: not readable ({error.strerror or type(error).__name__}), expected a file this user may read") from None


def ingest(images: dict[str, str], label: str, settings: dict[str, Any], stacked: bool = False, run: Callable[..., Any] = directly) -> Ingested:
    """Read all channels and the label of a case, and check that they share one grid. Raises RejectedCase with one line.

    images : channel -> path; label : path of a volume, of a DICOM SEG or of an RTSTRUCT; settings : the configuration's channels, labels,
    ignore_value and ingest; stacked : the channels are the volumes of one 4D file; run : calls a reader, see `directly`.
    """
    options, rules = settings["ingest"], {channel["name"]: channel["match"] for channel in settings["channels"]}
    arrays: dict[str, np.ndarray] = {}
    read: dict[str, Read] = {}
    reference: tuple[str, np.ndarray] | None = None
    orientation, frame_of_reference = np.empty(0), ""
    instances: dict[str, int] | None = None
    for position, (name, source) in enumerate(images.items()):
        volume = run(read_source, Path(source), rules[name], options, position if stacked else None, about=source, megabytes=_megabytes(source))
        volumes.check_intensities(volume.array, source)
        array, affine = geometry.to_canonical(volume.array, volume.affine)
        read[name] = _about(volume)
        if reference is None:
            reference, orientation = (source, affine), geometry.canonical_orientation(volume.affine)
            frame_of_reference = volume.frame_of_reference
            instances = {uid: number for number, (uid, _) in enumerate(read[name].instances)} or None
        else:
            check_grid(source, array.shape, affine, reference[0], next(iter(arrays.values())).shape, reference[1])
        arrays[name] = array
    assert reference is not None
    shape, affine = next(iter(arrays.values())).shape, reference[1]

    segmentation = _segmentation_file(Path(label))
    if segmentation is not None:
        read["label"], mask = _segmented(segmentation, label, shape, affine, settings, frame_of_reference, instances, run)
    else:
        volume = run(read_source, Path(label), match.NO_RULES, options, about=label, megabytes=_megabytes(label))
        mask, grid = geometry.to_canonical(volume.array, volume.affine)
        check_grid(label, mask.shape, grid, reference[0], shape, affine)
        mask = as_label(mask, [item["value"] for item in settings["labels"]], label, settings["ignore_value"])
        read["label"] = _about(volume)
    if not statistics.counted(mask, settings["ignore_value"]).any():
        read["label"].notes.append("no voxel is labelled")
    return Ingested(arrays, mask, affine, orientation, read)


def _segmented(
    path: Path,
    label: str,
    shape: tuple[int, int, int],
    affine: np.ndarray,
    settings: dict[str, Any],
    frame_of_reference: str,
    instances: dict[str, int] | None,
    run: Callable[..., Any],
) -> tuple[Read, np.ndarray]:
    """What a DICOM SEG or RTSTRUCT gives on the image's grid, and the label itself. instances : of the image's slices, see Read."""
    arguments = (path, shape, affine, settings["labels"], frame_of_reference, settings["ingest"])
    if rtstruct.is_structure_set(path):
        found = run(rtstruct.read_structures, *arguments, instances, about=label, megabytes=_megabytes(label))
        return Read("dicom-rtstruct", list(found.notes), list(found.corrections)), found.label
    found = run(dicom_seg.read_segmentation, *arguments, instances, about=label, megabytes=_megabytes(label))
    return Read("dicom-seg", list(found.notes), list(found.corrections)), found.label


def keep(path: Path, array: np.ndarray, affine: np.ndarray) -> tuple[str, dict[str, Any]]:
    """Write an image (x, y, z), affine (4, 4) in RAS+, mm; meanwhile describe it. Returns its content hash, and intensity statistics with a
    hash of the voxels as float32, which tells the same image from others whatever the type it came in.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        written = pool.submit(store.write, path, array, affine)
        description = statistics.describe(array) | {"voxels": hashing.array_digest(np.asarray(array, np.float32))}
        return written.result(), description


def _megabytes(source: str) -> float:
    return sum(path.stat().st_size for path, _ in manifest.members(Path(source))) / 1e6


def _about(volume: checks.Volume) -> Read:
    instances, axis = list(volume.instances), None
    if instances:
        turned = geometry.canonical_orientation(volume.affine)[2]  # slices lie along the third axis of the source
        axis = int(turned[0])
        instances = instances[::-1] if turned[1] < 0 else instances
    return Read(volume.format, list(volume.notes), list(volume.corrections), instances, axis, list(volume.accounts), volume.checked_by)


def _segmentation_file(path: Path) -> Path | None:
    """The DICOM SEG or RTSTRUCT that a label's path names: itself, or the only file of a folder or list; None when it is something else."""
    if file_lists.is_list(path):
        inside = file_lists.listed_files(path)
    elif path.is_dir():
        inside = [member for member in path.iterdir() if member.is_file() and not member.name.startswith(".")]
    else:
        inside = [path]
    return inside[0] if len(inside) == 1 and inside[0].is_file() and is_dicom_file(inside[0]) else None


def check_grid(source: str, shape: tuple[int, ...], affine: np.ndarray, reference: str, other_shape: tuple[int, ...], other: np.ndarray) -> None:
    """Raises RejectedCase unless two canonical grids are one: equal shapes, corners within GRID_ATOL_VOXELS."""
    if shape != other_shape:
        raise RejectedCase(f"{source}: grid of {tuple(shape)} voxels, expected {tuple(other_shape)} as in {reference}")
    difference = geometry.grid_difference(other, affine, shape)
    if difference > geometry.GRID_ATOL_VOXELS:
        raise RejectedCase(f"{source}: lies {difference:.4g} voxels off the grid of {reference}, expected at most {geometry.GRID_ATOL_VOXELS}")
