"""DICOM: one series in a folder to one volume, by dcm2niix after checks of every header."""

import dataclasses
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dcm2niix
import numpy as np
import pydicom
import SimpleITK as sitk

from teravox import geometry, volumes
from teravox.errors import RejectedCase

GAP_RTOL, GAP_ATOL_MM = 0.01, 0.011  # positions rounded to two decimals have gaps 0.01 mm apart; a missing slice is far above
TILT_ATOL_MM = 0.01  # drift of slice origins across the slice normal, per slice: 0.3 degrees at 2 mm
ORIENTATION_ATOL = 1e-4  # direction cosines written by one scanner for one series
VALUE_RTOL = 1e-5  # of the largest value: dcm2niix keeps slope and scaled values as float32
MINIMUM_SLICES = 3  # two positions have one gap: nothing would show that a slice between them is missing
HARMLESS = {"DICOMDIR", "THUMBS.DB"}  # beside hidden files: no image, and no sign of a lost one
# Equal in every slice; a missing attribute counts as a value. GDCM would read each file with its own, dcm2niix all with the first's.
CONSTANT = (
    "SOPClassUID",
    "Modality",
    "Units",
    "Rows",
    "Columns",
    "BitsAllocated",
    "BitsStored",
    "PixelRepresentation",
    "FrameOfReferenceUID",
    "RescaleSlope",
    "RescaleIntercept",
    "KVP",
    "ConvolutionKernel",
    "EchoTime",
    "EffectiveEchoTime",
)


@dataclasses.dataclass(frozen=True)
class Slice:
    """What is compared between the slices of a series; a missing attribute is an empty array.

    path, frame : the file, and the frame in it (from 0); frames : how many it has;
    position : (3,) mm, LPS; orientation : (6,) cosines of a row and of a column; spacing : (2,) mm, between rows, between columns.
    """

    path: Path
    frame: int
    frames: int
    position: np.ndarray
    orientation: np.ndarray
    spacing: np.ndarray
    constant: dict[str, Any]
    mosaic: bool


def _read(path: Path) -> pydicom.Dataset:
    """A DICOM file, without pydicom's warnings, since these quote the values of attributes. Raises RejectedCase."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return pydicom.dcmread(path)
    except Exception as error:  # a damaged file can raise anything, and the text can quote a patient's data
        raise RejectedCase(f"{path}: not readable as DICOM ({type(error).__name__}); get it again, or move it out of the series' folder") from None


def series_files(folder: Path) -> list[Path]:
    """Every file of a folder (walked), without hidden ones and DICOMDIR unless they are DICOM images. Raises RejectedCase.

    A symbolic link to nowhere may stand for a lost slice, and one to a folder is not walked: both are refused.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.is_file():
            raise RejectedCase(f"{path}: symbolic link to a folder or to nothing, expected files; copy the files into the series' folder")
        if path.is_file() and (is_dicom_file(path) or not (path.name.startswith(".") or path.name.upper() in HARMLESS)):
            found.append(path)
    return found


def read_headers(folder: Path) -> tuple[list[Slice], list[str]]:
    """Every slice of every image of a folder (walked), and a note for each kind of object that is none. Raises RejectedCase.

    A file that is no DICOM is refused rather than skipped, and so is an image without pixels: it may be a damaged slice.
    """
    slices, others, series = [], [], set()
    for path in series_files(folder):
        data = _read(path)
        kind = pydicom.uid.UID(str(data.file_meta.get("MediaStorageSOPClassUID") or data.get("SOPClassUID", ""))).name
        if "PixelData" not in data:
            if "Rows" in data or "Image Storage" in kind or not kind:
                raise RejectedCase(f"{path}: image without PixelData (truncated file?); get it again, or move it out of the series' folder")
            others.append(kind)
            continue
        series.add(str(data.get("SeriesInstanceUID", "")))
        slices += _slices(path, data)
    if not slices:
        raise RejectedCase(f"{folder}: found no DICOM image, expected one series")
    if len(series) > 1:
        raise RejectedCase(f"{folder}: found {len(series)} series, expected one; give each its own folder")
    if len({item.path for item in slices}) > 1:
        for item in slices:
            if item.frames > 1 or item.mosaic:
                raise RejectedCase(f"{item.path}: {'mosaic' if item.mosaic else 'multi-frame'} image beside other images, expected it alone")
    return slices, [f"left out {others.count(kind)} object(s) without an image: {kind}" for kind in sorted(set(others))]


def _slices(path: Path, data: pydicom.Dataset) -> list[Slice]:
    """One file's slices. Raises RejectedCase: truncated, not one grey value per voxel, or attributes that are no numbers."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return list(_frames(path, data))
    except RejectedCase:
        raise
    except Exception as error:  # see _read
        raise RejectedCase(f"{path}: attributes that cannot be read ({type(error).__name__}), expected the standard's numbers") from None


def _frames(path: Path, data: pydicom.Dataset) -> Iterator[Slice]:
    frames = int(data.get("NumberOfFrames") or 1)
    if not data.file_meta.TransferSyntaxUID.is_compressed:
        expected = int(data.Rows) * int(data.Columns) * frames * int(data.get("SamplesPerPixel", 1)) * int(data.BitsAllocated) // 8
        if len(data.PixelData) < expected:
            raise RejectedCase(
                f"{path}: truncated, found {len(data.PixelData)} bytes of pixels, expected {expected}; get the file again from its source"
            )
    if int(data.get("SamplesPerPixel", 1)) != 1 or data.get("PhotometricInterpretation") != "MONOCHROME2":
        raise RejectedCase(f"{path}: photometric interpretation {data.get('PhotometricInterpretation')}, expected MONOCHROME2")
    if "LOCALIZER" in (data.get("ImageType") or []):
        raise RejectedCase(f"{path}: ImageType is LOCALIZER, expected slices of one volume; move localizers out of the folder")
    if int(data.get("HighBit", data.BitsStored - 1)) != data.BitsStored - 1:
        raise RejectedCase(f"{path}: HighBit is {data.HighBit}, expected {data.BitsStored - 1} (BitsStored - 1)")
    if data.get("ModalityLUTSequence"):
        raise RejectedCase(f"{path}: ModalityLUTSequence is present, expected RescaleSlope and RescaleIntercept")
    per_frame = list(data.get("PerFrameFunctionalGroupsSequence") or [])
    shared = list(data.get("SharedFunctionalGroupsSequence") or [])
    if frames > 1 and len(per_frame) != frames:
        raise RejectedCase(f"{path}: {len(per_frame)} items in PerFrameFunctionalGroupsSequence, expected {frames} (NumberOfFrames)")
    for number in range(frames):
        groups = [*per_frame[number : number + 1], *shared]
        sources = [part for group in groups for element in group if element.VR == "SQ" for part in element.value[:1]]

        def value(keyword: str, places: list[pydicom.Dataset]) -> Any:
            return next((place[keyword].value for place in places if keyword in place), None)

        def numbers(keyword: str, places: list[pydicom.Dataset]) -> np.ndarray:
            return np.atleast_1d(np.array(value(keyword, places) or [], float))

        # What lies outside the functional groups cannot be the position of one frame among many.
        spatial = sources if frames > 1 else [*sources, data]
        yield Slice(
            path,
            number,
            frames,
            numbers("ImagePositionPatient", spatial),
            numbers("ImageOrientationPatient", spatial),
            numbers("PixelSpacing", spatial),
            {keyword: _comparable(value(keyword, [*sources, data])) for keyword in CONSTANT},
            "MOSAIC" in (data.get("ImageType") or []),
        )


def _comparable(value: Any) -> Any:
    """A number, however it is written ("1" and "1.0"), else a text; "" for a missing or empty value."""
    return value if isinstance(value, int | float) else "" if value is None else str(value)


def _printable(value: Any) -> str:
    """A number as it is; of a text only that there is one, since messages are kept and a text can hold a patient's data."""
    return "missing" if value == "" else "another text" if isinstance(value, str) else str(value)


def series_affine(slices: list[Slice], folder: Path) -> tuple[list[Slice], np.ndarray]:
    """The slices in their order along the normal, and the affine (4, 4), RAS+, mm, for index (column, row, slice).

    DICOM PS3.3 section C.7.6.2.1.1 (equation C.7.6.2.1-1). Raises RejectedCase unless the slices form one regular stack:
    equal size, spacing, orientation and rescaling, positions all different, equally far apart along the normal, no tilt.
    """
    first = slices[0]
    for other in slices:
        where = f"{other.path}, frame {other.frame + 1}" if other.frames > 1 else str(other.path)
        before = f"frame {first.frame + 1}" if first.frames > 1 else first.path.name
        if (other.position.size, other.orientation.size, other.spacing.size) != (3, 6, 2):
            raise RejectedCase(f"{where}: ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing, expected all three")
        if not np.isfinite([*other.position, *other.orientation, *other.spacing]).all() or other.spacing.min() <= 0:
            raise RejectedCase(
                f"{where}: PixelSpacing is {other.spacing.tolist()} mm, at {other.position.tolist()} mm; expected finite numbers and spacing above 0"
            )
        slope = other.constant["RescaleSlope"]
        if slope != "" and not (np.isfinite(slope) and slope):
            raise RejectedCase(f"{where}: RescaleSlope is {slope}, expected a finite number other than 0")
        for keyword in CONSTANT:
            if other.constant[keyword] != first.constant[keyword]:
                here, there = (_printable(item.constant[keyword]) for item in (other, first))
                raise RejectedCase(f"{where}: {keyword} is {here}, but {there} in {before}; expected one volume")
        if np.abs(other.orientation - first.orientation).max() > ORIENTATION_ATOL:
            raise RejectedCase(f"{where}: ImageOrientationPatient differs from {before}; expected one orientation, move localizers out of the folder")
        if not np.allclose(other.spacing, first.spacing, rtol=1e-4):
            raise RejectedCase(
                f"{where}: PixelSpacing is {other.spacing.tolist()} mm, but {first.spacing.tolist()} mm in {before}; expected one grid"
            )
    row, column = first.orientation[:3], first.orientation[3:]
    if np.abs([row @ row - 1, column @ column - 1, row @ column]).max() > geometry.ORTHOGONAL_ATOL:
        raise RejectedCase(f"{first.path}: ImageOrientationPatient is {first.orientation.tolist()}, expected two perpendicular unit vectors")
    if len(slices) < MINIMUM_SLICES:
        raise RejectedCase(f"{folder}: found {len(slices)} slice(s), expected at least {MINIMUM_SLICES}")
    normal = np.cross(row, column)
    ordered = sorted(slices, key=lambda item: float(item.position @ normal))
    positions = np.array([item.position for item in ordered])
    steps = np.diff(positions, axis=0)
    gaps = steps @ normal
    step = float(np.median(gaps))
    tolerance = max(GAP_ATOL_MM, GAP_RTOL * step)
    for gap, after in zip(gaps, ordered[1:], strict=True):
        where = f"{after.path}, frame {after.frame + 1}" if after.frames > 1 else str(after.path)
        if gap < GAP_ATOL_MM:
            raise RejectedCase(f"{where}: second slice at one position ({gap:.3f} mm from another), expected one volume; split echoes or time points")
        if abs(gap - step) > tolerance:
            raise RejectedCase(f"{where}: slice gap {gap:.3f} mm, expected {step:.3f} mm; a slice is missing or the spacing varies")
    drift = float(np.abs(steps - np.outer(gaps, normal)).max())
    if drift > TILT_ATOL_MM:
        raise RejectedCase(f"{folder}: slices shift by {drift:.3f} mm across their normal (gantry tilt), expected at most {TILT_ATOL_MM} mm")
    off = float(np.abs(positions - np.linspace(positions[0], positions[-1], len(positions))).max())  # small differences can add up
    if off > tolerance:
        raise RejectedCase(f"{folder}: a slice lies {off:.3f} mm off regular positions, expected at most {tolerance:.3f} mm; the spacing varies")
    affine = np.eye(4)
    affine[:3, 0] = row * first.spacing[1]  # PixelSpacing is (between rows, between columns)
    affine[:3, 1] = column * first.spacing[0]
    affine[:3, 2] = (positions[-1] - positions[0]) / (len(ordered) - 1)
    affine[:3, 3] = positions[0]
    return ordered, geometry.LPS_FROM_RAS @ affine


def read_series(folder: Path) -> volumes.Volume:
    """One DICOM series in a folder to one volume, axes as dcm2niix writes them. Raises RejectedCase.

    Every header is checked, the grid is the one that the headers give, and dcm2niix's voxels must be those that GDCM reads. Of
    a Siemens mosaic, whose slices have no headers of their own, only that it stands alone is checked.
    """
    slices, notes = read_headers(folder)
    stack = None if slices[0].mosaic else series_affine(slices, folder)
    with tempfile.TemporaryDirectory(prefix="teravox-") as scratch:
        # The converter sees the files that were checked and no others, under names that say nothing.
        series, made = Path(scratch, "series"), Path(scratch, "made")
        series.mkdir()
        made.mkdir()
        links = {path: series / f"{number}.dcm" for number, path in enumerate(dict.fromkeys(item.path for item in slices))}
        for path, link in links.items():
            link.symlink_to(path.absolute())
        # -p n: Philips values by the standard's rescaling, as every other vendor's, not by private attributes.
        command = [dcm2niix.bin, "-b", "n", "-z", "n", "-p", "n", "-f", "volume", "-o", str(made), str(series)]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace")
        written = sorted(made.glob("*.nii"))
        if result.returncode or len(written) != 1:
            raise RejectedCase(f"{folder}: dcm2niix made {len(written)} volumes (exit status {result.returncode}), expected one")
        try:
            volume = volumes.read_nifti(written[0])
        except RejectedCase as error:
            raise RejectedCase(f"{folder}: {str(error).partition(': ')[2]}") from None
        if stack is not None:
            volume = _placed(folder, slices, stack[1], volume)
            _check_same_voxels(*stack, volume, links)
    warned = sum(line.startswith("Warning") for line in result.stdout.splitlines())
    if warned:
        notes.append(f"dcm2niix gave {warned} warning(s); run it on the folder to read them")
    frame = str(slices[0].constant["FrameOfReferenceUID"])
    return dataclasses.replace(volume, format="dicom", notes=(*notes, *volume.notes), frame_of_reference=frame)


def _placed(folder: Path, slices: list[Slice], affine: np.ndarray, volume: volumes.Volume) -> volumes.Volume:
    """The converter's volume with the headers' affine, once the converter's own is the same but for rounding. Raises RejectedCase.

    affine : (4, 4), RAS+, mm, for index (column, row, slice). dcm2niix takes the step from two slices, so rounded positions add
    up in it; the headers' step is the mean of all. The axes of both may be flipped, so they are compared in canonical order.
    """
    shape = (int(slices[0].constant["Columns"]), int(slices[0].constant["Rows"]), len(slices))
    ours, grid = geometry.to_canonical(np.broadcast_to(np.False_, shape), affine)
    theirs, other = geometry.to_canonical(volume.array, volume.affine)
    if ours.shape != theirs.shape:
        raise RejectedCase(f"{folder}: dcm2niix made a volume of {theirs.shape} voxels, the headers say {ours.shape}")
    step = float(geometry.spacing_of(affine)[2])
    allowed = 10 * geometry.GRID_ATOL_VOXELS + len(slices) * max(GAP_RTOL, GAP_ATOL_MM / step)
    difference = geometry.grid_difference(grid, other, ours.shape)
    if difference > allowed:
        raise RejectedCase(f"{folder}: dcm2niix places the volume {difference:.3f} voxels away from where the headers say")
    native = geometry.native_affine(grid, geometry.canonical_orientation(volume.affine), volume.array.shape)
    return dataclasses.replace(volume, affine=volumes.check_affine(folder, native))


def _check_same_voxels(ordered: list[Slice], affine: np.ndarray, volume: volumes.Volume, links: dict[Path, Path]) -> None:
    """The converter's voxels against GDCM's, file by file, each with its own rescaling. Raises RejectedCase.

    ordered : slices along the normal; affine : (4, 4), RAS+, mm, for index (column, row, slice); links : a name in ASCII for
    each file, since SimpleITK ends the process on one that is not UTF-8.
    """
    array = geometry.from_canonical(geometry.to_canonical(volume.array, volume.affine)[0], geometry.canonical_orientation(affine))
    scale = float(max(abs(float(volume.array.min())), abs(float(volume.array.max())), 1))
    loaded: tuple[Path | None, np.ndarray] = None, np.empty(0)
    for number, item in enumerate(ordered):
        if loaded[0] != item.path:
            try:
                loaded = item.path, sitk.GetArrayFromImage(sitk.ReadImage(str(links[item.path]), imageIO="GDCMImageIO"))
            except (RuntimeError, TypeError) as error:
                raise RejectedCase(f"{item.path}: GDCM cannot decode the pixels ({type(error).__name__}), though dcm2niix can") from None
        plane = loaded[1][item.frame].T
        if plane.shape != array.shape[:2] or not np.allclose(plane, array[:, :, number], rtol=0, atol=VALUE_RTOL * scale):
            raise RejectedCase(
                f"{item.path}: GDCM and dcm2niix decode frame {item.frame + 1} differently, expected equal voxels; damaged or unsupported"
            )


def is_dicom_file(path: Path) -> bool:
    """Whether a file carries the DICOM prefix (PS3.10 section 7.1)."""
    with path.open("rb") as stream:
        return stream.read(132)[128:] == b"DICM"
