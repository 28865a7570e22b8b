"""The commands `resample.py` and `ceiling.py` on ingested cases."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from teravox import ceiling_table, geometry, hashing, metrics, store
from teravox import prediction as stage
from test_geometry import affine_of
from test_ingest import call
from test_ingest import run as ingest

RNG = np.random.default_rng(0)
AFFINE = affine_of((0, 1, 2), (1, 1, 1), (1.0, 1.5, 2.5), (12.3, -45.6, 78.9), (10, -20, 15))
LABELS = [{"name": "organ", "value": 1}, {"name": "lesion", "value": 4}]


def write(path: Path, array: np.ndarray, affine: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(array, affine), path)
    return path


def ball(shape: tuple[int, int, int], centre: tuple[float, float, float], radius: float) -> np.ndarray:
    """True within a radius in mm of a centre in voxels, on AFFINE's spacing."""
    index = np.stack(np.meshgrid(*[np.arange(n) for n in shape], indexing="ij"), axis=-1)
    return np.asarray(np.linalg.norm((index - centre) * [1, 1.5, 2.5], axis=-1) < radius)


def case(folder: Path) -> Path:
    """A case of two channels, one on a turned and coarser grid, with a large structure, and a lesion of a single voxel."""
    shape = (30, 28, 16)
    label = np.where(ball(shape, (14, 13, 8), 9), 1, 0).astype(np.uint8)
    label[25, 22, 3] = 4
    image = (RNG.random(shape) * 500 - 200).astype(np.int16)
    turned = AFFINE.copy()
    turned[:3, :3] = geometry.direction_of(AFFINE) @ affine_of((0, 1, 2), (1, 1, 1), (2, 1.3, 2), (0, 0, 0), (0, 0, 8))[:3, :3]
    other = (RNG.random((18, 30, 20)) * 100).astype(np.uint8)
    images = {"t1": write(folder / "source" / "t1.nii.gz", image, AFFINE), "flair": write(folder / "source" / "flair.nii.gz", other, turned)}
    document = ingest(folder / "ingest", images, write(folder / "source" / "label.nii.gz", label, AFFINE), LABELS)
    assert document["verdict"] == "ok", document
    return folder / "ingest" / "case.json"


def settings(**options: Any) -> str:
    channels = [{"name": "t1"}, {"name": "flair", "background": -3}]
    return "--settings=" + json.dumps({"channels": channels, "labels": LABELS, "ignore_value": None, "resample": options})


def resampled(folder: Path, path: Path, *arguments: str, **options: Any) -> dict[str, Any]:
    done = call("resample", str(path), settings(**options), f"--out={folder}", *arguments)
    assert done.returncode == 0, done.stderr.decode()
    return {**json.loads((folder / "case.json").read_text()), "text": done.stdout.decode()}


def test_a_case_is_resampled_and_its_ceiling_scored(tmp_path: Path) -> None:
    path = case(tmp_path)
    document = resampled(tmp_path / "out", path, spacing=2)
    image, grid = store.read(tmp_path / "out" / "image.nii")
    label, _ = store.read(tmp_path / "out" / "label.nii")
    assert image.shape == (15, 21, 20, 2) and image.dtype == np.int16 and label.dtype == np.uint8
    assert document["provenance"]["artefacts"]["image.nii"] == hashing.volume_digest(image, grid)
    np.testing.assert_allclose(geometry.direction_of(grid), geometry.direction_of(AFFINE), atol=1e-5)
    assert document["channels"]["flair"]["background"] == -3 and image[..., 1].min() == -3  # beyond the second channel
    assert document["channels"]["t1"]["min"] == image[..., 0].min() >= -200
    assert document["label_voxels"] == {"organ": int((label == 1).sum()), "lesion": int((label == 4).sum())}

    native, affine = store.read(tmp_path / "ingest" / "label.nii.gz")
    classes = np.select([label == 1, label == 4], [1, 2], 0)
    back = stage.to_native(np.eye(3, dtype=np.float32)[classes], grid, native.shape, affine)
    for name, index, value in (("organ", 1, 1), ("lesion", 2, 4)):
        expected = metrics.score(back == index, native == value, affine, 1)
        score = document["ceiling"][name]
        assert score["dice"] == expected["dice"] and score["nsd"] == expected["nsd"]
        assert score["volume_change"] == pytest.approx(expected["volume_ml"] / expected["reference_volume_ml"] - 1)
    assert document["ceiling"]["organ"]["dice"] > 0.93
    lost = "label 'lesion' loses 1 of 1 parts on the way to the grid and back, the largest of 1 voxels"
    assert lost in document["warnings"] and f"warning: case 'c1': {lost}" in document["text"]


def test_a_background_that_the_type_does_not_hold_is_said(tmp_path: Path) -> None:
    image, label = (RNG.random((6, 6, 6)) * 100).astype(np.uint8), np.ones((6, 6, 6), np.uint8)
    sources = {name: write(tmp_path / f"{name}.nii.gz", image, np.eye(4)) for name in ("t1", "flair")}
    ingest(tmp_path / "ingest", sources, write(tmp_path / "label.nii.gz", label, np.eye(4)), LABELS)
    document = resampled(tmp_path / "out", tmp_path / "ingest" / "case.json", min_size=8)
    assert document["channels"]["flair"]["background"] == 0 == document["channels"]["flair"]["min"]
    assert document["warnings"][:2] == [
        "the grid of 6x6x6 voxels is padded evenly to 8x8x8 (min_size)",
        "background of channel 'flair' is 0, not -3: the image's type is uint8",
    ]


def test_memory_and_threads_change_no_byte(tmp_path: Path) -> None:
    path = case(tmp_path)
    first = resampled(tmp_path / "a", path, spacing=0.9, interpolation="bspline")
    second = resampled(tmp_path / "b", path, "--memory-mb=300", "--threads=3", spacing=0.9, interpolation="bspline")
    assert first == second
    for name in ("image.nii", "label.nii", "case.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_cropped_voxel_comes_back_where_it_was(tmp_path: Path) -> None:  # C12
    image, label = np.zeros((12, 12, 12), np.int16), np.zeros((12, 12, 12), np.uint8)
    image[4:9, 4:9, 4:9], label[5, 6, 7] = 100, 1
    affine = np.diag([2.0, 3, 4, 1])
    affine[:3, 3] = [7, -20, 31]
    source = write(tmp_path / "t1.nii.gz", image, affine)
    ingest(tmp_path / "ingest", {"t1": source}, write(tmp_path / "label.nii.gz", label, affine), LABELS[:1])
    text = json.dumps(
        {"channels": [{"name": "t1"}], "labels": LABELS[:1], "resample": {"spacing": [2, 3, 4], "crop": "foreground", "crop_margin_mm": 0}}
    )
    done = call("resample", str(tmp_path / "ingest" / "case.json"), f"--settings={text}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    found, grid = store.read(tmp_path / "out" / "label.nii")
    assert found.shape == (5, 5, 5) and np.argwhere(found).tolist() == [[1, 2, 3]]
    np.testing.assert_allclose(grid @ [0, 0, 0, 1], affine @ [4, 4, 4, 1])
    back = stage.to_native(np.eye(2, dtype=np.float32)[found.astype(int)], grid, (12, 12, 12), affine)
    assert np.argwhere(back).tolist() == [[5, 6, 7]]
    assert json.loads((tmp_path / "out" / "case.json").read_text())["ceiling"]["organ"]["dice"] == 1


def test_the_ceiling_of_several_spacings(tmp_path: Path) -> None:
    path = case(tmp_path)
    out = tmp_path / "ceiling" / "c1.json"
    done = call("ceiling", "case", str(path), settings(spacing=1, ceiling_spacings=[4, 1]), f"--out={out}")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["spacings"]
    assert [(entry["spacing"], entry["shape"]) for entry in found] == [(1, [30, 42, 40]), (4, [8, 11, 10])]
    assert found[0]["labels"]["organ"]["dice"] > found[1]["labels"]["organ"]["dice"] > 0.7
    assert found[0]["labels"] == resampled(tmp_path / "out", path, spacing=1)["ceiling"]
    assert sorted(entry.name for entry in out.parent.iterdir()) == ["c1.json", "c1.run.json"]

    split = tmp_path / "split.json"
    split.write_text(json.dumps({"cases": {"c1": {}}}))
    table = tmp_path / "ceiling.json"
    done = call("ceiling", "all", f"--split={split}", f"--cases={out.parent}", settings(spacing=1), f"--out={table}")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in table.with_suffix(".tsv").read_text().splitlines()]
    assert rows[0] == list(ceiling_table.COLUMNS) and [row[:3] for row in rows[1:]] == [
        ["1", "organ", "1"], ["1", "lesion", "1"], ["4", "organ", "1"], ["4", "lesion", "1"]
    ]  # fmt: skip
    assert b"warning: case 'c1' at 4 mm: label 'lesion' loses 1 of 1 parts" in done.stdout


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def error_of(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = [line for line in done.stderr.decode().split("\n") if line and "c1: " not in line]  # the bar
    assert done.returncode not in (0, None) and len(lines) == 1 and lines[0].startswith("error: "), done.stderr.decode()
    return lines[0]


def test_what_is_wrong_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    path = case(tmp_path)
    good = (tmp_path / "ingest" / "flair.nii.gz").read_bytes()
    out = tmp_path / "out"
    for content, words in ((good[:-20], "damaged"), (b"", "damaged"), (good[:2000], "damaged")):
        (tmp_path / "ingest" / "flair.nii.gz").write_bytes(content)
        assert words in error_of(call("resample", str(path), settings(), f"--out={out}"))
        assert left(out) == []
    (tmp_path / "ingest" / "flair.nii.gz").write_bytes(good)
    assert "resample.memory_mb" in error_of(call("resample", str(path), settings(spacing=0.5), f"--out={out}", "--memory-mb=0.01"))
    assert left(out) == []
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "verdict": "rejected", "reason": "a reason"}))
    assert "rejected (a reason)" in error_of(call("resample", str(path), settings(), f"--out={out}"))
    assert "missing" in error_of(call("resample", str(tmp_path / "none.json"), settings(), f"--out={out}"))


def test_arguments_that_mean_nothing_are_one_line(tmp_path: Path) -> None:
    path, out = case(tmp_path), tmp_path / "out"
    before = path.read_bytes()
    assert "holds the ingested case" in error_of(call("resample", str(path), settings(), f"--out={path.parent}"))
    assert path.read_bytes() == before
    for options, words in (
        ({"spacing": -1}, "'resample.spacing' is -1, expected at least 0.001"), ({"spacing": "auto"}, "expected a number or three"),
        ({"spacing": [1, 2]}, "expected at least 3 entries"), ({"label": "lanczos"}, "expected one of nearest, linear, bspline"),
        ({"crop": "foo"}, "expected one of none, foreground"), ({"min_size": [1, 2]}, "3 entries"), ({"spacing": 1e300}, "at most 1000"),
    ):  # fmt: skip
        assert words in error_of(call("resample", str(path), settings(**options), f"--out={out}"))
    text = json.dumps({"channels": [{"name": "zz"}], "labels": LABELS})
    assert "no channel 'zz', expected one of" in error_of(call("resample", str(path), f"--settings={text}", f"--out={out}"))
    for argument in ("--threads=0", "--threads=-1", "--memory-mb=nan", "--memory-mb=inf"):
        done = call("resample", str(path), settings(), f"--out={out}", argument)
        assert done.returncode == 2 and b"expected a number above 0" in done.stderr and b"Traceback" not in done.stderr
    for content in ("{}", "[]", "null"):
        path.write_text(content)
        assert "expected the case.json of an ingested case" in error_of(call("resample", str(path), settings(), f"--out={out}"))
    assert not out.exists() or left(out) == []


def test_a_failed_run_changes_none_of_the_files_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, out = case(tmp_path), tmp_path / "out"
    resampled(out, path, spacing=2)
    before = {name: (out / name).read_bytes() for name in left(out)}
    command: list[str | Path] = [sys.executable, Path(__file__).parents[1] / "scripts" / "resample.py", path, settings(spacing=2), f"--out={out}"]
    limit = (out / "image.nii").stat().st_size - 1

    def less_than_the_image() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    error_of(subprocess.run(command, capture_output=True, preexec_fn=less_than_the_image))
    assert {name: (out / name).read_bytes() for name in left(out)} == before


def test_tiny_voxels_far_from_the_origin_lie_where_the_file_says(tmp_path: Path) -> None:
    """A ramp of the world along x, from a header whose float32 origin is coarser than a voxel."""
    affine = np.diag([0.01, 0.01, 0.01, 1])
    affine[:3, 3] = 1e5
    image, label = np.tile(np.arange(40, dtype=np.float32)[:, None, None], (1, 4, 4)), np.ones((40, 4, 4), np.uint8)
    source = write(tmp_path / "t1.nii.gz", image, affine)
    ingest(tmp_path / "ingest", {"t1": source}, write(tmp_path / "label.nii.gz", label, affine), LABELS[:1])
    text = json.dumps({"channels": [{"name": "t1"}], "labels": LABELS[:1], "resample": {"spacing": 0.008}})
    done = call("resample", str(tmp_path / "ingest" / "case.json"), f"--settings={text}", f"--out={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    found, grid = store.read(tmp_path / "out" / "image.nii")
    native = store.read(tmp_path / "ingest" / "t1.nii.gz")[1]
    x = np.linalg.inv(native) @ grid @ np.stack([np.arange(found.shape[0]), *np.zeros((2, found.shape[0])), np.ones(found.shape[0])])
    np.testing.assert_allclose(found[:, 2, 2, 0], np.clip(x[0], 0, 39), atol=1e-3)


def test_too_little_disk_is_said_before_anything_is_written(tmp_path: Path) -> None:
    path, out = case(tmp_path), tmp_path / "out"
    message = error_of(call("resample", str(path), settings(spacing=0.002), f"--out={out}"))
    assert "MB are free" in message and "choose a coarser resample.spacing" in message
    assert left(out) == []


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    path, out = case(tmp_path), tmp_path / "out"
    command: list[str | Path] = [sys.executable, Path(__file__).parents[1] / "scripts" / "resample.py", path, settings(spacing=0.5), f"--out={out}"]

    def no_more_than_a_megabyte() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = subprocess.run(command, capture_output=True, preexec_fn=no_more_than_a_megabyte)
    assert "File too large" in error_of(done) and str(out) in error_of(done)
    assert left(out) == []


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_an_end_in_the_middle_leaves_no_scratch(tmp_path: Path, ending: signal.Signals) -> None:
    path, out = case(tmp_path), tmp_path / "out"
    command: list[str | Path] = [sys.executable, Path(__file__).parents[1] / "scripts" / "resample.py", path, settings(spacing=0.12), f"--out={out}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (out.exists() and left(out)):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(ending)
    process.wait(60)
    assert process.returncode != 0
    names = left(out)
    assert names == [] if ending == signal.SIGTERM else {name[:9] for name in names} == {".writing-"}
    resampled(out, path, spacing=3)  # which the next run removes
    assert left(out) == ["case.json", "case.run.json", "image.nii", "label.nii"]
