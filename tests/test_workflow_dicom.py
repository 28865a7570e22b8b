"""The workflow on a tree of DICOM studies: what runs, what runs again, and what a rejected case does."""

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydicom
import pytest
import yaml

import hospital
from checkout import copy_repository
from test_workflow import CONFIG, Workspace

TARGETS = ("ingest_report", "split")
ALL = {"ingest_case": 6, "ingest_report": 1, "split": 1}
ONE = {"ingest_case": 1, "ingest_report": 1, "split": 1}


class Tree(Workspace):
    """A copy of the repository with a tree of six patients in data/tree."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.tree = root / "data" / "tree"

    def configure(self, **changes: Any) -> None:
        (self.root / CONFIG).write_text(yaml.safe_dump(hospital.settings("data/tree", **changes)))

    def run(self, *arguments: str, check: bool = True) -> str:
        return self.snakemake("--cores", "2", *arguments, "--", *TARGETS, check=check)

    def next(self) -> dict[str, int]:
        return self.planned(*TARGETS)

    def rejected(self) -> list[str]:
        with (self.results / "ingest" / "verdicts.tsv").open() as stream:
            return [row["reason"] for row in csv.DictReader(stream, delimiter="\t") if row["case_verdict"] == "rejected" and row["role"] == "ct"]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    root = tmp_path_factory.mktemp("dicom")
    copy_repository(root)
    workspace = Tree(root)
    hospital.hospital(workspace.tree)
    workspace.configure()
    workspace.run()
    return workspace


@pytest.fixture(autouse=True)
def restored(workspace: Tree, tmp_path: Path) -> Iterator[None]:
    """The tree and the configuration as they were, times of files too."""
    shutil.copytree(workspace.tree, tmp_path / "kept")
    yield
    shutil.rmtree(workspace.tree)
    shutil.copytree(tmp_path / "kept", workspace.tree)
    workspace.configure()


def test_each_study_is_ingested_and_nothing_runs_twice(workspace: Tree) -> None:
    split = json.loads((workspace.results / "split.json").read_text())
    assert len(split["cases"]) == 6 and not split["excluded"] and not workspace.rejected()
    text = workspace.run("--dry-run")
    assert "Nothing to be done" in text and "note:" not in text  # nor is the tree surveyed again
    for path in workspace.tree.rglob("*"):
        os.utime(path)
    assert workspace.next() == {}


def test_a_changed_slice_and_a_new_study_concern_one_case(workspace: Tree) -> None:
    path = workspace.tree / "p3" / "ct" / "IM2"
    data = pydicom.dcmread(path)
    data.PixelData = bytes(reversed(data.PixelData))
    data.save_as(path)
    assert workspace.next() == ONE
    hospital.study(workspace.tree / "deep" / "er" / "p7", 7)
    assert workspace.next() == {**ONE, "ingest_case": 2}


def test_rules_rerun_what_reads_them(workspace: Tree) -> None:
    channels = hospital.settings("")["channels"]
    workspace.configure(channels=[{**channels[0], "match": {"modality": "CT", "description": "portal"}}])
    assert workspace.next() == ALL
    workspace.configure(dataset={**hospital.settings("data/tree")["dataset"], "label": {"prefer": "first"}})
    assert workspace.next() == {"ingest_report": 1, "split": 1}


def test_rejected_cases_stop_the_run_or_are_excluded(workspace: Tree) -> None:
    """A lost slice in one study, a second series in another, no label in a third: each with its reason, and none by a file's name."""
    series = pydicom.dcmread(workspace.tree / "p1" / "ct" / "IM0")
    hospital.study(workspace.tree / "p1" / "more", 1, hospital.slices(1, StudyInstanceUID=series.StudyInstanceUID))
    (workspace.tree / "p2" / "other" / "label").unlink()
    (workspace.tree / "p4" / "ct" / "IM2").unlink()
    text = workspace.run("--dry-run", check=False)
    assert re.search("^error: data/tree study P[0-9a-f_]+: (channel ct|label): .*; mend it, or set on_rejected: exclude$", text, re.MULTILINE)
    assert "Traceback" not in text
    workspace.configure(on_rejected="exclude")
    assert workspace.next() == {**ONE, "ingest_case": 3}
    workspace.run()
    reasons = workspace.rejected()
    for part in (
        "channel ct: found 2 volume(s) of 2 series fit the rules (modality), expected one volume; ",
        "label: no SEG or RTSTRUCT fits the first channel's series, expected one that refers to it",
        "slice gap 4.000 mm, expected 2.000 mm; a slice is missing",
    ):
        assert sum(part in reason for reason in reasons) == 1, part
    assert sorted(json.loads((workspace.results / "split.json").read_text())["excluded"].values()) == sorted(reasons)
    assert not any(name in reason for reason in reasons for name in ("IM", "p1", "p2", "p4", "MRN"))
