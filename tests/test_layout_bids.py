"""BIDS data sets: the same cases as a table that names their files, entities that choose, and one line for each thing that is wrong."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import bids_raw, numbered_label, numbered_volume, write_volume
from teravox import cases, config, geometry
from teravox import ingest as stage
from teravox.errors import UserError

LABELS = [{"name": "core", "value": 1}, {"name": "rim", "value": 2}]
SETTINGS = config.filled({"channels": [{"name": "t1"}, {"name": "flair"}], "labels": LABELS}, "ingest")
T1, FLAIR, MASK = ["suffix=T1w"], ["suffix=FLAIR"], ["suffix=mask", "desc=lesion"]
MISSPELT = {"t1w": "suffix", "T1w=suffix": "unknown entity 'T1w'", "acquisitoin=x": "did you mean 'acquisition'?", "desc=a b": "letters and digits"}


def settings(path: Path, t1: list[str] = T1, flair: list[str] = FLAIR, label: list[str] = MASK, **dataset: Any) -> dict[str, Any]:
    """The part of a configuration that `split`, and with it read_cases, gets."""
    channels = [{"name": "t1", "match": {"bids": t1}}, {"name": "flair", "match": {"bids": flair}}]
    raw = {"dataset": {"layout": "bids", "path": str(path), "label": {"bids": label}, **dataset}, "channels": channels, "labels": LABELS}
    return config.stage_settings(config.complete(raw), "split")


def read(folder: Path, **more: Any) -> list[cases.Case]:
    return cases.read_cases(settings(folder, **more))


def refused(folder: Path, *words: str, **more: Any) -> None:
    with pytest.raises(UserError) as caught:
        read(folder, **more)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bids_raw(tmp_path / "bids")


def add(folder: Path, name: str, number: int = 7) -> Path:
    """A further volume of sub-02, or a label when its name says so."""
    below = "derivatives/manual/sub-02/anat" if "mask" in name else "sub-02/anat"
    return write_volume(folder / below / f"sub-02_{name}.nii.gz", number, label="mask" in name)


# The same data


def test_cases_are_those_of_a_table_that_names_the_files(folder: Path, tmp_path: Path) -> None:
    rows = ["case\tpatient\tt1\tflair\tlabel"]
    for case, anatomy in (("sub-01_ses-1", "sub-01/ses-1/anat"), ("sub-01_ses-2", "sub-01/ses-2/anat"), ("sub-02", "sub-02/anat")):
        images = "\t".join(f"{folder}/{anatomy}/{case}_{suffix}.nii.gz" for suffix in ("T1w", "FLAIR"))
        rows.append(f"{case}\t{case[:6]}\t{images}\t{folder}/derivatives/manual/{anatomy}/{case}_desc-lesion_mask.nii.gz")
    (tmp_path / "cases.tsv").write_text("\n".join(rows))
    found, expected = read(folder), cases.read_cases({**settings(folder), "dataset": {"layout": "table", "path": str(tmp_path / "cases.tsv")}})
    assert cases.missing_sources(found) == []
    assert [(case.case, case.patient, case.set, case.stacked) for case in found] == [(case.case, case.patient, "train", False) for case in expected]
    assert [case.patient for case in found] == ["sub-01", "sub-01", "sub-02"]
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


def test_nothing_is_written_and_nothing_but_names_and_the_description_is_read(folder: Path) -> None:
    (folder / "participants.tsv").write_bytes(b"\xff\xfe\0")
    before = sorted(folder.rglob("*"))
    for path in before:
        if path.name.endswith(".nii.gz"):
            path.write_bytes(b"")
    assert len(read(folder)) == 3
    assert sorted(folder.rglob("*")) == before


def test_other_layouts_do_not_import_the_library() -> None:
    code = "import sys; from teravox import cases; print('ancpbids' in sys.modules)"
    scripts = str(Path(cases.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": scripts})
    assert done.stdout == "False\n"


# Entities


def test_several_files_are_never_picked_from(folder: Path) -> None:
    add(folder, "run-2_T1w"), add(folder, "acq-high_run-1_T1w")
    (problem,) = cases.missing_sources(read(folder))
    assert problem == (
        f"{folder}: 3 files of sub-02 fit match.bids of channel 't1' and differ in acq, run;"
        " add one of acq=, acq=high, run=, run=1, run=2 (nothing after = for absent)"
    )


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        (["acq=high"], "acq-high_run-1_T1w"),
        (["acquisition=high"], "acq-high_run-1_T1w"),
        (["acq=", "run=02"], "run-2_T1w"),
        (["acq=", "run=2"], "run-2_T1w"),
        (["acq=", "run="], "T1w"),
        (["acq=", "run=", "extension=.nii.gz"], "T1w"),
    ],
    ids=str,
)
def test_entities_choose(folder: Path, rules: list[str], name: str) -> None:
    add(folder, "run-2_T1w"), add(folder, "acq-high_run-1_T1w")
    found = {case.case: case for case in read(folder, t1=[*T1, *rules])}
    assert found["sub-02"].images["t1"] == f"{folder}/sub-02/anat/sub-02_{name}.nii.gz"
    assert found["sub-02"].fault == "" and cases.missing_sources([found["sub-02"]]) == []


def test_two_labels_of_a_case(folder: Path) -> None:
    add(folder, "space-MNI_desc-lesion_mask")
    assert cases.missing_sources(read(folder)) == [
        f"{folder}: 2 files of sub-02 fit dataset.label.bids and differ in space; add one of space=, space=MNI (nothing after = for absent)"
    ]
    assert [case.fault for case in read(folder, label=[*MASK, "space="])] == ["", "", ""]


def test_labels_of_two_pipelines(folder: Path) -> None:
    write_volume(folder / "derivatives/auto/sub-02/anat/sub-02_desc-lesion_mask.nii.gz", 7, label=True)
    (problem,) = cases.missing_sources(read(folder))
    assert "lie in derivatives/auto/sub-02/anat and derivatives/manual/sub-02/anat; name one of the folders in dataset.derivatives" in problem
    found = read(folder, derivatives="derivatives/manual")
    assert cases.missing_sources(found) == [] and [case.label for case in found] == [
        f"{folder}/derivatives/manual/{name.replace('_', '/')}/anat/{name}_desc-lesion_mask.nii.gz"
        for name in ("sub-01_ses-1", "sub-01_ses-2", "sub-02")
    ]


def test_packed_and_plain_file_of_one_name(folder: Path) -> None:
    write_volume(folder / "sub-02/anat/sub-02_T1w.nii", 7)
    (problem,) = cases.missing_sources(read(folder))
    assert "differ in extension; add one of extension=.nii, extension=.nii.gz" in problem
    assert [Path(case.images["t1"]).suffix for case in read(folder, t1=[*T1, "extension=.nii.gz"])] == [".gz"] * 3


@pytest.mark.parametrize(("rule", "word"), MISSPELT.items(), ids=list(MISSPELT))
@pytest.mark.parametrize(("role", "key"), [("t1", "match.bids of channel 't1': "), ("label", "dataset.label.bids: ")])
def test_a_mistake_in_a_rule(folder: Path, rule: str, word: str, role: str, key: str) -> None:
    refused(folder, key, word, **{role: [*(T1 if role == "t1" else MASK), rule]})


def test_rules_that_say_nothing_or_twice(folder: Path) -> None:
    refused(folder, "match.bids of channel 'flair': no suffix", flair=[])
    refused(folder, "dataset.label.bids: no suffix", label=["desc=lesion"])
    refused(folder, "no suffix", t1=["suffix="])
    refused(folder, "entity 'acquisition' stands more than once", t1=[*T1, "acq=a", "acquisition=b"])
    refused(folder, "no file in sub-*/anat or sub-*/ses-*/anat fits match.bids of channel 't1'", t1=["suffix=T2w"])


# What is missing


def test_what_is_missing_of_a_case_is_a_missing_source(folder: Path) -> None:
    (folder / "sub-02/anat/sub-02_FLAIR.nii.gz").unlink()
    (folder / "derivatives/manual/sub-01/ses-2/anat/sub-01_ses-2_desc-lesion_mask.nii.gz").unlink()
    found = read(folder)
    assert len(found) == 3 and not any(case.fault for case in found)
    assert cases.missing_sources(found) == [
        f"{folder}: label of case 'sub-01_ses-2' is missing: {folder}/derivatives/**/sub-01/ses-2/anat/sub-01_ses-2_desc-lesion_mask.nii*",
        f"{folder}: flair of case 'sub-02' is missing: {folder}/sub-02/anat/sub-02_FLAIR.nii*",
    ]


def test_a_label_of_another_session_is_not_taken(folder: Path) -> None:
    one, two = (folder / f"derivatives/manual/sub-01/ses-{number}/anat" for number in (1, 2))
    (one / "sub-01_ses-1_desc-lesion_mask.nii.gz").unlink()
    write_volume(folder / "derivatives/manual/sub-01/anat/sub-01_desc-lesion_mask.nii.gz", 5, label=True)
    (problem,) = cases.missing_sources(read(folder))
    assert "label of case 'sub-01_ses-1' is missing" in problem and two.exists()


def test_subjects_without_the_first_channel_are_left_out_and_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "sub-02/anat/sub-02_T1w.nii.gz").unlink()
    assert [case.case for case in read(folder)] == ["sub-01_ses-1", "sub-01_ses-2"]
    assert capsys.readouterr().err == (f"note: {folder}: 1 subjects or sessions without a file for channel 't1' are left out, the first is sub-02\n")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (None, "dataset_description.json: missing; expected a BIDS data set"),
        ("{", "not readable as JSON"),
        ("[1]", "found list"),
        ("{}", "no text 'BIDSVersion'"),
        ('{"BIDSVersion": 1.8}', "no text 'BIDSVersion'"),
    ],
)
def test_the_description_must_be_there(folder: Path, text: str | None, word: str) -> None:
    path = folder / "dataset_description.json"
    path.unlink()
    if text is not None:
        path.write_text(text)
    refused(folder, word)


@pytest.mark.parametrize("version", ["1.0.2", "1.11.1", "99.0", "none"])
def test_any_version_of_bids_is_read(folder: Path, version: str) -> None:
    (folder / "dataset_description.json").write_text(json.dumps({"BIDSVersion": version}))
    assert cases.missing_sources(read(folder)) == [] and len(read(folder)) == 3


@pytest.mark.parametrize(
    ("derivatives", "word"),
    [("derivatives/none", "No such file or directory"), ("../x", "path '../x' leads out"), ("/tmp", "path '/tmp' leads out")],
)
def test_where_the_labels_lie(folder: Path, derivatives: str, word: str) -> None:
    refused(folder, word, derivatives=derivatives)


# Names


@pytest.mark.parametrize(
    "name", ["sub-02_acq-a-b_T1w", "sub-02_run-1_run-2_T1w", "sub-02_acq_T1w", "sub-02_acq-ä_T1w", "T1w", "sub-02__T1w", "sub-02_T1w.x"]
)
def test_names_that_are_none_of_bids_are_left_out_with_a_note(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = read(folder)
    write_volume(folder / "sub-02" / "anat" / f"{name}.nii.gz", 1)
    capsys.readouterr()
    assert read(folder) == before
    assert capsys.readouterr().err == (
        f"note: {folder}: 1 volumes are left out, since their names are none of BIDS; the first is {f'sub-02/anat/{name}.nii.gz'!r}\n"
    )


def test_folders_with_line_breaks_are_left_out_in_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read(folder)
    write_volume(folder / "derivatives" / "a\nb" / "sub-02_desc-lesion_mask.nii.gz", 1, label=True)
    (folder / "derivatives" / "c\nd").symlink_to(tmp_path)
    assert read(folder) == before
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("note: ") for line in lines) and "'derivatives/a\\nb/sub-02" in lines[1]


@pytest.mark.parametrize("name", ["sub-02/anat/sub-03_T1w", "sub-01/ses-1/anat/sub-01_ses-3_T1w", "sub-01/ses-1/anat/sub-01_T1w"])
def test_a_file_in_another_subject_s_or_session_s_folder(folder: Path, name: str) -> None:
    path = write_volume(folder / f"{name}.nii.gz", 1)
    refused(folder, f"{path}: the name says", "put the file where it belongs")


def test_a_label_in_another_subject_s_folder(folder: Path) -> None:
    path = write_volume(folder / "derivatives/manual/sub-01/ses-1/anat/sub-03_desc-lesion_mask.nii.gz", 1, label=True)
    refused(folder, f"{path}: the name says sub-03, the folder sub-01")


def test_subjects_that_are_no_identifiers_or_differ_only_in_their_letters_case(tmp_path: Path) -> None:
    refused(bids_raw(tmp_path / "plus", ["sub-a+b"]), "name 'sub-a+b' has other characters")
    refused(bids_raw(tmp_path / "twins", ["sub-AB", "sub-ab"]), "case 'sub-ab' stands in", "as 'sub-AB'")


def test_hidden_files_and_folders_are_no_cases(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read(folder)
    for name in (
        "sub-02/anat/._sub-02_T1w.nii.gz",
        "sub-02/.DS_Store",
        ".git/sub-09/anat/sub-09_T1w.nii.gz",
        "derivatives/.x/sub-02_desc-lesion_mask.nii.gz",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert read(folder) == before
    assert capsys.readouterr().err == ""


def test_empty_folders_are_no_cases(folder: Path) -> None:
    before = read(folder)
    for name in ("sub-03", "sub-04/anat", "sub-05/ses-1", "sub-06/ses-1/anat", "derivatives/empty"):
        (folder / name).mkdir(parents=True)
    (folder / "sub-07").touch()
    assert read(folder) == before


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
@pytest.mark.parametrize("name", ["sub-02/anat/sub-02_FLAIR.nii.gz", "derivatives/manual/sub-02/anat/sub-02_desc-lesion_mask.nii.gz"])
def test_something_else_than_a_file_is_a_fault_and_is_not_opened(folder: Path, name: str, make: Callable[[Path], Any]) -> None:
    (folder / name).unlink()
    make(folder / name)
    assert cases.missing_sources(read(folder)) == [f"{folder / name}: a folder or device, expected a volume in one file; rename or remove it"]


# Links


def test_links_inside_the_data_set_are_followed(folder: Path, tmp_path: Path) -> None:
    path = folder / "sub-02" / "anat" / "sub-02_T1w.nii.gz"
    (folder / ".git").mkdir()
    path.rename(folder / ".git" / "0123")
    path.symlink_to("../../.git/0123")
    (folder / "labels").symlink_to("derivatives/manual")
    (tmp_path / "link").symlink_to(folder)
    found = read(tmp_path / "link", derivatives="labels")
    assert cases.missing_sources(found) == []
    assert found[2].label == f"{tmp_path}/link/labels/sub-02/anat/sub-02_desc-lesion_mask.nii.gz"


def test_links_in_a_circle_end(folder: Path) -> None:
    before = read(folder)
    (folder / "derivatives" / "manual" / "again").symlink_to("..")
    (folder / "derivatives" / "self").symlink_to("self")
    assert read(folder) == before


@pytest.mark.parametrize(
    "name",
    [
        "sub-02/anat/sub-02_T1w.nii.gz",
        "sub-02/anat",
        "sub-02",
        "dataset_description.json",
        "derivatives/manual/sub-02/anat/sub-02_desc-lesion_mask.nii.gz",
    ],
)
def test_links_out_of_the_data_set_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).rename(tmp_path / "bids-away")  # begins like the folder's own name
    (folder / name).symlink_to(tmp_path / "bids-away")
    refused(folder, f"path '{name}' leads out of the folder")


def test_a_pipeline_s_link_to_its_templates_is_not_followed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_volume(tmp_path / "templates" / "sub-02_desc-lesion_mask.nii.gz", 1, label=True)
    before = read(folder)
    (folder / "derivatives" / "manual" / "templates").symlink_to(tmp_path / "templates")
    assert read(folder) == before
    assert capsys.readouterr().err == f"note: {folder}/derivatives/manual/templates: a link out of the data set is not followed\n"


def test_a_broken_link_is_a_missing_source(folder: Path) -> None:
    path = folder / "sub-02" / "anat" / "sub-02_FLAIR.nii.gz"
    path.unlink()
    path.symlink_to("gone.nii.gz")
    assert cases.missing_sources(read(folder)) == [f"{folder}: flair of case 'sub-02' is missing: {path}"]


class Exploit:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_in_the_data_set_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    (folder / ".ancpbids-dataset.pickle").write_bytes(pickle.dumps(Exploit(tmp_path / "loaded")))
    assert len(read(folder)) == 3
    assert not (tmp_path / "loaded").exists()
