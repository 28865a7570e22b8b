"""Case tables and decathlon folders, with the mistakes people make in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from teravox import cases, config
from teravox.errors import UserError

HEADER = "case\tpatient\tt1\tt2\tlabel\tset"
ROWS = ["a\tp1\ta1.nii\ta2.nii\tal.nii\ttrain", "b\tp1\tb1.nii\tb2.nii\tbl.nii\ttrain", "c\tp2\tc1.nii\tc2.nii\tcl.nii\ttest"]


def settings(path: Path, layout: str = "table", **split: Any) -> dict[str, Any]:
    return config.complete(
        {
            "dataset": {"layout": layout, "path": str(path)},
            "channels": [{"name": "t1"}, {"name": "t2"}],
            "labels": [{"name": "core", "value": 1}],
            "split": split,
        }
    )


def read(folder: Path, text: str | bytes, **split: Any) -> list[cases.Case]:
    path = folder / "cases.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return cases.read_cases(settings(path, **split))


def table(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def test_rows_become_cases(tmp_path: Path) -> None:
    found = read(tmp_path, table(*ROWS))
    assert [case.case for case in found] == ["a", "b", "c"]
    assert found[0] == cases.Case("a", "p1", {"t1": "a1.nii", "t2": "a2.nii"}, "al.nii", "train", f"{tmp_path / 'cases.tsv'} row 2")
    assert found[2].set == "test"
    assert found[0].sources == {"t1": "a1.nii", "t2": "a2.nii", "label": "al.nii"}


def test_channels_keep_the_configuration_s_order(tmp_path: Path) -> None:
    found = read(tmp_path, "t2\tset\tcase\tlabel\tt1\tpatient\nx2\t\ta\tl\tx1\tp\n")
    assert list(found[0].images.items()) == [("t1", "x1"), ("t2", "x2")]
    assert found[0].set == "train"


@pytest.mark.parametrize("kind", ["bom", "crlf", "blank lines", "comment", "spaces", "no last newline", "quoted"])
def test_what_editors_do_to_a_table_changes_nothing(tmp_path: Path, kind: str) -> None:
    plain = read(tmp_path, table(*ROWS))
    text = {
        "bom": "\ufeff" + table(*ROWS),
        "crlf": table(*ROWS).replace("\n", "\r\n"),
        "blank lines": table(ROWS[0], "", "\t\t\t\t\t", *ROWS[1:], "", ""),
        "comment": table(ROWS[0], "# left out", *ROWS[1:]),
        "spaces": table(*[row.replace("\t", " \t ") for row in ROWS], header=HEADER.replace("\t", " \t")),
        "no last newline": table(*ROWS).rstrip(),
        "quoted": table(*[row.replace("a1.nii", '"a1.nii"') for row in ROWS]),
    }[kind]
    found = read(tmp_path, text)
    assert [(case.case, case.patient, case.sources, case.set) for case in found] == [
        (case.case, case.patient, case.sources, case.set) for case in plain
    ]


def test_row_numbers_are_the_file_s_own(tmp_path: Path) -> None:
    found = read(tmp_path, table("", "# note", *ROWS))
    assert found[0].row.endswith("row 4")


MISTAKES = [
    (table(ROWS[0] + "\tx", header=HEADER + "\tflair"), "row 1: unknown column 'flair', expected case, patient, t1, t2, label, set"),
    (table("a\tp1\tx\tl", header="case\tpatient\tt1\tlabel"), "row 1: column 't2' is missing, found case, patient, t1, label"),
    (table(ROWS[0], header=HEADER.replace("\t", ",")), "row 1: column 'case' is missing"),
    (table(ROWS[0] + "\tx", header=HEADER + "\tt1"), "row 1: column 't1' stands more than once"),
    (table(ROWS[0], ROWS[0].replace("p1", "p3")), "row 3: case 'a' stands in"),
    (table(ROWS[0], ROWS[0].replace("a\t", "A\t", 1)), "row 3: case 'A' stands in"),
    (table(ROWS[0], ROWS[1].replace("train", "test")), "row 3: the patient is in set 'test' here and in 'train' in"),
    (table(ROWS[0], "b\tp1\tb1.nii"), "row 3: found 3 cells, expected 6"),
    (table(ROWS[0] + "\t"), "row 2: found 7 cells, expected 6"),
    (table(ROWS[0].replace("a\t", "a b\t", 1)), "row 2: 'case' is 'a b', expected letters, digits, _ and - only"),
    (table(ROWS[0].replace("p1", "../p1")), "row 2: 'patient' is empty or has other characters than letters, digits, _ and -"),
    (table(ROWS[0].replace("p1", "")), "row 2: 'patient' is empty or has other characters"),
    (table(ROWS[0].replace("a1.nii", "")), "row 2: 't1' is '', expected a text that is not empty"),
    (table(ROWS[0].replace("train", "val")), "row 2: 'set' is 'val', expected one of train, test"),
    (table(ROWS[0], ROWS[1].replace("bl.nii\ttrain", '"bl.nii\ttrain'), ROWS[2]), "row 4: unexpected end of data; a quotation mark"),
    (table(), "found no case, expected at least one"),
    ("", "empty, expected a header line"),
    (table(*ROWS).encode("utf-16"), "not readable as a UTF-8 text"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[text for _, text in MISTAKES])
def test_a_mistake_is_one_line_with_file_and_row(tmp_path: Path, text: str | bytes, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "cases.tsv")) and expected in message and "\n" not in message


@pytest.mark.parametrize("text", [text for text, _ in MISTAKES if isinstance(text, str)] + [ROWS[0], ROWS[0].replace("\t", ";")])
def test_no_message_quotes_a_patient(tmp_path: Path, text: str) -> None:
    """Also when the header line is missing, or cells are separated by something else."""
    for patient, name in (("p1", "MRN0077121"), ("p2", "MRN0077122"), ("p3", "MRN0077123")):
        text = text.replace(patient, name)
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert "MRN00" not in str(caught.value)


def test_two_ways_to_name_a_test_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="use one of the two"):
        read(tmp_path, table(*ROWS), test_fraction=0.2)
    assert len(read(tmp_path, table(*ROWS[:2]), test_fraction=0.2)) == 2


def test_a_missing_table_or_a_folder_is_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.tsv", tmp_path):
        with pytest.raises(UserError, match="not readable"):
            cases.read_cases(settings(path))


def test_missing_sources_are_named_with_their_row(tmp_path: Path) -> None:
    (tmp_path / "here.nii").touch()
    row = f"a\tp1\t{tmp_path / 'here.nii'}\t{tmp_path / 'gone.nii'}\tmade/l.nii\t"
    found = read(tmp_path, table(row))
    assert cases.missing_sources(found, "made") == [f"{tmp_path / 'cases.tsv'} row 2: t2 of case 'a' is missing: {tmp_path / 'gone.nii'}"]
    assert len(cases.missing_sources(found)) == 2


def decathlon(folder: Path, **changes: Any) -> list[cases.Case]:
    description = {
        "modality": {"0": "T1", "1": "T2"},
        "training": [{"image": "./imagesTr/x_001.nii.gz", "label": "./labelsTr/x_001.nii.gz"}],
        "test": ["./imagesTs/x_002.nii.gz"],
        **changes,
    }
    (folder / "dataset.json").write_text(json.dumps({key: value for key, value in description.items() if value is not None}))
    return cases.read_cases(settings(folder, "msd"))


def test_a_decathlon_folder(tmp_path: Path) -> None:
    (found,) = decathlon(tmp_path)
    path = str(tmp_path / "imagesTr/x_001.nii.gz")
    assert (found.case, found.patient, found.stacked, found.set) == ("x_001", "x_001", True, "train")
    assert found.images == {"t1": path, "t2": path}
    assert found.label == str(tmp_path / "labelsTr/x_001.nii.gz")


MSD_MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"modality": {"0": "T1"}}, "names 1 modalities, expected 2"),
    ({"modality": 2}, "or no 'modality'"),
    ({"modality": None}, "or no 'modality'"),
    ({"training": None}, "no list 'training'"),
    ({"training": ["imagesTr/x.nii.gz"]}, "no list 'training'"),
    ({"training": [{"image": "a.nii.gz"}]}, "no list 'training'"),
    ({"training": []}, "found no case"),
    ({"training": [{"image": "../a.nii.gz", "label": "l.nii.gz"}]}, "training[0]: path '../a.nii.gz' leads out of the folder"),
    ({"training": [{"image": "a.nii.gz", "label": "/l.nii.gz"}]}, "training[0]: path '/l.nii.gz' leads out of the folder"),
    ({"training": [{"image": "a b.nii.gz", "label": "l.nii.gz"}]}, "training[0]: name 'a b' has other characters"),
    ({"training": [{"image": f"{d}/a.nii.gz", "label": "l.nii.gz"} for d in "xy"]}, "training[1]: case 'a' stands in"),
]


@pytest.mark.parametrize(("changes", "expected"), MSD_MISTAKES, ids=[text for _, text in MSD_MISTAKES])
def test_a_mistake_in_a_decathlon_folder(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        decathlon(tmp_path, **changes)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_no_decathlon_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="missing; expected a Medical Segmentation Decathlon folder"):
        cases.read_cases(settings(tmp_path, "msd"))
    (tmp_path / "dataset.json").write_text("[1]")
    with pytest.raises(UserError, match="found list, expected a JSON object"):
        cases.read_cases(settings(tmp_path, "msd"))


@pytest.mark.parametrize("name", ["imagesTr/x_001.nii.gz", "labelsTr/x_001.nii.gz"])
def test_a_decathlon_folder_is_not_left_and_holds_files(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "task"
    (folder / name).mkdir(parents=True)
    (found,) = decathlon(folder)
    assert cases.missing_sources([found]) == [f"{folder / name}: a folder or device, expected a volume in one file; rename or remove it"]
    (folder / name).rmdir()
    (folder / name).symlink_to(tmp_path)
    with pytest.raises(UserError, match=r"training\[0\]: path .* leads out of the folder"):
        decathlon(folder)
