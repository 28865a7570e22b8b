"""Documents of jobs and their run records."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from teravox import files, hashing, imports, ledger, records
from teravox.errors import UserError

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "split.py"


def write(path: Path, **changes: Any) -> None:
    arguments: dict[str, Any] = {"artefacts": {"a.bin": "1" * 64}, "inputs": {"x": "2" * 64}, "settings": {"k": 1}, "seeds": {"s": 3}, **changes}
    records.Recorder("split", str(SCRIPT)).write(path, {"found": [1, 2]}, **arguments)


def test_the_document_is_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        monkeypatch.setattr(sys, "argv", ["x", name])
        write(tmp_path / name / "split.json", run={"anything": name})
        time.sleep(0.01)
    assert (tmp_path / "a/split.json").read_bytes() == (tmp_path / "b/split.json").read_bytes()
    text = (tmp_path / "a/split.json").read_text()
    assert str(tmp_path) not in text and str(SCRIPT.parent) not in text
    assert json.loads(text) == {
        "found": [1, 2],
        "provenance": {
            "stage": "split",
            "artefacts": {"a.bin": "1" * 64},
            "inputs": {"x": "2" * 64},
            "settings": {"k": 1},
            "seeds": {"s": 3},
            "versions": imports.package_versions(SCRIPT),
        },
    }


def test_the_run_record_says_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", "x"])
    write(tmp_path / "split.json", run={"threads": 2})
    run = files.read_json(tmp_path / "split.run.json")
    assert run["command"] == ["split.py", "--out", "x"] and run["threads"] == 2 and run["stage"] == "split"
    assert run["seconds"] > 0 and run["started"].endswith("+00:00")
    assert 10_000_000 < run["peak_rss_bytes"] < 50_000_000_000
    assert run["code"] == records.code_digest(SCRIPT) and len(run["code"]) == 64
    assert set(run["machine"]) == {"cpu", "cpu_features", "cores_allowed", "kernel", "libc", "python"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["split.json", "split.run.json"]


@pytest.mark.parametrize(
    ("path", "expected"), [("r/split.json", "r/split.run.json"), ("s/00000-of-00004.index.json", "s/00000-of-00004.index.run.json")]
)
def test_the_run_record_s_name(path: str, expected: str) -> None:
    assert records.run_path(Path(path)) == Path(expected)


def test_the_code_s_hash_follows_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name, text in (("a", "x = 1\n"), ("b", "x = 2\n"), ("c", "x = 1\n")):
        root = tmp_path / name
        (root / "teravox").mkdir(parents=True)
        (root / "teravox" / "__init__.py").touch()
        (root / "teravox" / "m.py").write_text(text)
        (root / "s.py").write_text("from teravox import m\n")
        monkeypatch.setattr(imports, "LIBRARY", root / "teravox")
        found.append(records.code_digest(root / "s.py"))
    assert found[0] == found[2] != found[1]


def test_the_peak_is_this_process_s_own(tmp_path: Path) -> None:
    """A small process started from a large one does not report the large one's memory."""
    code = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); from teravox import records; print(records.peak_rss_bytes())"
    block = bytearray(600_000_000)
    block[::4096] = b"1" * len(block[::4096])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(block) == 600_000_000
    assert 5_000_000 < int(done.stdout) < 400_000_000


def test_the_commit_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imports, "LIBRARY", tmp_path / "teravox")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert records.commit() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert records.commit() == "unknown"


def test_the_commit_and_its_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]
        return subprocess.run(["git", "-C", tmp_path, *identity, *arguments], capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "f").write_text("1")
    git("init", "-q")
    git("add", "f")
    git("commit", "-qm", "m")
    monkeypatch.setattr(imports, "LIBRARY", tmp_path / "teravox")
    head = git("rev-parse", "HEAD")
    assert records.commit() == head
    (tmp_path / "untracked").touch()
    assert records.commit() == head
    (tmp_path / "f").write_text("2")
    assert records.commit() == f"{head}+changes"


def test_a_ledger_gathers_jobs_and_artefacts(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.bin").write_bytes(b"12345")
    write(tmp_path / "d" / "x.json")
    write(tmp_path / "y.json", artefacts={"d/../y.json": "3" * 64})
    found = ledger.ledger(tmp_path, [tmp_path / "d" / "x.json", tmp_path / "y.json"])
    assert [job["document"] for job in found["jobs"]] == ["d/x.json", "y.json"]
    assert found["jobs"][0]["digest"] == hashing.file_digest(tmp_path / "d" / "x.json")
    assert found["jobs"][0]["run"]["stage"] == "split" and found["jobs"][0]["inputs"] == {"x": "2" * 64}
    assert found["artefacts"]["d/a.bin"] == {"content": "1" * 64, "bytes": 5, "job": 0}
    assert set(found["artefacts"]) == {"d/a.bin", "y.json"}
    (tmp_path / "d" / "a.bin").unlink()
    with pytest.raises(UserError, match=r"a\.bin: missing, but .*x\.json records it"):
        ledger.ledger(tmp_path, [tmp_path / "d" / "x.json"])
