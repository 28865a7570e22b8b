"""DICOM: one series in a folder to one volume (by dcm2niix, after checks of every header), and a DICOM SEG to a label volume."""

import dataclasses
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import dcm2niix
import highdicom as hd
import numpy as np
import pydicom
from pydicom.errors import InvalidDicomError

from teravox import geometry, volumes
from teravox.errors import RejectedCase

GAP_RTOL, GAP_ATOL_MM = 0.01, 0.01  # slice positions are decimal strings: rounding stays below, a missing slice far above
TILT_ATOL_MM = 0.01  # drift of slice origins across the slice normal, per slice: 0.3 degrees at 2 mm
ORIENTATION_ATOL = 1e-4  # direction cosines written by one scanner for one series
HARMLESS = {"DICOMDIR", "THUMBS.DB"}  # beside hidden files: no image, and no sign of a lost one
CONSTANT = ("SOPClassUID", "Modality", "Rows", "Columns", "BitsAllocated", "FrameOfReferenceUID", "RescaleSlope", "RescaleIntercept", "EchoTime")


@dataclasses.dataclass(frozen=True)
class Slice:
    """What is compared between the files of a series; a missing attribute is an empty array.

    position : (3,) mm, LPS; orientation : (6,) cosines of a row and of a column; spacing : (2,) mm, between rows, between columns.
    """

    path: Path
    position: np.ndarray
    orientation: np.ndarray
    spacing: np.ndarray
    constant: dict[str, Any]
    frames: int
    mosaic: bool


def _uid_name(uid: str) -> str:
    return pydicom.uid.UID(uid).name


def read_headers(folder: Path) -> tuple[list[Slice], list[str]]:
    """Every image of a folder (walked), and a note for each kind of object that is none. Raises RejectedCase.

    A file that is no DICOM is refused rather than skipped: it may be a damaged slice.
    """
    slices, others, series = [], [], set()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if path.name.startswith(".") or path.name.upper() in HARMLESS:
            continue
        try:
            data = pydicom.dcmread(path)
        except (InvalidDicomError, EOFError, OSError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
            raise RejectedCase(
                f"{path}: not readable as DICOM ({type(error).__name__}); get it again, or move it out of the series' folder"
            ) from None
        if "Rows" not in data or "PixelData" not in data:
            others.append(_uid_name(str(data.get("SOPClassUID", "unknown"))))
            continue
        series.add(str(data.get("SeriesInstanceUID", "")))
        slices.append(_header(path, data))
    if not slices:
        raise RejectedCase(f"{folder}: found no DICOM image, expected one series")
    if len(series) > 1:
        raise RejectedCase(f"{folder}: found {len(series)} series, expected one; give each its own folder")
    return slices, [f"left out {others.count(kind)} object(s) without an image: {kind}" for kind in sorted(set(others))]


def _header(path: Path, data: pydicom.Dataset) -> Slice:
    frames = int(data.get("NumberOfFrames") or 1)
    if not data.file_meta.TransferSyntaxUID.is_compressed:
        expected = int(data.Rows) * int(data.Columns) * frames * int(data.get("SamplesPerPixel", 1)) * int(data.BitsAllocated) // 8
        if len(data.PixelData) < expected:
            raise RejectedCase(
                f"{path}: truncated, found {len(data.PixelData)} bytes of pixels, expected {expected}; get the file again from its source"
            )
    if int(data.get("SamplesPerPixel", 1)) != 1 or data.get("PhotometricInterpretation") != "MONOCHROME2":
        raise RejectedCase(f"{path}: photometric interpretation {data.get('PhotometricInterpretation')}, expected MONOCHROME2")

    def numbers(keyword: str) -> np.ndarray:
        return np.array([float(item) for item in data.get(keyword) or []])

    return Slice(
        path,
        numbers("ImagePositionPatient"),
        numbers("ImageOrientationPatient"),
        numbers("PixelSpacing"),
        {keyword: str(data.get(keyword, "")) for keyword in CONSTANT},
        frames,
        "MOSAIC" in (data.get("ImageType") or []),
    )


def series_affine(slices: list[Slice], folder: Path) -> np.ndarray:
    """The affine (4, 4), RAS+, mm, that the headers of single-frame files give, for index (column, row, slice along the normal).

    DICOM PS3.3 section C.7.6.2.1.1 (equation C.7.6.2.1-1). Raises RejectedCase unless the files form one regular stack:
    equal size, spacing, orientation and rescaling, positions all different, equally far apart along the normal, no tilt.
    """
    first = slices[0]
    for other in slices:
        if (other.position.size, other.orientation.size, other.spacing.size) != (3, 6, 2):
            raise RejectedCase(f"{other.path}: ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing, expected all three")
        for keyword in CONSTANT:
            if other.constant[keyword] != first.constant[keyword]:
                found, before = (item.constant[keyword] or "missing" for item in (other, first))
                raise RejectedCase(f"{other.path}: {keyword} is {found}, but {before} in {first.path.name}; expected one volume")
        if np.abs(other.orientation - first.orientation).max() > ORIENTATION_ATOL:
            raise RejectedCase(
                f"{other.path}: ImageOrientationPatient differs from {first.path.name}; expected one orientation, move localizers out of the folder"
            )
        if not np.allclose(other.spacing, first.spacing, rtol=1e-4):
            raise RejectedCase(
                f"{other.path}: PixelSpacing is {other.spacing.tolist()} mm, but {first.spacing.tolist()} mm in {first.path.name}; expected one grid"
            )
    if len(slices) < 2:
        raise RejectedCase(f"{folder}: found one slice, expected at least two")
    row, column = first.orientation[:3], first.orientation[3:]
    normal = np.cross(row, column)
    ordered = sorted(slices, key=lambda item: float(item.position @ normal))
    steps = np.diff([item.position for item in ordered], axis=0)
    gaps = steps @ normal
    step = float(np.median(gaps))
    for gap, after in zip(gaps, ordered[1:], strict=True):
        if gap < GAP_ATOL_MM:
            raise RejectedCase(
                f"{after.path}: second slice at one position ({gap:.3f} mm from another), expected one volume; split echoes or time points"
            )
        if abs(gap - step) > max(GAP_ATOL_MM, GAP_RTOL * step):
            raise RejectedCase(f"{after.path}: slice gap {gap:.3f} mm, expected {step:.3f} mm; a slice is missing or the spacing varies")
    drift = float(np.abs(steps - np.outer(gaps, normal)).max())
    if drift > TILT_ATOL_MM:
        raise RejectedCase(f"{folder}: slices shift by {drift:.3f} mm across their normal (gantry tilt), expected at most {TILT_ATOL_MM} mm")
    affine = np.eye(4)
    affine[:3, 0] = row * first.spacing[1]  # PixelSpacing is (between rows, between columns)
    affine[:3, 1] = column * first.spacing[0]
    affine[:3, 2] = (ordered[-1].position - ordered[0].position) / (len(ordered) - 1)
    affine[:3, 3] = ordered[0].position
    return geometry.LPS_FROM_RAS @ affine


def read_series(folder: Path) -> volumes.Volume:
    """One DICOM series in a folder to one volume, axes as dcm2niix writes them. Raises RejectedCase.

    Single-frame series are checked header by header, and dcm2niix's grid must be the one that the headers give.
    """
    slices, notes = read_headers(folder)
    single = all(item.frames == 1 and not item.mosaic for item in slices)
    expected = series_affine(slices, folder) if single else None
    with tempfile.TemporaryDirectory(prefix="teravox-") as scratch:
        command = [dcm2niix.bin, "-b", "n", "-z", "n", "-f", "volume", "-o", scratch, str(folder)]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")
        written = sorted(Path(scratch).glob("*.nii"))
        if result.returncode or len(written) != 1:
            raise RejectedCase(f"{folder}: dcm2niix made {len(written)} volumes (exit status {result.returncode}), expected one")
        try:
            volume = volumes.read_nifti(written[0])
        except RejectedCase as error:
            raise RejectedCase(f"{folder}: {str(error).partition(': ')[2]}") from None
    if expected is not None:
        shape = (int(slices[0].constant["Columns"]), int(slices[0].constant["Rows"]), len(slices))
        _check_same_grid(folder, shape, expected, volume)
    warnings = sum(line.startswith("Warning") for line in result.stdout.splitlines())
    if warnings:
        notes.append(f"dcm2niix gave {warnings} warning(s); run it on the folder to read them")
    return dataclasses.replace(volume, format="dicom", notes=(*notes, *volume.notes))


def _check_same_grid(folder: Path, shape: tuple[int, int, int], expected: np.ndarray, volume: volumes.Volume) -> None:
    """The converter's grid against the headers': both in canonical order, since axes may be flipped."""
    ours, affine = geometry.to_canonical(np.empty(shape, np.bool_), expected)
    theirs, other = geometry.to_canonical(volume.array, volume.affine)
    if ours.shape != theirs.shape:
        raise RejectedCase(f"{folder}: dcm2niix made a volume of {theirs.shape} voxels, the headers say {ours.shape}")
    difference = geometry.grid_difference(affine, other, ours.shape)
    if difference > 10 * geometry.GRID_ATOL_VOXELS:  # decimal strings of 16 characters and float32 add up over a volume
        raise RejectedCase(f"{folder}: dcm2niix places the volume {difference:.3f} voxels away from where the headers say")


def is_dicom_file(path: Path) -> bool:
    """Whether a file carries the DICOM prefix (PS3.10 section 7.1)."""
    with path.open("rb") as stream:
        return stream.read(132)[128:] == b"DICM"


def read_segmentation(path: Path, shape: tuple[int, int, int], affine: np.ndarray, labels: list[dict[str, Any]]) -> np.ndarray:
    """A binary DICOM SEG onto the grid of its image: label values (x, y, z), each frame at its own position.

    shape, affine : the image's grid in canonical order, RAS+, mm; labels : name and value of each label. A segment belongs
    to the label of its SegmentLabel. Raises RejectedCase: no binary SEG, an unknown segment, overlap, another grid.
    """
    try:
        segmentation = hd.seg.segread(path)
        values = {}
        for number in segmentation.segment_numbers:
            name = segmentation.get_segment_description(number).segment_label
            matching = [label["value"] for label in labels if label["name"].lower() == name.strip().lower()]
            if not matching:
                raise RejectedCase(
                    f"{path}: segment {number} is named otherwise than any label, expected {', '.join(label['name'] for label in labels)}"
                )
            values[number] = matching[0]
        if segmentation.segmentation_type.value != "BINARY":
            raise RejectedCase(f"{path}: segmentation type {segmentation.segmentation_type.value}, expected BINARY")
        volume = segmentation.get_volume(combine_segments=True, dtype=np.uint16)
    except (InvalidDicomError, ValueError, RuntimeError, AttributeError, KeyError, TypeError, EOFError, OSError) as error:
        raise RejectedCase(f"{path}: not usable as a DICOM SEG ({' '.join(str(error).split())[:200]})") from None
    found, grid = geometry.to_canonical(np.asarray(volume.array), geometry.LPS_FROM_RAS @ volume.affine)
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
    table = np.zeros(max(values) + 1, volumes.label_dtype(list(values.values())))
    for number, value in values.items():
        table[number] = value
    label = np.zeros(shape, table.dtype)
    label[tuple(slice(s, s + n) for s, n in zip(start, found.shape, strict=True))] = table[found]
    return label
