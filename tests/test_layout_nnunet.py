"""nnU-Net raw folders: the same cases as a table that names their files, and one line for each thing that is wrong."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import nnunet_raw, numbered_label, numbered_volume, write_volume
from teravox import cases, config, geometry
from teravox import ingest as stage
from teravox.errors import UserError

LABELS = [{"name": "core", "value": 1}, {"name": "rim", "value": 2}]
SETTINGS = config.filled({"channels": [{"name": "t1"}, {"name": "flair"}], "labels": LABELS}, "ingest")


def settings(path: Path, layout: str = "nnunet", **more: Any) -> dict[str, Any]:
    """The part of a configuration that `split`, and with it read_cases, gets."""
    raw = {"dataset": {"layout": layout, "path": str(path)}, "channels": [{"name": "t1"}, {"name": "flair"}], "labels": LABELS, **more}
    return config.stage_settings(config.complete(raw), "split")


def read(folder: Path, **more: Any) -> list[cases.Case]:
    return cases.read_cases(settings(folder, **more))


def refused(folder: Path, *words: str, **more: Any) -> None:
    with pytest.raises(UserError) as caught:
        read(folder, **more)
    message = str(caught.value)
    assert message.startswith(str(folder)) and len(message.splitlines()) == 1
    for word in words:
        assert word in message


def change(folder: Path, **changes: Any) -> None:
    path = folder / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


# The same data


@pytest.mark.parametrize("ending", [".nii.gz", ".nii", ".nrrd", ".mha"])
def test_cases_are_those_of_a_table_that_names_the_files(tmp_path: Path, ending: str) -> None:
    folder = nnunet_raw(tmp_path / "raw", ending=ending)
    rows = ["case\tpatient\tt1\tflair\tlabel"]
    for case in ("a_1", "b-2", "c3"):
        images = "\t".join(f"{folder}/imagesTr/{case}_{channel}{ending}" for channel in ("0000", "0001"))
        rows.append(f"{case}\t{case}\t{images}\t{folder}/labelsTr/{case}{ending}")
    (tmp_path / "cases.tsv").write_text("\n".join(rows))
    found, expected = read(folder), cases.read_cases(settings(tmp_path / "cases.tsv", "table"))
    assert cases.missing_sources(found) == []
    assert [(case.case, case.patient, case.set, case.stacked) for case in found] == [(case.case, case.patient, "train", False) for case in expected]
    for number, pair in enumerate(zip(found, expected, strict=True)):
        one, two = (stage.ingest(entry.images, entry.label, SETTINGS, entry.stacked) for entry in pair)
        assert list(one.images) == ["t1", "flair"]
        for channel, name in enumerate(one.images):
            np.testing.assert_array_equal(one.images[name], two.images[name])
            array, affine = numbered_volume(10 * number + channel)
            np.testing.assert_array_equal(one.images[name], geometry.to_canonical(array, affine)[0])
        np.testing.assert_array_equal(one.label, two.label)
        np.testing.assert_array_equal(one.label, geometry.to_canonical(*numbered_label(number))[0])
        np.testing.assert_array_equal(one.affine, two.affine)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return nnunet_raw(tmp_path / "raw")


def test_paths_that_dataset_json_names(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    for name in ("a_1_0000", "a_1_0001"):
        (folder / "imagesTr" / f"{name}.nii.gz").rename(folder / "elsewhere" / f"{name}.nii.gz")
    plain = {"images": ["imagesTr/c3_0000.nii.gz", "./imagesTr/c3_0001.nii.gz"], "label": "labelsTr/c3.nii.gz"}
    moved = {"images": ["elsewhere/a_1_0001.nii.gz", "elsewhere/a_1_0000.nii.gz"], "label": "labelsTr/a_1.nii.gz"}
    change(folder, dataset={"z": plain, "y": moved}, numTraining=2)
    first, second = read(folder)
    assert (first.case, first.patient, first.label) == ("z", "z", str(folder / "labelsTr/c3.nii.gz"))
    assert second.images == {"t1": str(folder / "elsewhere/a_1_0001.nii.gz"), "flair": str(folder / "elsewhere/a_1_0000.nii.gz")}
    assert cases.missing_sources([first, second]) == []


def test_cases_for_testing_are_left_out_and_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("t_1_0000", "t_1_0001", "u_0000", "u_0001", "._u_0000"):
        write_volume(folder / "imagesTs" / f"{name}.nii.gz", 1)
    assert [case.case for case in read(folder)] == ["a_1", "b-2", "c3"]
    captured = capsys.readouterr()
    assert captured.err == f"note: {folder}/imagesTs: 2 cases without labels are left out\n" and captured.out == ""


def test_files_of_another_ending_are_left_out_and_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "imagesTr" / "x_0000.nii").touch()
    (folder / "imagesTr" / "readme.txt").touch()
    assert len(read(folder)) == 3
    assert capsys.readouterr().err == f"note: {folder}/imagesTr: 2 files that do not end in .nii.gz are left out\n"


def test_hidden_files_are_no_cases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read(folder)
    for name in ("imagesTr/._a_1_0000.nii.gz", "imagesTr/.DS_Store", "labelsTr/._a_1.nii.gz", "labelsTr/._new.nii.gz", ".DS_Store"):
        (folder / name).write_bytes(b"\0\5\26\7")
    assert read(folder) == before
    assert capsys.readouterr().err == ""


# Labels


def test_regions_and_an_ignored_label(folder: Path) -> None:
    change(folder, labels={"background": 0, "whole": [1, 2], "core": [2], "ignore": 3})
    assert len(read(folder, ignore_value=3)) == 3
    refused(folder, "'ignore' is 3", "'ignore_value'", "(nothing)")
    refused(folder, "'ignore' is 3", "(4)", ignore_value=4)
    change(folder, labels={"core": 1, "rim": 2})
    assert len(read(folder)) == 3
    refused(folder, "'ignore' is not there", "(3)", ignore_value=3)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"background": 0, "core": 1}, ["label value 2 stands in 'labels' of the configuration and not in those of dataset.json"]),
        ({"core": 1, "rim": 2, "x": 5}, ["label value 5 stands in 'labels' of dataset.json and not in those of the configuration"]),
        ({"core": 1, "both": [1, 2, 7]}, ["label value 7 stands in 'labels' of dataset.json"]),
        ({"0": "background", "1": "core"}, ["'labels' holds something else than whole numbers"]),
        ({"core": 1, "rim": True}, ["something else"]),
        ({"core": 1, "rim": 2.0}, ["something else"]),
        ({"core": 1, "rim": -2}, ["something else"]),
        ({"core": 1, "rim": []}, ["something else"]),
        ({"core": [1, [2]]}, ["something else"]),
        ({"core": 1, "rim": 2, "ignore": [3]}, ["something else"]),
        ([1, 2], ["'labels' is missing or of another type than dict"]),
    ],
    ids=str,
)
def test_labels_that_are_not_the_configuration_s(folder: Path, labels: Any, words: list[str]) -> None:
    change(folder, labels=labels)
    refused(folder, *words)


# dataset.json


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"channel_names": {"0": "T1"}}, ["'channel_names' has 1 entries, expected the numbers 0 to 1"]),
        ({"channel_names": {"0": "T1", "1": "T2", "2": "CT"}}, ["has 3 entries"]),
        ({"channel_names": {"1": "T1", "2": "T2"}}, ["expected the numbers 0 to 1"]),
        ({"channel_names": None}, ["'channel_names' is missing"]),
        ({"channel_names": ["T1", "T2"]}, ["'channel_names' is missing or of another type than dict"]),
        ({"channel_names": None, "modality": {"0": "T1", "1": "T2"}}, ["nnU-Net v1", "nnUNetv2_convert_old_nnUNet_dataset", "layout: msd"]),
        ({"labels": None}, ["'labels' is missing"]),
        ({"numTraining": None}, ["'numTraining' is missing"]),
        ({"numTraining": True}, ["'numTraining' is missing or of another type"]),
        ({"numTraining": 4}, ["'numTraining' is 4, found 3 cases"]),
        ({"file_ending": None}, ["'file_ending' is missing"]),
        ({"file_ending": ".png"}, ["'file_ending' is '.png', expected one of .nii.gz, .nii, .nrrd, .mha"]),
        ({"file_ending": ".NII.GZ"}, ["'file_ending' is '.NII.GZ'"]),
        ({"file_ending": ""}, ["'file_ending' is ''"]),
        ({"dataset": ["a"]}, ["dataset, entry 1: expected a list 'images' and a 'label'"]),
        ({"dataset": {"a": {"images": ["x_0000.nii.gz"]}}}, ["dataset, entry 1: expected"]),
        ({"dataset": {"a": {"images": ["x.nii.gz", 1], "label": "l.nii.gz"}}}, ["dataset, entry 1: expected"]),
        ({"dataset": {"a": {"images": ["x.nrrd", "y.nii.gz"], "label": "l.nii.gz"}}}, ["paths that end in .nii.gz"]),
        ({"dataset": {"a": {"images": ["x.nii.gz"], "label": "l.nii.gz"}}}, ["entry 1: 1 images, expected 2"]),
        ({"dataset": {"a b": {"images": ["x.nii.gz", "y.nii.gz"], "label": "l.nii.gz"}}}, ["entry 1: name 'a b' has other characters"]),
        ({"dataset": {"": {"images": ["x.nii.gz", "y.nii.gz"], "label": "l.nii.gz"}}}, ["entry 1: name '' has other characters"]),
        ({"dataset": {"a\nb": {"images": ["x.nii.gz", "y.nii.gz"], "label": "l.nii.gz"}}}, ["entry 1: name 'a\\nb' has"]),
        ({"dataset": {"a": {"images": ["../x.nii.gz", "y.nii.gz"], "label": "l.nii.gz"}}}, ["path '../x.nii.gz' leads out of the folder"]),
        ({"dataset": {"a": {"images": ["x.nii.gz", "y.nii.gz"], "label": "/l.nii.gz"}}}, ["path '/l.nii.gz' leads out of the folder"]),
        (
            {"dataset": {"a": {"images": ["x\0.nii.gz", "y.nii.gz"], "label": "l.nii.gz"}}},
            ["path 'x\\x00.nii.gz' leads out of the folder, or is none"],
        ),
        ({"dataset": {"a": {"images": ["x\n.nii.gz", "y.nii.gz"], "label": "l.nii.gz"}}}, ["path 'x\\n.nii.gz'"]),
        ({"dataset": {}, "numTraining": 0}, ["found no case"]),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_mistake_in_dataset_json(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    refused(nnunet_raw(tmp_path / "raw", **changes), *words)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"{", "not readable as JSON"),
        (b"", "not readable as JSON"),
        (b"\xff\xfe{", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b'{"numTraining": ' + b"9" * 10_000 + b"}", "not readable as JSON"),
        (b'{"labels": {"core": 1, "core": 2}}', "a key stands more than once"),
        (b"[1]", "found list, expected a JSON object"),
        (b"3", "found int"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_dataset_json_that_is_none(folder: Path, text: bytes, word: str) -> None:
    (folder / "dataset.json").write_bytes(text)
    refused(folder, word, "nnU-Net v2 raw folder")


def test_a_dataset_json_of_any_size_is_not_read(folder: Path) -> None:
    with (folder / "dataset.json").open("wb") as stream:
        stream.truncate(1 << 40)
    refused(folder, "more than 67108864 bytes")


def test_no_folder_and_no_dataset_json(tmp_path: Path) -> None:
    refused(tmp_path / "none", "dataset.json: missing; expected an nnU-Net v2 raw folder")
    refused(tmp_path, "dataset.json: missing")


# Files


def test_what_is_missing_of_a_case_is_a_missing_source(folder: Path) -> None:
    lost = [folder / name for name in ("imagesTr/a_1_0001.nii.gz", "labelsTr/b-2.nii.gz", "imagesTr/c3_0000.nii.gz", "imagesTr/c3_0001.nii.gz")]
    for path in lost:
        path.unlink()
    found = read(folder)
    assert len(found) == 3
    assert cases.missing_sources(found) == [
        f"{folder}: {role} of case '{case}' is missing: {path}"
        for role, case, path in zip(["flair", "label", "t1", "flair"], ["a_1", "b-2", "c3", "c3"], lost, strict=True)
    ]


def test_a_channel_too_many_is_a_fault_of_its_case(folder: Path) -> None:
    write_volume(folder / "imagesTr" / "b-2_0002.nii.gz", 5)
    assert cases.missing_sources(read(folder)) == [f"{folder}/imagesTr/b-2_0002.nii.gz: channel number 2, expected 0 to 1 ('channel_names')"]


@pytest.mark.parametrize("name", ["a_1.nii.gz", "a_1_000.nii.gz", "a_1_00000.nii.gz", "_0000.nii.gz", "a_1_000\u0661.nii.gz"])
def test_a_name_without_the_channel_s_digits(folder: Path, name: str) -> None:
    (folder / "imagesTr" / name).touch()
    refused(folder, "expected a name such as case_0000.nii.gz")


@pytest.mark.parametrize("name", ["a b", "a.1", "ä", "a\nb", "a'b", os.fsdecode(b"a\xff")])
def test_names_that_are_no_identifiers(tmp_path: Path, name: str) -> None:
    refused(nnunet_raw(tmp_path / "raw", [name]), "has other characters than letters, digits, _ and -")


def test_names_that_differ_only_in_their_letters_case(tmp_path: Path) -> None:
    refused(nnunet_raw(tmp_path / "raw", ["x1", "y", "X1"]), "case 'x1' stands in", "as 'X1'")


def replace(path: Path, make: Callable[[Path], Any]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize("name", ["imagesTr/b-2_0001.nii.gz", "labelsTr/b-2.nii.gz"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_something_else_than_a_file_is_a_fault_and_is_not_opened(folder: Path, name: str, make: Callable[[Path], Any]) -> None:
    replace(folder / name, make)
    assert cases.missing_sources(read(folder)) == [f"{folder / name}: a folder or device, expected a volume in one file; rename or remove it"]


def test_empty_and_missing_folders(folder: Path) -> None:
    for name in ("imagesTr", "labelsTr"):
        for path in (folder / name).iterdir():
            path.unlink()
    change(folder, numTraining=0)
    refused(folder, "found no case")
    (folder / "labelsTr").rmdir()
    refused(folder, "labelsTr: No such file or directory; expected a folder of the data set")


# Links


def test_links_inside_the_folder_are_followed(folder: Path, tmp_path: Path) -> None:
    path = folder / "imagesTr" / "a_1_0000.nii.gz"
    (folder / "objects").mkdir()
    path.rename(folder / "objects" / "0123")
    path.symlink_to("../objects/0123")
    (tmp_path / "link").symlink_to(folder)
    (found, *_) = read(tmp_path / "link")
    assert found.images["t1"] == str(tmp_path / "link" / "imagesTr" / "a_1_0000.nii.gz")
    assert cases.missing_sources([found]) == []


def test_a_broken_link_is_a_missing_source(folder: Path) -> None:
    path = folder / "labelsTr" / "c3.nii.gz"
    replace(path, lambda path: path.symlink_to("gone.nii.gz"))
    assert cases.missing_sources(read(folder)) == [f"{folder}: label of case 'c3' is missing: {path}"]
    replace(path, lambda path: path.symlink_to(path.name))  # to itself
    assert cases.missing_sources(read(folder)) == [f"{folder}: label of case 'c3' is missing: {path}"]


@pytest.mark.parametrize("name", ["imagesTr/b-2_0001.nii.gz", "labelsTr/b-2.nii.gz", "imagesTr", "labelsTr", "imagesTs", "dataset.json"])
@pytest.mark.parametrize("exists", [True, False], ids=["there", "broken"])
def test_links_out_of_the_folder_are_refused(folder: Path, tmp_path: Path, name: str, exists: bool) -> None:
    target = tmp_path / "raw-secrets" / name  # begins like the folder's own name
    target.parent.mkdir(parents=True)
    if (folder / name).exists():
        (folder / name).rename(target if exists else tmp_path / "away")
    elif exists:
        target.mkdir()
    (folder / name).symlink_to(target)
    if name == "imagesTs" and not exists:
        assert len(read(folder)) == 3  # a link to nothing: no test cases
    else:
        refused(folder, f"path '{name}' leads out of the folder")


def test_a_dictionary_may_not_go_through_a_link_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "x_0000.nii.gz").touch()
    (folder / "out").symlink_to(tmp_path)
    entry = {"images": ["out/x_0000.nii.gz", "imagesTr/c3_0001.nii.gz"], "label": "labelsTr/c3.nii.gz"}
    change(folder, dataset={"c3": entry}, numTraining=1)
    refused(folder, "path 'out/x_0000.nii.gz' leads out of the folder")


def test_a_path_too_long_for_any_file_is_missing(folder: Path) -> None:
    long = f"{'x' * 5000}.nii.gz"
    change(folder, dataset={"a": {"images": [long, "imagesTr/c3_0001.nii.gz"], "label": "labelsTr/c3.nii.gz"}}, numTraining=1)
    assert cases.missing_sources(read(folder)) == [f"{folder / 'dataset.json'} dataset, entry 1: t1 of case 'a' is missing: {folder / long}"]
