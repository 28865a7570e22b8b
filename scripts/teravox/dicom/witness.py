"""A second opinion: dcm2niix converts the same files, and its voxels and grid must be ours; where it gives none, GDCM's voxels."""

import contextlib
import dataclasses
import itertools
import resource
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import dcm2niix
import nibabel as nib
import numpy as np
import SimpleITK as sitk
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError

from teravox import geometry
from teravox.dicom import decoders
from teravox.dicom.stacks import GAP_ATOL_MM, GAP_RTOL, Grid

VALUE_RTOL = 1e-6  # of a value and of its intercept: dcm2niix keeps slope, intercept and scaled values as float32
GRID_ATOL_VOXELS = 1e-2  # dcm2niix writes float32, and takes the step from two slices
SECONDS, SECONDS_PER_MB = 20, 2  # the converter's time: far more than it needs, so that a hostile file cannot hang it
# -p n: Philips values by the standard's rescaling, as every other vendor's, not by private attributes.
ARGUMENTS = ("-b", "n", "-z", "n", "-p", "n", "-f", "volume_%s_%e_%t")


@dataclasses.dataclass(frozen=True)
class Opinion:
    """by : "dcm2niix" or "GDCM", "" when neither agrees; warnings : lines of warning that dcm2niix gave.

    elsewhere : dcm2niix has our voxels, but on another grid.
    """

    by: str
    warnings: int
    elsewhere: bool = False


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A running dcm2niix. seconds : that it may take; scratch : holds its output and what it says; files : what it reads."""

    process: subprocess.Popen[bytes]
    seconds: float
    scratch: Path
    files: Sequence[Path]


def start(files: Sequence[Path], scratch: Path) -> Conversion:
    """Start dcm2niix on some DICOM files, with bounded memory and output: it works while others decode the same files.

    files : plain files; scratch : an empty folder. The converter sees these files and no others: their folder when it holds nothing else,
    or links to them, which cost a third of a millisecond each.
    """
    made = scratch / "made"
    made.mkdir()
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    size = int(64e6 + 64e6 * megabytes)  # a decompressed file is at most some 60 times larger than a compressed one
    alone = len({path.parent for path in files}) == 1 and sorted(files[0].parent.iterdir()) == sorted(files)
    series = files[0].parent.absolute() if alone else links(files, scratch)
    command = [dcm2niix.bin, *ARGUMENTS, "-o", str(made), str(series)]
    with (scratch / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    with contextlib.suppress(ProcessLookupError):  # it is done already
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, size))
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
    return Conversion(process, SECONDS + SECONDS_PER_MB * megabytes, scratch, files)


def links(files: Sequence[Path], scratch: Path) -> Path:
    """A folder with a link to each file, named by its number: names from outside need not be UTF-8."""
    series = scratch / "series"
    if not series.exists():
        series.mkdir()
        for number, path in enumerate(files):
            (series / f"{number}.dcm").symlink_to(path.absolute())
    return series


def stop(conversion: Conversion) -> None:
    """End a conversion that nobody waits for any more."""
    conversion.process.kill()
    conversion.process.wait()


def finish(conversion: Conversion) -> tuple[list[Path], int]:
    """What dcm2niix made, and how many warnings it gave; nothing when it takes too long."""
    try:
        conversion.process.wait(conversion.seconds)
    except subprocess.TimeoutExpired:
        stop(conversion)
        return [], 0
    said = (conversion.scratch / "said").read_bytes().splitlines()
    return sorted((conversion.scratch / "made").glob("*.nii")), sum(line.startswith(b"Warning") for line in said)


def version() -> str:
    """The converter's version, as it prints it."""
    text = subprocess.run([dcm2niix.bin, "--version"], capture_output=True, text=True, errors="replace").stdout
    return text.strip().splitlines()[-1] if text.strip() else "unknown"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One of dcm2niix's volumes: stored values (x, y, z), their scaling, and the affine (4, 4), RAS+, mm."""

    stored: np.ndarray
    slope: float
    intercept: float
    affine: np.ndarray


def agrees(made: Sequence[Path], array: np.ndarray, affine: np.ndarray, component: int | None, offset: float = 0.0) -> bool:
    """Whether one of dcm2niix's volumes has our voxels on our grid, whatever the order and direction of its axes.

    array : (x, y, z); affine : (4, 4), RAS+, mm; component : of a colour image; offset : largest intercept of its rescaling.
    """
    return any(_same(candidate, array, affine, offset) for candidate in _candidates(made, component))


def elsewhere(made: Sequence[Path], array: np.ndarray, component: int | None, offset: float = 0.0) -> bool:
    """Whether one of dcm2niix's volumes has our voxels in our order, but for whole axes reversed, on whatever grid."""
    turns = list(itertools.product((slice(None), slice(None, None, -1)), repeat=3))
    found = (candidate for candidate in _candidates(made, component) if candidate.stored.shape == array.shape)
    return any(same_values(item.stored[turn], array, offset, item.slope, item.intercept) for item in found for turn in turns)


def _candidates(made: Sequence[Path], component: int | None) -> Iterator[Candidate]:
    for path in made:
        with contextlib.suppress(OSError, ValueError, ImageFileError, HeaderDataError):  # hostile numbers give files that cannot be read
            image = nib.load(path)
            proxy = image.dataobj
            if image.get_data_dtype().fields is not None:
                if component is not None and len(image.shape) == 3:
                    yield Candidate(np.asarray(proxy)["RGB"[component]], 1.0, 0.0, image.affine)
            elif component is None and len(image.shape) in {3, 4}:
                raw = proxy.get_unscaled()
                for number in range(raw.shape[3] if raw.ndim == 4 else 1):
                    yield Candidate(raw[..., number] if raw.ndim == 4 else raw, float(proxy.slope), float(proxy.inter), image.affine)


def _same(candidate: Candidate, ours: np.ndarray, affine: np.ndarray, offset: float) -> bool:
    grid = candidate.affine
    if not np.isfinite(grid).all() or not np.linalg.det(grid):
        return False
    index = np.linalg.inv(grid) @ affine  # from our index to theirs: a signed permutation, but for rounding
    turn = np.rint(index[:3, :3])
    if not np.array_equal(np.abs(turn).sum(axis=0), np.ones(3)) or not np.array_equal(np.abs(turn).sum(axis=1), np.ones(3)):
        return False
    axes = [int(np.argmax(np.abs(turn[:, axis]))) for axis in range(3)]  # our axis -> theirs
    turned = candidate.stored.transpose(axes)
    if turned.shape != ours.shape:
        return False
    corners = np.array(np.meshgrid(*[[0, n - 1] for n in ours.shape], indexing="ij")).reshape(3, -1)
    expected = turn @ corners
    expected -= np.minimum(expected.min(axis=1, keepdims=True), 0)  # a reversed axis counts from its other end
    found = index[:3, :3] @ corners + index[:3, 3:]
    off = np.abs(found - expected)
    first, last = (off[:, corners[2] == end] for end in (0, ours.shape[2] - 1))  # their slices begin at one of these, with an own step
    spacing = float(np.linalg.norm(affine[:3, 2]))
    drift = np.full(3, GRID_ATOL_VOXELS)
    drift[axes[2]] += ours.shape[2] * max(GAP_RTOL, GAP_ATOL_MM / spacing)
    if min(first.max(), last.max()) > GRID_ATOL_VOXELS or (off.max(axis=1) > drift).any():
        return False
    flips = tuple(slice(None, None, -1) if turn[axes[axis], axis] < 0 else slice(None) for axis in range(3))
    return same_values(turned[flips], ours, offset, candidate.slope, candidate.intercept)


def same_values(theirs: np.ndarray, ours: np.ndarray, offset: float = 0.0, slope: float = 1.0, intercept: float = 0.0) -> bool:
    """theirs * slope + intercept equal to ours but for float32 rounding, integers exactly; plane by plane along the last axis.

    offset : largest intercept of our own rescaling.
    """
    whole = theirs.dtype.kind in "iu" and ours.dtype.kind in "iu" and slope == 1 and intercept == round(intercept)
    for number in range(ours.shape[-1]):
        plane, other = ours[..., number], theirs[..., number]
        if whole:
            same = np.array_equal(other.astype(np.int64) + int(intercept) if intercept else other, plane)
        else:
            same = np.allclose(other * np.float64(slope) + np.float64(intercept), plane.astype(np.float64), VALUE_RTOL, VALUE_RTOL * offset)
        if not same:
            return False
    return True


def gdcm_agrees(grid: Grid, files: dict[Path, Path], array: np.ndarray, offset: float = 0.0) -> bool:
    """Whether GDCM reads the same voxels at the same places, file by file.

    array : (column, row, slice); files : a readable name for each frame's file; offset : largest intercept of its rescaling. GDCM gives
    every frame of a file the first one's rescaling, so stored values are compared where they differ; it inverts MONOCHROME1, which is not
    compared. Pixels that it has decoded itself it cannot confirm.
    """
    if grid.frames[0].constant["PhotometricInterpretation"] != "MONOCHROME2" or any(
        decoders.needs_gdcm(frame.header.syntax) for frame in grid.frames
    ):
        return False
    loaded: tuple[Path | None, np.ndarray, sitk.Image] = None, np.empty(0), None
    for number, frame in enumerate(grid.frames):
        path = frame.header.path
        if loaded[0] != path:
            try:
                image = sitk.ReadImage(str(files[path]), imageIO="GDCMImageIO")
            except (RuntimeError, TypeError):
                return False
            loaded = path, sitk.GetArrayFromImage(image), image
        plane = loaded[1][frame.number].T
        if plane.shape != array.shape[:2] or not _same_place(loaded[2], frame.number, grid, number):
            return False
        first = frame.header.frames[0]
        if (frame.slope, frame.intercept) != (first.slope, first.intercept):
            plane = np.rint((plane - first.intercept) / first.slope) * frame.slope + frame.intercept
        if not same_values(plane, array[:, :, number], offset):
            return False
    return True


def _same_place(image: sitk.Image, plane: int, grid: Grid, number: int) -> bool:
    """Whether one of GDCM's planes lies where our slice does; a sheared stack's as its headers say.

    Of a file with many frames GDCM knows the place of the first, and the voxels' size only when the others lie in order; it says 1 mm otherwise.
    """
    theirs = np.column_stack([geometry.LPS_FROM_RAS[:3, :3] @ image.TransformIndexToPhysicalPoint(at) for at in ((0, 0, 0), (1, 0, 0), (0, 1, 0))])
    size = np.linalg.norm(grid.affine[:3, :3], axis=0)
    unknown = grid.frames[number].header.frame_count > 1 and set(image.GetSpacing()) == {1.0}
    axes = grid.affine[:3, :2] / (size[:2] if unknown else 1)
    across = np.linalg.norm(theirs[:, 1:] - theirs[:, :1] - axes, axis=0) * image.GetSize()[:2]
    if (across > GRID_ATOL_VOXELS * size[:2]).any():
        return False
    ours = (grid.affine @ [0, 0, number, 1])[:3] + geometry.LPS_FROM_RAS[:3, :3] @ grid.drift * number
    off = float(np.linalg.norm(theirs[:, 0] - ours))
    rounding = max(GAP_ATOL_MM, GAP_RTOL * size[2]) if number else 0.0  # the grid begins at the first slice's position
    return plane > 0 or off <= GRID_ATOL_VOXELS * size.min() + rounding


def second_opinion(grid: Grid, conversion: Conversion, array: np.ndarray, component: int | None) -> Opinion:
    """Who else reads a stack as we do. conversion : of the files of its frames, in their order; array : (column, row, slice), rescaled."""
    made, warned = finish(conversion)
    offset = max(abs(frame.intercept) for frame in grid.frames)
    if agrees(made, array, grid.affine, component, offset):
        return Opinion("dcm2niix", warned)
    if not grid.drift.any() and elsewhere(made, array, component, offset):  # of a tilt dcm2niix makes what it sees fit
        return Opinion("", warned, True)
    series = links(conversion.files, conversion.scratch)
    names = {path: series / f"{number}.dcm" for number, path in enumerate(dict.fromkeys(frame.header.path for frame in grid.frames))}
    return Opinion("GDCM" if component is None and gdcm_agrees(grid, names, array, offset) else "", warned)
