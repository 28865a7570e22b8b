"""The manifest of a case's sources: it follows bytes and names, not times, and holds no file name."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from teravox import files, manifest, records

SECRET = "DOE^JOHN"
KEY = bytes(range(32))


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "series"
    (folder / "deep").mkdir(parents=True)
    for number in range(3):
        (folder / f"{SECRET}-{number}.dcm").write_bytes(bytes([number]) * 100)
    (folder / "deep" / f"{SECRET}.dcm").write_bytes(b"deep")
    (tmp_path / f"{SECRET}.nii").write_bytes(b"label")
    return {"image": str(folder), "label": str(tmp_path / f"{SECRET}.nii")}


def take(sources: dict[str, str]) -> str:
    return manifest.digest(manifest.take(sources, KEY)[0])


def later(path: Path) -> None:
    os.utime(path, ns=(10**18, path.stat().st_mtime_ns + 10**9))


def same_time(path: Path, content: bytes) -> None:
    """Other bytes under the old time of change."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def first(sources: dict[str, str]) -> Path:
    return Path(sources["image"]) / f"{SECRET}-0.dcm"


def swap(sources: dict[str, str]) -> None:
    one, other = first(sources), first(sources).with_name(f"{SECRET}-1.dcm")
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


CHANGES: dict[str, Callable[[dict[str, str]], object]] = {
    "a byte": lambda sources: first(sources).write_bytes(b"\1" + bytes(99)),
    "a byte under an old time": lambda sources: same_time(first(sources), b"\1" + bytes(98)),  # shorter: size differs
    "a new name": lambda sources: first(sources).rename(first(sources).with_name("other.dcm")),
    "another folder": lambda sources: first(sources).rename(first(sources).parent / "deep" / first(sources).name),
    "one file more": lambda sources: (Path(sources["image"]) / "more.dcm").write_bytes(b""),
    "one file less": lambda sources: first(sources).unlink(),
    "the label's bytes": lambda sources: Path(sources["label"]).write_bytes(b"LABEL"),
    "the label's absence": lambda sources: Path(sources["label"]).unlink(),
    "two contents exchanged": swap,
}


def test_touching_changes_nothing(sources: dict[str, str]) -> None:
    before = take(sources)
    for path in Path(sources["image"]).rglob("*"):
        later(path)
    later(Path(sources["label"]))
    assert take(sources) == before


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_shows(sources: dict[str, str], name: str) -> None:
    before = take(sources)
    CHANGES[name](sources)
    assert take(sources) != before


def test_changed_byte_under_an_old_time_shows(sources: dict[str, str]) -> None:
    before = take(sources)
    same_time(first(sources), b"\1" + bytes(99))
    assert take(sources) != before


def test_place_of_the_sources_does_not_matter(sources: dict[str, str], tmp_path: Path) -> None:
    before = take(sources)
    Path(sources["image"]).rename(tmp_path / "elsewhere")
    assert take({**sources, "image": str(tmp_path / "elsewhere")}) == before


def test_no_name_in_clear(sources: dict[str, str]) -> None:
    taken = manifest.take(sources, KEY)
    assert len(taken[0]["image"]) == 4
    assert SECRET not in json.dumps(taken)
    assert "deep" not in json.dumps(taken)


def test_odd_members(sources: dict[str, str]) -> None:
    """Pipes would block a reader for ever; a link to nothing or a loop has no bytes; a name need not be UTF-8."""
    folder = Path(sources["image"])
    before = take(sources)
    os.mkfifo(folder / "pipe")
    (folder / "nothing").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "up").symlink_to(folder)
    assert take(sources) == before
    (folder / "linked").symlink_to(first(sources))
    assert take(sources) != before
    (folder / os.fsdecode(b"\xff\xfe.dcm")).write_bytes(b"x")
    after = take(sources)
    (folder / os.fsdecode(b"\xff\xfe.dcm")).rename(folder / os.fsdecode(b"\xff\xfd.dcm"))
    assert take(sources) != after


def test_missing_source_has_no_members(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert manifest.take({"a": str(tmp_path / "no"), "b": str(tmp_path / "loop")}, KEY) == ({"a": [], "b": []}, {"a": [], "b": []})


def test_unreadable_file(sources: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded as such, and tried again although neither its size nor its time changes with its permissions."""

    def refuse(path: Path) -> str:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(manifest.hashing, "file_digest", refuse)
        document = record(sources, Path(sources["label"]).parent)
        assert manifest.request(document, sources, KEY) == "earlier"
    assert manifest.request(document, sources, KEY) != "earlier"


def record(sources: dict[str, str], folder: Path) -> Path:
    """What an ingestion with request "earlier" leaves behind."""
    taken, stats = manifest.take(sources, KEY)
    document = folder / "out" / "case.json"
    files.write_json(document, {"sources": taken, "provenance": {"artefacts": {"image.nii.gz": "hash"}}})
    document.with_name("image.nii.gz").write_bytes(b"volume")
    files.write_json(records.run_path(document), {"sources": stats, "request": "earlier"})
    return document


def test_request_stays_while_nothing_changed(sources: dict[str, str], tmp_path: Path) -> None:
    document = record(sources, tmp_path)
    assert manifest.request(document, sources, KEY) == "earlier"
    later(first(sources))
    assert manifest.request(document, sources, KEY) == "earlier"


def test_request_changes_when_a_volume_is_gone(sources: dict[str, str], tmp_path: Path) -> None:
    document = record(sources, tmp_path)
    document.with_name("image.nii.gz").unlink()
    assert manifest.request(document, sources, KEY) not in ("earlier", "", take(sources))


@pytest.mark.parametrize("name", CHANGES)
def test_request_follows_every_change(sources: dict[str, str], tmp_path: Path, name: str) -> None:
    document = record(sources, tmp_path)
    CHANGES[name](sources)
    changed = manifest.request(document, sources, KEY)
    assert changed != "earlier"
    assert changed == take(sources) == manifest.request(document, sources, KEY)


def test_request_reads_only_what_may_have_changed(sources: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = record(sources, tmp_path)
    later(first(sources))
    read: list[Path] = []
    digest = manifest.hashing.file_digest

    def watched(path: Path) -> str:
        read.append(path)
        return digest(path)

    monkeypatch.setattr(manifest.hashing, "file_digest", watched)
    manifest.request(document, sources, KEY)
    assert read == [first(sources)]


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"sources": 1}'])
def test_request_without_a_usable_record_is_empty(sources: dict[str, str], tmp_path: Path, text: str | None) -> None:
    document = tmp_path / "case.json"
    if text is not None:
        document.write_text(text)
    assert manifest.request(document, sources, KEY) == ""
