"""Atomic writing, canonical JSON and the frame of a command."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from teravox import files
from teravox.errors import UserError

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    files.write_text(target, "old")
    with pytest.raises(RuntimeError), files.atomic(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_file_does_not_appear_before_the_end(tmp_path: Path) -> None:
    target = tmp_path / "new" / "a.nii.gz"
    with files.atomic(target) as temporary:
        temporary.write_text("all")
        assert not target.exists()
        assert temporary.parent == target.parent and temporary.name.endswith("a.nii.gz")
    assert target.read_text() == "all"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_writer_leaves_no_final_name(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        f"import sys, argparse; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from pathlib import Path\nimport time\nfrom teravox import files\nfrom teravox.errors import run_command\n"
        "def main(args):\n"
        f"    with files.atomic(Path({str(tmp_path)!r}) / 'a.bin') as temporary:\n"
        "        temporary.write_text('half'); print('writing', flush=True); time.sleep(60)\n"
        "sys.exit(run_command(main, argparse.ArgumentParser()))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "writing\n"
    process.send_signal(number)
    status = process.wait(timeout=30)
    process.stdout.close()
    assert not (tmp_path / "a.bin").exists()
    if number == signal.SIGTERM:
        assert status == 128 + signal.SIGTERM
        assert list(tmp_path.iterdir()) == []


def test_writers_of_one_file_do_not_share_a_temporary_name(tmp_path: Path) -> None:
    with files.atomic(tmp_path / "a") as temporary:
        assert str(os.getpid()) in temporary.name
        temporary.touch()


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        files.write_json(tmp_path / "a.json", {})
    finally:
        os.umask(old)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_numbers_that_json_does_not_have_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(ValueError):
        files.canonical_json(value)
    with pytest.raises(ValueError):
        files.write_json(tmp_path / "a.json", value)
    assert list(tmp_path.iterdir()) == []


def test_canonical_json_has_one_spelling() -> None:
    assert files.canonical_json({"b": [1, 2.5, None, True], "a": "ü"}) == '{"a":"ü","b":[1,2.5,null,true]}'
    assert files.canonical_json({"a": 1, "b": 2}) == files.canonical_json({"b": 2, "a": 1})
    assert files.canonical_json({"a": 1}) != files.canonical_json({"a": "1"})


def test_json_comes_back(tmp_path: Path) -> None:
    value = {"name": "Müller", "values": [0.1, 1e-300, 2**60], "none": None}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == value


@pytest.mark.parametrize(("content", "text"), [(None, "missing"), (b"{", "not readable as JSON"), (b"\xff\xfe", "not readable as JSON")])
def test_a_bad_json_file_is_one_line(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=text) as caught:
        files.read_json(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


def test_what_the_file_system_refuses_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = (
        f"import sys, argparse; sys.path.insert(0, {str(SCRIPTS)!r})\n"
        "from pathlib import Path\nfrom teravox import files\nfrom teravox.errors import run_command\n"
        f"sys.exit(run_command(lambda args: files.write_text(Path({str(tmp_path / 'file' / 'a')!r}), ''), argparse.ArgumentParser()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and str(tmp_path / "file") in done.stderr
