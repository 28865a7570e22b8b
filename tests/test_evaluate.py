"""The evaluation command on one case whose every number can be counted by hand."""

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

import evaluate
from teravox import files, store

LABELS = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]
IGNORE = 7


def case(folder: Path, reference: np.ndarray, prediction: np.ndarray) -> argparse.Namespace:
    """The files of a case on one grid of 1 mm, as the earlier stages leave them."""
    image = np.random.default_rng(0).normal(0, 1, reference.shape).astype(np.float32)

    def written(place: str, document: dict[str, object], **volumes: np.ndarray) -> Path:
        endings = {
            "label": "label.nii" if place.startswith("resample") else "label.nii.gz",
            "native": "c.nii.gz",
            "grid": "c.grid.nii.gz",
            "t1": "t1.nii.gz",
        }
        path = folder / place
        artefacts = {endings[name]: store.write(path.parent / endings[name], array, np.eye(4)) for name, array in volumes.items()}
        files.write_json(path, {"case": "c", **document, "provenance": {"stage": place.split("/")[0], "artefacts": artefacts}})
        return path

    ingested = written("ingest/case.json", {"channels": {"t1": {}}}, label=reference, t1=image)
    resampled = written("resample/case.json", {}, label=reference)
    predicted = written("predict/c.json", {}, native=prediction, grid=prediction)
    return argparse.Namespace(
        ingested=ingested.parent, resampled=resampled.parent, prediction=predicted, patient="p", fold=0, test=False,
        figure=folder / "c.png", out=folder / "scores" / "c.json",
    )  # fmt: skip


@pytest.mark.parametrize("ignore", [None, IGNORE])
def test_ignored_voxels_are_in_no_score(tmp_path: Path, ignore: int | None) -> None:
    generator = np.random.default_rng(1)
    reference, prediction = (generator.integers(0, 3, (6, 7, 8)).astype(np.uint8) for _ in range(2))
    reference[:, :, :3] = IGNORE
    args = case(tmp_path, reference, prediction)
    args.settings = {
        "labels": LABELS, "ignore_value": ignore, "regions": [{"name": "both", "labels": ["a", "b"]}],
        "evaluate": {"nsd_tolerance_mm": 1, "picture_channel": ""},
    }  # fmt: skip
    evaluate.evaluate_case(args)
    rows = json.loads(args.out.read_text())["rows"]
    assert [(row["space"], row["label"]) for row in rows] == [(space, name) for space in ("native", "grid") for name in ("a", "b", "both")]
    judged = reference != IGNORE if ignore else np.ones(reference.shape, bool)
    for row in rows:
        values = {"a": [1], "b": [2], "both": [1, 2]}[row["label"]]
        first, second = np.isin(prediction, values) & judged, np.isin(reference, values) & judged
        assert row["dice"] == pytest.approx(2 * (first & second).sum() / (first.sum() + second.sum()))
        assert row["volume_ml"] == pytest.approx(first.sum() / 1000) and row["reference_volume_ml"] == pytest.approx(second.sum() / 1000)
