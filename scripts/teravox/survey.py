"""What lies in a tree of DICOM files: studies, series, the volumes in them with a verdict by their headers, labels, and everything else.

Nothing is converted and no pixel is read. Files are read in several processes, a few kilobytes each; what is kept of a file is its header.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from teravox import contained
from teravox.dicom import headers, series, sources
from teravox.dicom.headers import Header
from teravox.dicom.stacks import Stack
from teravox.errors import RejectedCase

SERIES = "series"  # stands in a reason where the name of a file or folder would
CHUNK_FILES = 100  # read by a process at a time: some 50 ms


@dataclasses.dataclass(frozen=True)
class Other:
    """A file that belongs to no volume. damaged : it may be a lost slice of a series beside it."""

    path: Path
    reason: str
    damaged: bool


@dataclasses.dataclass(frozen=True)
class Volume:
    """A volume of a series with its verdict by headers: `ok` with reason "", or `rejected`. number : in its series, from 1."""

    stack: Stack
    number: int
    verdict: str
    reason: str
    rejection: RejectedCase | None = None

    @property
    def header(self) -> Header:
        return self.stack.frames[0].header


@dataclasses.dataclass(frozen=True)
class Survey:
    """root : the tree; images : every image's header, in name order; labels : of segmentations and structure sets; others : all other files."""

    root: Path
    images: list[Header]
    labels: list[Header]
    others: list[Other]


def tree(root: Path) -> Iterator[tuple[Path, str]]:
    """Every file below a folder in name order, and "" or why it is not opened: links, pipes and devices are not."""
    for folder, names, found in os.walk(root):
        names.sort()
        for name in sorted(found):
            path = Path(folder, name)
            yield path, "symbolic link" if path.is_symlink() else "" if path.is_file() else "pipe, socket or device"
        for name in names:
            if Path(folder, name).is_symlink():
                yield Path(folder, name), "symbolic link to a folder"


def scan(root: Path, workers: int, progress: Callable[[int], object] = lambda count: None) -> Survey:
    """Read the header of every DICOM file below a folder. progress : called with the number of files done since the last call.

    Links are not followed: they may lead out of the tree, or hold a file twice.
    """
    entries = list(tree(root))
    others = [Other(path, reason, False) for path, reason in entries if reason]
    paths = [path for path, reason in entries if not reason]
    chunks = [paths[start : start + CHUNK_FILES] for start in range(0, len(paths), CHUNK_FILES)]
    images: list[Header] = []
    labels: list[Header] = []

    def take(found: list[Header | Other]) -> None:
        progress(len(found))
        for item in found:
            if isinstance(item, Other):
                others.append(item)
            elif item.kind == "image":
                images.append(item)
            elif item.kind in headers.SEGMENTATIONS.values():
                labels.append(item)
            else:
                others.append(Other(item.path, f"object without an image: {item.kind}", False))

    if workers == 1 or len(chunks) < 2:
        for chunk in chunks:
            take(_read(chunk))
    else:
        context = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
            waiting = [pool.submit(_read, chunk) for chunk in chunks]
            for number, future in enumerate(waiting):
                try:
                    take(future.result())
                except concurrent.futures.process.BrokenProcessPool:  # a file ended its reader: found again one by one
                    take(_read_alone(chunks[number]))
                waiting[number] = None  # type: ignore[call-overload]
    return Survey(root, images, labels, others)


def _read(paths: list[Path]) -> list[Header | Other]:
    found: list[Header | Other] = []
    for path in paths:
        try:
            reason = "" if headers.is_dicom_file(path) else sources.harmless(path)
            found.append(Other(path, reason, False) if reason else headers.read_header(path))
        except RejectedCase as error:
            found.append(Other(path, str(error).removeprefix(f"{path}: "), True))
        except OSError as error:
            found.append(Other(path, f"not readable ({error.strerror})", True))
    _share(found)
    return found


def _read_alone(paths: list[Path]) -> list[Header | Other]:
    found: list[Header | Other] = []
    for path in paths:
        try:
            found += contained.call(_read, [path], about=str(path), megabytes=1)
        except RejectedCase as error:
            found.append(Other(path, str(error).removeprefix(f"{path}: "), True))
    return found


def _share(found: list[Header | Other]) -> None:
    """One dictionary for the many frames whose attributes are equal: a hundred thousand of them are then small."""
    known: dict[str, dict[str, Any]] = {}
    for item in found:
        if isinstance(item, Header):
            for frame in item.frames:
                for field in ("constant", "volume"):
                    values = getattr(frame, field)
                    object.__setattr__(frame, field, known.setdefault(repr(values), values))


def volumes(images: list[Header], options: dict[str, Any]) -> list[Volume]:
    """Every volume of every series, in the order of the files, with its verdict by headers. options : the configuration's `ingest`."""
    by_series: dict[tuple[str, str], list[Header]] = {}
    for header in images:
        by_series.setdefault((header.study, header.series), []).append(header)
    found = []
    for members in by_series.values():
        try:
            kept, _ = sources.without_copies(members)
            rejection = None
        except RejectedCase as error:
            kept, rejection = members, error
        frames, _ = sources.without_scouts(kept)
        for number, stack in enumerate(series.candidates_of(frames), start=1):
            try:
                if rejection:
                    raise rejection
                series.check(stack, SERIES, options)
                found.append(Volume(stack, number, "ok", ""))
            except RejectedCase as error:
                found.append(Volume(stack, number, "rejected", reason(error, stack), error))
    return found


def reason(error: RejectedCase, stack: Stack) -> str:
    """A rejection without the name of the file it begins with."""
    return without_paths(str(error), [stack]).removeprefix(f"{SERIES}: ").removeprefix("file 1: ")


def without_paths(text: str, stacks: list[Stack]) -> str:
    """A message with numbers in place of the files' names, since names can be a person's."""
    paths = dict.fromkeys(frame.header.path for stack in stacks for frame in stack.frames)
    for number, path in sorted(enumerate(paths, start=1), key=lambda item: -len(str(item[1]))):
        text = text.replace(str(path), f"file {number}")
    return text


def kind(reason: str) -> str:
    """A reason without its numbers, so that equal faults are counted together."""
    return re.sub(r"\d+(\.\d+)?", "#", reason.partition(" (")[0].partition(";")[0])[:120]


def workers() -> int:
    """Processes that read headers: one per core that this process may use."""
    return len(os.sched_getaffinity(0))
