"""The verdicts of ingestion as a table and a page."""

import base64
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image as png

import ingest_report as command
from builders import AFFINE, write_nifti
from teravox import files, hashing, ingest_report, store
from teravox.errors import UserError, parse_settings
from test_ingest import LABEL, run

SHAPE = (10, 8, 6)
IMAGE = (np.arange(480).reshape(SHAPE) - 100).astype(np.int16)
LINE = "/data/<b>x</b>/t1.nii: slice gap 4.000 mm after slice 3, expected 2.000 mm; get the missing files"


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    """Three cases as the command writes them, accepted and rejected, and two with what those do not have."""
    folder = tmp_path / "ingest"
    image, label = write_nifti(tmp_path / "t1.nii.gz", IMAGE, AFFINE), write_nifti(tmp_path / "label.nii.gz", LABEL, AFFINE)
    run(folder / "plain", {"t2": image, "t1": image}, label)
    run(folder / "bad", {"t2": tmp_path / "a\tb.nii", "t1": image}, label)
    run(folder / "none", {"t2": image, "t1": image}, tmp_path / "none.nii")
    changed = run(folder / "changed", {"t2": image, "t1": image}, label)
    changed["verdict"] = changed["channels"]["t2"]["verdict"] = "corrected"
    changed["channels"]["t2"]["corrections"] = ["padding replaced", "inverted once"]
    changed["label"]["notes"] = ["no voxel is labelled"]
    changed["files"] = [
        {"role": "t1", "file": "1 of 70", "status": "used", "reason": None},
        {"role": "t2", "file": "3 of 70", "status": "skipped", "reason": "no image"},
        {"role": "t2", "file": "9 of 70", "status": "skipped", "reason": "no image"},
        {"role": "label", "file": "1 of 2", "status": "skipped", "reason": "another series"},
    ]
    files.write_json(folder / "changed" / "case.json", changed)
    gap = json.loads((folder / "bad" / "case.json").read_text())
    files.write_json(folder / "gap" / "case.json", {**gap, "reason": LINE, "channels": {"t1": {"verdict": "rejected", "notes": ["of a volume"]}}})
    for name in ("plain", "bad", "none", "changed", "gap"):
        document = json.loads((folder / name / "case.json").read_text())
        files.write_json(folder / name / "case.json", {**document, "case": name})
    return folder


def documents(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/case.json"))]


def page(folder: Path, on_rejected: str = "stop") -> str:
    return ingest_report.render(folder, documents(folder), on_rejected)


def test_a_row_per_case_and_role(cohort: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(ingest_report.table(documents(cohort))), delimiter="\t", quoting=csv.QUOTE_NONE))
    assert [(row["case"], row["role"]) for row in rows] == [
        (case, role) for case in ("bad", "changed", "gap", "none", "plain") for role in ("t2", "t1", "label")
    ]
    assert not any(None in row or None in row.values() for row in rows)
    found = {(row["case"], row["role"]): row for row in rows}
    assert found["plain", "t1"] == {
        "case": "plain",
        "role": "t1",
        "case_verdict": "ok",
        "verdict": "ok",
        "reason": "",
        "corrections": "",
        "notes": "",
        "format": "nifti",
        "shape": "10x8x6",
        "spacing_mm": "0.7x0.5x2",
        "files_skipped": "0",
    }
    assert found["changed", "t1"]["verdict"] == "ok" and found["changed", "t1"]["case_verdict"] == "corrected"
    assert found["changed", "t2"]["corrections"] == "padding replaced; inverted once" and found["changed", "t2"]["files_skipped"] == "2"
    assert found["changed", "label"]["notes"] == "no voxel is labelled"
    assert found["gap", "t1"]["verdict"] == "rejected" and found["gap", "t2"]["verdict"] == "" and found["gap", "t1"]["reason"] == LINE
    assert found["bad", "t1"]["reason"].endswith("a b.nii: missing")  # the tab of its name does not break the row


def test_the_page_says_what_to_mend(cohort: Path) -> None:
    text = page(cohort)
    assert re.findall(r"<div><b>(\d+)</b>(\w+)</div>", text) == [("1", "ok"), ("1", "corrected"), ("3", "rejected")]
    assert "3 of 5 cases rejected: the run stops" in text and "the run leaves them out" in page(cohort, "exclude")
    assert '<tr><td>missing</td><td class="n">2</td></tr>\n<tr><td>slice gap N mm after slice N</td><td class="n">1</td></tr>' in text
    assert re.findall(r"<tr><td>(\w+)</td><td(?: class=\"warn\")?>(?:ok|corrected|rejected)</td>", text) == ["bad", "gap", "none", "changed", "plain"]
    assert "/data/&lt;b&gt;x&lt;/b&gt;/t1.nii: slice gap" in text and "<b>x</b>" not in text
    assert "<b>corrected</b> t2: inverted once" in text and "label: no voxel is labelled" in text
    assert "<td>changed</td><td>t2</td><td>3 of 70, 9 of 70</td><td>no image</td>" in text and "1 of 70" not in text
    settings = json.loads((cohort / "plain" / "case.json").read_text())["provenance"]["settings"]
    assert f"<code>{hashing.text_digest(files.canonical_json(settings))}</code>" in text


def test_an_accepted_cohort_needs_no_mending(cohort: Path) -> None:
    cases = [case for case in documents(cohort) if case["case"] == "plain"]
    text = ingest_report.render(cohort, cases, "stop")
    assert "cases rejected" not in text and "No file was left out" in text


def test_the_page_opens_offline_and_is_the_same_every_time(cohort: Path) -> None:
    text = page(cohort)
    assert not re.findall(r"""(?:src|href)=["']?(?!data:|#)[^"' >]+""", text) and "@import" not in text and "url(" not in text
    assert text == page(cohort)
    assert ingest_report.table(documents(cohort)) == ingest_report.table(documents(cohort))


def test_pictures_are_the_middle_planes(cohort: Path) -> None:
    """The patient's right on the left and anterior at the top, at the plane's true proportions, of accepted cases alone."""
    text = page(cohort)
    found = re.findall(r'<img [^>]*width="(\d+)" height="(\d+)" src="data:image/png;base64,([^"]+)"', text)
    assert len(found) == 4
    width, height, data = found[0]
    assert int(width) / int(height) == pytest.approx(10 * 0.7 / (8 * 0.5), abs=0.02)
    grey = png.imread(io.BytesIO(base64.b64decode(data)))[..., 0]
    assert grey.shape == (8, 10)
    for row in range(8):
        for column in range(10):
            value = int(IMAGE[9 - column, 7 - row, 3])
            plane = IMAGE[:, :, 3]
            low, high = np.percentile(plane, [1, 99])
            assert grey[row, column] == pytest.approx(np.clip((value - low) / (high - low), 0, 1), abs=2 / 255)  # matplotlib rounds down twice


def test_a_large_plane_is_shown_small(tmp_path: Path) -> None:
    volume = np.zeros((500, 200, 3), np.int16)
    volume[250:] = 7
    found = ingest_report.picture(volume, np.eye(4))
    grey = png.imread(io.BytesIO(base64.b64decode(found["data"])))[..., 0]
    assert grey.shape == (34, 84) and (found["width"], found["height"]) == (96, 38)
    assert (grey[:, :40] == 1).all() and (grey[:, -40:] == 0).all()  # left of the picture is the patient's right, so high x


def test_pictures_stay_within_what_may_be_read(cohort: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = json.loads((cohort / "plain" / "case.json").read_text())
    for limit, names in ((2 * IMAGE.nbytes, ["t2", "t1"]), (2 * IMAGE.nbytes - 1, ["t2"]), (0, [])):
        monkeypatch.setattr(ingest_report, "PICTURE_BYTES", limit)
        assert [picture["name"] for picture in ingest_report.pictures(cohort / "plain", case)] == names


def test_a_damaged_volume_is_not_shown(cohort: Path) -> None:
    store.write(cohort / "plain" / "t1.nii.gz", IMAGE + 1, AFFINE)
    with pytest.raises(UserError, match=r"plain/t1\.nii\.gz: content hash"):
        page(cohort)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("a/b.nii: missing", "missing"),
        ("b.nii.gz: damaged gzip file (Compressed file ended); get the file again", "damaged gzip file"),
        ("b.nii: sform and qform differ by 3.2 mm, expected at most 0.001 mm; correct", "sform and qform differ by N mm"),
        ("b.nii: lies 0.25 voxels off the grid of data/x/t1.nii, expected at most 0.001", "lies N voxels off the grid of …"),
        ("b.nii: pixdim is [0.0, 1.0, 1.0], expected", "pixdim is"),
        ("b.nii: 12 voxels are NaN or infinite, expected finite numbers", "N voxels are NaN or infinite"),
        ("b.nii: label value 1e-05, expected 0, 1", "label value N"),
        ("no file is named", "no file is named"),
    ],
)
def test_kinds_of_reasons(reason: str, kind: str) -> None:
    assert ingest_report.kind_of(reason) == kind


def test_the_command(cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    header, names = "case\tpatient\tt1\tt2\tlabel\n", ("plain", "changed", "bad")
    (tmp_path / "cases.tsv").write_text(header + "".join(f"{name}\tMRN00771\tx\tx\tx\n" for name in names))
    settings = {
        "dataset": {"layout": "table", "path": str(tmp_path / "cases.tsv")},
        "channels": [{"name": "t1"}, {"name": "t2"}],
        "split": {"test_fraction": 0},
        "on_rejected": "stop",
    }
    arguments = command.argparse.Namespace(
        ingested=cohort, settings=parse_settings(json.dumps(settings)), private="private", out=tmp_path / "out" / "report.html"
    )
    written = []
    for _ in range(2):
        command.main(arguments)
        written.append({path.name: path.read_bytes() for path in (tmp_path / "out").iterdir() if path.name != "report.run.json"})
    assert set(written[0]) == {"report.html", "verdicts.tsv", "report.json"} and written[0] == written[1]
    assert written[0]["verdicts.tsv"].decode().count("\n") == 1 + 3 * 3
    assert json.loads(written[0]["report.json"])["verdicts"] == {"ok": 1, "corrected": 1, "rejected": 1}
    assert capsys.readouterr().out.splitlines()[0].endswith("report.html: 1 ok, 1 corrected, 1 rejected, 0.0 MB")
    assert not any(b"MRN00771" in content for content in written[0].values())
