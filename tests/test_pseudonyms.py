"""Keyed hashes instead of identifiers, and the file that holds the key."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from builders import write_nifti
from teravox import manifest, pseudonyms
from teravox.errors import UserError
from test_ingest import call

KEY = bytes(range(32))
HASHES = [pseudonyms.pseudonym, pseudonyms.uid_hash, pseudonyms.name_hash]


def test_blake3_is_that_of_its_specification() -> None:
    """First 16 bytes of the published test vector for keyed_hash with an empty input and with the byte 0."""
    key = b"whats the Elvish word for friend"
    assert blake3(b"", key=key).hexdigest()[:32] == "92b2b75604ed3c761f9d6f62392c8a92"
    assert blake3(b"\0", key=key).hexdigest()[:32] == "6d7878dfff2f485635d39013278ae14f"


@pytest.mark.parametrize("function", HASHES)
def test_a_hash_depends_on_text_and_key(function: Callable[[str, bytes], str]) -> None:
    texts = [str(number) for number in range(2000)]
    assert len({function(text, KEY) for text in texts}) == len(texts)
    assert not {function(text, KEY) for text in texts} & {function(text, bytes(32)) for text in texts}
    assert function("12345678", KEY) == function("12345678", KEY)


def test_kinds_of_hashes_have_nothing_in_common() -> None:
    found = [function("1.2.3", KEY).removeprefix("P")[:12] for function in HASHES]
    assert len(set(found)) == 3


def test_a_pseudonym_is_an_identifier_of_a_case_table() -> None:
    for number in range(100):
        assert re.fullmatch("P[0-9a-f]{12}", pseudonyms.pseudonym(f"{number}", KEY))


def test_a_uid_hashes_alike_with_its_padding() -> None:
    assert pseudonyms.uid_hash("1.2.3\0", KEY) == pseudonyms.uid_hash("1.2.3", KEY) == pseudonyms.uid_hash("1.2.3 ", KEY)
    assert len(pseudonyms.uid_hash("1.2.3", KEY)) == 32


def test_a_name_need_not_be_utf_8() -> None:
    assert pseudonyms.name_hash(os.fsdecode(b"\xff"), KEY) != pseudonyms.name_hash(os.fsdecode(b"\xfe"), KEY)


def test_a_common_name_cannot_be_guessed_without_the_key(tmp_path: Path) -> None:
    (tmp_path / "DOE_JOHN.dcm").write_bytes(b"x")
    with_one, with_other = (manifest.take({"t1": str(tmp_path)}, key)[0]["t1"][0] for key in (KEY, bytes(32)))
    assert with_one["name"] != with_other["name"] and with_one["content"] == with_other["content"]


def test_a_collision_is_refused_without_naming_anyone(monkeypatch: pytest.MonkeyPatch) -> None:
    identifiers = [f"MRN{number}" for number in range(40)]
    assert len(set(pseudonyms.pseudonyms(identifiers * 2, KEY).values())) == 40
    monkeypatch.setattr(pseudonyms, "PSEUDONYM_DIGITS", 1)  # 16 pseudonyms for 40 patients
    with pytest.raises(UserError, match="two of 40 patients have the same") as caught:
        pseudonyms.pseudonyms(identifiers, KEY)
    assert "MRN" not in str(caught.value)


# Identifiers in paths


@pytest.mark.parametrize(
    ("identifier", "text", "expected"),
    [
        ("12345678", "/data/12345678/t1.nii.gz: missing", "/data/*/t1.nii.gz: missing"),
        ("12345678", "/data/PAT12345678_b/12345678-1.dcm", "/data/PAT*_b/*-1.dcm"),
        ("12345678", "1234567812345678", "**"),
        ("1234567", "/data/1234568/123456", "/data/1234568/123456"),
        ("p1", "/data/p1/p11/p1_t1.nii, p-p1", "/data/*/p11/*_t1.nii, p-*"),
        ("a_b-c", "x/a_b-c/a_b", "x/*/a_b"),
        ("1", "t1/1/11", "t1/*/11"),
        ("12345678", "nothing", "nothing"),
        ("12345678", "", ""),
        ("DOE_JOHN", f"{'DOE_JOHN_' * 500}", "*_" * 500),
    ],
)
def test_an_identifier_is_hidden_wherever_it_stands(identifier: str, text: str, expected: str) -> None:
    patient = pseudonyms.pseudonym(identifier, KEY)
    assert pseudonyms.hide(text, patient, KEY) == expected.replace("*", patient)


@pytest.mark.parametrize("missing", [False, True])
def test_ingestion_writes_no_identifier_of_a_path(tmp_path: Path, missing: bool) -> None:
    """Neither in the verdict nor in what it prints or records, whether the case is rejected or not."""
    folder, out, patient = tmp_path / "MRN0077121" / "scan_mrn", tmp_path / "out", pseudonyms.pseudonym("MRN0077121", KEY)
    folder.mkdir(parents=True)
    pseudonyms.write_key(tmp_path / "pseudonym.key", KEY)
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    image = write_nifti(folder / "MRN0077121.nii", array, change=lambda image: image.header.set_slope_inter(0.5, 0.25))
    label = folder / "none.nii" if missing else write_nifti(folder / "label.nii", np.zeros((3, 4, 5), np.uint8))
    settings = '--settings={"channels":[{"name":"t1"}],"labels":[{"name":"a","value":1}]}'
    paths = [f"--image=t1={image}", f"--label={label}", f"--key={tmp_path / 'pseudonym.key'}", f"--out={out}"]
    done = call("ingest", "--case=c1", f"--patient={patient}", "--on-rejected=record", settings, *paths)
    assert done.returncode == 0
    documents = [(out / name).read_text() for name in ("case.json", "case.run.json")]
    for text in (*documents, done.stdout.decode(), done.stderr.decode()):
        assert "MRN0077121" not in text
    assert f"{patient}/scan_mrn" in documents[1] and f"{patient}/scan_mrn" in done.stdout.decode()
    assert (f"{patient}/scan_mrn/none.nii: missing" in documents[0]) == missing


# The key file


def test_a_key_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path, key = tmp_path / "deep" / "private" / "pseudonym.key", pseudonyms.new_key()
    before = os.umask(0)
    try:
        pseudonyms.write_key(path, key)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert pseudonyms.read_key(path) == pseudonyms.key_of(str(path)) == key
    assert key != pseudonyms.new_key() and len(key) == 32


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "pseudonym.key"
    path.write_text("anything")
    with pytest.raises(UserError, match="was made by another run in the meantime"):
        pseudonyms.write_key(path, KEY)
    assert path.read_text() == "anything"
    (tmp_path / "link").symlink_to("nowhere")  # nor is a link followed
    with pytest.raises(UserError):
        pseudonyms.write_key(tmp_path / "link", KEY)
    assert not (tmp_path / "nowhere").exists()


def test_a_failure_leaves_no_half_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        pseudonyms.write_key(tmp_path / "pseudonym.key", KEY)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"\n", b"SECRET" * 20, b"ab" * 31, b"ab" * 33, b"ab" * 32 + b"\nxx", b"zz" * 32, b"\xff" * 64, b"ab " * 32])
def test_a_malformed_key_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pseudonym.key"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"pseudonym\.key: not a key of 64 hexadecimal digits; ") as caught:
        pseudonyms.read_key(path)
    assert "\n" not in str(caught.value) and "SECRET" not in str(caught.value)


def test_white_space_and_capitals_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "pseudonym.key"
    path.write_text(f" {KEY.hex().upper()}\r\n\n")
    assert pseudonyms.read_key(path) == KEY


def test_a_missing_key_file_or_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(UserError, match="expected the key of the pseudonyms"):
            pseudonyms.read_key(path)


def test_the_demo_s_key_is_known_and_no_other() -> None:
    assert pseudonyms.key_of("public") == pseudonyms.PUBLIC_KEY and len(pseudonyms.PUBLIC_KEY) == 32
    assert pseudonyms.pseudonym("p01", pseudonyms.PUBLIC_KEY) == "P" + blake3(b"patient p01", key=pseudonyms.PUBLIC_KEY).hexdigest()[:12]
    assert not pseudonyms.made_with_own_key({"key": pseudonyms.key_id(pseudonyms.PUBLIC_KEY)})
    assert not pseudonyms.made_with_own_key({})
    assert pseudonyms.made_with_own_key({"key": pseudonyms.key_id(KEY)})
