"""The survey of a tree of DICOM studies, the cases that rules make of it, and the tables that it writes."""

import copy
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
import yaml
from pydicom.uid import generate_uid

import hospital
from builders import s6, set_all, set_each, write
from checkout import REPOSITORY
from teravox import cases, contained, file_lists, ingest, pseudonyms, survey, survey_cases, survey_files, survey_tables
from teravox import config as configuration
from teravox.errors import UserError

OPTIONS = configuration.defaults("ingest")
KEY = bytes(range(32))


def surveyed(root: Path, workers: int = 1) -> survey.Survey:
    return survey.scan(root, list(survey.tree(root)), workers)


def complete(tree: Path, **changes: Any) -> dict[str, Any]:
    config = configuration.complete(hospital.settings(tree, **changes))
    return {**config, "private": str(tree.parent / "private"), "results": str(tree.parent / "results")}


def canonical(stored: np.ndarray) -> np.ndarray:
    """(slice, row, column) of an axial series as (x, y, z) in RAS: DICOM's columns run to L, its rows to P."""
    return stored.transpose(2, 1, 0)[::-1, ::-1]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))


def command(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(REPOSITORY / "scripts" / "ingest.py"), "survey", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, **options)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hospital.hospital(tmp_path_factory.mktemp("tree") / "tree")


# What becomes of each file


def awkward(root: Path) -> None:
    """Everything that a tree can hold besides good files."""
    folder = root / "p1" / "ct"
    (folder / "a\tb\nc.txt").write_text("text")
    (root / os.fsdecode(b"\xff\xfe")).mkdir()
    write(root / os.fsdecode(b"\xff\xfe"), hospital.slices(7))
    (root / "circle").symlink_to(root)
    (root / "away").symlink_to("/etc/hostname")
    (root / "nowhere").symlink_to("missing")
    os.mkfifo(root / "pipe")
    (root / "empty").mkdir()
    (root / "p2" / "cut").write_bytes((root / "p2" / "ct" / "IM0").read_bytes()[:-60])
    (root / "p3" / "IM9").write_bytes(b"\0" * 500)
    (root / "p4" / "none.dcm").write_bytes(b"")
    write(root / "p4" / "twice", [pydicom.dcmread(root / "p4" / "ct" / "IM0")])


def test_every_file_is_accounted_for_once(tmp_path: Path) -> None:
    root = hospital.hospital(tmp_path / "tree")
    awkward(root)
    found = surveyed(root)
    volumes, left = survey.volumes(found, OPTIONS)
    rows = survey_tables.file_rows(found, left, KEY)
    listed = subprocess.run(["find", str(root), "-mindepth", "1", "!", "-type", "d", "-printf", "%P\\0"], capture_output=True, check=True).stdout
    expected = sorted(survey_tables.shown(os.fsdecode(name)) for name in listed.split(b"\0") if name)
    assert [row[0] for row in rows] == expected and len({row[0] for row in rows}) == len(rows)
    assert all("\t" not in cell and "\n" not in cell for row in rows for cell in row)
    status = {row[0]: (row[1], row[4]) for row in rows}
    assert status["circle"] == status["away"] == status["nowhere"] == ("skipped", "symbolic link")
    assert status["pipe"] == ("skipped", "pipe, socket or device")
    assert status["p2/cut"][0] == "damaged" and status["p2/cut"][1].startswith("truncated")
    assert status["p3/IM9"][0] == status["p4/none.dcm"][0] == "damaged"
    assert status["p4/twice/0.dcm"] == ("skipped", "identical copy of another file")
    assert status["p1/other/report"][0] == "skipped" and status["p1/other/label"] == ("SEG", "")
    assert status["p2/other/label"] == ("RTSTRUCT", "") and status["p1/ct/a\\tb\\nc.txt"] == ("skipped", "text, no DICOM")
    images = sum(row[1] == "image" for row in rows)
    assert images == len({frame.header.path for volume in volumes for frame in volume.stack.frames}) == 7 * 6 + 6


def test_a_damaged_slice_spoils_its_own_series_alone(tmp_path: Path) -> None:
    """One that names its series spoils that one, wherever it lies; one that names none, each series of its folder."""
    root = tmp_path / "tree"
    one, two, three = (hospital.slices(number) for number in (1, 2, 3))
    write(root / "mixed", [*one, *two])
    write(root / "three", three)
    (root / "cut").write_bytes((root / "mixed" / "0.dcm").read_bytes()[:-9])
    reasons = {volume.patient: volume.reason for volume in survey.volumes(surveyed(root), OPTIONS)[0]}
    assert reasons["MRN1"].startswith("1 damaged file(s) may be slices of it, one is: truncated") and reasons["MRN2"] == reasons["MRN3"] == ""
    (root / "cut").rename(root / "mixed" / "lost")
    (root / "mixed" / "lost").write_bytes(b"\0\1" * 300)
    reasons = {volume.patient: volume.reason for volume in survey.volumes(surveyed(root), OPTIONS)[0]}
    assert reasons["MRN1"] and reasons["MRN2"] and not reasons["MRN3"]
    names = survey_cases.lists(surveyed(root), KEY)
    assert sorted(len(paths) for paths in names.values()) == [6, 7, 7]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = hospital.hospital(tmp_path / "tree", patients=1)
    real = os.scandir

    def scandir(path: Any) -> Any:
        if str(path).endswith("ct"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = surveyed(root)
    assert [(other.path.name, other.reason) for other in found.others if other.path.name == "ct"] == [
        ("ct", "folder that is not readable (Permission denied)")
    ]


def test_processes_give_what_one_gives(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_files, "CHUNK_FILES", 5)
    one, two = surveyed(tree), surveyed(tree, workers=2)
    assert repr(one.images[0].once) == repr(two.images[0].once)
    for part in ("images", "labels", "others"):
        assert [str(item.path) for item in getattr(one, part)] == [str(item.path) for item in getattr(two, part)]
    assert {id(header.once) for header in two.images if header.study == two.images[0].study} < {id(header.once) for header in two.images}
    study = [header for header in two.images if header.path.parent == two.images[0].path.parent]
    assert len(study) == 6 and len({id(header.once) for header in study}) == 1  # held once, although two chunks have it


def die(paths: list[Path]) -> Any:
    """In place of the reader: one file ends the process, another holds it up."""
    for path in paths:
        if path.name == "die":
            os._exit(1)
        if path.name == "hang":
            time.sleep(1000)
    return [survey_files.Other(path, "read") for path in paths]


def test_a_file_that_ends_or_holds_up_its_reader_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_files, "CHUNK_FILES", 3)
    monkeypatch.setattr(survey_files, "CHUNK_SECONDS", 8)
    monkeypatch.setattr(contained, "SECONDS", 1)
    monkeypatch.setattr(survey_files, "_read", die)
    names = [f"f{number}" for number in range(30)]
    names[4], names[16] = "die", "hang"
    found = [item for chunk in survey_files.read([tmp_path / name for name in names], 2) for item in chunk]
    assert [item.path.name for item in found] == names
    assert [item.path.name for item in found if isinstance(item, survey_files.Other) and item.damaged] == ["die", "hang"]


# Which case a file belongs to


def case_rows(root: Path, **rules: Any) -> list[dict[str, Any]]:
    found = surveyed(root)
    config = complete(root, **rules)
    return survey_cases.cases(found, survey.volumes(found, OPTIONS)[0], config["channels"], config["dataset"]["label"], KEY)


def faults(root: Path, **rules: Any) -> list[str]:
    return ["; ".join(row["faults"]) for row in case_rows(root, **rules)]


def label(**rules: Any) -> dict[str, Any]:
    return {"layout": "dicom", "path": "tree", "label": rules}


def test_each_study_is_a_case_with_its_own_files(tree: Path) -> None:
    rows = case_rows(tree)
    lists = survey_cases.lists(surveyed(tree), KEY)
    assert sorted(row["patient"] for row in rows) == [f"MRN{number}" for number in range(1, 7)] and not any(row["faults"] for row in rows)
    for row in rows:
        folder = tree / row["patient"].replace("MRN", "p")
        assert lists[row["images"]["ct"]] == sorted((folder / "ct").glob("IM*"))
        assert lists[row["label"]] == [folder / "other" / "label"]


def test_two_patients_with_one_study_stay_apart(tmp_path: Path) -> None:
    uid = generate_uid()
    for number in (1, 2):
        hospital.study(tmp_path / "tree" / f"p{number}", number, hospital.slices(number, StudyInstanceUID=uid))
    rows = case_rows(tmp_path / "tree")
    assert [row["patient"] for row in sorted(rows, key=lambda row: row["patient"])] == ["MRN1", "MRN2"]
    assert len({row["case"] for row in rows}) == 2 and not any(row["faults"] for row in rows)


def test_two_patients_under_one_series_are_rejected(tmp_path: Path) -> None:
    """Even if the slices of one would do: the last slice is another patient's."""
    series = hospital.slices(1)
    series[-1].PatientID = "MRN2"
    hospital.study(tmp_path / "tree", 1, series)
    (fault,) = faults(tmp_path / "tree")
    assert "found 2 values of PatientID under one SeriesInstanceUID" in fault and "MRN" not in fault


def test_one_series_in_two_studies_is_two(tmp_path: Path) -> None:
    uid = generate_uid()
    for number in (1, 2):
        series = hospital.slices(number, SeriesInstanceUID=uid)
        write(tmp_path / "tree" / f"p{number}", series)
        write(tmp_path / "tree" / f"l{number}", [hospital.seg(series)])
    rows = case_rows(tmp_path / "tree")
    lists = survey_cases.lists(surveyed(tmp_path / "tree"), KEY)
    assert not any(row["faults"] for row in rows)
    for row in rows:
        number = row["patient"][-1]
        assert {path.parent.name for path in (*lists[row["images"]["ct"]], *lists[row["label"]])} == {f"p{number}", f"l{number}"}


def test_one_series_in_two_folders_is_one(tmp_path: Path) -> None:
    series = hospital.study(tmp_path / "tree" / "a", 1)
    write(tmp_path / "tree" / "b", series)
    assert faults(tmp_path / "tree") == [""]
    changed = copy.deepcopy(series)
    changed[2].PixelData = bytes(len(changed[2].PixelData))
    write(tmp_path / "tree" / "b", changed)
    (fault,) = faults(tmp_path / "tree")
    assert "has the SOPInstanceUID of file" in fault and str(tmp_path) not in fault


@pytest.mark.parametrize(("first", "second", "patients"), [("", "", 2), ("MRN1", "MRN1", 1), (" MRN1 ", "MRN1", 1), ("MRN1", "", 2)])
def test_patients_without_identifier(tmp_path: Path, first: str, second: str, patients: int) -> None:
    for number, identifier in enumerate((first, second), start=1):
        hospital.study(tmp_path / "tree" / f"p{number}", number, hospital.slices(number, PatientID=identifier))
    rows = case_rows(tmp_path / "tree")
    assert len({row["patient"] for row in rows}) == patients and len(rows) == 2 and not any(row["faults"] for row in rows)


def test_a_series_without_identifier_is_of_the_patient_of_its_study(tmp_path: Path) -> None:
    one = hospital.study(tmp_path / "tree" / "a", 1)
    two = hospital.slices(2, StudyInstanceUID=one[0].StudyInstanceUID, PatientID="", Modality="MR")
    write(tmp_path / "tree" / "b", two)
    (row,) = case_rows(tmp_path / "tree", channels=[{"name": name.lower(), "match": {"modality": name}} for name in ("CT", "MR")])
    assert row["patient"] == "MRN1" and row["faults"] == []


def test_missing_uids(tmp_path: Path) -> None:
    series = hospital.study(tmp_path / "tree" / "a", 1)
    for data in series:
        data.SeriesInstanceUID = ""
    write(tmp_path / "tree" / "a" / "ct", series, [f"IM{index}" for index in (3, 1, 5, 0, 2, 4)])
    assert "SeriesInstanceUID" in faults(tmp_path / "tree")[0] and "missing" in faults(tmp_path / "tree")[0]


@pytest.mark.parametrize(("prefer", "expected"), [("only", None), ("first", "a"), ("last", "b")])
def test_two_labels_for_one_series(tmp_path: Path, prefer: str, expected: str | None) -> None:
    series = hospital.slices(1)
    write(tmp_path / "tree" / "ct", series)
    for name, date in (("a", "20200101"), ("b", "20200103")):
        data = hospital.seg(series)
        data.SeriesDate, data.SeriesTime = date, "101010"
        write(tmp_path / "tree" / name, [data])
    (row,) = case_rows(tmp_path / "tree", dataset=label(prefer=prefer))
    if expected is None:
        assert row["faults"] == ["label: 2 objects refer to the first channel's series, expected one; choose by dataset.label"]
    else:
        assert [path.parent.name for path in survey_cases.lists(surveyed(tmp_path / "tree"), KEY)[row["label"]]] == [expected]
        write(tmp_path / "tree" / "c", [copy.deepcopy(pydicom.dcmread(tmp_path / "tree" / expected / "0.dcm"))])
        assert case_rows(tmp_path / "tree", dataset=label(prefer=prefer))[0]["faults"] == []  # an identical copy is none more
        other = pydicom.dcmread(tmp_path / "tree" / expected / "0.dcm")
        other.SOPInstanceUID = other.file_meta.MediaStorageSOPInstanceUID = generate_uid()
        write(tmp_path / "tree" / "c", [other])
        assert "2 objects of one date and time" in case_rows(tmp_path / "tree", dataset=label(prefer=prefer))[0]["faults"][0]


def test_labels_by_kind_description_and_patient(tmp_path: Path) -> None:
    series = hospital.slices(1)
    write(tmp_path / "tree" / "ct", series)
    one, two = hospital.seg(series), hospital.contours(series)
    one.SeriesDescription, two.SeriesDescription = "Reader A", "Reader B"
    write(tmp_path / "tree" / "far" / "away", [one, two], ["one", "two"])
    lists = survey_cases.lists(surveyed(tmp_path / "tree"), KEY)
    for rules, expected in (({"modality": "SEG"}, "one"), ({"modality": "RTSTRUCT"}, "two"), ({"description": "reader b"}, "two")):
        (row,) = case_rows(tmp_path / "tree", dataset=label(**rules))
        assert row["faults"] == [] and [path.name for path in lists[row["label"]]] == [expected]
    assert "fits the first channel's series" in faults(tmp_path / "tree", dataset=label(description="reader c"))[0]
    one.PatientID = two.PatientID = "MRN2"
    write(tmp_path / "tree" / "far" / "away", [one, two], ["one", "two"])
    assert "has another PatientID" in faults(tmp_path / "tree", dataset=label(modality="SEG"))[0]


def test_a_structure_set_that_names_no_series_goes_by_its_frame_of_reference(tmp_path: Path) -> None:
    series = hospital.slices(1)
    data = hospital.contours(series)
    del data.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence
    data.FrameOfReferenceUID = series[0].FrameOfReferenceUID
    write(tmp_path / "tree", [*series, data])
    assert faults(tmp_path / "tree") == [""]
    data.FrameOfReferenceUID = generate_uid()
    write(tmp_path / "tree", [*series, data])
    assert "no SEG or RTSTRUCT" in faults(tmp_path / "tree")[0]


def reconstructions(root: Path) -> None:
    series = hospital.slices(1)
    again = copy.deepcopy(series)
    set_all(SeriesInstanceUID=generate_uid(), SeriesDescription="bone", ConvolutionKernel="B80")(again)
    set_each("SOPInstanceUID", [generate_uid() for _ in again])(again)
    for data in again:
        data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    write(root / "ct", [*series, *again])
    write(root / "labels", [hospital.seg(series)])


def test_several_reconstructions_are_ambiguous_until_a_rule_decides(tmp_path: Path) -> None:
    reconstructions(tmp_path / "tree")
    (fault,) = faults(tmp_path / "tree")
    assert fault.startswith("channel ct: found 2 volume(s) of 2 series fit the rules (modality), expected one volume; they differ in description")
    assert "bone" not in fault and "portal" not in fault
    assert faults(tmp_path / "tree", channels=[{"name": "ct", "match": {"description": "^portal"}}]) == [""]


def test_echoes_are_channels(tmp_path: Path) -> None:
    series = hospital.slices(1, Modality="MR", ScanningSequence="SE", EchoTime=11)
    second = copy.deepcopy(series)
    set_all(EchoTime=90)(second)
    for data in second:
        data.SOPInstanceUID = data.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    write(tmp_path / "tree", [*series, *second])
    write(tmp_path / "tree" / "l", [hospital.seg(series)])
    channels = [{"name": name, "match": {"modality": "MR", "echo": echo}} for name, echo in (("pd", 1), ("t2", 2))]
    (row,) = case_rows(tmp_path / "tree", channels=channels)
    assert row["faults"] == [] and row["images"]["pd"] == row["images"]["t2"]
    found = surveyed(tmp_path / "tree")
    proposed = survey_cases.proposed_channels(survey.volumes(found, OPTIONS)[0])
    assert {item["name"]: item["match"] for item in proposed} == {f"mr_echo{echo}": {"modality": "MR", "echo": echo} for echo in (1, 2)}


# The command


@pytest.fixture
def written(tree: Path, tmp_path: Path) -> tuple[Path, str]:
    """The tables of a survey without rules, in a folder of its own, and what it printed."""
    done = command(tree, "--descriptions", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr == ""
    return tmp_path, done.stdout


def test_the_proposal_is_a_configuration(written: tuple[Path, str], tree: Path) -> None:
    folder, text = written
    assert "6 patients, 6 studies, 12 series, 12 volumes; 42 image files, 6 SEG or RTSTRUCT, 9 other files" in text
    block = text.partition("labels are yours to name:\n\n")[2]
    demo = yaml.safe_load((REPOSITORY / "config" / "config.yaml").read_text())
    proposed = demo | yaml.safe_load(block) | {"labels": [{"name": "lesion", "value": 1}], "private": str(folder / "private")}
    config = configuration.complete(proposed)
    assert [channel["name"] for channel in config["channels"]] == ["ct"] and "6 studies have one such volume, 0 have several" in block
    assert [case.fault for case in cases.read_cases(config)] == [""] * 6


def test_the_case_table_is_one(written: tuple[Path, str], tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by the layout `table` as it stands, it gives the voxels that the files hold."""
    monkeypatch.chdir(written[0])
    table = written[0] / "private" / "survey" / "last" / "cases.tsv"
    config = configuration.complete({**hospital.settings(tree), "dataset": {"layout": "table", "path": str(table)}})
    found = cases.read_cases(config)
    assert len(found) == 6 and not cases.missing_sources(found)
    for case in found:
        read = ingest.ingest(case.images, case.label, configuration.stage_settings(config, "ingest"))
        number = int(file_lists.listed_files(Path(case.images["ct"]))[0].parent.parent.name[1:])
        assert np.array_equal(read.images["ct"], canonical(hospital.STORED + np.int16(5 * number)))
        assert read.read["label"].format == ("dicom-rtstruct" if number in {2, 5} else "dicom-seg")
        if number not in {2, 5}:
            assert np.array_equal(read.label, canonical(hospital.MASK))


def test_tables_name_nobody_unless_asked(written: tuple[Path, str], tree: Path, tmp_path: Path) -> None:
    folder = written[0] / "private" / "survey" / "last"
    assert {row["description"] for row in rows_of(folder / "series.tsv")} == {"portal"}
    assert {row["names"] for row in rows_of(folder / "labels.tsv")} == {"lesion"}
    assert [row["structures"] for row in rows_of(folder / "labels.tsv")] == ["1"] * 6
    assert {row["series"] for row in rows_of(folder / "labels.tsv")} <= {row["series"] for row in rows_of(folder / "series.tsv")}
    assert command(tree, cwd=tmp_path).returncode == 0
    for name in ("series.tsv", "labels.tsv", "cases.tsv"):
        text = (folder / name).read_text()
        assert not any(word in text for word in ("MRN", "portal", "lesion", *(f"p{number}/" for number in range(1, 7))))
    assert folder.stat().st_mode & 0o77 == 0


def test_a_configuration_s_rules_are_taken(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(hospital.settings(tree, channels=[{"name": "x", "match": {"modality": "MR"}}])))
    done = command(tree, "--configfile", tmp_path / "my.yaml", cwd=tmp_path)
    assert done.returncode == 0 and "cases: 0 studies fit" in done.stdout and "labels are yours" not in done.stdout


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda path: path.mkdir(), None),
        (lambda path: path.write_text("x"), "missing or no folder"),
        (lambda path: None, "missing or no folder"),
    ],
)
def test_an_empty_tree_a_file_and_nothing(tmp_path: Path, make: Callable[[Path], object], line: str | None) -> None:
    make(tmp_path / "tree")
    done = command(tmp_path / "tree", cwd=tmp_path)
    assert done.returncode == (1 if line else 0) and "Traceback" not in done.stderr
    assert line in done.stderr if line else "0 patients, 0 studies" in done.stdout
    if line is None:
        with pytest.raises(UserError, match="no study has a volume that fits a channel's rules"):
            cases.read_cases(complete(tmp_path / "tree"))


def test_one_file_is_a_tree(tmp_path: Path) -> None:
    write(tmp_path / "tree", hospital.slices(1)[:1])
    done = command(tmp_path / "tree", cwd=tmp_path)
    assert "1 rejected: found # slice, expected at least #" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"), [(["--workers", "0"], "from 1"), (["--out", "tree/x"], "lies in the folder"), (["--out", "."], "holds other files")]
)
def test_wrong_arguments(tmp_path: Path, arguments: list[str], line: str) -> None:
    hospital.hospital(tmp_path / "tree", patients=1)
    before = sorted(tmp_path.rglob("*"))
    done = command("tree", *arguments, cwd=tmp_path)
    assert done.returncode and line in done.stderr
    assert [path for path in sorted(tmp_path.rglob("*")) if "private" not in path.parts] == before


def test_a_full_disk_leaves_what_was_there(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = surveyed(tree)
    volumes, left = survey.volumes(found, OPTIONS)
    out = tmp_path / "out"
    survey_tables.write(out, found, volumes, left, [], KEY, [])
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    rows = case_rows(tree)
    real, count = Path.write_text, []

    def write_text(path: Path, *arguments: Any, **options: Any) -> int:
        count.append(path)
        if len(count) > 4:
            raise OSError(28, "No space left on device")
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
    with pytest.raises(OSError, match="No space"):
        survey_tables.write(out, found, volumes, left, rows, KEY, ["ct"])
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """The whole group of processes gets the signal, as from a terminal; a pipe's reader is not needed for it to end."""
    root = tmp_path / "tree"
    for number in range(40):
        write(root / f"{number}", hospital.slices(number % 9))
    line = [sys.executable, str(REPOSITORY / "scripts" / "ingest.py"), "survey", str(root), "--workers", "2"]
    process = subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (tmp_path / "private" / "pseudonym.key").exists():  # the scan follows
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and err == "error: interrupted\n" and out == ""
    assert not (tmp_path / "private" / "survey").exists()


# The cache


def test_the_survey_is_kept_until_something_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = hospital.hospital(tmp_path / "tree", patients=2)
    config = complete(root)

    def read_again(config: dict[str, Any]) -> bool:
        cases.read_cases(config)
        return "note: " in capsys.readouterr().err

    assert read_again(config) and not read_again(config)
    reduced = {**configuration.stage_settings(config, "split"), "private": config["private"]}
    assert not read_again(reduced)  # as the command `split` asks
    os.utime(root / "p1" / "ct" / "IM0", (1, 1))
    assert read_again(config) and not read_again(config)
    assert read_again(complete(root, channels=[{"name": "ct", "match": {"modality": "CT", "prefer": "first"}}]))
    assert read_again(config)
    (root / "new.txt").write_text("x")
    assert read_again(config) and not read_again(config)
    cache = next((tmp_path / "private" / "survey").glob("*/cases.json"))
    for text in ("", "[]", '{"state": 1}'):
        cache.write_text(text)
        assert read_again(config)
    assert not read_again(complete(root, ingest={"padding": "keep"})) and read_again(complete(root, ingest={"tilt": "shear"}))


def test_a_lost_key_is_not_drawn_anew_over_results(tmp_path: Path) -> None:
    config = complete(hospital.hospital(tmp_path / "tree", patients=1))
    (case,) = cases.read_cases(config)
    document = tmp_path / "results" / "ingest" / case.case / "case.json"
    document.parent.mkdir(parents=True)
    key = pseudonyms.read_key(tmp_path / "private" / "pseudonym.key")
    document.write_text(json.dumps({"key": pseudonyms.key_id(key)}))
    (tmp_path / "private" / "pseudonym.key").unlink()
    with pytest.raises(UserError, match=r"missing, and .*case.json was made with it"):
        cases.read_cases(config)
    assert not (tmp_path / "private" / "pseudonym.key").exists()


def test_private_in_the_tree_is_refused(tree: Path) -> None:
    with pytest.raises(UserError, match="lies in the tree of DICOM files"):
        cases.read_cases({**complete(tree), "private": str(tree / "private")})


def test_faults_name_the_study(tmp_path: Path) -> None:
    reconstructions(tmp_path / "tree")
    (case,) = cases.read_cases(complete(tmp_path / "tree"))
    assert cases.missing_sources([case]) == [case.fault] and case.fault.startswith(f"{tmp_path / 'tree'} study {case.case}: channel ct: found 2")


def test_a_tree_gives_what_a_table_gives(tree: Path) -> None:
    """Voxel for voxel, image and label, for SEG and RTSTRUCT."""
    config = complete(tree)
    settings = configuration.stage_settings(config, "ingest")
    for case in cases.read_cases(config):
        folder = tree / case.patient.replace("MRN", "p")
        by_tree = ingest.ingest(case.images, case.label, settings)
        by_table = ingest.ingest({"ct": str(folder / "ct")}, str(folder / "other" / "label"), settings)
        assert np.array_equal(by_tree.images["ct"], by_table.images["ct"]) and np.array_equal(by_tree.affine, by_table.affine)
        assert np.array_equal(by_tree.label, by_table.label) and by_tree.label.any()


def test_what_may_not_be_read_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole study can lie in a folder that is closed; after its rights have changed the survey is made again."""
    write(tmp_path / "tree" / "a", s6())
    tree = survey.tree

    def closed(root: Path) -> Iterator[survey.Entry]:
        yield from tree(root)
        yield survey.Entry(root / "b", "folder that is not readable (Permission denied)", 0, (0, 0))

    with monkeypatch.context() as patched:
        patched.setattr(survey, "tree", closed)
        with pytest.raises(UserError, match=r"b: folder that is not readable \(Permission denied\), expected a tree that this user may read"):
            cases.read_cases(complete(tmp_path / "tree"))
        assert len(cases.read_cases({**complete(tmp_path / "tree"), "on_rejected": "exclude"})) == 1
        assert "0 damaged files and 1 that may not be read are in no volume" in capsys.readouterr().err
    assert len(cases.read_cases(complete(tmp_path / "tree"))) == 1


def test_the_survey_writes_nothing_below_results(tmp_path: Path) -> None:
    write(tmp_path / "tree", s6())
    done = command(tmp_path / "tree", "--out", "results/x", cwd=tmp_path)
    assert done.returncode == 1 and "results/x: lies in results, which may be given away" in done.stderr
    assert not (tmp_path / "results").exists() and not (tmp_path / "private").exists()
