"""The demo cohort, read back with other readers: nibabel, dcm2niix, pydicom and highdicom."""

import dataclasses
import gzip
import json
import subprocess
import sys
from pathlib import Path

import dcm2niix
import highdicom as hd
import nibabel as nib
import numpy as np
import pydicom
import pytest
from nibabel.affines import apply_affine
from scipy import ndimage

from teravox import demo, geometry, hashing, phantom
from teravox.errors import UserError
from teravox.layouts.table import read_table

ROOT = Path(__file__).resolve().parents[1]
SEED, SCALE = 2020, 2.0
DICOM = [number for number, scan in enumerate(demo.SCANS, start=1) if scan.format == "dicom"]
NIFTI = [number for number, scan in enumerate(demo.SCANS, start=1) if scan.format == "nifti"]
PATIENTS = [number for number, scan in enumerate(demo.SCANS, start=1) if scan.visit == 1]
DECIMAL_STRINGS = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "SliceThickness", "SpacingBetweenSlices")
PS35_STRING_MAXIMUM = 16  # bytes of a decimal string


@pytest.fixture(scope="module")
def cohort(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cohort") / "demo"
    demo.write_cohort(str(out), SEED, scale=SCALE)
    return out


def volumes_of(number: int, scale: float = SCALE) -> demo.Volumes:
    return demo.scan_volumes(demo.SCANS[number - 1], SEED, scale)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def datasets(folder: Path) -> list[pydicom.Dataset]:
    return [pydicom.dcmread(path) for path in sorted(folder.glob("*.dcm"))]


def test_table_is_the_committed_one(cohort: Path) -> None:
    text = (cohort / "cases.tsv").read_text()
    assert text.replace(f"{cohort}/", "data/demo/") == (ROOT / "config" / "cases.tsv").read_text()
    cases = read_table(cohort / "cases.tsv", list(phantom.CHANNELS))
    assert [case.case for case in cases] == [f"case{number:02d}" for number in range(1, 13)]
    assert all(Path(path).exists() for case in cases for path in case.sources.values())
    assert len({case.patient for case in cases}) == 9
    in_test = {case.patient for case in cases if case.set == "test"}
    assert 1 <= len(in_test) <= 2
    assert not in_test & {case.patient for case in cases if case.set == "train"}


def test_plan_has_the_promised_variety() -> None:
    assert len(DICOM) == 4 and min(DICOM) <= 4
    affines = [demo.scan_grid(scan, 1.0)[1] for scan in demo.SCANS]
    assert any(np.ptp(geometry.spacing_of(affine)) > 1 for affine in affines)
    largest = [np.abs(geometry.direction_of(affine)).max(axis=0).min() for affine in affines]
    assert sum(value < np.cos(np.deg2rad(4)) for value in largest) >= 4  # oblique
    codes = {nib.orientations.aff2axcodes(affine) for affine in affines}
    assert {("R", "A", "S"), ("L", "P", "S"), ("L", "I", "P"), ("P", "I", "R")} <= codes
    for scan in demo.SCANS:
        shape, affine = demo.scan_grid(scan, 1.0)
        assert max(shape) <= 100 and np.prod(shape) <= 100 * 100 * 50
        assert np.allclose(np.multiply(shape, geometry.spacing_of(affine)), 160, atol=3)
        assert np.allclose(apply_affine(affine, (np.array(shape) - 1) / 2), scan.centre_mm)
        assert np.allclose(geometry.spacing_of(affine), scan.spacing_mm)
        assert geometry.shear_of(affine) < 1e-12


def test_world_points_agree_with_nibabel() -> None:
    shape, affine = demo.scan_grid(demo.SCANS[3], 3.0)
    index = np.moveaxis(np.indices(shape), 0, -1)
    assert np.allclose(np.moveaxis(phantom.world_points(shape, affine), 0, -1), apply_affine(affine, index), atol=1e-4)


@pytest.mark.parametrize("number", NIFTI)
def test_nifti_matches_what_was_sampled(cohort: Path, number: int) -> None:
    volumes = volumes_of(number)
    for role, array in {**volumes.images, "label": volumes.label}.items():
        image = nib.load(cohort / demo.case_name(number) / f"{role}.nii.gz")
        assert image.get_data_dtype() == array.dtype == (np.uint8 if role == "label" else np.int16)
        assert np.array_equal(np.asanyarray(image.dataobj), array)
        sform, sform_code = image.get_sform(coded=True)
        qform, qform_code = image.get_qform(coded=True)
        assert sform_code == qform_code == 1
        assert geometry.grid_difference(volumes.affine, sform, array.shape) < geometry.GRID_ATOL_VOXELS
        assert geometry.grid_difference(volumes.affine, qform, array.shape) < geometry.GRID_ATOL_VOXELS


@pytest.mark.parametrize("number", DICOM)
def test_dicom_series_matches_what_was_sampled_by_dcm2niix(cohort: Path, tmp_path: Path, number: int) -> None:
    channel = phantom.CHANNELS[number % len(phantom.CHANNELS)]
    command = [dcm2niix.bin, "-b", "n", "-z", "n", "-f", "out", "-o", str(tmp_path), str(cohort / demo.case_name(number) / channel)]
    subprocess.run(command, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.nii")
    image = nib.load(path)
    volumes = volumes_of(number)
    expected, expected_affine = geometry.to_canonical(volumes.images[channel], volumes.affine)
    found, found_affine = geometry.to_canonical(np.asanyarray(image.dataobj), image.affine)
    assert np.array_equal(found, expected)
    assert geometry.grid_difference(expected_affine, found_affine, expected.shape) < geometry.GRID_ATOL_VOXELS


@pytest.mark.parametrize("number", DICOM)
def test_segmentation_matches_what_was_sampled_by_highdicom(cohort: Path, number: int) -> None:
    folder = cohort / demo.case_name(number)
    segmentation = hd.seg.segread(folder / "label.dcm")
    names = {value: segmentation.get_segment_description(value).SegmentLabel for value in segmentation.segment_numbers}
    assert {name: value for value, name in names.items()} == phantom.LABELS
    volume = segmentation.get_volume(combine_segments=True)
    volumes = volumes_of(number)
    found = np.zeros_like(volumes.label)
    world = apply_affine(geometry.LPS_FROM_RAS @ volume.affine, np.argwhere(volume.array))
    index = apply_affine(np.linalg.inv(volumes.affine), world)
    assert np.abs(index - np.rint(index)).max() < geometry.GRID_ATOL_VOXELS
    found[tuple(np.rint(index).astype(int).T)] = volume.array[volume.array > 0]
    assert np.array_equal(found, volumes.label)
    source = {image.SOPInstanceUID for image in datasets(folder / demo.SEG_CHANNEL)}
    referenced = {item.ReferencedSOPInstanceUID for item in segmentation.ReferencedSeriesSequence[0].ReferencedInstanceSequence}
    assert referenced == source


def test_dicom_headers(cohort: Path) -> None:
    instances: set[str] = set()
    frames: set[str] = set()
    for number in DICOM:
        folder = cohort / demo.case_name(number)
        images = [image for channel in phantom.CHANNELS for image in datasets(folder / channel)]
        assert len({image.SeriesInstanceUID for image in images}) == 4
        assert len({image.StudyInstanceUID for image in images}) == len({image.FrameOfReferenceUID for image in images}) == 1
        for path in folder.glob("*/*.dcm"):
            raw = pydicom.dcmread(path)
            for name in DECIMAL_STRINGS:
                texts = raw.get_item(name).value.decode().split("\\")
                assert max(map(len, texts)) <= PS35_STRING_MAXIMUM, (path, name, texts)
        for image in images:
            assert image.SOPClassUID == pydicom.uid.MRImageStorage and image.Modality == "MR"
            assert image.PatientID == demo.patient_name(demo.SCANS[number - 1]) and str(image.PatientName).rstrip("^") == image.PatientID
            assert "RescaleSlope" not in image and "RescaleIntercept" not in image
            assert not [element for element in image.iterall() if element.tag.is_private]
        instances.update(image.SOPInstanceUID for image in images)
        frames.add(images[0].FrameOfReferenceUID)
    count = sum(4 * volumes_of(number).label.shape[2] for number in DICOM)
    assert len(instances) == count and len(frames) == len(DICOM)


def test_nothing_in_a_dicom_file_comes_from_the_clock_or_from_chance(cohort: Path) -> None:
    """Two fast runs may share a date and a second, so every date, time and UID is looked at."""
    fixed = {demo.DATE, demo.TIME, demo.DATE + demo.TIME, "", None}
    for path in [cohort / "case02" / "label.dcm", cohort / "case02" / "t1" / "0001.dcm"]:
        dataset = pydicom.dcmread(path)
        elements = [*dataset.iterall(), *dataset.file_meta]
        assert {str(element.value or "") for element in elements if element.VR in ("DA", "TM", "DT")} <= fixed
        for element in elements:
            if element.VR == "UI":
                # the names that the standard gives, and highdicom's name for itself
                own = element.value.startswith("2.25.")
                assert own or element.value.startswith("1.2.840.10008.") or element.keyword == "ImplementationClassUID", element
                assert pydicom.uid.UID(element.value).is_valid


def test_gzip_headers_have_no_time_and_no_name(cohort: Path) -> None:
    for path in cohort.rglob("*.nii.gz"):
        data = path.read_bytes()
        assert data[:4] == b"\x1f\x8b\x08\x00" and data[4:8] == bytes(4)  # RFC 1952: FLG, MTIME
        assert len(gzip.decompress(data)) > 352


def test_two_processes_write_the_same_bytes(tmp_path: Path) -> None:
    arguments = ["--cases", "2", "--scale", "3"]
    for name in ("first", "second"):
        command = [sys.executable, str(ROOT / "scripts" / "demo.py"), "--out", name, *arguments]
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    first, second = contents(tmp_path / "first"), contents(tmp_path / "second")
    assert len(first) > 20 and first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == ["cases.tsv"]
    assert second["cases.tsv"].replace(b"second/", b"first/") == first["cases.tsv"]


def test_record_describes_the_files(cohort: Path) -> None:
    record = json.loads((cohort / "cohort.json").read_text())
    assert record["seed"] == SEED and len(record["cases"]) == 12
    named = {}
    for number, (case, entry) in enumerate(record["cases"].items(), start=1):
        volumes = volumes_of(number)
        assert case == demo.case_name(number)
        assert entry["shape"] == list(volumes.label.shape)
        assert entry["voxels"] == {name: np.count_nonzero(volumes.label == value) for name, value in phantom.LABELS.items()}
        named.update(entry["files"])
    on_disk = set(contents(cohort)) - {"cases.tsv", "cohort.json"}
    assert named.keys() == on_disk
    assert all(hashing.file_digest(cohort / name) == digest for name, digest in list(named.items())[::7])


def test_a_second_run_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    demo.write_cohort(str(tmp_path), SEED, 1, 3.0)
    before = contents(tmp_path)
    (tmp_path / "case01" / "t1").mkdir()
    (tmp_path / "case01" / "t1" / "0001.dcm").write_bytes(b"leftover")
    demo.write_cohort(str(tmp_path), SEED, 1, 3.0)
    assert contents(tmp_path) == before


def test_a_failure_leaves_the_earlier_case(tmp_path: Path) -> None:
    folder = tmp_path / "case01"
    folder.mkdir()
    (folder / "kept").write_text("kept")
    broken = dataclasses.replace(volumes_of(1, 3.0), affine=np.zeros((4, 4)))
    with pytest.raises(Exception), np.errstate(all="ignore"):  # noqa: B017 (whatever the writer raises)
        demo.write_case(folder, demo.SCANS[0], broken, ())
    assert contents(tmp_path) == {"case01/kept": b"kept"}


@pytest.mark.parametrize("number", range(1, 13))
def test_volumes_and_contrasts(number: int) -> None:
    """Volumes in the limits and, on every channel that shows a part, a difference of at least 4 times the measured noise."""
    volumes = volumes_of(number, 1.0)
    label, voxel_ml = volumes.label, geometry.voxel_volume_ml(volumes.affine)
    assert 10 <= np.count_nonzero(label) * voxel_ml <= 60
    assert all(np.count_nonzero(label == value) * voxel_ml >= 1.5 for value in phantom.LABELS.values())
    outside = ndimage.distance_transform_edt(label == 0, sampling=geometry.spacing_of(volumes.affine))
    around = (outside > 4) & (outside < 10)
    corner = tuple(slice(None, 4) for _ in range(3))

    def mean(channel: str, name: str) -> float:
        return float(np.median(volumes.images[channel][label == phantom.LABELS[name] if name != "around" else around]))

    def contrast(channel: str, bright: str, dark: str) -> float:
        sigma = volumes.images[channel][corner].std() / 0.655  # Rayleigh: sqrt(2 - pi / 2)
        return (mean(channel, bright) - mean(channel, dark)) / sigma

    found = {
        "flair oedema": contrast("flair", "oedema", "around"),
        "t2 oedema": contrast("t2", "oedema", "around"),
        "t1c rim": contrast("t1c", "enhancing", "oedema"),
        "t1c core": contrast("t1c", "enhancing", "necrotic_core"),
        "t1 core": contrast("t1", "oedema", "necrotic_core"),
        "t2 core": contrast("t2", "necrotic_core", "enhancing"),
    }
    assert min(found.values()) > 4, found
    air = volumes.images["t1"][corner]
    assert air.min() >= 0 and abs(air.mean() / air.std() - 1.913) < 0.25  # Rayleigh: sqrt(pi / (4 - pi))


@pytest.mark.parametrize("number", [1, 4, 7, 9])
def test_parts_are_nested(number: int) -> None:
    """On a grid of 1 mm, core touches only core and rim, and the solid part never touches healthy tissue."""
    scan = demo.SCANS[number - 1]
    coarse = volumes_of(number)
    centre = apply_affine(coarse.affine, np.argwhere(coarse.label).mean(axis=0))
    affine = np.eye(4)
    affine[:3, 3] = centre - 36
    _, label = phantom.sample_head(SEED, scan.patient, scan.visit, (73, 73, 73), affine)
    core, rim = label == phantom.LABELS["necrotic_core"], label == phantom.LABELS["enhancing"]
    assert core.any() and rim.any()
    assert (ndimage.binary_dilation(core) <= (core | rim)).all()
    assert (ndimage.binary_dilation(core | rim) <= (label > 0)).all()


def test_irregular_outline() -> None:
    """A sphere's surface is the least for its volume; the tumours' outlines are clearly longer, yet each is nearly one piece."""
    for patient in range(1, 10):
        affine = np.diag([2.0, 2.0, 2.0, 1.0])
        affine[:3, 3] = -80
        _, label = phantom.sample_head(SEED, patient, 1, (80, 80, 80), affine)
        pieces, count = ndimage.label(label > 0)
        assert np.bincount(pieces.ravel())[1:].max() > 0.95 * np.count_nonzero(label), count
        points = np.argwhere(label > 0) * 2.0
        distance = np.linalg.norm(points - points.mean(axis=0), axis=1)
        radius = np.cbrt(3 * len(points) * 8 / (4 * np.pi))
        assert np.quantile(distance, 0.99) > 1.12 * radius  # in a ball, 0.997


def test_second_visit_keeps_the_head_and_changes_the_tumour() -> None:
    affine = np.diag([4.0, 4.0, 4.0, 1.0])
    affine[:3, 3] = -78
    shape = (40, 40, 40)
    for patient in (1, 4, 6):
        first, label = phantom.sample_head(SEED, patient, 1, shape, affine)
        second, later = phantom.sample_head(SEED, patient, 2, shape, affine)
        other, elsewhere = phantom.sample_head(SEED, patient + 1, 1, shape, affine)
        healthy = (label == 0) & (later == 0)
        same = np.corrcoef(first["t1"][healthy], second["t1"][healthy])[0, 1]
        strange = np.corrcoef(first["t1"][healthy], other["t1"][healthy])[0, 1]
        assert same > 0.95 > strange + 0.02
        assert not np.array_equal(first["t1"], second["t1"])
        assert 1.1 < np.count_nonzero(later) / np.count_nonzero(label) < 1.5
        assert np.count_nonzero((label > 0) & (later > 0)) > 0.9 * np.count_nonzero(label)
        assert not np.array_equal(label, elsewhere)


def test_seeds_differ() -> None:
    first, other = volumes_of(1), demo.scan_volumes(demo.SCANS[0], SEED + 1, SCALE)
    assert not np.array_equal(first.label, other.label)
    assert not np.array_equal(first.images["t2"], other.images["t2"])


@pytest.mark.parametrize("seed", range(8))
def test_any_seed_gives_every_label_at_the_largest_scale(seed: int) -> None:
    for scan in demo.SCANS:
        label = demo.scan_volumes(scan, seed, demo.SCALES[1]).label
        assert set(np.unique(label)) == {0, 1, 2, 3}, scan


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": 0}, "--cases: found 0"),
        ({"count": 13}, "--cases: found 13"),
        ({"scale": 0.1}, "--scale: found 0.1"),
        ({"scale": float("nan")}, "--scale: found nan"),
        ({"seed": -1}, "--seed: found -1"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict, text: str) -> None:
    with pytest.raises(UserError, match=text):
        demo.write_cohort(str(tmp_path / "out"), **arguments)
    assert not (tmp_path / "out").exists()


def test_out_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        demo.write_cohort(str(tmp_path / "out"), count=1)
