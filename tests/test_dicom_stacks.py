"""Volumes of one series: parted by what differs, in the order of acquisition whatever the files are called, on the right grid."""

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from builders import EXPECTED, MR_STORAGE, STORED, Change, enhanced, item, place, s6, set_all, set_each, write
from dicom_reading import OPTIONS, accepted, canonical, read, rejected
from teravox import geometry
from teravox.dicom import frames, headers, parting, series, sources, stacks
from teravox.errors import RejectedCase

# Volumes of one series


def volumes_of(*changes: Sequence[Change]) -> list[list[pydicom.Dataset]]:
    """Volumes of one series: S6 plus 1000 times its number, after each one's changes."""
    first = s6()[0]
    shared = set_all(
        SeriesInstanceUID=first.SeriesInstanceUID,
        StudyInstanceUID=first.StudyInstanceUID,
        FrameOfReferenceUID=first.FrameOfReferenceUID,
        Modality="MR",
        SOPClassUID=MR_STORAGE,
        InstanceNumber=None,
    )
    return [s6([shared, *own], (STORED + 1000 * number).astype(np.int16)) for number, own in enumerate(changes)]


def gradient(value: Sequence[float] | None) -> Change:
    return set_all(DiffusionGradientOrientation=list(value)) if value is not None else lambda datasets: None


def siemens(b_value: int) -> Change:
    def change(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.private_block(0x0019, "SIEMENS MR HEADER", create=True).add_new(0x0C, "IS", b_value)

    return change


def clock(starts: Sequence[float]) -> Change:
    """AcquisitionTime of each slice, in seconds after noon."""
    return set_each("AcquisitionTime", [f"12{int(start) // 60:02d}{start % 60:09.6f}" for start in starts])


INTERLEAVED = [0, 3, 1, 4, 2, 5]  # when each slice was acquired
VOLUMES: dict[str, list[list[Change]]] = {
    "echoes": [[set_all(EchoTime=time)] for time in (10, 20, 30)],
    "b-values": [
        [set_all(DiffusionBValue=0)],
        [set_all(DiffusionBValue=1000), gradient((1, 0, 0))],
        [set_all(DiffusionBValue=1000, AcquisitionTime="120001"), gradient((0, 1, 0))],
        [set_all(DiffusionBValue=2000), gradient((0, 1, 0)), set_all(AcquisitionTime="120002")],
    ],
    "private b-values": [[siemens(0)], [siemens(500)], [siemens(1000)]],
    "sequence names": [[set_all(SequenceName=f"ep_b1000#{number}")] for number in (1, 2, 3)],
    "temporal positions": [[set_all(TemporalPositionIdentifier=number)] for number in (1, 2, 10)],
    "acquisition numbers": [[set_all(AcquisitionNumber=number)] for number in (1, 2, 10)],
    "times": [[set_all(AcquisitionTime=f"1200{10 * number:02d}")] for number in range(3)],
    "times without a pause": [[clock([6 * number + slot for slot in range(6)])] for number in range(3)],
    "times interleaved": [[clock([10 * number + slot for slot in INTERLEAVED])] for number in range(3)],
    "times over a minute": [[set_all(AcquisitionTime=text)] for text in ("115950", "120000.5", "120010")],
    "times over midnight": [
        [set_all(AcquisitionDate=f"2020010{1 + number // 2}", AcquisitionTime=f"{(235955, 235959, 4)[number]:06d}")] for number in range(3)
    ],
    "same date and time, other time": [[set_all(AcquisitionDateTime="20200101120000", AcquisitionTime=f"12000{number}")] for number in range(3)],
    "cardiac phases": [[set_all(TriggerTime=33.5 * number)] for number in range(3)],
    "cardiac phases of other heartbeats": [[set_each("TriggerTime", [number * beat for beat in (33, 40, 33, 50, 28, 40)])] for number in range(3)],
    "inversion times": [[set_all(InversionTime=100 * number)] for number in (1, 5, 11)],
    "flip angles": [[set_all(FlipAngle=angle)] for angle in (5, 15, 30)],
    "signal": [[set_all(ImageType=["ORIGINAL", "PRIMARY", kind], InstanceNumber=number)] for number, kind in enumerate("RIP")],
    "Dixon": [
        [set_all(ImageType=["DERIVED", "PRIMARY", "DIXON", kind], ContentTime=f"12000{number}")] for number, kind in enumerate(("W", "F", "IP"))
    ],
    "kernels": [[set_all(ConvolutionKernel=kind, ContentTime=f"12000{number}")] for number, kind in enumerate(("B70f", "B30f", "A"))],
    "tube voltages": [[set_all(KVP=value, InstanceNumber=number)] for number, value in enumerate((140, 80))],
    "reconstructions": [[set_all(SeriesDescription=text, InstanceNumber=number)] for number, text in enumerate(("thin", "iterative"))],
    "contrast": [[set_all(ContrastBolusAgent=text, ContentTime=f"12000{number}")] for number, text in enumerate(("", "Gd"))],
    "echoes in time": [[set_all(EchoTime=echo, TemporalPositionIdentifier=1 + number)] for number in range(2) for echo in (10, 20)],
    "signal in time": [
        [set_all(ImageType=["ORIGINAL", "PRIMARY", kind], AcquisitionTime=f"1200{number}0", InstanceNumber=order)]
        for number in range(3)
        for order, kind in enumerate("MP")
    ],
    "other orientation": [
        [],
        [set_all(ImageOrientationPatient=[0, 1, 0, 0, 0, -1], AcquisitionTime="120100"), place([(2 * n, 0, 0) for n in range(6)])],
    ],
    "stacks": [[set_all(StackID=str(number)), place([(0, 0, 100 * number + 2 * n) for n in range(6)])] for number in (1, 2)]
    + [[set_all(StackID="3"), place([(0, 0, 100 + 2 * n) for n in range(6)])]],
}


def shuffled(number: int, count: int) -> list[str]:
    """Names in an order that has nothing to do with that of the files, another for each number."""
    order = np.random.default_rng(number).permutation(count)
    return [f"{order[index]:04d}.dcm" for index in range(count)]


@pytest.mark.parametrize("kind", VOLUMES)
@pytest.mark.parametrize("names", [1, 2])
def test_volumes_are_parted_and_numbered_by_acquisition(tmp_path: Path, kind: str, names: int) -> None:  # A18
    made = volumes_of(*VOLUMES[kind])
    datasets = [data for volume in made for data in volume]
    folder = write(tmp_path / "s", datasets, shuffled(names, len(datasets)))
    rejected(folder, f"found {len(made)} volume(s) of 1 series")
    for number in range(len(made)):
        volume = read(folder, volume=number + 1)
        array, _ = geometry.to_canonical(volume.array, volume.affine)
        if kind == "other orientation" and number == 1:
            assert array.min() == STORED.min() + 1000
        else:
            np.testing.assert_array_equal(array, EXPECTED + 1000 * number)
        assert [account.status for account in volume.accounts].count("used") == 6


@pytest.mark.parametrize("kind", ["echoes", "b-values", "temporal positions", "cardiac phases", "signal", "times"])
@pytest.mark.parametrize("files", [1, 2])
def test_multiframe_volumes(tmp_path: Path, kind: str, files: int) -> None:  # A18
    """The same in functional groups, frames in any order, in one file or several."""
    per_frame: dict[str, Callable[[int], dict[str, Any]]] = {
        "echoes": lambda n: {"MREchoSequence": item(EffectiveEchoTime=10 * n + 10)},
        "b-values": lambda n: {
            "MRDiffusionSequence": item(
                DiffusionBValue=1000 if n else 0, DiffusionGradientDirectionSequence=item(DiffusionGradientOrientation=[n, 1, 0])
            )
        },
        "temporal positions": lambda n: {"TemporalPositionSequence": item(TemporalPositionTimeOffset=n)},
        "cardiac phases": lambda n: {"CardiacSynchronizationSequence": item(NominalCardiacTriggerDelayTime=30.0 * n)},
        "signal": lambda n: {"MRImageFrameTypeSequence": item(ComplexImageComponent=("MAGNITUDE", "PHASE", "REAL")[n])},
        "times": lambda n: {},
    }
    stored = np.concatenate([STORED + 1000 * number for number in range(3)]).astype(np.int16)
    order = np.random.default_rng(7).permutation(18)
    made = []
    series_uid, frame = generate_uid(), generate_uid()
    for part in np.array_split(order, files):
        data = enhanced(stored[part], SeriesInstanceUID=series_uid, FrameOfReferenceUID=frame)
        for index, groups in zip(part, data.PerFrameFunctionalGroupsSequence, strict=True):
            volume, height = divmod(int(index), 6)
            groups.PlanePositionSequence[0].ImagePositionPatient = [0, 0, 2 * height]
            content = groups.FrameContentSequence[0]
            if kind in {"b-values", "times", "signal"}:
                content.FrameAcquisitionDateTime = f"2020010112000{volume}"
            if kind == "temporal positions":
                content.TemporalPositionIndex = volume + 1
            for keyword, value in per_frame[kind](volume).items():
                setattr(groups, keyword, value)
        made.append(data)
    folder = write(tmp_path, made)
    rejected(folder, "found 3 volume(s) of 1 series")
    for number in range(3):
        volume_read = read(folder, volume=number + 1)
        np.testing.assert_array_equal(geometry.to_canonical(volume_read.array, volume_read.affine)[0], EXPECTED + 1000 * number)


@pytest.mark.parametrize("kind", ["temporal positions", "times", "times interleaved", "acquisition numbers"])
@pytest.mark.parametrize(("lost", "words"), [(0, "expected"), (2, "slice gap 4.000 mm, expected 2.000 mm")])
def test_volume_that_misses_a_slice(tmp_path: Path, kind: str, lost: int, words: str) -> None:
    """The others can be chosen, and it is refused for its gap, or when its end is lost read as far as it goes."""
    made = volumes_of(*VOLUMES[kind])
    del made[1][lost]
    folder = write(tmp_path, [data for volume in made for data in volume], shuffled(3, 17))
    for number in (0, 2):
        volume = read(folder, volume=number + 1)
        np.testing.assert_array_equal(geometry.to_canonical(volume.array, volume.affine)[0], EXPECTED + 1000 * number)
    if lost:
        with pytest.raises(RejectedCase, match=words) as caught:
            read(folder, volume=2)
        assert str(caught.value).startswith(str(folder))
    else:
        assert read(folder, volume=2).array.shape == (10, 8, 5)
        volume = read(folder, prefer="last")
        np.testing.assert_array_equal(geometry.to_canonical(volume.array, volume.affine)[0], EXPECTED + 2000)


def test_a_lost_slice_without_a_pause_cannot_be_placed(tmp_path: Path) -> None:
    """Of volumes acquired without a pause, nothing shows to which a slice beside the lost one belongs."""
    made = volumes_of(*VOLUMES["times without a pause"])
    del made[1][0]
    rejected(write(tmp_path, [data for volume in made for data in volume]), "second slice at one position")


def test_trigger_times_that_speak_against_the_clock_part_nothing(tmp_path: Path) -> None:
    first, second = volumes_of([set_each("TriggerTime", [500, 200, 500, 200, 500, 200])], [set_each("TriggerTime", [300, 400, 300, 400, 300, 400])])
    set_all(AcquisitionTime="120000")(first)
    set_all(AcquisitionTime="120500")(second)
    folder = write(tmp_path, [*first, *second])
    for number in (1, 2):
        volume = read(folder, volume=number)
        np.testing.assert_array_equal(geometry.to_canonical(volume.array, volume.affine)[0], EXPECTED + 1000 * (number - 1))


def test_echo_times_that_differ_slice_by_slice(tmp_path: Path) -> None:
    rejected(write(tmp_path, s6([set_each("EchoTime", [1, 2, 3, 4, 5, 6])])), "found 6 single slices", "echo (1, 2, 3, 4, 5, 6)")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([set_each("TemporalPositionIdentifier", [1, 1, 1, 2, 2, 2])], "TemporalPosition is another"),
        ([set_each("ComplexImageComponent", ["PHASE", "MAGNITUDE"] * 3)], "ComplexImageComponent is another"),
        ([set_each("ImageType", [["ORIGINAL", "PRIMARY", kind] for kind in "MMMPPP"])], "ImageType names another part of the signal"),
    ],
)
def test_halves_of_two_volumes_are_no_volume(tmp_path: Path, changes: list[Change], words: str) -> None:
    rejected(write(tmp_path, s6(changes)), words)


def test_what_differs_between_slices_is_said(tmp_path: Path) -> None:
    volume = accepted(write(tmp_path, s6([set_each("FlipAngle", [8, 8, 8, 8, 8, 9])])))
    assert "FlipAngle differ(s) between slices" in volume.notes


def test_copies(tmp_path: Path) -> None:
    """A series exported twice: identical files are copies, other bytes under one SOPInstanceUID are not."""
    datasets = s6()
    write(tmp_path / "a" / "one", datasets)
    write(tmp_path / "a" / "two", datasets)
    assert accepted(tmp_path / "a").corrections == ("left out 6 identical copies of files",)
    datasets[3].PixelData = (STORED[3] + 1).astype("<i2").tobytes()
    write(tmp_path / "a" / "two", datasets)
    rejected(tmp_path / "a", "3.dcm", "has the SOPInstanceUID of", "but other content")


def test_second_exports_under_new_identifiers_are_refused(tmp_path: Path) -> None:
    datasets = s6()
    again = s6([set_all(SeriesInstanceUID=datasets[0].SeriesInstanceUID, FrameOfReferenceUID=datasets[0].FrameOfReferenceUID)])
    rejected(write(tmp_path, [*datasets, *again]), "second slice at one position")


def test_a_private_number_counts_only_in_the_block_of_its_creator(tmp_path: Path) -> None:
    def other(datasets: list[pydicom.Dataset]) -> None:
        for number, data in enumerate(datasets):
            data.private_block(0x0019, "ACME", create=True).add_new(0x0C, "LO", f"DOE^JOHN{number}")

    accepted(write(tmp_path, s6([other])))


# The grid


def turned(degrees: float, axis: int) -> np.ndarray:
    """Rotation about an axis of the patient, (3, 3)."""
    angle, (i, j) = np.radians(degrees), [other for other in range(3) if other != axis]
    matrix = np.eye(3)
    matrix[[i, i, j, j], [i, j, i, j]] = np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)
    return matrix


def oblique(rotation: np.ndarray, origin: Sequence[float] = (3, -5, 7), step: Sequence[float] = (0, 0, 2), digits: int = 12) -> Change:
    """S6 turned: step : (3,) mm from slice to slice, before the turn."""

    def change(datasets: list[pydicom.Dataset]) -> None:
        for number, data in enumerate(datasets):
            data.ImageOrientationPatient = [round(float(value), 12) for value in rotation[:, :2].T.ravel()]
            data.ImagePositionPatient = [round(float(value), digits) for value in np.array(origin) + number * rotation @ step]

    return change


@pytest.mark.parametrize(("degrees", "axis"), list(itertools.product([10, -37, 45, 90, 163, 180], [0, 1, 2])))
def test_every_voxel_lies_where_its_header_puts_it(tmp_path: Path, degrees: float, axis: int) -> None:
    """Equation C.7.6.2.1-1 of PS3.3, for each voxel."""
    rotation, origin = turned(degrees, axis) @ turned(20, (axis + 1) % 3), np.array([3.0, -5, 7])
    array, affine, _ = canonical(write(tmp_path, s6([oblique(rotation)])))
    for (number, row, column), value in np.ndenumerate(STORED):
        point = origin + rotation @ [0.7 * column, 0.5 * row, 2.0 * number]
        index = np.linalg.inv(affine) @ [*(point * [-1, -1, 1]), 1]
        np.testing.assert_allclose(index, np.rint(index), atol=1e-3)
        assert array[tuple(np.rint(index[:3]).astype(int))] == value


def test_oblique_positions_with_two_decimals(tmp_path: Path) -> None:
    """What rounding moves slices across their normal is no tilt, however few and near the slices are."""
    for count, step in ((2, 0.8), (3, 0.6), (6, 0.6), (6, 5.0)):
        datasets = s6([set_all(SliceThickness=step), oblique(turned(33, 0) @ turned(21, 1), step=(0, 0, step), digits=2)])[:count]
        volume = read(write(tmp_path / f"{count} {step}", datasets))
        assert geometry.spacing_of(volume.affine)[2] == pytest.approx(step, abs=0.011)


def sheared(folder: Path, options: dict[str, Any] | None = None) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    volume = read(folder, {"tilt": "shear", **(options or {})})
    return volume.array.astype(float), volume.affine, volume.corrections


def sampled(datasets: list[pydicom.Dataset], affine: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Each voxel of a grid from the slice in whose plane it lies, by bilinear interpolation at its place in the patient."""
    row, column = (np.array(part, float) for part in np.split(np.array(datasets[0].ImageOrientationPatient, float), 2))
    normal = np.cross(row, column)
    stored = {
        data.SOPInstanceUID: np.pad(data.pixel_array.astype(float), 1, constant_values=min(d.pixel_array.min() for d in datasets))
        for data in datasets
    }
    low = min(float(data.pixel_array.min()) for data in datasets)
    result = np.full(shape, np.nan)
    for index in np.ndindex(*shape):
        point = (affine @ [*index, 1])[:3] * [-1, -1, 1]
        data = min(datasets, key=lambda data: abs((point - np.array(data.ImagePositionPatient, float)) @ normal))
        offset = point - np.array(data.ImagePositionPatient, float)
        assert abs(offset @ normal) < 1e-3
        x, y = offset @ row / 0.7 + 1, offset @ column / 0.5 + 1  # in the padded slice
        pixels = stored[data.SOPInstanceUID]
        i, j = int(np.floor(y)), int(np.floor(x))
        value = 0.0
        for di, dj in itertools.product((0, 1), repeat=2):
            weight = (1 - abs(y - i - di)) * (1 - abs(x - j - dj))
            inside = 0 <= i + di < pixels.shape[0] and 0 <= j + dj < pixels.shape[1]
            value += weight * (pixels[i + di, j + dj] if inside else low)
        result[index] = value
    return result


TILTS = {  # step from slice to slice along row, column and normal, mm
    "A6": (0, 2 * np.sin(np.radians(15)), 2 * np.cos(np.radians(15))),
    "negative": (0, -0.5176, 1.93185),
    "along the row": (0.3, 0, 2),
    "both": (0.31, -0.17, 1.5),
    "whole voxels": (0.7, -0.5, 2),
    "steep": (0, 1.5, 2),
}


@pytest.mark.parametrize("name", TILTS)
def test_sheared_voxels_are_those_interpolated_in_the_patient(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).integers(-500, 500, STORED.shape).astype(np.int16)
    datasets = s6([oblique(turned(25, 2) @ turned(10, 0), step=TILTS[name])], noise)
    folder = write(tmp_path, datasets)
    rejected(folder, "gantry tilt", "set ingest.tilt: shear")
    array, affine, corrections = sheared(folder)
    assert geometry.spacing_of(affine) == pytest.approx([0.7, 0.5, TILTS[name][2]], abs=1e-5)
    assert geometry.shear_of(affine) < 1e-5
    expected = sampled(datasets, affine, array.shape)
    assert np.abs(array - expected).max() <= 0.5 + 1e-3  # integers are rounded
    assert len(corrections) == 1 and corrections[0].startswith("gantry tilt: each slice shifted by")
    # All of it is there: the columns of every slice add up.
    low, size = int(noise.min()), array[:, :, 0].size
    np.testing.assert_allclose((array - low).sum(axis=(0, 1)), (noise.astype(float) - low).sum(axis=(1, 2)), atol=0.5 * size)


def test_numbers_of_a_tilt_by_fifteen_degrees(tmp_path: Path) -> None:  # A6
    """The table moves 2 mm: 1.93185 mm along the normal and 0.5176 mm across it."""
    angle = np.radians(15)
    folder = write(tmp_path, s6([set_all(ImageOrientationPatient=[1, 0, 0, 0, round(np.cos(angle), 10), round(-np.sin(angle), 10)])]))
    array, affine, corrections = sheared(folder)
    assert corrections == ("gantry tilt: each slice shifted by 0.5176 mm against the one before it",)
    assert geometry.spacing_of(affine)[2] == pytest.approx(1.93185, abs=1e-5)
    assert array.shape == (10, 8 + 6, 6)  # 5 x 0.5176 mm are 5.176 rows


def test_float_volumes_are_sheared_without_rounding(tmp_path: Path) -> None:
    datasets = s6([set_all(RescaleSlope=0.5), oblique(np.eye(3), step=TILTS["both"])])
    array, affine, _ = sheared(write(tmp_path, datasets))
    np.testing.assert_allclose(array, sampled(datasets, affine, array.shape) * 0.5, atol=1e-3)


def test_irregular_tilts_are_refused_even_where_tilts_are_sheared(tmp_path: Path) -> None:
    cases = {
        "one slice aside": ([(0, 0, 0), (0, 0, 2), (0, 1.5, 4), (0, 0, 6), (0, 0, 8), (0, 0, 10)], "off regular positions"),
        "growing": ([(0, 0.1 * n * n, 2 * n) for n in range(6)], "off regular positions"),
        "a slice lost": ([(0, 0.5 * n, 2 * n) for n in (0, 1, 2, 4, 5, 6)], "slice gap 4.000 mm"),
        "too steep": ([(0, 1e6 * n, 2 * n) for n in range(6)], "damaged headers"),
        "just too steep": ([(0, 2.1 * n, 2 * n) for n in range(6)], "damaged headers"),
    }
    for name, (positions, words) in cases.items():
        folder = write(tmp_path / name, s6([place(positions)]))
        with pytest.raises(RejectedCase, match=words) as caught:
            read(folder, {"tilt": "shear"})
        assert str(caught.value).startswith(str(folder)), name


def test_a_tilt_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, s6([set_all(PixelSpacing=[1e-5, 1e-5]), place([(n, n, 2 * n) for n in range(6)])]))
    with pytest.raises(RejectedCase, match="an upright grid of 500010 x 500008 x 6 voxels"):
        read(folder, {"tilt": "shear"})


def test_slight_tilt_over_many_slices(tmp_path: Path) -> None:
    """0.25 degrees: 0.009 mm a slice, no more than rounding each, but 1.7 mm over 200 slices."""
    stored = np.arange(200 * 80).reshape(200, 8, 10).astype(np.int16)
    folder = write(tmp_path, s6([place([(0, 0.009 * n, 2 * n) for n in range(200)])], stored))
    rejected(folder, "gantry tilt")
    assert len(sheared(folder)[2]) == 1


# Speed by kind: a quadratic step would take minutes


def test_thousands_of_frames(tmp_path: Path) -> None:
    """5,000 frames of 500 volumes in one file, and 3,000 files; neither with a step that grows as the square."""
    count = 5000
    data = enhanced(np.zeros((count, 2, 2), np.int16))
    for number, groups in enumerate(data.PerFrameFunctionalGroupsSequence):
        groups.PlanePositionSequence[0].ImagePositionPatient = [0, 0, number % 10]
        groups.FrameContentSequence[0].TemporalPositionIndex = 1 + number // 10
    folder = write(tmp_path / "frames", [data])
    begin = time.monotonic()
    found = stacks.stacks(headers.read_header(folder / "0.dcm").frames)
    assert [stack.attributes["slices"] for stack in found] == [10] * 500
    assert time.monotonic() - begin < 60


@pytest.mark.parametrize("kind", ["one volume", "each its own orientation", "each its own echo", "half are localizers", "half are copies"])
def test_thousands_of_headers(kind: str) -> None:
    """Parting takes seconds whatever differs between 3,000 files."""
    once = dict.fromkeys(headers.ONCE) | {"SeriesInstanceUID": "1.2"}
    images = []
    for number in range(3000):
        header = headers.Header(Path(f"{number}"), "image", "1.2", "1.2", False, 0, 0, 1, False, f"1.{number}", number, once)
        constant: dict[str, Any] = dict.fromkeys(frames.CONSTANT) | {"Rows": 8, "Columns": 8, "SamplesPerPixel": 1}
        volume: dict[str, Any] = dict.fromkeys((*frames.VOLUME, *frames.TIMES))
        orientation = [1.0, 0, 0, 0, 1, 0]
        if kind == "each its own echo":
            constant["EchoTime"] = number
        if kind == "each its own orientation":
            angle = number / 1000
            orientation = [float(np.cos(angle)), float(np.sin(angle)), 0, 0, 0, -1]
        if kind == "half are localizers" and number % 2:
            volume["ImageType"] = ("ORIGINAL", "PRIMARY", "LOCALIZER")
        height = float(number // 2 if kind == "half are copies" else number)
        header.frames.append(frames.Frame(header, 0, (0.0, 0.0, height), tuple(orientation), (1.0, 1.0), 1.0, 0.0, 1.0, None, constant, volume))
        images.append(header)
    begin = time.monotonic()
    kept, _ = sources.without_scouts(images)
    candidates = series.candidates_of(kept)
    assert len(candidates) == (3000 if "own" in kind else 1)
    assert sum(len(stack.frames) for stack in candidates) == (1500 if "localizers" in kind else 3000)
    if kind == "one volume":
        assert len(series.check(candidates[0], "series", OPTIONS).frames) == 3000  # type: ignore[union-attr]
    assert time.monotonic() - begin < 30


def test_value_of_knows_every_name_that_is_tried() -> None:
    known = {*frames.VOLUME, *frames.CONSTANT, *frames.TIMES, *headers.ONCE, "InstanceNumber"}
    assert known >= {*parting.APART, *parting.SEQUENCE, *parting.ALWAYS, *parting.STEPWISE}
