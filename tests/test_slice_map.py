"""`slices` of case.json: which instance and frame each slice of the canonical volume is, against a map made from the voxels."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import pytest

from builders import COLUMNS, ROWS, SLICES, STEP_MM, STORED, enhanced, place, s6, set_all, write, write_nifti
from teravox import pseudonyms
from test_ingest import call

KEY = bytes(range(32))
TURN = np.deg2rad(20)
ROW, COLUMN = np.array([np.cos(TURN), np.sin(TURN), 0]), np.array([0, 0, -1.0])  # an oblique coronal plane


def placed(orientation: list[float], positions: np.ndarray) -> list[pydicom.Dataset]:
    return s6([set_all(ImageOrientationPatient=[round(float(value), 9) for value in orientation]), place(np.round(positions, 6).tolist())])


def along(direction: Any) -> np.ndarray:
    return np.arange(SLICES)[:, None] * STEP_MM * np.asarray(direction, float)


def descending_frames() -> list[pydicom.Dataset]:
    """An enhanced object whose first frame is the highest."""
    data = enhanced()
    for frame, height in zip(data.PerFrameFunctionalGroupsSequence, (0, 2, 4, 6, 8, 10), strict=True):
        frame.PlanePositionSequence[0].ImagePositionPatient = [0, 0, -height]
    return [data]


SERIES: dict[str, tuple[Callable[[], list[pydicom.Dataset]], str]] = {
    "axial, ascending": (s6, "z"),
    "axial, descending": (lambda: placed([1, 0, 0, 0, 1, 0], along([0, 0, -1])), "z"),
    "axial, seen from above": (lambda: placed([-1, 0, 0, 0, 1, 0], along([0, 0, 1])), "z"),
    "sagittal, to the left": (lambda: placed([0, 1, 0, 0, 0, -1], along([1, 0, 0])), "x"),
    "sagittal, to the right": (lambda: placed([0, 1, 0, 0, 0, -1], along([-1, 0, 0])), "x"),
    "coronal": (lambda: placed([1, 0, 0, 0, 0, -1], along([0, -1, 0])), "y"),
    "oblique": (lambda: placed([*ROW, *COLUMN], along(np.cross(ROW, COLUMN))), "y"),
    "oblique, descending": (lambda: placed([*ROW, *COLUMN], along(-np.cross(ROW, COLUMN))), "y"),
    "enhanced": (descending_frames, "z"),
}


@pytest.mark.parametrize("name", SERIES)
def test_each_slice_is_the_instance_whose_pixels_it_holds(tmp_path: Path, name: str) -> None:
    """No two slices of STORED have a value in common: the pixels of a canonical slice tell which stored plane it is."""
    make, axis = SERIES[name]
    series = make()
    pseudonyms.write_key(tmp_path / "key", KEY)
    image = write(tmp_path / "ct", series, [f"{(5 * number) % 7}" for number in range(len(series))])
    settings = '--settings={"channels":[{"name":"ct"}],"labels":[{"name":"a","value":1}]}'
    arguments = ["--case=c", "--patient=P1", settings, f"--image=ct={image}", f"--key={tmp_path / 'key'}", f"--out={tmp_path / 'out'}"]
    shape, affine = grid_of(series)
    label = write_nifti(tmp_path / "label.nii", np.zeros(shape, np.uint8), affine)
    done = call("ingest", *arguments, f"--label={label}")
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "out" / "case.json").read_text())
    found = document["channels"]["ct"]["slices"]
    assert found["axis"] == axis
    volume = np.asarray(nib.load(tmp_path / "out" / "ct.nii.gz").dataobj)
    planes = np.moveaxis(volume, "xyz".index(axis), 0)
    expected = []
    for plane in planes:
        (number,) = (number for number, stored in enumerate(STORED) if np.array_equal(np.unique(stored), np.unique(plane)))
        data, frame = (series[0], number + 1) if len(series) == 1 else (series[number], 1)
        expected.append([pseudonyms.uid_hash(data.SOPInstanceUID, KEY), frame])
    assert found["instances"] == expected and len(expected) == SLICES


def grid_of(series: list[pydicom.Dataset]) -> tuple[tuple[int, ...], np.ndarray]:
    """Shape and RAS+ affine for index (column, row, slice) of the series as its headers place it, by the standard's equation."""
    if len(series) == 1:
        frames = series[0].PerFrameFunctionalGroupsSequence
        positions = [frame.PlanePositionSequence[0].ImagePositionPatient for frame in frames]
        shared = series[0].SharedFunctionalGroupsSequence[0]
        orientation, spacing = shared.PlaneOrientationSequence[0].ImageOrientationPatient, shared.PixelMeasuresSequence[0].PixelSpacing
    else:
        positions, orientation, spacing = [data.ImagePositionPatient for data in series], series[0].ImageOrientationPatient, series[0].PixelSpacing
    row, column = np.array(orientation[:3], float), np.array(orientation[3:], float)
    normal = np.cross(row, column)
    ordered = sorted(np.array(positions, float), key=lambda position: float(position @ normal))
    affine = np.eye(4)
    affine[:3, :3] = np.stack([row * float(spacing[1]), column * float(spacing[0]), (ordered[-1] - ordered[0]) / (SLICES - 1)], axis=1)
    affine[:3, 3] = ordered[0]
    return (COLUMNS, ROWS, SLICES), np.diag([-1.0, -1, 1, 1]) @ affine
