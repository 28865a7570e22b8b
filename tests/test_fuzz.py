"""Thousands of damaged files: each is refused with one line, or gives what a naive decoding of its bytes gives; none hangs or crashes.

A failure names source, mutation and number; `python tests/fuzz.py` makes the file again.
"""

import collections
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

import fuzz
from teravox import contained, numa
from teravox.dicom import witness

SECONDS = 20  # for one file, however busy the machine
MEMORY_BYTES = 1_000_000_000  # granted to a reader; the sources take a few MB
PEAK_MB = MEMORY_BYTES / 1e6 + 500  # of a reader with its libraries
NUMBERS = 8  # damaged files for each source and mutation
LEAST = 2000  # damaged files of the sources made in code
BAD = ("wrong", "crash", *fuzz.DEATHS)
KINDS = ("accepted", "corrected", "rejected", *BAD)
Try = Callable[[fuzz.Source, str, int], fuzz.Outcome]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fuzz.Source]:
    return fuzz.sources(tmp_path_factory.mktemp("sources"))


@pytest.fixture
def attempt(tmp_path: Path, made: dict[str, fuzz.Source], monkeypatch: pytest.MonkeyPatch) -> Try:
    """Reads one damaged copy with little time and memory; no scratch file may be left."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    monkeypatch.setattr(contained, "SECONDS", SECONDS)
    monkeypatch.setattr(witness, "SECONDS", SECONDS / 2)
    monkeypatch.setattr(numa, "granted_bytes", lambda: MEMORY_BYTES)
    others = list(made.values())

    def attempt(source: fuzz.Source, mutation: str, number: int) -> fuzz.Outcome:
        folder = fuzz.damaged(source, mutation, number, tmp_path / "damaged", others)
        found = fuzz.outcome(source, folder)
        shutil.rmtree(folder)
        assert not list(scratch.iterdir())
        return found

    return attempt


def table(tried: list[tuple[str, str, int, fuzz.Outcome]]) -> str:
    """Outcomes by source."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for source, _, _, found in tried:
        for name in (source, f"all {len(tried)}"):
            counts[name][found.kind] += 1
    lines = [f"\n{'':32}{''.join(f'{kind:>10}' for kind in KINDS)}"]
    lines += [f"{name:32}{''.join(f'{counter[kind]:>10}' for kind in KINDS)}" for name, counter in sorted(counts.items())]
    slowest = max(found.seconds for *_, found in tried)
    return "\n".join([*lines, f"slowest {slowest:.1f} s, peak memory of a reader {fuzz.peak_megabytes():.0f} MB\n"])


def all_is_well(tried: list[tuple[str, str, int, fuzz.Outcome]]) -> None:
    bad = [item for item in tried if item[3].kind in BAD or item[3].seconds > SECONDS + 5]  # it may have to wait for a core
    described = [f"{source!r} {mutation!r} {number}: {found.kind}, {found.seconds:.1f} s, {found.text}" for source, mutation, number, found in bad]
    assert not bad, "\n".join([f"{len(bad)} of {len(tried)}", *described])
    assert fuzz.peak_megabytes() < PEAK_MB


def every(sources: Iterable[fuzz.Source], attempt: Try) -> list[tuple[str, str, int, fuzz.Outcome]]:
    return [
        (source.name, mutation, number, attempt(source, mutation, number))
        for source in sources
        for mutation in [*source.mutations, "join"]
        for number in range(NUMBERS)
    ]


def test_sources_are_the_same_every_time(tmp_path: Path, made: dict[str, fuzz.Source]) -> None:
    """Or else a failure could not be found again."""
    for name, source in fuzz.sources(tmp_path).items():
        for path in (path for path in source.folder.rglob("*") if path.is_file()):
            assert path.read_bytes() == (made[name].folder / path.relative_to(source.folder)).read_bytes(), path


def test_undamaged_sources_are_accepted(made: dict[str, fuzz.Source]) -> None:
    """Or else no damage to them would show."""
    assert {fuzz.outcome(source, source.folder).kind for source in made.values()} == {"accepted", "corrected"}


@pytest.mark.parametrize("name", ["s6", "nifti gzip", "mha", "seg labelmap"])
@pytest.mark.parametrize("fault", ["voxel", "grid", "leak", "crash", "secret"])
def test_faults_of_a_reader_are_noticed(name: str, fault: str, made: dict[str, fuzz.Source], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others stand on: a volume with one other voxel, or moved by a part of one, and a reader that fails, do not pass."""
    source, read = made[name], fuzz.contained.call
    label = source.kind == "label"

    def wrong(function: Callable[..., object], *args: object, **keywords: object) -> object:
        if function is fuzz._difference:
            return read(function, *args, **keywords)  # type: ignore[arg-type]
        if fault == "leak":
            return read(lambda: 1 / 0, **keywords)  # type: ignore[arg-type]
        if fault == "crash":
            raise KeyError(fuzz.SECRET)
        if fault == "secret":
            raise fuzz.RejectedCase(f"{args[0]}: name is {fuzz.SECRET}")
        found = read(function, *args, **keywords)  # type: ignore[arg-type]
        if hasattr(found, "array"):
            if fault == "voxel" and not label:
                found.array[1, 2, 3] += 1
            elif not label:
                found.affine[0, 3] += 0.01
        elif fault == "voxel":
            found.label[1, 2, 3] ^= 1
        else:
            found.label[:] = np.roll(found.label, 1, axis=2)
        return found

    monkeypatch.setattr(contained, "call", wrong)
    assert fuzz.outcome(source, source.folder).kind == {"leak": "leak", "crash": "crash", "secret": "crash"}.get(fault, "wrong")


def test_some_damaged_files(made: dict[str, fuzz.Source], attempt: Try) -> None:
    tried = []
    for position, (name, source) in enumerate(made.items()):
        ways = [*source.mutations, "join"]
        for mutation in (ways[position % len(ways)], ways[(position + 5) % len(ways)]):
            tried.append((name, mutation, 0, attempt(source, mutation, 0)))
    assert len(tried) >= 60
    all_is_well(tried)


@pytest.mark.slow
def test_thousands_of_damaged_files(made: dict[str, fuzz.Source], attempt: Try, capsys: pytest.CaptureFixture[str]) -> None:
    tried = every(made.values(), attempt)
    with capsys.disabled():
        print(table(tried))
    assert len(tried) >= LEAST
    all_is_well(tried)


@pytest.mark.slow
def test_damaged_files_of_real_scanners(tmp_path: Path, shared: Path, attempt: Try, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "real").mkdir()
    tried = every(fuzz.real_sources(tmp_path / "real", shared).values(), attempt)
    with capsys.disabled():
        print(table(tried))
    all_is_well(tried)
