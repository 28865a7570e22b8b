"""The whole workflow on a tiny cohort, and what makes its stages run again."""

import csv
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import yaml

from checkout import copy_repository
from teravox import hashing, metrics, model, pseudonyms, sharding, store
from teravox import split as splitting

CONFIG = "config/tiny.yaml"
HOSPITAL = "MRN0077120"  # begins each patient's identifier in the case table
EVALUATION = {"evaluate_case", "evaluate", "report", "ledger"}
FROM_TRAINING = {"train_fold", "predict_case", *EVALUATION}


class Workspace:
    """A copy of the repository's files with a tiny cohort and a configuration for it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results = root / "results"

    def snakemake(self, *arguments: str, check: bool = True) -> str:
        """Run snakemake as a user would; returns what it printed. The module's own interpreter, not a shell's PATH."""
        command = [sys.executable, "-m", "snakemake", "--configfile", CONFIG, *arguments]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=900)
        if check and done.returncode:
            raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
        if not check:
            assert done.returncode != 0
        return done.stdout + done.stderr

    def planned(self, *arguments: str) -> dict[str, int]:
        """Jobs that a dry run would execute, `all` left out: rule -> count."""
        text = self.snakemake("--cores", "2", "--dry-run", *arguments)
        jobs = {rule: int(count) for rule, count in re.findall(r"^([a-z_]+) +(\d+)$", text, re.MULTILINE)}
        if not jobs:
            assert "Nothing to be done" in text
        return {rule: count for rule, count in jobs.items() if rule not in ("all", "total")}

    def configure(self, **changes: object) -> None:
        """Write the configuration anew with top-level keys or blocks changed."""
        settings: dict[str, Any] = {
            "results": "results",
            "dataset": {"layout": "table", "path": "data/tiny/cases.tsv"},
            "split": {"folds": 2},
            "resample": {"spacing": 9},
            "shard": {"count": 2, "block_mb": 0.01, "compression": "blosc"},
            "train": {"folds": [0, 1], "levels": 3, "filters": 2, "steps": 6, "threads": 2},
            "predict": {"threads": 1},
            "evaluate": {"nsd_tolerance_mm": 2},
        }
        for key, value in changes.items():
            settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
        (self.root / CONFIG).write_text(yaml.safe_dump(settings))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("workflow")
    copy_repository(root)
    made = [sys.executable, "scripts/demo.py", "--out", "data/tiny", "--cases", "6", "--scale", "3"]
    subprocess.run(made, cwd=root, check=True, capture_output=True)
    table = root / "data" / "tiny" / "cases.tsv"
    (root / "data" / "tiny" / "case05").rename(root / "data" / "tiny" / f"{HOSPITAL}4_scan")
    text = re.sub(r"\tp0(\d)\t", rf"\t{HOSPITAL}\1\t", table.read_text())
    table.write_text(text.replace("tiny/case05", f"tiny/{HOSPITAL}4_scan"))
    workspace = Workspace(root)
    workspace.configure()
    workspace.snakemake("--cores", "2")
    return workspace


@pytest.fixture
def edited(workspace: Workspace) -> Iterator[list[tuple[Path, bytes]]]:
    """Files put in this list as (path, content) are restored after the test."""
    kept: list[tuple[Path, bytes]] = []
    yield kept
    for path, content in kept:
        path.write_bytes(content)
    workspace.configure()


def change(path: Path, content: bytes, kept: list[tuple[Path, bytes]]) -> None:
    kept.append((path, path.read_bytes()))
    path.write_bytes(content)


def test_run_writes_everything(workspace: Workspace) -> None:
    results = workspace.results
    rows = list(csv.DictReader((results / "evaluation" / "metrics.csv").open()))
    assert list(rows[0]) == [
        "case",
        "patient",
        "fold",
        "set",
        "label",
        "space",
        "dice",
        "iou",
        "hd95",
        "assd",
        "nsd",
        "volume_ml",
        "reference_volume_ml",
    ]
    split = json.loads((results / "split.json").read_text())
    assert {row["case"] for row in rows} == set(split["cases"])
    assert {row["set"] for row in rows} == {"validation", "test"} and {row["space"] for row in rows} == {"native", "grid"}
    assert len(rows) == 6 * 4 * 2  # cases, labels and region, spaces
    assert not list(results.rglob(".writing-*"))


def test_scores_are_those_of_the_files(workspace: Workspace) -> None:
    """A row of metrics.csv from the prediction and the source label on disk, read by nibabel alone."""
    rows = [
        row
        for row in csv.DictReader((workspace.results / "evaluation" / "metrics.csv").open())
        if row["case"] == "case01" and row["space"] == "native"
    ]
    prediction = nib.load(workspace.results / "predict" / "case01.nii.gz")
    source = nib.load(workspace.root / "data" / "tiny" / "case01" / "label.nii.gz")
    assert prediction.shape == source.shape and np.allclose(prediction.affine, source.affine, atol=1e-4)
    for row, values in zip(rows, ([1], [2], [3], [1, 2, 3]), strict=True):
        found, truth = (np.isin(np.asarray(image.dataobj), values) for image in (prediction, source))
        assert float(row["dice"]) == pytest.approx(2 * (found & truth).sum() / (found.sum() + truth.sum()), abs=1e-6)
        assert float(row["reference_volume_ml"]) == pytest.approx(truth.sum() * abs(np.linalg.det(source.affine[:3, :3])) / 1000, rel=1e-5)


def test_ledger_holds_every_artefact(workspace: Workspace) -> None:
    ledger = json.loads((workspace.results / "audit" / "ledger.json").read_text())
    assert {job["stage"] for job in ledger["jobs"]} == {
        "ingest",
        "split",
        "resample",
        "fingerprint",
        "shard",
        "plan",
        "train",
        "predict",
        "evaluate",
        "report",
    }
    for name, entry in ledger["artefacts"].items():
        path = workspace.results / name
        assert path.stat().st_size == entry["bytes"]
        if name.endswith((".nii", ".nii.gz")):
            assert hashing.volume_digest(*store.read(path)) == entry["content"]
    _, weights = model.load_model(workspace.results / "train" / "fold0")
    assert model.weights_digest(weights) == ledger["artefacts"]["train/fold0/weights.npz"]["content"]
    training = next(job for job in ledger["jobs"] if job["stage"] == "train")
    assert training["run"]["onednn"] is True and training["run"]["threads"] == 2 and training["run"]["machine"]["cpu_features"]
    assert training["seeds"] == {"train": 2020} and training["versions"]["tensorflow"]
    assert "reason" in training["run"]["pinning"]
    listed = {
        str(path.relative_to(workspace.results))
        for path in workspace.results.rglob("*")
        if path.suffix in (".nii", ".gz", ".npz", ".csv", ".tfrecord", ".png")
    }
    assert listed <= set(ledger["artefacts"])


def test_report_is_one_offline_page(workspace: Workspace) -> None:
    page = (workspace.results / "report.html").read_text()
    assert not re.findall(r"""(?:src|href)=["']?(?!data:|#)[^"' >]+""", page)
    assert page.count("data:image/png;base64,") == 6 + 3 + 1  # cases, box plots, learning curves
    for text in ("whole_tumour", "predicted peak MB", "oneDNN", "BLAKE3", metrics.EMPTY_RULE[:40]):
        assert text in page


def test_model_saw_no_case_it_predicts(workspace: Workspace) -> None:
    split = json.loads((workspace.results / "split.json").read_text())["cases"]
    for name, case in split.items():
        for fold in json.loads((workspace.results / "predict" / f"{name}.json").read_text())["models"]:
            trained = json.loads((workspace.results / "train" / f"fold{fold}" / "model.json").read_text())["training_cases"]
            assert case["patient"] not in {split[other]["patient"] for other in trained}


def test_second_run_does_nothing(workspace: Workspace) -> None:
    assert "Nothing to be done" in workspace.snakemake("--cores", "2")
    assert workspace.planned("--cores", "1") == {}


def test_touching_any_file_reruns_nothing(workspace: Workspace) -> None:
    big = workspace.results / "resample" / "case01" / "image.nii"
    assert any(path.stat().st_size > 10**6 for path in workspace.root.rglob("*") if path.is_file()) or big.exists()
    for path in workspace.root.rglob("*"):
        if path.is_file() and ".snakemake" not in path.parts:
            os.utime(path)
    assert workspace.planned() == {}


def test_dry_run_writes_nothing(workspace: Workspace) -> None:
    before = {path for path in workspace.root.rglob("*") if ".snakemake" not in path.parts}
    workspace.planned()
    assert {path for path in workspace.root.rglob("*") if ".snakemake" not in path.parts} == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("README.md", set()),
        ("scripts/pin.py", set()),
        ("envs/requirements.lock", set()),
        ("scripts/teravox/report.html.j2", {"report", "ledger"}),
        ("scripts/teravox/page.html.j2", {"report", "ledger"}),
        ("scripts/teravox/ingest_report.py", set()),
        ("scripts/teravox/ledger.py", {"ledger"}),
        ("scripts/teravox/metrics.py", EVALUATION),
        ("scripts/teravox/prediction.py", {"predict_case", *EVALUATION}),
        ("scripts/teravox/network/loss.py", FROM_TRAINING),
        ("scripts/teravox/shards.py", {"write_shard", *FROM_TRAINING}),
        ("scripts/teravox/shard_writer.py", {"write_shard", *FROM_TRAINING}),
        ("scripts/teravox/shard_reader.py", FROM_TRAINING),
        ("scripts/teravox/feed.py", FROM_TRAINING),
        ("scripts/shard.py", set()),
        ("scripts/teravox/shard_checks.py", set()),
        ("scripts/teravox/shard_views.py", set()),
        ("scripts/teravox/fingerprint.py", {"fingerprint_fold", *FROM_TRAINING}),
        ("scripts/resample.py", {"resample_case", "fingerprint_fold", "write_shard", "plan", *FROM_TRAINING}),
    ],
)
def test_editing_a_file_reruns_what_uses_it(workspace: Workspace, edited: list[tuple[Path, bytes]], name: str, expected: set[str]) -> None:
    path = workspace.root / name
    change(path, path.read_bytes() + b"\n# edited\n", edited)
    assert set(workspace.planned()) == expected


def test_memory_reruns_nothing(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    workspace.configure(resample={"memory_mb": 300, "ceiling_spacings": [4]})
    assert workspace.planned() == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"shard": {"check": "size"}}, set()),
        ({"train": {"prefetch_mb": 3}, "shard": {"target_mb": 5}}, {"plan", "report", "ledger"}),
        ({"shard": {"block_mb": 0.02}}, {"write_shard", *FROM_TRAINING}),
        ({"shard": {"compression": "none"}}, {"write_shard", *FROM_TRAINING}),
        ({"train": {"patch_size": [8, 8, 8]}}, {"plan", *FROM_TRAINING}),
    ],
)
def test_a_setting_of_shards_reruns_what_reads_it(
    workspace: Workspace, edited: list[tuple[Path, bytes]], changes: dict[str, Any], expected: set[str]
) -> None:
    workspace.configure(**changes)
    assert set(workspace.planned()) == expected


def test_shards_are_what_was_resampled(workspace: Workspace) -> None:
    arguments = ["scripts/shard.py", "verify", "results/shards", "--against", "results/resample"]
    done = subprocess.run([sys.executable, *arguments], cwd=workspace.root, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("no fault\n"), done.stdout + done.stderr
    assert "indexes against results/audit/ledger.json" in done.stdout and "every voxel against results/resample" in done.stdout
    rows = list(csv.DictReader((workspace.results / "plan_shards.tsv").open(), delimiter="\t"))
    assert [row["shard"] for row in rows] == sharding.shard_names(2) and {row["proposed_count"] for row in rows} == {"1"}
    native = {"image.nii": 0, "label.nii": 0}
    for row in rows:
        index = json.loads((workspace.results / "shards" / f"{row['shard']}.index.json").read_text())
        assert index["codec"]["name"] == "blosc" and int(row["cases"]) == len(index["cases"])
        volumes = [nib.load(workspace.results / "resample" / case / name).dataobj for case in index["cases"] for name in native]
        assert float(row["mb"]) == round(sum(volume.nbytes for volume in map(np.asanyarray, volumes)) / 1e6, 1)


def test_a_training_on_patches_is_another_and_says_what_it_did_not_check(workspace: Workspace, tmp_path: Path) -> None:
    settings = json.loads((workspace.results / "train" / "fold0" / "model.json").read_text())["provenance"]["settings"]
    settings["train"] = {**settings["train"], "patch_size": [12, 9, 16], "patch_foreground": 0.7}
    arguments = [
        "--fold=0",
        "--fingerprint=results/fingerprint/fold0.json",
        "--shards=results/shards",
        "--count=2",
        f"--settings={json.dumps(settings)}",
    ]
    found = []
    for check in ("checksum", "size"):
        line = [sys.executable, "scripts/train.py", *arguments, f"--check={check}", f"--out={tmp_path / check}"]
        done = subprocess.run(line, cwd=workspace.root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert ("CHECKSUMS ARE NOT" in done.stdout) == (check == "size")
        assert json.loads((tmp_path / check / "model.run.json").read_text())["shard_check"] == check
        found.append(json.loads((tmp_path / check / "model.json").read_text())["provenance"]["artefacts"])
    assert found[0] == found[1]
    whole = json.loads((workspace.results / "train" / "fold0" / "model.json").read_text())["provenance"]["artefacts"]
    assert found[0]["weights.npz"] != whole["weights.npz"]


def test_a_damaged_shard_stops_a_training_with_one_line(workspace: Workspace, tmp_path: Path) -> None:
    shutil.copytree(workspace.results / "shards", tmp_path / "shards")
    for shard in (tmp_path / "shards").glob("*.tfrecord"):
        data = bytearray(shard.read_bytes())
        if data:  # the other shard has no case
            data[len(data) // 2] ^= 1
        shard.write_bytes(data)
    settings = json.dumps(json.loads((workspace.results / "train" / "fold0" / "model.json").read_text())["provenance"]["settings"])
    arguments = ["--fold=0", "--fingerprint=results/fingerprint/fold0.json", f"--shards={tmp_path / 'shards'}", "--count=2", f"--settings={settings}"]
    line = [sys.executable, "scripts/train.py", *arguments, f"--out={tmp_path / 'out'}"]
    done = subprocess.run(line, cwd=workspace.root, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    told = [text for text in done.stderr.splitlines() if "damaged" in text]  # TensorFlow tells nothing of it
    assert len(told) == 1 and told[0].startswith("error: ") and "is damaged (SHA-256 differs from the index)" in told[0]
    assert not (tmp_path / "out" / "model.json").exists()
    for shard in (tmp_path / "shards").glob("*.tfrecord"):
        shard.write_bytes(shard.read_bytes()[:-1])
    done = subprocess.run(line, cwd=workspace.root, capture_output=True, text=True)
    assert done.returncode == 1 and "expected" in done.stderr.splitlines()[-1] and "(index)" in done.stderr.splitlines()[-1]


def test_the_ceiling_is_a_target_of_its_own(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    workspace.configure(resample={"ceiling_spacings": [5, 12]})
    text = workspace.snakemake("--cores", "2", "ceiling")
    assert "what a segmentation that is perfect on the grid scores, over 6 cases:" in text
    rows = list(csv.DictReader((workspace.results / "ceiling.tsv").open(), delimiter="\t"))
    assert [(row["spacing_mm"], row["label"]) for row in rows[::3]] == [("9", "necrotic_core"), ("5", "necrotic_core"), ("12", "necrotic_core")]
    dice = {row["spacing_mm"]: float(row["dice_mean"]) for row in rows if row["label"] == "oedema"}
    assert 1 > dice["5"] > dice["9"] > dice["12"] > 0.2
    resampled = [json.loads(path.read_text()) for path in sorted(workspace.results.glob("resample/*/case.json"))]
    assert dice["9"] == pytest.approx(np.mean([case["ceiling"]["oedema"]["dice"] for case in resampled]), abs=1e-6)
    assert workspace.planned() == {} and "Nothing to be done" in workspace.snakemake("--cores", "2", "ceiling")
    workspace.configure(resample={"ceiling_spacings": [5]})
    assert workspace.planned("ceiling") == {"ceiling_case": 6, "ceiling": 1}
    page = (workspace.results / "report.html").read_text()
    assert "The ceiling" in page and f"{np.mean([case['ceiling']['oedema']['dice'] for case in resampled]):.4f}" in page


def test_an_automatic_spacing_is_the_median_of_the_headers(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    split = json.loads((workspace.results / "split.json").read_text())
    used = [name for name, case in split["cases"].items() if case["set"] != "test"]
    assert 0 < len(used) < 6
    edges = [json.loads((workspace.results / "ingest" / name / "case.json").read_text())["spacing_mm"] for name in used]
    np.testing.assert_allclose(split["spacing_mm"], np.median(edges, axis=0))
    workspace.configure(resample={"spacing": "auto"})
    planned = workspace.planned()
    assert planned["resample_case"] == 6 and "ingest_case" not in planned and "split" not in planned
    workspace.configure(resample={"spacing": split["spacing_mm"]})  # a number or the same by itself: one setting
    assert workspace.planned() == planned
    workspace.configure(results="results_auto", resample={"spacing": "auto"})
    text = workspace.snakemake("--cores", "2", "results_auto/resample/case01/case.json")
    assert "resample_case" in text
    found = json.loads((workspace.root / "results_auto" / "resample" / "case01" / "case.json").read_text())
    np.testing.assert_allclose(np.linalg.norm(np.array(found["grid"]["affine"])[:3, :3], axis=0), split["spacing_mm"], rtol=1e-5)
    shutil.rmtree(workspace.root / "results_auto")


def test_no_output_holds_an_identifier(workspace: Workspace) -> None:
    """Neither a document nor a log nor a volume, although the paths of one case hold its patient's."""
    table = list(csv.DictReader((workspace.root / "data" / "tiny" / "cases.tsv").open(), delimiter="\t"))
    assert all(row["patient"].startswith(HOSPITAL) for row in table) and HOSPITAL in table[4]["t1"]
    for path in workspace.results.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert HOSPITAL.encode() not in (gzip.decompress(content) if path.suffix == ".gz" else content), path
        assert HOSPITAL not in path.name

    key = pseudonyms.read_key(workspace.root / "private" / "pseudonym.key")
    expected = {row["case"]: pseudonyms.pseudonym(row["patient"], key) for row in table}
    split = json.loads((workspace.results / "split.json").read_text())["cases"]
    assert {case: entry["patient"] for case, entry in split.items()} == expected
    rows = csv.DictReader((workspace.results / "evaluation" / "metrics.csv").open())
    assert {(row["case"], row["patient"]) for row in rows} == set(expected.items())
    command = json.loads((workspace.results / "ingest" / "case05" / "case.run.json").read_text())["command"]
    assert f"--image=t1=data/tiny/{expected['case05']}_scan/t1" in command

    # Shards and folds are those of the table's own identifiers, whatever the key.
    identifiers = {row["case"]: row["patient"] for row in table}
    for name in sharding.shard_names(2):
        index = json.loads((workspace.results / "shards" / f"{name}.index.json").read_text())
        assert {record["case"] for record in index["records"]} == set(sharding.cases_in(name, 2, split, identifiers))
    documents = [json.loads((workspace.results / "ingest" / case / "case.json").read_text()) for case in split]
    named = splitting.split([{**document, "patient": identifiers[document["case"]]} for document in documents], 2, 2020, 0)
    assert {case: entry["fold"] for case, entry in named.items()} == {case: entry["fold"] for case, entry in split.items()}


def test_another_key_reruns_everything(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    change(workspace.root / "private" / "pseudonym.key", b"ab" * 32, edited)
    planned = workspace.planned()
    assert (
        planned["ingest_case"] == 6 and planned["write_shard"] == 2 and {"split", *FROM_TRAINING} - {"predict_case", "evaluate_case"} <= set(planned)
    )


def test_a_moved_key_reruns_nothing(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    (workspace.root / "private").rename(workspace.root / "elsewhere")
    try:
        workspace.configure(private="elsewhere")
        assert workspace.planned() == {}
    finally:
        (workspace.root / "elsewhere").rename(workspace.root / "private")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "error: private/pseudonym.key: missing, and results/ingest/case01/case.json was made with it; bring it back, or move results away"),
        (b"SECRET", "error: private/pseudonym.key: not a key of 64 hexadecimal digits; bring back the file from a copy"),
    ],
)
def test_a_lost_or_damaged_key_is_one_line(workspace: Workspace, edited: list[tuple[Path, bytes]], content: bytes | None, line: str) -> None:
    path = workspace.root / "private" / "pseudonym.key"
    change(path, content or b"", edited)
    if content is None:
        path.unlink()
    text = workspace.snakemake("--cores", "2", check=False)
    assert line in text and "Traceback" not in text and "SECRET" not in text


def test_the_demo_cohort_alone_has_the_public_key(workspace: Workspace) -> None:
    """Also not a path that only begins with the demo's folder."""
    table = workspace.root / "config" / "cases.tsv"
    demo = table.read_text()
    (workspace.root / "data" / "other.tsv").write_text(demo.replace("data/demo/case07/t1.nii.gz", "data/demo/../tiny/case01/t1.nii.gz"))
    for path, expected in (("config/cases.tsv", {"public"}), ("data/other.tsv", {"private/pseudonym.key"})):
        configuration = {**yaml.safe_load((workspace.root / "config" / "config.yaml").read_text()), "results": "results_demo"}
        configuration["dataset"]["path"] = path
        (workspace.root / "data" / "demo.yaml").write_text(yaml.safe_dump(configuration))
        command = [sys.executable, "-m", "snakemake", "--dry-run", "--printshellcmds", "--configfile", "data/demo.yaml"]
        done = subprocess.run(command, cwd=workspace.root, capture_output=True, text=True, check=True)
        assert set(re.findall(r"--key (\S+)", done.stdout + done.stderr)) == expected
        assert "--patient=p0" not in done.stdout + done.stderr


def test_dry_run_draws_no_key(workspace: Workspace) -> None:
    kept = {name: (workspace.root / name).rename(workspace.root / f"kept-{name}") for name in ("private", "results")}
    try:
        assert workspace.planned()["ingest_case"] == 6
        assert not (workspace.root / "private").exists()
    finally:
        for name, path in kept.items():
            path.rename(workspace.root / name)


def test_results_without_records_are_refused(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    """Snakemake compares nothing then: a changed seed would leave the old numbers standing."""
    hidden = workspace.root / ".snakemake-elsewhere"
    (workspace.root / ".snakemake").rename(hidden)
    try:
        workspace.configure(seed=7)
        text = workspace.snakemake("--cores", "2", check=False)
    finally:
        shutil.rmtree(workspace.root / ".snakemake", ignore_errors=True)
        hidden.rename(workspace.root / ".snakemake")
    assert "error: results: was made in another folder, or .snakemake was deleted" in text and "Traceback" not in text


def test_lost_volume_of_an_ingested_case_is_made_again(workspace: Workspace) -> None:
    path = workspace.results / "ingest" / "case01" / "label.nii.gz"
    kept = path.rename(path.with_name("kept"))
    try:
        assert workspace.planned()["ingest_case"] == 1
    finally:
        kept.rename(path)


def test_damaged_volume_is_never_scored(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    path = workspace.results / "resample" / "case01" / "label.nii"
    content = path.read_bytes()
    change(path, content[:-1] + bytes([content[-1] ^ 1]), edited)
    workspace.configure(evaluate={"nsd_tolerance_mm": 3})
    text = workspace.snakemake("--cores", "2", "results/evaluation/cases/case01.json", check=False)
    assert "error: results/resample/case01/label.nii: content hash " in text


def test_tolerance_reruns_no_training(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    workspace.configure(evaluate={"nsd_tolerance_mm": 3})
    assert set(workspace.planned()) == EVALUATION


def test_placement_policy_reruns_no_training(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    workspace.configure(numa={"policy": "none"})
    assert "train_fold" not in workspace.planned()


def test_changed_slice_reruns_its_case(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    """One byte of one DICOM slice, even under an old modification time; the same file merely touched does nothing."""
    path = sorted((workspace.root / "data" / "tiny" / "case02" / "t1").glob("*"))[3]
    old = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    change(path, bytes(content), edited)
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns - 10**12))
    text = workspace.snakemake("--cores", "2", "--dry-run")
    assert re.findall(r"rule ingest_case:.*?wildcards: case=(\w+)", text, re.DOTALL)[0] == "case02"
    assert workspace.planned()["ingest_case"] == 1


def test_one_stage_can_be_forced(workspace: Workspace) -> None:
    assert set(workspace.planned("--forcerun", "resample_case")) == {"resample_case", "fingerprint_fold", "write_shard", "plan", *FROM_TRAINING}
    assert set(workspace.planned("--forcerun", "evaluate_case")) == EVALUATION


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"train": {"stepz": 3}}, "error: configuration: unknown key 'train.stepz', did you mean 'steps'?"),
        ({"channels": [{"name": "t1w"}], "evaluate": {"picture_channel": ""}}, "error: data/tiny/cases.tsv row 1: column 't1w' is missing"),
        ({"dataset": {"path": "data/none.tsv"}}, "error: data/none.tsv: not readable"),
    ],
)
def test_mistake_in_configuration_is_one_line(workspace: Workspace, edited: list[tuple[Path, bytes]], changes: dict[str, object], line: str) -> None:
    workspace.configure(**changes)
    text = workspace.snakemake("--cores", "2", check=False)
    assert line in text
    assert "Traceback" not in text and "rule " not in text


def test_missing_file_is_named_before_any_job(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    table = workspace.root / "data" / "tiny" / "cases.tsv"
    change(table, table.read_bytes().replace(b"case01/t2.nii.gz", b"case01/gone.nii.gz"), edited)
    text = workspace.snakemake("--cores", "2", check=False)
    assert "error: data/tiny/cases.tsv row 2: t2 of case 'case01' is missing: data/tiny/case01/gone.nii.gz" in text
    assert "Traceback" not in text and "rule " not in text


def test_rejected_case_stops_or_is_excluded(workspace: Workspace, edited: list[tuple[Path, bytes]]) -> None:
    """Runs last: it leaves the workspace with another cohort."""
    path = workspace.root / "data" / "tiny" / "case06" / "flair.nii.gz"
    change(path, path.read_bytes()[: path.stat().st_size // 2], edited)
    text = workspace.snakemake("--cores", "2", check=False)
    reason = "data/tiny/case06/flair.nii.gz: damaged compressed file"
    assert f"rejected: {reason}" in text and "Traceback" not in text.split("Logfile", 1)[1]
    case = json.loads((workspace.results / "ingest" / "case06" / "case.json").read_text())
    assert case["verdict"] == "rejected" and case["reason"].startswith(reason)
    assert {path.name for path in (workspace.results / "ingest" / "case06").iterdir()} == {"case.json", "case.run.json"}

    workspace.snakemake("--cores", "2", "ingest_report")  # although on_rejected is stop
    page = (workspace.results / "ingest" / "report.html").read_text()
    assert "1 of 6 cases rejected: the run stops" in page and reason in page and "<td>damaged compressed file</td>" in page
    assert page.count("data:image/png;base64,") == 5 * 4
    rows = list(csv.DictReader((workspace.results / "ingest" / "verdicts.tsv").open(), delimiter="\t"))
    assert len(rows) == 6 * 5 and {row["case_verdict"] for row in rows if row["case"] == "case06"} == {"rejected"}
    assert HOSPITAL not in page and workspace.planned("ingest_report") == {}

    workspace.configure(on_rejected="exclude")
    workspace.snakemake("--cores", "2")
    assert reason in (workspace.results / "report.html").read_text()
    assert list(json.loads((workspace.results / "split.json").read_text())["excluded"]) == ["case06"]
    assert "case06" not in (workspace.results / "evaluation" / "metrics.csv").read_text()
