"""Rules that choose a volume: each rule against a naive reading of it, and every way in which none or several fit."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builders import Change, enhanced, item, place, s6, set_all, write
from dicom_reading import NO_RULES
from teravox.dicom import match, series, sources
from teravox.dicom.stacks import Stack
from teravox.errors import RejectedCase

SAGITTAL = [set_all(ImageOrientationPatient=[0, 1, 0, 0, 0, -1]), place([(2 * n, 0, 0) for n in range(6)])]
CORONAL = [set_all(ImageOrientationPatient=[1, 0, 0, 0, 0, -1]), place([(0, 2 * n, 0) for n in range(6)])]
# One study: name of each series -> what it changes of S6, and how many slices it has.
STUDY: dict[str, tuple[list[Change], int]] = {
    "T1": ([set_all(Modality="MR", SeriesDescription="T1 MPRAGE sag", ScanningSequence="GR", SeriesTime="100000", SeriesNumber=2), *SAGITTAL], 6),
    "T1C": ([set_all(Modality="MR", SeriesDescription="t1 post", ContrastBolusAgent="Gd", SeriesTime="110000", SeriesNumber=9), *SAGITTAL], 6),
    "T2": (
        [set_all(Modality="MR", SeriesDescription="T2", ScanningSequence=["SE", "EP"], SequenceName="*tse", SeriesTime="101500", SeriesNumber=3)],
        5,
    ),
    "ADC": ([set_all(Modality="MR", ProtocolName="dwi", ImageType=["DERIVED", "PRIMARY", "ADC"], SeriesTime="101500", SeriesNumber=11), *CORONAL], 4),
    "CT": ([set_all(SeriesDescription="", SeriesTime="090000", SeriesNumber=1)], 3),
}


def candidates(folder: Path) -> list[Stack]:
    headers, _ = sources.read_headers(sources.walk(folder), folder)
    return series.candidates_of(sources.without_scouts(headers)[0])


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> list[Stack]:
    folder = tmp_path_factory.mktemp("study")
    for number, (changes, count) in enumerate(STUDY.values()):
        write(folder / "EDCBA"[number], s6(changes)[:count])
    return candidates(folder)


def name_of(stack: Stack) -> str:
    number = stack.frames[0].header.once["SeriesNumber"]
    return {2: "T1", 9: "T1C", 3: "T2", 11: "ADC", 1: "CT"}[number]


def chosen(found: list[Stack], **rules: Any) -> Stack:
    return match.choose(found, NO_RULES | rules, "source")


def refused(found: list[Stack], words: str, **rules: Any) -> str:
    with pytest.raises(RejectedCase, match=words) as caught:
        chosen(found, **rules)
    assert str(caught.value).startswith("source: ") and len(str(caught.value).splitlines()) == 1
    return str(caught.value)


FITTING: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"T1", "T1C", "T2", "ADC", "CT"}),
    ({"modality": "MR"}, {"T1", "T1C", "T2", "ADC"}),
    ({"modality": "ct"}, {"CT"}),
    ({"description": "t1"}, {"T1", "T1C"}),
    ({"description": "^T1 MPRAGE"}, {"T1"}),
    ({"description": "post$"}, {"T1C"}),
    ({"description": "DWI"}, {"ADC"}),
    ({"description": "^$"}, {"CT"}),
    ({"description": "^T2$"}, {"T2"}),
    ({"sequence": "^EP$"}, {"T2"}),
    ({"sequence": "EP"}, {"T2"}),
    ({"sequence": "tse"}, {"T2"}),
    ({"sequence": r"SE\\EP"}, {"T2"}),
    ({"image_type": "ADC"}, {"ADC"}),
    ({"image_type": r"^ORIGINAL\\PRIMARY"}, {"T1", "T1C", "T2", "CT"}),
    ({"orientation": "sagittal"}, {"T1", "T1C"}),
    ({"orientation": "coronal"}, {"ADC"}),
    ({"orientation": "axial"}, {"T2", "CT"}),
    ({"contrast": True}, {"T1C"}),
    ({"contrast": False}, {"T1", "T2", "ADC", "CT"}),
    ({"description": "T1", "contrast": False}, {"T1"}),
    ({"b_value": 0}, set()),
    ({"echo": 1}, set()),
    ({"component": "red"}, set()),
]


@pytest.mark.parametrize(("rules", "names"), FITTING)
def test_rules(study: list[Stack], rules: dict[str, Any], names: set[str]) -> None:
    assert {name_of(stack) for stack in study if match.fits(stack, NO_RULES | rules)} == names
    if len(names) == 1:
        assert name_of(chosen(study, **rules)) == names.pop()
    elif names:
        refused(study, rf"found {len(names)} volume\(s\) of {len(names)} series", **rules)
    else:
        refused(study, rf"none of 5 volume\(s\) of 5 series fits the channel's rules \({', '.join(sorted(rules))}\)", **rules)


def test_preferences(study: list[Stack]) -> None:
    """By date, time and series number, whatever the folders are called."""
    for found in itertools.islice(itertools.permutations(study), 0, 120, 7):
        stacks = list(found)
        assert name_of(chosen(stacks, prefer="first")) == "CT"
        assert name_of(chosen(stacks, prefer="last")) == "T1C"
        assert name_of(chosen(stacks, prefer="last", contrast=False)) == "ADC"  # as late as T2, with a higher number
        assert name_of(chosen(stacks, prefer="most_slices", contrast=False)) == "T1"
    refused(study, "with 6 slices each, expected one with the most; they differ in description", prefer="most_slices")


def test_what_differs_is_named_without_texts(study: list[Stack]) -> None:
    message = refused(study, "they differ in", modality="MR", orientation="sagittal")
    assert "description" in message and "MPRAGE" not in message and "contrast (False, True)" in message


def series_of(folder: Path, kind: Callable[[int], dict[str, Any]], count: int, **shared: Any) -> list[Stack]:
    first = s6()[0]
    same = set_all(SeriesInstanceUID=first.SeriesInstanceUID, FrameOfReferenceUID=first.FrameOfReferenceUID, **shared)
    for number in range(count):
        write(folder / str(count - number), s6([same, set_all(**kind(number))]))
    return candidates(folder)


def test_echoes_are_counted_by_time(tmp_path: Path) -> None:
    found = series_of(tmp_path, lambda number: {"EchoTime": (30.5, 4.6, 12)[number]}, 3)
    for number, milliseconds in ((1, 4.6), (2, 12), (3, 30.5)):
        assert chosen(found, echo=number).attributes["echo_time_ms"] == milliseconds
        assert chosen(found, echo_time_ms=[milliseconds - 0.1, milliseconds + 0.1]).attributes["echo"] == number
    refused(found, "none of 3", echo=4)
    refused(found, r"echo \(1, 2\), echo_time_ms \(12, 4.6\)", echo_time_ms=[0, 20])


def test_echoes_of_mosaics_are_counted_over_the_series(tmp_path: Path) -> None:
    first = s6()[0]
    for number, echo in enumerate((30, 10, 20)):
        data = s6([set_all(ImageType=["ORIGINAL", "PRIMARY", "M", "MOSAIC"], EchoTime=echo, SeriesInstanceUID=first.SeriesInstanceUID)])[0]
        write(tmp_path, [data], [f"{number}.dcm"])
    found = candidates(tmp_path)
    assert [stack.attributes["echo"] for stack in found] == [1, 2, 3]
    assert chosen(found, echo=3).attributes["echo_time_ms"] == 30


def test_volume_counts_what_the_other_rules_leave(tmp_path: Path) -> None:
    found = series_of(tmp_path, lambda number: {"DiffusionBValue": 1000 * (number % 2), "TemporalPositionIdentifier": number + 1}, 6)
    assert [stack.frames[0].volume["TemporalPosition"] for stack in found] == [1, 2, 3, 4, 5, 6]
    assert chosen(found, volume=4).frames[0].volume["TemporalPosition"] == 4
    assert chosen(found, volume=3, b_value=1000).frames[0].volume["TemporalPosition"] == 6
    assert chosen(found, volume=3, b_value=0).frames[0].volume["TemporalPosition"] == 5
    refused(found, "none of 6", volume=4, b_value=0)
    refused(found, "only their order differs|b_value", b_value=0)


def test_volume_counts_in_each_series(tmp_path: Path) -> None:
    for number in range(2):
        series_of(tmp_path / str(number), lambda time: {"TemporalPositionIdentifier": time}, 2, SeriesNumber=number, SeriesDescription=f"s{number}")
    found = candidates(tmp_path)
    refused(found, r"found 2 volume\(s\) of 2 series", volume=2)
    stack = chosen(found, volume=2, description="s1")
    assert stack.frames[0].volume["TemporalPosition"] == 1 and stack.frames[0].header.once["SeriesNumber"] == 1


def test_contrast_of_an_empty_name(tmp_path: Path) -> None:
    for name, agent in (("a", ""), ("b", " "), ("c", "Gd")):
        write(tmp_path / name, s6([set_all(ContrastBolusAgent=agent, SeriesDescription=name)]))
    assert chosen(candidates(tmp_path), contrast=True).attributes["description"] == "c"


def test_attributes_of_frames(tmp_path: Path) -> None:
    data = enhanced(SeriesDescription="x")
    for groups in data.PerFrameFunctionalGroupsSequence:
        groups.MRDiffusionSequence = item(DiffusionBValue=800.0)
        groups.MREchoSequence = item(EffectiveEchoTime=71.5)
    write(tmp_path, [data])
    (stack,) = candidates(tmp_path)
    assert chosen([stack], b_value=800, echo_time_ms=[71, 72], echo=1, orientation="axial") is stack
    refused([stack], "none of 1", b_value=801)


def test_long_texts_are_looked_at_as_far_as_bounded() -> None:
    assert match.found_in("b$", "a" * (match.TEXT_LENGTH - 1) + "b")
    assert not match.found_in("b", "a" * match.TEXT_LENGTH + "b")
    assert match.found_in("^$", None)
