"""Ingestion as a command: one grid for all, a verdict, nothing of the patient, and nothing half-written."""

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk

import builders
import ingest as command
from builders import AFFINE, EXPECTED, STORED, s6, set_all, set_one, write, write_nifti
from teravox import config, geometry, resample, sampling, sharding, statistics, store, volumes
from teravox import ingest as stage
from teravox.errors import RejectedCase, UserError
from teravox.grids import Grid
from teravox.shard_reader import ShardReader

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
LABELS = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]
LABEL = (np.arange(480).reshape(EXPECTED.shape) % 3).astype(np.uint8)
NAME, BIRTH = "DOE^JOHN", "19010203"


def run(
    out: Path,
    images: dict[str, Path],
    label: Path,
    labels: list[dict[str, Any]] = LABELS,
    on_rejected: str = "record",
    fault: str = "",
    ignore: int | None = None,
) -> dict[str, Any]:
    """The command in this process. Returns case.json."""
    arguments = argparse.Namespace(
        case="c1",
        patient="p1",
        key="public",
        set="train",
        image=[(name, str(path)) for name, path in images.items()],
        label=str(label),
        stacked=False,
        fault=fault,
        settings={"channels": [{"name": name} for name in images], "labels": labels, "ignore_value": ignore},
        out=out,
        on_rejected=on_rejected,
        request="",
    )
    command.main(arguments)
    return json.loads((out / "case.json").read_text(encoding="utf-8"))


def call(script: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run([sys.executable, SCRIPTS / f"{script}.py", *arguments], capture_output=True, env=environment)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return write(tmp_path / "image", s6([set_all(PatientID="x")]))


@pytest.fixture
def label(tmp_path: Path) -> Path:
    return write_nifti(tmp_path / "label.nii.gz", LABEL, AFFINE)


def test_case(tmp_path: Path, image: Path, label: Path) -> None:
    document = run(tmp_path / "out", {"t1": image}, label)
    assert document["verdict"] == "ok"
    assert document["reason"] is None
    assert document["grid"]["shape"] == [10, 8, 6]
    np.testing.assert_allclose(document["grid"]["affine"], AFFINE, atol=1e-4)
    np.testing.assert_allclose(document["spacing_mm"], [0.7, 0.5, 2], rtol=1e-6)
    assert document["label"]["voxels"] == {"a": 160, "b": 160}
    assert document["channels"]["t1"]["min"] == STORED.min()
    assert document["channels"]["t1"]["mean"] == pytest.approx(STORED.mean())
    assert document["channels"]["t1"]["std"] == pytest.approx(STORED.std())
    np.testing.assert_array_equal(store.read(tmp_path / "out" / "t1.nii.gz")[0], EXPECTED)
    np.testing.assert_array_equal(store.read(tmp_path / "out" / "label.nii.gz")[0], LABEL)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["case.json", "case.run.json", "label.nii.gz", "t1.nii.gz"]


def test_second_run_is_equal_and_clears_the_first(tmp_path: Path, image: Path, label: Path) -> None:
    out = tmp_path / "out"
    run(out, {"t1": image, "other": image}, label)
    run(out, {"t1": image}, label)
    first = {path.name: path.read_bytes() for path in out.iterdir() if not path.name.endswith(".run.json")}
    assert sorted(first) == ["case.json", "label.nii.gz", "t1.nii.gz"]
    run(out, {"t1": image}, label)
    assert {path.name: path.read_bytes() for path in out.iterdir() if not path.name.endswith(".run.json")} == first


def refused(out: Path, images: dict[str, Path], label: Path, *words: str, labels: list[dict[str, Any]] = LABELS) -> str:
    """The reason, after checking that it is one line, that nothing else was written, and that `stop` gives it as an error."""
    document = run(out, images, label, labels)
    assert document["verdict"] == "rejected"
    reason = document["reason"]
    assert len(reason.splitlines()) == 1
    for word in words:
        assert word in reason
    assert sorted(path.name for path in out.iterdir()) == ["case.json", "case.run.json"]
    with pytest.raises(UserError) as caught:
        run(out, images, label, labels, on_rejected="stop")
    assert str(caught.value) == reason
    return reason


def test_a_fault_of_the_layout_rejects_sources_that_could_be_read(tmp_path: Path, image: Path, label: Path) -> None:
    document = run(tmp_path / "out", {"t1": image}, label, fault="two runs")
    assert (document["verdict"], document["reason"]) == ("rejected", "two runs")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["case.json", "case.run.json"]
    with pytest.raises(UserError, match="two runs"):
        run(tmp_path / "out", {"t1": image}, label, on_rejected="stop", fault="two runs")


# One grid


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1, 2)])
def test_label_on_a_flipped_grid_that_is_the_same(tmp_path: Path, image: Path, axes: tuple[int, ...]) -> None:
    flip = np.eye(4)
    for axis in axes:
        flip[axis, axis], flip[axis, 3] = -1, EXPECTED.shape[axis] - 1
    path = write_nifti(tmp_path / "flipped.nii", np.flip(LABEL, axes), AFFINE @ flip)
    assert run(tmp_path / "out", {"t1": image}, path)["verdict"] == "ok"
    np.testing.assert_array_equal(store.read(tmp_path / "out" / "label.nii.gz")[0], LABEL)


def test_label_with_permuted_axes(tmp_path: Path, image: Path) -> None:
    permutation = np.eye(4)[:, [2, 0, 1, 3]]
    path = write_nifti(tmp_path / "permuted.nii", LABEL.transpose(2, 0, 1), AFFINE @ permutation)
    assert run(tmp_path / "out", {"t1": image}, path)["verdict"] == "ok"
    np.testing.assert_array_equal(store.read(tmp_path / "out" / "label.nii.gz")[0], LABEL)


@pytest.mark.parametrize("ending", [".nii", ".nii.gz", ".nrrd", ".mha"])
def test_label_formats(tmp_path: Path, image: Path, ending: str) -> None:  # B3, C13
    path = tmp_path / f"x{ending}"
    sitk.WriteImage(geometry.to_sitk(LABEL, AFFINE), str(path))
    assert run(tmp_path / "out", {"t1": image}, path)["verdict"] == "ok"
    np.testing.assert_array_equal(store.read(tmp_path / "out" / "label.nii.gz")[0], LABEL)


def test_grids_may_differ_by_rounding_only(tmp_path: Path, image: Path) -> None:  # B18
    near, off = AFFINE.copy(), AFFINE.copy()
    near[0, 3] += 1e-5
    off[0, 3] += 0.01
    assert run(tmp_path / "a", {"t1": image}, write_nifti(tmp_path / "near.nii", LABEL, near))["verdict"] == "ok"
    refused(tmp_path / "b", {"t1": image}, write_nifti(tmp_path / "off.nii", LABEL, off), "off.nii", "off the grid of")
    refused(tmp_path / "c", {"t1": image}, write_nifti(tmp_path / "short.nii", LABEL[1:], AFFINE), "grid of (9, 8, 6) voxels, expected (10, 8, 6)")
    assert (
        run(tmp_path / "d", {"t1": image, "t2": write_nifti(tmp_path / "t2.nii", EXPECTED, near)}, tmp_path / "near.nii")["channels"]["t2"]["notes"]
        == []
    )


# Channels on grids of their own


def test_a_channel_keeps_its_own_grid(tmp_path: Path, image: Path, label: Path) -> None:
    """Coarser, its axes turned: voxels and place stay, and the label lies on the first channel's grid."""
    coarse = np.ascontiguousarray(EXPECTED[:, ::2].transpose(2, 0, 1)[::-1])
    affine = AFFINE @ np.array([[0, 1, 0, 0], [0, 0, 2, 0.5], [-1, 0, 0, EXPECTED.shape[2] - 1], [0, 0, 0, 1.0]])
    document = run(tmp_path / "out", {"t1": image, "t2": write_nifti(tmp_path / "t2.nii", coarse, affine)}, label)
    assert document["verdict"] == "ok"
    assert document["channels"]["t1"]["grid"] == document["grid"]
    about = document["channels"]["t2"]
    assert about["grid"]["shape"] == [10, 4, 6]
    assert about["notes"] == ["grid of 10 x 4 x 6 voxels of 0.7 x 1 x 2 mm, brought onto that of the first channel when it is resampled"]
    found, grid = store.read(tmp_path / "out" / "t2.nii.gz")
    np.testing.assert_array_equal(found, EXPECTED[:, ::2])
    np.testing.assert_allclose(grid, AFFINE @ np.diag([1, 2, 1, 1.0]) + AFFINE[:, 1:2] @ [[0, 0, 0, 0.5]], atol=1e-5)
    np.testing.assert_allclose(grid, about["grid"]["affine"])


@pytest.mark.parametrize(("shift", "share"), [(0, None), (0.25, 75.0), (-0.5, 50.0), (0.0001, None)])
def test_what_a_channel_does_not_cover_is_said(tmp_path: Path, image: Path, label: Path, shift: float, share: float | None) -> None:
    moved = AFFINE.copy()
    moved[:3, 3] += AFFINE[:3, 0] * (shift * 10 + 0.02)  # ten voxels along x
    moved[:3, 0] *= 1.01
    notes = run(tmp_path / "out", {"t1": image, "t2": write_nifti(tmp_path / "t2.nii", EXPECTED, moved)}, label)["channels"]["t2"]["notes"]
    found = re.search(r"of whose field of view it covers ([0-9.]+) %", notes[-1])
    assert (found is None) if share is None else found and abs(float(found[1]) - share) < 3.5


def test_a_channel_elsewhere_is_refused(tmp_path: Path, image: Path, label: Path) -> None:
    away = AFFINE.copy()
    away[0, 3] += 500
    refused(
        tmp_path / "out", {"t1": image, "t2": write_nifti(tmp_path / "t2.nii", EXPECTED, away)}, label, "t2.nii: lies beside", "register it first"
    )


def test_coordinates_of_another_frame_of_reference_are_refused(tmp_path: Path, label: Path) -> None:
    image = write(tmp_path / "first", s6([set_all(PatientID="x", FrameOfReferenceUID="1.2.3.76")]))
    same = write(tmp_path / "same", s6([set_all(PatientID="x", FrameOfReferenceUID="1.2.3.77")]))
    assert run(tmp_path / "a", {"t1": image, "t2": same}, label)["verdict"] == "ok"  # the grid is the same
    finer = {"PixelSpacing": [0.6, 0.7]}
    known = write(tmp_path / "known", s6([set_all(PatientID="x", FrameOfReferenceUID="1.2.3.76", **finer)]))
    assert "brought onto" in run(tmp_path / "b", {"t1": image, "t2": known}, label)["channels"]["t2"]["notes"][-1]
    other = write(tmp_path / "other", s6([set_all(PatientID="x", FrameOfReferenceUID="1.2.3.77", **finer)]))
    message = refused(tmp_path / "c", {"t1": image, "t2": other}, label, "frame of reference", "register it first")
    assert "1.2.3.77" not in str(message)


# Labels


def test_labels(tmp_path: Path, image: Path) -> None:
    empty = run(tmp_path / "a", {"t1": image}, write_nifti(tmp_path / "zero.nii", LABEL * 0, AFFINE))
    assert empty["label"]["notes"] == ["no voxel is labelled"]
    assert empty["label"]["voxels"] == {"a": 0, "b": 0}
    nearly = write_nifti(tmp_path / "nearly.nii", (LABEL * 0.999999).astype(np.float32), AFFINE)
    assert run(tmp_path / "b", {"t1": image}, nearly)["verdict"] == "ok"
    np.testing.assert_array_equal(store.read(tmp_path / "b" / "label.nii.gz")[0], LABEL)
    foreign = write_nifti(tmp_path / "foreign.nii", LABEL.astype(np.uint16) * 150, AFFINE)
    refused(tmp_path / "c", {"t1": image}, foreign, "label value 150, expected 0, 1, 2")
    refused(tmp_path / "d", {"t1": image}, write_nifti(tmp_path / "four.nii", np.stack([LABEL] * 2, axis=3), AFFINE), "4 dimensions")
    singleton = write_nifti(tmp_path / "singleton.nii", LABEL[..., None], AFFINE)
    assert run(tmp_path / "e", {"t1": image}, singleton)["verdict"] == "ok"


def test_label_as_dicom_seg(tmp_path: Path, image: Path) -> None:  # A20
    source = [pydicom.dcmread(path) for path in sorted(image.iterdir())]
    mask = np.ascontiguousarray(LABEL[::-1, ::-1].transpose(2, 1, 0))
    builders.segmentation(source, mask, ["A", "b"]).save_as(tmp_path / "seg.dcm")
    (tmp_path / "seg").mkdir()
    (tmp_path / "seg" / "1").write_bytes((tmp_path / "seg.dcm").read_bytes())
    for path in (tmp_path / "seg.dcm", tmp_path / "seg"):
        assert run(tmp_path / "out", {"t1": image}, path)["label"]["format"] == "dicom-seg"
        np.testing.assert_array_equal(store.read(tmp_path / "out" / "label.nii.gz")[0], LABEL)
    other = write(tmp_path / "other", s6([set_all(PatientID="y")]))
    refused(tmp_path / "no", {"t1": other}, tmp_path / "seg.dcm", "FrameOfReferenceUID")
    shorter = write(tmp_path / "shorter", [pydicom.dcmread(path) for path in sorted(image.iterdir())][:5])
    refused(tmp_path / "no", {"t1": shorter}, tmp_path / "seg.dcm", "broken reference, 1 of 6 instances that it was made on")
    refused(tmp_path / "no", {"t1": image}, tmp_path / "seg.dcm", "named otherwise", labels=[{"name": "liver", "value": 1}])


def test_label_as_rtstruct(tmp_path: Path, image: Path) -> None:  # A21
    source = [pydicom.dcmread(path) for path in sorted(image.iterdir())]
    square = [(0.7 * column, 0.5 * row, 4) for column, row in ((1, 1), (7, 1), (7, 5), (1, 5))]
    write(tmp_path / "rtstruct", [builders.structure_set(source, {"A": [square], "b": []})])
    expected = np.zeros((6, 8, 10), np.uint8)
    expected[2, 1:5, 1:7] = 1
    document = run(tmp_path / "out", {"t1": image}, tmp_path / "rtstruct")
    assert document["label"]["format"] == "dicom-rtstruct"
    assert "1 of 2 structures that fit a label have no closed contour" in document["label"]["notes"]
    np.testing.assert_array_equal(store.read(tmp_path / "out" / "label.nii.gz")[0], expected.transpose(2, 1, 0)[::-1, ::-1])
    other = write(tmp_path / "other", s6([set_all(PatientID="y")]))
    refused(tmp_path / "no", {"t1": other}, tmp_path / "rtstruct", "frame of reference is another")


def test_counts_are_those_of_a_naive_count() -> None:
    label = np.random.default_rng(1).integers(0, 4, (5, 6, 7)).astype(np.uint16)
    labels = [{"name": "x", "value": 3}, {"name": "y", "value": 900}]
    assert statistics.label_voxels(label, labels) == {"x": int((label == 3).sum()), "y": 0}
    assert statistics.label_voxels(label[:, ::-1].T, labels) == {"x": int((label == 3).sum()), "y": 0}


def test_voxels_to_ignore_are_kept_and_counted_apart(tmp_path: Path, image: Path) -> None:
    marked = np.where(LABEL == 2, np.uint16(300), LABEL)
    path = write_nifti(tmp_path / "marked.nii", marked, AFFINE)
    refused(tmp_path / "no", {"t1": image}, path, "label value 300")
    about = run(tmp_path / "out", {"t1": image}, path, ignore=300)["label"]
    assert about["voxels"] == {"a": int((LABEL == 1).sum()), "b": 0} and about["ignored_voxels"] == int((LABEL == 2).sum())
    found, affine = store.read(tmp_path / "out" / "label.nii.gz")
    np.testing.assert_array_equal(found, marked)
    grid = Grid(marked.shape, affine)
    resampled = resample.label_tile(
        resample.label_way(grid, grid, "bspline"), sampling.reader(found), sampling.Tile(0, marked.shape[2], 0, marked.shape[1])
    )
    np.testing.assert_array_equal(resampled.T, marked)
    only = write_nifti(tmp_path / "only.nii", np.where(LABEL == 2, 300, 0).astype(np.uint16), AFFINE)
    assert "no voxel is labelled" in run(tmp_path / "out", {"t1": image}, only, ignore=300)["label"]["notes"]


# Odd sources


def test_odd_sources_are_refused(tmp_path: Path, image: Path, label: Path) -> None:
    out = tmp_path / "out"
    refused(out, {"t1": tmp_path / "no.nii"}, label, "no.nii: missing")
    refused(out, {"t1": image}, tmp_path / "no.nii", "no.nii: missing")
    (tmp_path / "folder.nii.gz").mkdir()
    refused(out, {"t1": tmp_path / "folder.nii.gz"}, label, "found no DICOM image")
    (tmp_path / "loop.nii").symlink_to("loop.nii")
    refused(out, {"t1": tmp_path / "loop.nii"}, label, "missing")
    (tmp_path / "empty.nii").write_bytes(b"")
    refused(out, {"t1": tmp_path / "empty.nii"}, label, "empty")
    refused(out, {"t1": write_nifti(tmp_path / "constant.nii", LABEL * 0, AFFINE)}, label, "all voxels are 0")
    (tmp_path / "memory.nii").symlink_to("/proc/self/mem")  # a file that cannot be read, for root either
    refused(out, {"t1": tmp_path / "memory.nii"}, label, "memory.nii")
    os.mkfifo(tmp_path / "pipe.nii")
    refused(out, {"t1": tmp_path / "pipe.nii"}, label, "pipe.nii")


def test_unreadable_file_is_refused(tmp_path: Path, label: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path, volume: int | None = None) -> volumes.Volume:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(volumes, "read_volume_file", deny)
    with pytest.raises(RejectedCase, match=r"label.nii.gz: not readable \(Permission denied\)"):
        stage.read_source(label, config.defaults("channels[].match"), config.defaults("ingest"))


def test_names_that_no_text_holds(tmp_path: Path, image: Path, label: Path) -> None:
    """Bytes that are not UTF-8 and line breaks in a name must not break the record or the message."""
    odd = image / os.fsdecode(b"\xff\n\xfe.dcm")
    (image / "3.dcm").rename(odd)
    assert run(tmp_path / "a", {"t1": image}, label)["verdict"] == "ok"
    odd.write_bytes(b"damaged")
    reason = refused(tmp_path / "b", {"t1": image}, label, "not readable as DICOM")
    reason.encode("utf-8")


def test_output_folder_that_holds_a_source_is_left_alone(tmp_path: Path, image: Path, label: Path) -> None:
    for out in (tmp_path, image):
        with pytest.raises(UserError, match="lies in"):
            run(out, {"t1": image}, label)
    assert len(list(image.iterdir())) == 6


def test_refusal_leaves_nothing_of_an_earlier_run(tmp_path: Path, image: Path, label: Path) -> None:
    run(tmp_path / "out", {"t1": image}, label)
    (image / "3.dcm").unlink()
    refused(tmp_path / "out", {"t1": image}, label, "slice gap")


def test_failure_while_writing_leaves_nothing_half_written(tmp_path: Path, image: Path, label: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(nib.Nifti1Image, "to_stream", full)
    with pytest.raises(OSError, match="No space"):
        run(tmp_path / "out", {"t1": image}, label)
    assert not list((tmp_path / "out").iterdir())


# Nothing of the patient (A24)


def with_patient(datasets: list[pydicom.Dataset]) -> None:
    for data in datasets:
        data.PatientName, data.PatientID, data.PatientBirthDate = NAME, NAME, BIRTH
        for keyword in ("SeriesDescription", "StudyDescription", "ProtocolName", "InstitutionName", "ImageComments", "PatientComments"):
            setattr(data, keyword, NAME)
        data.private_block(0x0029, NAME, create=True).add_new(0x10, "LO", NAME)
        data.add_new(0x00291010, "LO", NAME)
        request, inner = pydicom.Dataset(), pydicom.Dataset()
        inner.PatientName, inner.PatientBirthDate = NAME, BIRTH
        request.RequestedProcedureDescription, request.ReferencedStudySequence = NAME, pydicom.Sequence([inner])
        data.RequestAttributesSequence = pydicom.Sequence([request])


def nifti_with_patient(image: nib.Nifti1Image) -> None:
    image.header["descrip"], image.header["aux_file"] = NAME, NAME
    image.header["db_name"], image.header["intent_name"] = NAME, NAME
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", f"{NAME} {BIRTH}".encode()))


def nothing_of_the_patient(*contents: bytes) -> None:
    for content in contents:
        for secret in (NAME, BIRTH, "DOE"):
            assert secret.encode() not in content


def outputs(out: Path) -> list[bytes]:
    contents = [path.read_bytes() for path in out.iterdir()]
    return contents + [gzip.decompress(content) for content in contents if content[:2] == b"\x1f\x8b"]


def arguments(out: Path, image: Path, label: Path) -> list[str]:
    settings = json.dumps({"channels": [{"name": "t1"}], "labels": LABELS})
    fixed = ["--case=c1", "--patient=p1", "--key=public", "--on-rejected=record"]
    return [*fixed, f"--image=t1={image}", f"--label={label}", f"--settings={settings}", f"--out={out}"]


def test_nothing_of_the_patient_from_dicom(tmp_path: Path) -> None:
    names = [f"{NAME}.{number}" for number in range(6)]
    image = write(tmp_path / "image", s6([with_patient]), names)
    assert NAME.encode() in (image / names[0]).read_bytes()
    source = [pydicom.dcmread(image / name) for name in names]
    mask = np.ascontiguousarray(LABEL[::-1, ::-1].transpose(2, 1, 0))
    builders.segmentation(source, mask, ["a", "b"]).save_as(tmp_path / "seg.dcm")
    assert NAME.encode() in (tmp_path / "seg.dcm").read_bytes()
    done = call("ingest", *arguments(tmp_path / "out", image, tmp_path / "seg.dcm"))
    assert done.returncode == 0, done.stderr
    assert len(outputs(tmp_path / "out")) == 6
    nothing_of_the_patient(done.stdout, done.stderr, *outputs(tmp_path / "out"))


def test_nothing_of_the_patient_from_files(tmp_path: Path) -> None:
    image = write_nifti(tmp_path / "image.nii.gz", EXPECTED, AFFINE, nifti_with_patient)
    assert gzip.decompress(image.read_bytes()).count(NAME.encode()) == 5
    label = sitk.ReadImage(write_nifti(tmp_path / "label.nii", LABEL, AFFINE))
    label.SetMetaData("PatientName", NAME)
    for ending in (".nrrd", ".mha"):
        path = tmp_path / f"label{ending}"
        sitk.WriteImage(label, path)
        assert NAME.encode() in path.read_bytes()
        out = tmp_path / f"out{ending}"
        assert run(out, {"t1": image}, path)["verdict"] == "ok"
        nothing_of_the_patient(*outputs(out))


@pytest.mark.parametrize(
    "change",
    [
        set_one(2, ImageOrientationPatient=[0, 1, 0, 0, 0, -1]),
        set_one(2, ConvolutionKernel=NAME),
        set_one(2, PixelSpacing=None),
        set_one(2, FrameOfReferenceUID=f"1.2.{BIRTH}"),
        set_one(2, RescaleSlope=0),
    ],
)
def test_nothing_of_the_patient_in_a_refusal(tmp_path: Path, label: Path, change: builders.Change, capfd: pytest.CaptureFixture[str]) -> None:
    image = write(tmp_path / "image", s6([with_patient, change]))
    refused(tmp_path / "out", {"t1": image}, label)
    nothing_of_the_patient(*outputs(tmp_path / "out"), *(text.encode() for text in capfd.readouterr()))


# From files to a shard, by the real commands


def test_body_ct_to_a_shard(shared: Path, tmp_path: Path) -> None:
    """A JPEG 2000 series without file endings and its label: range in HU, geometry, and the same voxels out of the shard."""
    folder = shared / "data/dicom/ct_body_j2k"
    label = nib.load(folder / "example_seg_dicom.nii.gz")
    values = [int(value) for value in np.unique(np.asanyarray(label.dataobj)) if value]
    labels = [{"name": f"organ{value}", "value": value} for value in values]
    settings = {"channels": [{"name": "ct"}], "labels": labels, "ingest": builders.OPTIONS, "resample": {"spacing": 3.0}, "shard": {"block_mb": 1}}
    text = f"--settings={json.dumps(settings)}"
    ingested, resampled, written = tmp_path / "ingest" / "c1", tmp_path / "resample" / "c1", tmp_path / "shards"
    done = call(
        "ingest",
        "--case=c1",
        "--patient=p1",
        "--key=public",
        f"--image=ct={folder / 'example_ct_dicom'}",
        f"--label={folder / 'example_seg_dicom.nii.gz'}",
        text,
        f"--out={ingested}",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((ingested / "case.json").read_text())
    assert (document["channels"]["ct"]["min"], document["channels"]["ct"]["max"]) == (-1024, 1839)
    array, affine = store.read(ingested / "ct.nii.gz")
    assert array.shape == label.shape
    paths = sorted((folder / "example_ct_dicom").iterdir())
    for path in (paths[0], paths[11]):  # the first pixel of a slice, at its own place
        data = pydicom.dcmread(path)
        index = np.linalg.inv(affine) @ [*(np.array(data.ImagePositionPatient, float) * [-1, -1, 1]), 1]
        np.testing.assert_allclose(index, np.rint(index), atol=1e-2)
        x, y, z = np.rint(index[:3]).astype(int)
        plane = data.pixel_array * float(data.RescaleSlope) + float(data.RescaleIntercept)
        step = np.where(np.array([x, y]) == 0, 1, -1)
        np.testing.assert_array_equal(array[:, :, z][:: step[0], :: step[1]], plane.T)
    mask, grid = geometry.to_canonical(np.asanyarray(label.dataobj), label.affine)
    np.testing.assert_array_equal(store.read(ingested / "label.nii.gz")[0], mask)
    assert geometry.grid_difference(affine, grid, array.shape) < geometry.GRID_ATOL_VOXELS

    done = call("resample", str(ingested / "case.json"), text, f"--out={resampled}")
    assert done.returncode == 0, done.stderr
    image, small = store.read(resampled / "image.nii")
    np.testing.assert_allclose(geometry.spacing_of(small), 3, rtol=1e-6)
    assert -1024 <= image.min() < image.max() <= 1839
    extent = np.array(array.shape) * geometry.spacing_of(affine)
    np.testing.assert_allclose(np.array(image.shape[:3]) * 3, extent, atol=1.5)

    name = sharding.shard_name(sharding.shard_of("p1", 1), 1)
    done = call(
        "write_shard",
        "--case=c1=p1",
        f"--resampled={resampled.parent}",
        f"--shard={name}",
        text,
        f"--out={written}",
    )
    assert done.returncode == 0, done.stderr
    reader = ShardReader([written / f"{name}.index.json"])
    assert len(reader.place("c1").records) > 1
    voxels, classes = reader.load("c1")
    np.testing.assert_array_equal(voxels, np.asarray(image).transpose(2, 1, 0, 3))
    np.testing.assert_array_equal(classes, np.asarray(store.read(resampled / "label.nii")[0]).transpose(2, 1, 0))
    assert voxels.dtype == image.dtype


def test_a_volume_that_is_not_what_was_recorded_is_refused(tmp_path: Path) -> None:
    """Missing, truncated, another volume, one changed voxel, another affine: each is one line that names the file."""
    array = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    for name in ("a.nii", "a.nii.gz"):
        path = tmp_path / name
        document = {"provenance": {"stage": "resample", "artefacts": {name: store.write(path, array, np.eye(4))}}}
        np.testing.assert_array_equal(store.load(path, document)[0], array)
        good = path.read_bytes()
        path.write_bytes(good[:-40])
        with pytest.raises(UserError, match=f"{name}: damaged .*; run snakemake --cores all --forcerun resample_case$"):
            store.load(path, document)
        for changed, affine in ((np.where(array == 7, 8, array), np.eye(4)), (array, np.diag([1, 1, 2, 1.0])), (array[:2], np.eye(4))):
            store.write(path, changed.astype(np.int16), affine)
            with pytest.raises(UserError, match=f"{name}: content hash"):
                store.load(path, document)
        path.unlink()
        with pytest.raises(UserError, match=f"{name}: missing"):
            store.load(path, document)
