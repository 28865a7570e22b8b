"""A small tree of DICOM studies as a hospital hands it over, with what reading it must give."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
from pydicom.uid import generate_uid

from builders import SR_STORAGE, STORED, s6, segmentation, set_all, structure_set, write

MASK = np.zeros(STORED.shape, np.uint8)  # (slice, row, column)
MASK[1:4, 2:6, 3:8] = 1
SQUARE = [(3, 2), (7, 2), (7, 5), (3, 5)]  # voxels (column, row) whose centres are the corners of the structure


def settings(tree: Path | str, **changes: Any) -> dict[str, Any]:
    """A configuration for a tree of one CT channel and one label."""
    return {
        "dataset": {"layout": "dicom", "path": str(tree)},
        "channels": [{"name": "ct", "match": {"modality": "CT"}}],
        "labels": [{"name": "lesion", "value": 1}],
        "regions": [],
        "split": {"folds": 2, "test_fraction": 0},
        "resample": {"spacing": 0.7},
        "train": {"folds": [0, 1]},
        "evaluate": {"picture_channel": ""},
        **changes,
    }


def slices(number: int, **values: Any) -> list[pydicom.Dataset]:
    """The CT series of patient `number`: no two have one voxel value in common at a place."""
    return s6([set_all(**{"PatientID": f"MRN{number}", "SeriesDescription": "portal", **values})], STORED + np.int16(5 * number))


def seg(series: Sequence[pydicom.Dataset], name: str = "lesion", mask: np.ndarray = MASK) -> pydicom.Dataset:
    return segmentation(series, mask, [name])


def contours(series: Sequence[pydicom.Dataset], name: str = "lesion") -> pydicom.Dataset:
    """A structure set with SQUARE on slices 1 to 3."""
    planes = []
    for number in (1, 2, 3):
        (row_mm, column_mm), (x, y, z) = series[0].PixelSpacing, series[number].ImagePositionPatient
        planes.append([(x + column * column_mm, y + row * row_mm, z) for column, row in SQUARE])
    data = structure_set(series, {name: planes}, references=[series[number].SOPInstanceUID for number in (1, 2, 3)])
    data.PatientID = series[0].PatientID
    referenced = data.ReferencedFrameOfReferenceSequence[0]
    referenced.RTReferencedStudySequence = [pydicom.Dataset()]
    referenced.RTReferencedStudySequence[0].RTReferencedSeriesSequence = [pydicom.Dataset()]
    referenced.RTReferencedStudySequence[0].RTReferencedSeriesSequence[0].SeriesInstanceUID = series[0].SeriesInstanceUID
    return data


def localizer(series: Sequence[pydicom.Dataset]) -> pydicom.Dataset:
    data = copy.deepcopy(series[0])
    data.SeriesInstanceUID, data.ImageType = generate_uid(), ["ORIGINAL", "PRIMARY", "LOCALIZER"]
    data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    return data


def report(series: Sequence[pydicom.Dataset]) -> pydicom.Dataset:
    """A structured report: no image."""
    data = localizer(series)
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = SR_STORAGE
    data.Modality = "SR"
    for keyword in ("PixelData", "Rows", "Columns", "NumberOfFrames"):
        if keyword in data:
            delattr(data, keyword)
    return data


def study(folder: Path, number: int, series: Sequence[pydicom.Dataset] | None = None) -> list[pydicom.Dataset]:
    """A patient's folder: the series, its label (of patients 2 and 5 a structure set), a localizer and a report. Returns the series."""
    series = list(series or slices(number))
    write(folder / "ct", series, [f"IM{index}" for index in (3, 1, 5, 0, 2, 4)])
    write(folder / "other", [(contours if number in {2, 5} else seg)(series), localizer(series), report(series)], ["label", "scout", "report"])
    return series


def hospital(root: Path, patients: int = 6) -> Path:
    """Studies of some patients with noise around."""
    for number in range(1, patients + 1):
        study(root / f"p{number}", number)
    (root / "README.txt").write_text("what a hospital writes")
    (root / "p1" / "ct" / "sheet.pdf").write_bytes(b"%PDF-1.4 nothing")
    (root / "p1" / "export.zip").write_bytes(b"PK\x03\x04 nothing")
    return root
