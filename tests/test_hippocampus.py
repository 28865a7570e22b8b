"""The Medical Segmentation Decathlon's Task04: that its oddities are read right, and (slow) that the whole run reaches its score."""

import csv
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from checkout import REPOSITORY, copy_repository
from teravox import cases, config, ingest

REACHED_DICE = 0.87  # mean over both labels on the held-out fold


@pytest.fixture
def dataset(shared: Path) -> Path:
    return shared / "data" / "msd_hippocampus"


def test_every_case_is_read_as_it_is(dataset: Path) -> None:
    """All cases: float and uint8 images keep their values and types, float labels become integers, the grid is the file's."""
    settings = config.load(REPOSITORY / "config" / "msd_hippocampus.yaml")
    settings["dataset"]["path"] = str(dataset)
    found = cases.read_cases(settings)
    assert len(found) == len(list((dataset / "imagesTr").glob("*.nii.gz"))) == 180
    kinds = set()
    for case in found:
        read = ingest.ingest(case.images, case.label, settings)
        image, label = (nib.load(path) for path in (case.images["t1"], case.label))
        kinds.add((image.get_data_dtype().name, label.get_data_dtype().name))
        assert read.images["t1"].dtype == image.get_data_dtype() and read.label.dtype == np.uint8
        assert np.array_equal(read.images["t1"], np.asarray(image.dataobj)) and np.array_equal(read.label, np.asarray(label.dataobj))
        assert np.allclose(read.affine, image.affine)
    assert {name for name, _ in kinds} == {"uint8", "float32"} and {name for _, name in kinds} == {"uint8", "float32"}


@pytest.mark.slow
def test_whole_run_reaches_its_dice(dataset: Path, tmp_path: Path) -> None:
    copy_repository(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "Task04_Hippocampus").symlink_to(dataset)
    command = [sys.executable, "-m", "snakemake", "--cores", "all", "--configfile", "config/msd_hippocampus.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    rows = list(csv.DictReader((tmp_path / "results_msd_hippocampus" / "evaluation" / "metrics.csv").open()))
    dice = {label: [float(row["dice"]) for row in rows if row["label"] == label and row["space"] == "native"] for label in ("anterior", "posterior")}
    assert [len(values) for values in dice.values()] == [36, 36]
    assert np.mean([np.mean(values) for values in dice.values()]) >= REACHED_DICE
