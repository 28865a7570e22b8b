"""A case's sources to canonical volumes, with a verdict."""

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

    affines : channel -> (4, 4), RAS+, mm; affine : of the first channel and of the label; orientation : how the axes of the first channel
    lay in the source, as nibabel's (3, 2) array; read : by role.
    """

    images: dict[str, np.ndarray]
    affines: dict[str, np.ndarray]
    label: np.ndarray
    affine: np.ndarray
    orientation: np.ndarray
    read: dict[str, Read]


@dataclasses.dataclass(frozen=True)
class Reference:
    """The first channel: source, canonical shape (x, y, z) and affine (4, 4) in RAS+, mm, FrameOfReferenceUID or nothing."""

    source: str
    shape: geometry.Shape
    affine: np.ndarray
    frame_of_reference: str


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
    """Read all channels and the label of a case, and check that the label lies on the first channel's grid and the others in the same place.

    Raises RejectedCase with one line.

    images : channel -> path; label : path of a volume, of a DICOM SEG or of an RTSTRUCT; settings : the configuration's channels, labels,
    ignore_value and ingest; stacked : the channels are the volumes of one 4D file; run : calls a reader, see `directly`.
    """
    options, rules = settings["ingest"], {channel["name"]: channel["match"] for channel in settings["channels"]}
    arrays: dict[str, np.ndarray] = {}
    affines: dict[str, np.ndarray] = {}
    read: dict[str, Read] = {}
    reference: Reference | None = None
    orientation = np.empty(0)
    instances: dict[str, int] | None = None
    for position, (name, source) in enumerate(images.items()):
        volume = run(read_source, Path(source), rules[name], options, position if stacked else None, about=source, megabytes=_megabytes(source))
        volumes.check_intensities(volume.array, source)
        array, affine = geometry.to_canonical(volume.array, volume.affine)
        read[name] = _about(volume)
        if reference is None:
            reference, orientation = Reference(source, array.shape, affine, volume.frame_of_reference), geometry.canonical_orientation(volume.affine)
            instances = {uid: number for number, (uid, _) in enumerate(read[name].instances)} or None
        elif geometry.same_grid(reference.shape, reference.affine, array.shape, affine):
            affine = reference.affine
        else:
            read[name].notes.append(placed(source, array.shape, affine, volume.frame_of_reference, reference))
        arrays[name], affines[name] = array, affine
    assert reference is not None
    shape, affine = reference.shape, reference.affine

    segmentation = _segmentation_file(Path(label))
    if segmentation is not None:
        read["label"], mask = _segmented(segmentation, label, shape, affine, settings, reference.frame_of_reference, instances, run)
    else:
        volume = run(read_source, Path(label), match.NO_RULES, options, about=label, megabytes=_megabytes(label))
        mask, grid = geometry.to_canonical(volume.array, volume.affine)
        check_grid(label, mask.shape, grid, reference)
        mask = as_label(mask, [item["value"] for item in settings["labels"]], label, settings["ignore_value"])
        read["label"] = _about(volume)
    if not statistics.counted(mask, settings["ignore_value"]).any():
        read["label"].notes.append("no voxel is labelled")
    return Ingested(arrays, affines, mask, affine, orientation, read)


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


def check_grid(source: str, shape: tuple[int, ...], affine: np.ndarray, reference: Reference) -> None:
    """Raises RejectedCase unless a label's canonical grid is the first channel's, see `geometry.same_grid`."""
    if shape != reference.shape:
        raise RejectedCase(f"{source}: grid of {tuple(shape)} voxels, expected {tuple(reference.shape)} as in {reference.source}")
    if not geometry.same_grid(reference.shape, reference.affine, shape, affine):
        difference = geometry.grid_difference(reference.affine, affine, shape)
        raise RejectedCase(f"{source}: lies {difference:.4g} voxels off the grid of {reference.source}, expected at most {geometry.GRID_ATOL_VOXELS}")


def placed(source: str, shape: tuple[int, ...], affine: np.ndarray, frame_of_reference: str, reference: Reference) -> str:
    """What to note of a channel on a grid of its own. Raises RejectedCase when its place against the first channel is not known
    (coordinates of two frames of reference say nothing about each other, DICOM PS3.3 C.7.4.1), or when it lies elsewhere.
    """
    if frame_of_reference and reference.frame_of_reference and frame_of_reference != reference.frame_of_reference:
        raise RejectedCase(f"{source}: grid and frame of reference are other than those of {reference.source}, expected one frame; register it first")
    share = geometry.covered(reference.shape, reference.affine, shape, affine)
    if share == 0:
        raise RejectedCase(f"{source}: lies beside {reference.source}, expected the same part of the body; register it first")
    spacing = " x ".join(f"{edge:.4g}" for edge in geometry.spacing_of(affine))
    partly = "" if share > 0.9995 else f", of whose field of view it covers {100 * share:.1f} %"
    return f"grid of {' x '.join(map(str, shape))} voxels of {spacing} mm, brought onto that of the first channel{partly} when it is resampled"
