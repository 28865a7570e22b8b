"""One DICOM source to one volume: headers of every file, the volume that is asked for, its voxels, and a second opinion on them."""

import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pydicom

from teravox import checks, file_lists, geometry
from teravox.dicom import match, pixels, sources, stacks, witness
from teravox.dicom.frames import Frame
from teravox.dicom.headers import Header
from teravox.dicom.sources import Account
from teravox.dicom.stacks import Grid, Stack
from teravox.errors import RejectedCase

with warnings.catch_warnings(action="ignore"):  # it calls itself experimental; what it gives is checked against dcm2niix
    from nibabel.nicom import dicomwrappers

COMPONENTS = {None: None, "red": 0, "green": 1, "blue": 2}


def read_series(source: Path, rules: dict[str, Any], options: dict[str, Any]) -> checks.Volume:
    """One volume out of the DICOM files of a source, axes (column, row, slice along the normal).

    source : a folder, which is walked, or a list of files; rules : an item of `channels[].match`; options : the configuration's `ingest`.
    Every header is checked, the grid is the one that the headers give, and dcm2niix's or GDCM's voxels must be ours. Raises RejectedCase
    with one line: no volume or several that fit, an irregular one, damaged pixels.
    """
    paths = file_lists.listed_files(source) if file_lists.is_list(source) else sources.walk(source)
    images, skipped = sources.read_headers(paths, source)
    images, copies = sources.without_copies(images)
    frames, scouts = sources.without_scouts(images)
    candidates = candidates_of(frames)
    stack = match.choose(candidates, rules, str(source))
    used = {frame.header.path for frame in stack.frames}
    known = used.union(account.path for account in (*skipped, *copies, *scouts))
    others = [Account(header.path, "skipped", "of another volume") for header in images if header.path not in known]
    accounts = sorted([*skipped, *copies, *scouts, *others, *(Account(path, "used") for path in used)], key=lambda account: account.path)
    corrections = [f"left out {len(copies)} identical copies of files"] if copies else []
    own = {header.path for header in images if header.series == stack.frames[0].header.series}
    from_within = [account for account in scouts if account.path in own]
    from_within += [account for account in skipped if account.series and account.series == stack.frames[0].header.series]
    corrections += [f"left out {len(from_within)} file(s) of the series itself: {from_within[0].reason}"] if from_within else []
    told = {account.path for account in (*copies, *from_within)}
    reasons = Counter(account.reason for account in accounts if account.status == "skipped" and account.path not in told)
    notes = [f"left out {count} file(s): {reason}" for reason, count in sorted(reasons.items())]
    if len(candidates) > 1:
        notes.append(f"1 of {match.listed(candidates)}, by the channel's rules")
    return _read(stack, source, options, accounts, corrections, notes)


def candidates_of(frames: list[Frame]) -> list[Stack]:
    """The volumes of all series among some frames; a series' volumes stand in the order of acquisition."""
    by_series: dict[str, list[Frame]] = {}
    for frame in frames:
        by_series.setdefault(frame.header.series, []).append(frame)
    return [stack for members in by_series.values() for stack in stacks.stacks(members)]


def check(stack: Stack, source: str, options: dict[str, Any]) -> Grid | None:
    """The grid of a stack by its headers alone; None for a mosaic, whose slices have none of their own. Raises RejectedCase."""
    first, *others = stack.frames
    for other in others:
        if other.header.once["PatientID"] != first.header.once["PatientID"]:
            raise RejectedCase(f"{other.place}: PatientID is another than in {first.place}; expected slices of one patient")
    if stack.frames[0].header.mosaic:
        stacks.check_rescale(stack.frames[0])
        return None
    if any("LOCALIZER" in (frame.volume["ImageType"] or ()) for frame in stack.frames):
        raise RejectedCase(f"{source}: ImageType is LOCALIZER, expected slices of one volume; give another series")
    if stack.frames[0].constant["SamplesPerPixel"] == 3 and stack.frames[0].constant["BitsAllocated"] != 8:
        raise RejectedCase(f"{source}: colour image of {stack.frames[0].constant['BitsAllocated']} bits, expected 8 bits per component")
    return stacks.regular(stack.frames, source, options["tilt"])


def _read(stack: Stack, source: Path, options: dict[str, Any], accounts: list[Account], corrections: list[str], notes: list[str]) -> checks.Volume:
    grid = check(stack, str(source), options)
    ordered = grid.frames if grid else stack.frames
    pixels.check_memory(ordered, str(source))
    component = COMPONENTS[stack.attributes["component"]]
    with tempfile.TemporaryDirectory(prefix="teravox-") as name:
        scratch = Path(name)
        headers = list({id(frame.header): frame.header for frame in ordered}.values())
        files = sources.plain_files(headers, scratch)
        conversion = witness.start([files[header.path].path for header in headers], scratch)
        try:
            raw = pixels.stored(ordered, files, component)
            if grid is None:
                raw, affine = _untiled(ordered[0], files[ordered[0].header.path], raw[0])
                grid = Grid([ordered[0]] * len(raw), affine, np.zeros(3), [])
            checks.check_affine(source, grid.affine)
            voxels = pixels.values(grid.frames, raw, str(source), options)
            opinion = witness.second_opinion(grid, conversion, voxels.plain, component)
        finally:
            witness.stop(conversion)
    if opinion.elsewhere:
        raise RejectedCase(f"{source}: dcm2niix reads the same voxels but places them elsewhere than the headers do; damaged or unsupported")
    if not opinion.by:
        raise RejectedCase(f"{source}: neither dcm2niix nor GDCM reads the voxels that its headers and pixels give; damaged or unsupported")
    array, affine = voxels.values, grid.affine
    if grid.drift.any():
        array, affine = pixels.upright(array, affine, grid.drift, str(source))
        corrections.append(f"gantry tilt: each slice shifted by {float(np.linalg.norm(grid.drift)):.4f} mm against the one before it")
    notes += grid.notes + voxels.notes
    if opinion.by != "dcm2niix":
        alone = any(len({(item.slope, item.intercept) for item in header.frames}) > 1 for header in headers)
        what = "equal stored values, and the rescaling of each frame is compared by nobody" if alone else "equal voxels"
        notes.append(f"dcm2niix gives no equal volume; GDCM reads {what}")
    if opinion.warnings:
        notes.append(f"dcm2niix gave {opinion.warnings} warning(s); run it on the files to read them")
    return checks.Volume(
        array,
        checks.check_affine(source, affine),
        "dicom",
        tuple(notes),
        frame_of_reference=str(ordered[0].constant["FrameOfReferenceUID"] or ""),
        corrections=(*corrections, *voxels.corrections),
        instances=tuple((frame.header.instance, frame.number) for frame in grid.frames),
        accounts=tuple(accounts),
        checked_by=opinion.by,
    )


def _untiled(frame: Frame, header: Header, tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A Siemens mosaic's slices (slice, row, column), and the affine (4, 4), RAS+, mm, for index (column, row, slice).

    tiles : (row, column) as stored. nibabel's reading of the private header places them; the second opinion checks it.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            wrapper = dicomwrappers.wrapper_from_data(pydicom.dcmread(header.path, stop_before_pixels=True))
            rows, columns, count = wrapper.image_shape[:3]
            lps = np.asarray(wrapper.affine, float)
    except Exception as error:  # private header, anything may come
        raise RejectedCase(f"{frame.header.path}: mosaic without a readable Siemens header ({type(error).__name__}), expected one") from None
    across = tiles.shape[1] // columns
    if min(rows, columns, count, across) < 1 or tiles.shape[0] % rows or tiles.shape[1] % columns or count > across * (tiles.shape[0] // rows):
        raise RejectedCase(f"{frame.header.path}: mosaic of {tiles.shape} pixels for {count} slices of {rows} x {columns}, expected room for all")
    slices = tiles.reshape(tiles.shape[0] // rows, rows, across, columns).transpose(0, 2, 1, 3).reshape(-1, rows, columns)
    if slices[count:].any():
        raise RejectedCase(f"{frame.header.path}: mosaic of {count} slices by its header, but pixels in the tiles after them; expected empty ones")
    slices = slices[:count]
    by_column = lps[:, [1, 0, 2, 3]]  # nibabel counts (row, column, slice)
    return np.ascontiguousarray(slices), geometry.LPS_FROM_RAS @ by_column
