"""What lies in a tree of DICOM files: studies, series, the volumes in them with a verdict by their headers, labels, and everything else.

Nothing is converted and no pixel is read. Files are read in several processes, a few kilobytes each; what is kept of a file is its header.
"""

import dataclasses
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from teravox import survey_files
from teravox.dicom import headers, series, sources
from teravox.dicom.headers import Header
from teravox.dicom.sources import Account
from teravox.dicom.stacks import Stack
from teravox.errors import RejectedCase
from teravox.survey_files import Other

SERIES = "series"  # stands in a reason where the name of a file or folder would
Key = tuple[str, str]  # StudyInstanceUID and SeriesInstanceUID: some software gives one series UID to several studies


class Entry(NamedTuple):
    """A file of a tree. reason : "" or why it is not opened; size : in bytes; modified : times of content and of rights, in ns."""

    path: Path
    reason: str
    size: int
    modified: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Volume:
    """A volume of a series with its verdict by headers: `ok` with reason "", or `rejected`.

    number : in its series, from 1; patient : PatientID, or what stands for it.
    """

    stack: Stack
    number: int
    patient: str
    verdict: str
    reason: str

    @property
    def header(self) -> Header:
        return self.stack.frames[0].header

    @property
    def key(self) -> Key:
        return key_of(self.header)


@dataclasses.dataclass(frozen=True)
class Survey:
    """root : the tree; images : every image's header, in name order; labels : of segmentations and structure sets; others : all other files."""

    root: Path
    images: list[Header]
    labels: list[Header]
    others: list[Other]


def tree(root: Path) -> Iterator[Entry]:
    """Every file below a folder in name order. Links, pipes and devices are not opened, nor what this user may not read.

    Links are not followed: they may lead out of the tree, or hold a file twice.
    """
    closed: list[OSError] = []
    for folder, names, found in os.walk(root, onerror=closed.append):
        names.sort()
        for name in sorted([*found, *names]):  # links to folders stand among the folders
            path = Path(folder, name)
            try:
                status = path.lstat()
            except OSError as error:
                yield Entry(path, f"not readable ({error.strerror})", 0, (0, 0))
                continue
            kind = stat.S_IFMT(status.st_mode)
            if kind == stat.S_IFDIR:
                continue
            reason = {stat.S_IFREG: "", stat.S_IFLNK: "symbolic link"}.get(kind, "pipe, socket or device")
            yield Entry(path, reason, status.st_size, (status.st_mtime_ns, status.st_ctime_ns))
    for refusal in closed:
        yield Entry(Path(refusal.filename), f"folder that is not readable ({refusal.strerror})", 0, (0, 0))


def scan(root: Path, entries: Sequence[Entry], workers: int, progress: Callable[[int], object] = lambda count: None) -> Survey:
    """Read the header of every DICOM file of a tree. entries : `tree` of it; progress : called with the number of files done since then."""
    found = Survey(root, [], [], [Other(entry.path, entry.reason, entry.reason.startswith("not")) for entry in entries if entry.reason])
    labels: dict[str, Header] = {}
    for chunk in survey_files.read([entry.path for entry in entries if not entry.reason], workers):
        progress(len(chunk))
        for item in chunk:
            if isinstance(item, Other):
                found.others.append(item)
            elif item.kind == "image":
                found.images.append(item)
            elif item.kind not in headers.SEGMENTATIONS.values():
                found.others.append(Other(item.path, f"object without an image: {item.kind}"))
            elif item.instance and sources.is_copy(item, labels.setdefault(item.instance, item)):
                found.others.append(Other(item.path, "identical copy of another file"))
            else:
                found.labels.append(item)
    return found


def key_of(header: Header) -> Key:
    return header.study, header.series


def patient_id(header: Header) -> str:
    return str(header.once["PatientID"] or "").strip()


def by_series(found: Survey) -> dict[Key, list[Header]]:
    """The images of each series, in name order."""
    groups: dict[Key, list[Header]] = {}
    for header in found.images:
        groups.setdefault(key_of(header), []).append(header)
    return groups


def damaged(found: Survey) -> dict[Key, list[Other]]:
    """For each series the damaged files that may be slices of it: those that name it, and those in its folders that name no series."""
    own: dict[Key, list[Other]] = {}
    nameless: dict[Path, list[Other]] = {}
    for other in found.others:
        if other.damaged and other.series:
            own.setdefault((other.study, other.series), []).append(other)
        elif other.damaged:
            nameless.setdefault(other.path.parent, []).append(other)
    return {
        key: own.get(key, []) + [other for folder in sorted({header.path.parent for header in members}) for other in nameless.get(folder, [])]
        for key, members in by_series(found).items()
    }


def members(found: Survey) -> dict[Key, list[Path]]:
    """The files of each series, damaged ones too, in name order: a file is called by its number, from 1, in this list."""
    lost = damaged(found)
    return {
        key: sorted([*(header.path for header in images), *(other.path for other in lost[key])], key=str) for key, images in by_series(found).items()
    }


def volumes(found: Survey, options: dict[str, Any]) -> tuple[list[Volume], dict[Path, str]]:
    """Every volume of every series, in the order of the files, with its verdict by headers; and why other images are left out.

    options : the configuration's `ingest`. A series without PatientID is of the only patient of its study, else of a patient of its own.
    """
    groups, lost, names = by_series(found), damaged(found), members(found)
    patients: dict[str, set[str]] = {}
    for header in found.images:
        patients.setdefault(header.study, set()).update({patient_id(header)} - {""})
    result: list[Volume] = []
    left: dict[Path, str] = {}
    for key, images in groups.items():
        own = {patient_id(header) for header in images} - {""}
        patient = min(own) if own else min(patients[key[0]]) if len(patients[key[0]]) == 1 else key[0]
        kept, copies = images, list[Account]()
        rejection = _fault(key, images, lost[key])
        if rejection is None:
            try:
                kept, copies = sources.without_copies(images)
            except RejectedCase as error:
                rejection = error
        frames, scouts = sources.without_scouts(kept)
        left |= {account.path: account.reason for account in (*copies, *scouts)}
        for number, stack in enumerate(series.candidates_of(frames), start=1):
            try:
                if rejection:
                    raise rejection
                series.check(stack, SERIES, options)
                result.append(Volume(stack, number, patient, "ok", ""))
            except RejectedCase as error:
                text = without_paths(str(error), names[key])
                result.append(Volume(stack, number, patient, "rejected", text.removeprefix(f"{SERIES}: ")))
    return result, left


def _fault(key: Key, images: list[Header], lost: list[Other]) -> RejectedCase | None:
    """Why a series cannot be used, whatever its slices are like."""
    if not key[1] or not (key[0] or patient_id(images[0])):
        return RejectedCase(f"{SERIES}: SeriesInstanceUID, or StudyInstanceUID and PatientID, missing; name its folder in a case table")
    patients = len({patient_id(header) for header in images})
    if patients > 1:
        return RejectedCase(f"{SERIES}: found {patients} values of PatientID under one SeriesInstanceUID, expected one")
    if lost:
        return RejectedCase(f"{SERIES}: {len(lost)} damaged file(s) may be slices of it, one is: {lost[0].reason}")
    return None


def unreadable(found: Survey) -> list[Other]:
    """What this user may not read: whole studies can lie there."""
    return [other for other in found.others if "not readable (" in other.reason]


def without_paths(text: str, paths: Sequence[Path]) -> str:
    """A message with the files' numbers in place of their names, since names can be a person's. paths : of the series, see `members`."""
    for number, path in sorted(enumerate(paths, start=1), key=lambda item: -len(str(item[1]))):
        text = text.replace(str(path), f"file {number}")
    return text


def kind(reason: str) -> str:
    """A reason without its numbers, so that equal faults are counted together."""
    return re.sub(r"\d+(\.\d+)?", "#", reason.partition(" (")[0].partition(";")[0])[:120]
