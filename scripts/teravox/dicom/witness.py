"""A second opinion: dcm2niix converts the same files, and its voxels and grid must be ours; where it gives none, GDCM's voxels."""

import dataclasses
import resource
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import dcm2niix
import nibabel as nib
import numpy as np
import SimpleITK as sitk

from teravox.dicom.headers import Frame
from teravox.dicom.stacks import GAP_ATOL_MM, GAP_RTOL, Grid

VALUE_RTOL = 1e-5  # of the largest value: dcm2niix keeps slope and scaled values as float32
GRID_ATOL_VOXELS = 1e-2  # dcm2niix writes float32, and takes the step from two slices
SECONDS, SECONDS_PER_MB = 20, 0.5  # the converter's time: far more than it needs, so that a hostile file cannot hang it
# -p n: Philips values by the standard's rescaling, as every other vendor's, not by private attributes.
ARGUMENTS = ("-b", "n", "-z", "n", "-p", "n", "-f", "volume_%s_%e_%t")


@dataclasses.dataclass(frozen=True)
class Opinion:
    """by : "dcm2niix" or "GDCM", "" when neither agrees; warnings : lines of warning that dcm2niix gave."""

    by: str
    warnings: int


def converted(files: Sequence[Path], scratch: Path) -> tuple[list[Path], int]:
    """What dcm2niix makes of some DICOM files, and how many warnings it gave; nothing when it fails.

    files : plain files; scratch : an empty folder. The converter sees these files and no others, under names that say nothing, with
    bounded time, memory and output.
    """
    series, made = scratch / "series", scratch / "made"
    series.mkdir()
    made.mkdir()
    megabytes = 0.0
    for number, path in enumerate(files):
        (series / f"{number}.dcm").symlink_to(path.absolute())
        megabytes += path.stat().st_size / 1e6
    size = int(64e6 + 64e6 * megabytes)  # a decompressed file is at most some 60 times larger than a compressed one

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    command = [dcm2niix.bin, *ARGUMENTS, "-o", str(made), str(series)]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=SECONDS + SECONDS_PER_MB * megabytes, preexec_fn=limit
        )
    except subprocess.TimeoutExpired:
        return [], 0
    return sorted(made.glob("*.nii")), sum(line.startswith("Warning") for line in result.stdout.splitlines())


def version() -> str:
    """The converter's version, as it prints it."""
    text = subprocess.run([dcm2niix.bin, "--version"], capture_output=True, text=True, errors="replace").stdout
    return text.strip().splitlines()[-1] if text.strip() else "unknown"


def agrees(made: Sequence[Path], array: np.ndarray, affine: np.ndarray, component: int | None) -> bool:
    """Whether one of dcm2niix's volumes has our voxels on our grid, whatever the order and direction of its axes.

    array : (x, y, z); affine : (4, 4), RAS+, mm; component : of a colour image.
    """
    for path in made:
        image = nib.load(path)
        turn = _turn(image.shape[:3], image.affine, array.shape, affine) if len(image.shape) in {3, 4} else None
        if turn is None:
            continue
        stored = np.asanyarray(image.dataobj.get_unscaled())
        if stored.dtype.fields is not None:
            volumes = [] if component is None else [stored["RGB"[component]]]
        else:
            volumes = [] if component is not None else [stored] if stored.ndim == 3 else [stored[..., number] for number in range(stored.shape[3])]
        if any(same_values(turn(volume), array, image.dataobj.slope, image.dataobj.inter) for volume in volumes):
            return True
    return False


def _turn(shape: tuple[int, ...], grid: np.ndarray, expected: tuple[int, ...], affine: np.ndarray) -> Callable[[np.ndarray], np.ndarray] | None:
    """What brings their array into our order of axes, when the two grids are one but for that; else None."""
    index = np.linalg.inv(grid) @ affine  # from our index to theirs: a signed permutation, but for rounding
    turn = np.rint(index[:3, :3])
    if not np.array_equal(np.abs(turn).sum(axis=0), np.ones(3)) or not np.array_equal(np.abs(turn).sum(axis=1), np.ones(3)):
        return None
    axes = [int(np.argmax(np.abs(turn[:, axis]))) for axis in range(3)]  # our axis -> theirs
    if tuple(shape[axis] for axis in axes) != expected:
        return None
    corners = np.array(np.meshgrid(*[[0, n - 1] for n in expected], indexing="ij")).reshape(3, -1)
    wanted = turn @ corners
    wanted -= np.minimum(wanted.min(axis=1, keepdims=True), 0)  # a reversed axis counts from its other end
    found = index[:3, :3] @ corners + index[:3, 3:]
    spacing = float(np.linalg.norm(affine[:3, 2]))
    if np.abs(found - wanted).max() > GRID_ATOL_VOXELS + expected[2] * max(GAP_RTOL, GAP_ATOL_MM / spacing):
        return None
    flips = tuple(slice(None, None, -1) if turn[axes[axis], axis] < 0 else slice(None) for axis in range(3))
    return lambda array: array.transpose(axes)[flips]


def same_values(theirs: np.ndarray, ours: np.ndarray, slope: float = 1.0, intercept: float = 0.0) -> bool:
    """theirs * slope + intercept equal to ours but for float32 rounding, plane by plane along the last axis; integers exactly."""
    exact = theirs.dtype.kind in "iu" and ours.dtype.kind in "iu" and slope == 1 and intercept == int(intercept)
    scale = 0.0 if exact else float(max(abs(float(ours.min())), abs(float(ours.max())), 1))
    for number in range(ours.shape[-1]):
        plane, other = ours[..., number], theirs[..., number]
        if exact:
            if not np.array_equal(other if intercept == 0 else other.astype(np.int64) + int(intercept), plane):
                return False
        elif not np.allclose(other.astype(np.float64) * slope + intercept, plane, rtol=0, atol=VALUE_RTOL * scale):
            return False
    return True


def gdcm_agrees(frames: Sequence[Frame], files: dict[Path, Path], array: np.ndarray) -> bool:
    """Whether GDCM reads the same voxels, file by file. array : (column, row, slice); files : a readable name for each frame's file.

    GDCM gives every frame of a file the first one's rescaling, and inverts MONOCHROME1: neither is compared.
    """
    if frames[0].constant["PhotometricInterpretation"] != "MONOCHROME2":
        return False
    loaded: tuple[Path | None, np.ndarray] = None, np.empty(0)
    for number, frame in enumerate(frames):
        path = frame.header.path
        if frame.header.frame_count > 1 and len({(item.slope, item.intercept) for item in frame.header.frames}) > 1:
            return False
        if loaded[0] != path:
            try:
                loaded = path, sitk.GetArrayFromImage(sitk.ReadImage(str(files[path]), imageIO="GDCMImageIO"))
            except (RuntimeError, TypeError):
                return False
        plane = loaded[1][frame.number].T
        if plane.shape != array.shape[:2] or not same_values(plane, array[:, :, number]):
            return False
    return True


def second_opinion(grid: Grid, files: dict[Path, Path], array: np.ndarray, component: int | None, scratch: Path) -> Opinion:
    """Who else reads a stack as we do. files : for each source file a plain one that can be read; array : (column, row, slice), rescaled."""
    made, warned = converted(list(dict.fromkeys(files[frame.header.path] for frame in grid.frames)), scratch)
    if agrees(made, array, grid.affine, component):
        return Opinion("dcm2niix", warned)
    names = {path: scratch / "series" / f"{number}.dcm" for number, path in enumerate(dict.fromkeys(frame.header.path for frame in grid.frames))}
    return Opinion("GDCM" if component is None and gdcm_agrees(grid.frames, names, array) else "", warned)
