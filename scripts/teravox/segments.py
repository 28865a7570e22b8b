"""What DICOM SEG and RTSTRUCT share: reading the object, names to labels, and voxels that two labels claim."""

import collections
import contextlib
import dataclasses
import io
import json
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.uid import DeflatedExplicitVRLittleEndian

from teravox import store
from teravox.errors import ENDINGS, RejectedCase

NAME_CHARACTERS = 256  # SegmentLabel and ROIName are LO, at most 64 characters (PS3.5 section 6.2); some writers exceed that
MATCH_SECONDS = 10  # names and regular expressions are compared in milliseconds, unless a name makes an expression backtrack for ever
INFLATED_BYTES = 1 << 30  # of a deflated object: deflate shrinks up to 1032 times, so its size on disk is no bound


@dataclasses.dataclass(frozen=True)
class Labelled:
    """label : (x, y, z) smallest unsigned integer, canonical order; corrections, notes : one line each, as of volumes.Volume."""

    label: np.ndarray
    corrections: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@contextlib.contextmanager
def refusing(path: Path, kind: str) -> Iterator[None]:
    """Whatever a damaged file raises becomes a RejectedCase that quotes nothing of it, and pydicom's warnings, which do, are dropped."""
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except (RejectedCase, *ENDINGS):
        raise
    except BaseException as error:  # a damaged file can raise anything
        raise RejectedCase(f"{path}: not usable as a DICOM {kind} ({type(error).__name__}); get it again from its source") from None


def read_dataset(path: Path) -> pydicom.Dataset:
    """A DICOM file; a deflated one (PS3.5 section A.5) up to INFLATED_BYTES. Raises RejectedCase, and whatever pydicom raises."""
    meta = pydicom.filereader.read_file_meta_info(path)
    if meta.TransferSyntaxUID != DeflatedExplicitVRLittleEndian:
        return pydicom.dcmread(path)
    start = 132 + 12 + meta.FileMetaInformationGroupLength  # preamble and prefix, the group's length itself, the group
    content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(path.read_bytes()[start:], INFLATED_BYTES + 1)
    if len(content) > INFLATED_BYTES:
        raise RejectedCase(f"{path}: inflates to more than {INFLATED_BYTES} bytes, expected less; store it without deflating")
    data = pydicom.filereader.read_dataset(io.BytesIO(content), is_implicit_VR=False, is_little_endian=True)
    data.file_meta = meta
    return data


def text(value: Any) -> str:
    """An attribute's text without surrounding space; a backslash in it, which pydicom takes for a separator, stays."""
    return ("\\".join(map(str, value)) if isinstance(value, pydicom.multival.MultiValue) else str(value or "")).strip()


# In a process of its own, since `re` has no limit of time.
_MATCH = """import json, re, sys
patterns, names = json.load(sys.stdin)
print(json.dumps([[bool(re.fullmatch(pattern, name, re.IGNORECASE)) for pattern in patterns] for name in names]))"""


def match(path: Path, kind: str, names: Mapping[int, str], labels: list[dict[str, Any]]) -> dict[int, int]:
    """Number of each segment or structure that fits a label -> the label's position in `labels`.

    kind : "segment" or "structure"; names : name of each number. A name fits a label when the whole of it matches the label's
    `segment`, or is the label's name where that is empty, whatever the case of the letters. Raises RejectedCase: a name fits two.
    """
    usable = {number: name for number, name in names.items() if len(name) <= NAME_CHARACTERS}
    patterns = [label.get("segment", "") for label in labels]
    hits = [
        [not pattern and name.lower() == label["name"].lower() for label, pattern in zip(labels, patterns, strict=True)] for name in usable.values()
    ]
    if any(patterns):
        command = [sys.executable, "-I", "-S", "-c", _MATCH]
        try:
            result = subprocess.run(
                command, input=json.dumps([patterns, list(usable.values())]), capture_output=True, text=True, timeout=MATCH_SECONDS, check=True
            )
        except subprocess.TimeoutExpired:
            raise RejectedCase(
                f"{path}: comparing the names with `segment` of the labels took more than {MATCH_SECONDS} s; simplify the regular expressions"
            ) from None
        found = json.loads(result.stdout)
        hits = [[matched if pattern else hit for pattern, matched, hit in zip(patterns, *row, strict=True)] for row in zip(found, hits, strict=True)]
    matched = {}
    for number, row in zip(usable, hits, strict=True):
        fitting = [position for position, hit in enumerate(row) if hit]
        if len(fitting) > 1:
            first, second = (labels[position]["name"] for position in fitting[:2])
            raise RejectedCase(f"{path}: {kind} {number} fits labels {first} and {second}, expected one; make their `segment` stricter")
        if fitting:
            matched[number] = fitting[0]
    return matched


def same_frame(frame_of_reference: str, other: Any) -> bool:
    """Whether two FrameOfReferenceUIDs can be the same: an image's, "" when not known, and a segmentation's."""
    return not frame_of_reference or text(other) == frame_of_reference


class Canvas:
    """Label values on the image's grid, painted plane by plane; of the labels that claim a voxel the first in `labels` has it."""

    def __init__(self, shape: tuple[int, int, int], labels: list[dict[str, Any]]) -> None:
        self.labels = labels
        self.label = np.zeros(shape, store.label_dtype([label["value"] for label in labels]), order="F")  # slices in one piece
        self.lost: collections.Counter[tuple[int, int]] = collections.Counter()  # (value that has it, value that claims it) -> voxels

    def paint(self, axis: int, index: int, masks: Mapping[int, np.ndarray]) -> None:
        """Paint the plane `index` across `axis`. masks : position in `labels` -> (n, m) bool over the other two axes, in order."""
        view = self.label[(slice(None),) * axis + (index,)]
        plane = np.ascontiguousarray(view)
        for position in sorted(masks):
            mask, value = masks[position], self.labels[position]["value"]
            held = plane[mask]
            holders, counts = np.unique(held[held > 0], return_counts=True)
            self.lost.update({(int(holder), value): int(count) for holder, count in zip(holders, counts, strict=True)})
            plane[mask & (plane == 0)] = value
        view[:] = plane

    def finish(self, path: Path, overlap: str, corrections: list[str], notes: list[str]) -> Labelled:
        """The label, with a correction for each two labels that overlap. Raises RejectedCase when they do and overlap is `reject`."""
        names = {label["value"]: label["name"] for label in self.labels}
        pairs = [(names[first], names[second], count) for (first, second), count in self.lost.most_common()]
        if pairs and overlap == "reject":
            first, second, count = pairs[0]
            more = f", and {len(pairs) - 1} other pair(s) of labels do" if len(pairs) > 1 else ""
            raise RejectedCase(f"{path}: labels {first} and {second} overlap in {count} voxels{more}; expected none, or ingest.overlap `priority`")
        lost = [f"{count} voxels of label {second} that overlap {first} given to {first}, which stands first" for first, second, count in pairs]
        return Labelled(self.label, (*corrections, *lost), tuple(notes))
