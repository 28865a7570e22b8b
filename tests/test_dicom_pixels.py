"""Voxels of DICOM series: values by hand, padding, MONOCHROME1, colour, transfer syntaxes, and a second opinion that can say no."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.encaps import encapsulate, encapsulate_extended
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    RLELossless,
)

from builders import EXPECTED, MR_STORAGE, STORED, Change, compress, enhanced, item, s6, set_all, set_each, set_one, write
from dicom_reading import accepted, canonical, in_ras, read, rejected, series
from teravox.dicom import pixels, witness
from teravox.errors import RejectedCase

NOISE = np.random.default_rng(1).integers(0, 2**16, STORED.shape).astype(np.uint16)  # (slice, row, column)
LARGE = np.kron(STORED, np.ones((1, 8, 8), np.int16))


def typed(dtype: str, stored: int | None = None) -> Change:
    """Another type of voxels: PixelData, which s6 writes as int16, is cast anew from NOISE's bytes."""
    kind = np.dtype(dtype)

    def change(datasets: list[pydicom.Dataset]) -> None:
        for data, plane in zip(datasets, voxels(dtype, stored), strict=True):
            data.BitsAllocated, data.PixelRepresentation = 8 * kind.itemsize, int(kind.kind == "i")
            data.BitsStored = stored or data.BitsAllocated
            data.HighBit = data.BitsStored - 1
            data.PixelData = plane.tobytes()
            data["PixelData"].VR = "OB" if kind.itemsize == 1 else "OW"

    return change


def voxels(dtype: str, stored: int | None = None) -> np.ndarray:
    """Random values over the whole range of a type of `stored` bits, (slice, row, column)."""
    kind = np.dtype(dtype)
    bits = stored or 8 * kind.itemsize
    low = -(2 ** (bits - 1)) if kind.kind == "i" else 0
    values = np.random.default_rng(2).integers(low, low + 2**bits, STORED.shape)
    values.flat[:2] = low, low + 2**bits - 1
    return values.astype(kind)


# Values


@pytest.mark.parametrize("order", ["classic", "enhanced"])
def test_each_slice_has_its_own_rescaling(tmp_path: Path, order: str) -> None:  # A7
    stored = np.full(STORED.shape, 3, np.int16)
    slopes, expected = [1, 0.5, 0.25, 1.5, 2.5, 0.1], [3, 1.5, 0.75, 4.5, 7.5, 0.3]
    if order == "classic":
        folder = series(tmp_path, set_each("RescaleSlope", slopes), stored=stored)
    else:
        data = enhanced(stored)
        for groups, slope in zip(data.PerFrameFunctionalGroupsSequence, slopes, strict=True):
            groups.PixelValueTransformationSequence[0].RescaleSlope = slope
        folder = write(tmp_path / "s", [data])
    array, _, volume = canonical(folder)
    np.testing.assert_allclose(array[0, 0], expected, rtol=1e-7)
    assert (array == array[:1, :1]).all() and array.dtype == np.float32
    assert "each slice has its own rescaling" in volume.notes


def test_one_slice_with_another_intercept(tmp_path: Path) -> None:  # A26
    expected = EXPECTED.astype(float)
    expected[:, :, 3] -= 1024
    accepted(series(tmp_path, set_each("RescaleIntercept", [0, 0, 0, -1024, 0, 0])), expected)


TYPES: list[tuple[str, int | None]] = [("i1", None), ("u1", None), ("i2", None), ("u2", None), ("i4", None), ("u4", None)]
TYPES += [("i2", 12), ("u2", 12), ("i2", 9), ("u2", 15), ("i1", 6), ("u1", 7)]


@pytest.mark.parametrize(("dtype", "stored"), TYPES)
@pytest.mark.parametrize("intercept", [0, -1024, 7, -40000, 100000])
def test_integers_of_every_type_over_their_whole_range(tmp_path: Path, dtype: str, stored: int | None, intercept: int) -> None:  # A15
    """Whole numbers stay whole where 32 bits hold them. Signed bytes of fewer than 8 bits nobody else reads right: they are refused."""
    expected = in_ras(voxels(dtype, stored)).astype(float) + intercept
    folder = series(tmp_path, typed(dtype, stored), set_all(RescaleIntercept=intercept))
    if (dtype, stored) == ("i1", 6):
        rejected(folder, "neither dcm2niix nor GDCM reads the voxels")
        return
    array, _, _ = canonical(folder)
    np.testing.assert_allclose(array, expected, rtol=1e-6)
    assert array.dtype.kind in "iu" or dtype in {"i4", "u4"}


@pytest.mark.parametrize("representation", [0, 1])
def test_overlays_in_spare_bits_are_no_values(tmp_path: Path, representation: int) -> None:  # A15
    kind = "i2" if representation else "u2"
    values = voxels(kind, 12)
    overlaid = (values.view(np.uint16) & 0x0FFF) | (NOISE & 0xF000)
    folder = series(tmp_path, set_all(BitsStored=12, HighBit=11, PixelRepresentation=representation), stored=overlaid.view(np.int16))
    np.testing.assert_array_equal(canonical(folder)[0], in_ras(values))


@pytest.mark.parametrize(("slope", "intercept"), [(-1, 0), (0.001, 5), (2.5, -1024.5), (1, 0.25), (1e-8, 0), (12345.678, -1e7)])
def test_rescaling_by_any_numbers(tmp_path: Path, slope: float, intercept: float) -> None:
    folder = series(tmp_path, set_all(RescaleSlope=slope, RescaleIntercept=intercept))
    array, _, _ = canonical(folder)
    np.testing.assert_allclose(array, EXPECTED.astype(float) * slope + intercept, rtol=1e-6, atol=1e-6 * abs(intercept))


def test_rescaling_beyond_float32_is_not_hidden(tmp_path: Path) -> None:
    from teravox.checks import check_intensities

    with pytest.raises(RejectedCase, match=r"NaN or infinite|neither dcm2niix nor GDCM") as caught:
        check_intensities(read(folder := series(tmp_path, set_all(RescaleSlope=1e37))).array, str(folder))
    assert str(caught.value).startswith(str(tmp_path))


# MONOCHROME1


def mono(folder: Path, stored: np.ndarray, *changes: Change) -> Path:
    return series(folder, set_all(PhotometricInterpretation="MONOCHROME1", Modality="MR"), *changes, stored=stored)


def test_monochrome1(tmp_path: Path) -> None:  # A8
    """12 bits: 100 becomes 3995, with an intercept of -1024 2971; 16 bits: 1 becomes 65534; signed: the range's ends swap."""
    stored = (voxels("u2", 12)).astype(np.int16)
    stored[0, 0, 0] = 100
    twelve = set_all(BitsStored=12, HighBit=11, PixelRepresentation=0)
    folder = mono(tmp_path / "a", stored, twelve)
    array, _, volume = canonical(folder)
    assert array[-1, -1, 0] == 3995
    np.testing.assert_array_equal(array, 4095 - in_ras(stored))
    assert volume.corrections == ("MONOCHROME1: stored values inverted, so that high is bright",)
    kept = read(folder, {"monochrome1": "keep"})
    assert kept.array[0, 0, 0] == 100 and not kept.corrections and any("kept as stored" in note for note in kept.notes)
    assert read(folder, {"monochrome1": "invert"}).array[0, 0, 0] == 3995
    assert canonical(mono(tmp_path / "b", stored, twelve, set_all(RescaleIntercept=-1024)))[0][-1, -1, 0] == 2971
    sixteen = np.ones(STORED.shape, np.int16)
    sixteen[0, 0, 1] = 2
    assert canonical(mono(tmp_path / "c", sixteen, set_all(PixelRepresentation=0)))[0][-1, -1, 0] == 65534
    np.testing.assert_array_equal(canonical(mono(tmp_path / "d", STORED))[0], -1 - EXPECTED.astype(int))
    np.testing.assert_array_equal(
        canonical(mono(tmp_path / "e", STORED, set_all(RescaleSlope=2, RescaleIntercept=3)))[0], (-1 - EXPECTED.astype(int)) * 2 + 3
    )


@pytest.mark.parametrize("modality", ["CT", "PT"])
def test_monochrome1_of_values_with_a_unit(tmp_path: Path, modality: str) -> None:
    folder = mono(tmp_path, STORED, set_all(Modality=modality))
    rejected(folder, f"MONOCHROME1 in {modality}", "set ingest.monochrome1 to keep or invert")
    np.testing.assert_array_equal(np.sort(read(folder, {"monochrome1": "keep"}).array, None), np.sort(EXPECTED, None))
    assert read(folder, {"monochrome1": "invert"}).array.max() == -1 - int(STORED.min())


# Padding


def padded(value: int, others: np.ndarray = STORED) -> np.ndarray:
    stored = others.copy()
    stored[:, :2] = value
    return stored


def as_padding(value: int, vr: str, keyword: str = "PixelPaddingValue") -> Change:
    def change(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.add_new(keyword, vr, value)

    return change


def lowest(stored: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Naively: the lowest other value where padding is."""
    return in_ras(np.where(where, stored[~where].min(), stored))


@pytest.mark.parametrize(("written", "vr"), [(-2000, "SS"), (63536, "US")])
def test_padding_is_replaced_whichever_way_it_is_written(tmp_path: Path, written: int, vr: str) -> None:
    stored = padded(-2000)
    folder = series(tmp_path, as_padding(written, vr), stored=stored)
    volume = accepted(folder, lowest(stored, stored == -2000))
    assert volume.corrections == (f"{6 * 2 * 10} padding voxels (-2000) set to the lowest other value ({stored[stored > -2000].min()})",)
    kept = read(folder, {"padding": "keep"})
    assert kept.array.min() == -2000 and not kept.corrections and any("hold the padding value (-2000)" in note for note in kept.notes)


@pytest.mark.parametrize(("first", "last"), [(-2000, -1990), (-1990, -2000)])
def test_range_of_padding(tmp_path: Path, first: int, last: int) -> None:
    stored = padded(-2000)
    stored[:, 0] = -1995
    folder = series(tmp_path, as_padding(first, "SS"), as_padding(last, "SS", "PixelPaddingRangeLimit"), stored=stored)
    accepted(folder, lowest(stored, stored <= -1990))


def test_padding_above_all_other_values(tmp_path: Path) -> None:
    stored = padded(30000)
    accepted(series(tmp_path, as_padding(30000, "SS"), stored=stored), lowest(stored, stored == 30000))


def test_padding_amid_other_values_is_left_and_said(tmp_path: Path) -> None:
    stored = padded(0)
    volume = accepted(series(tmp_path, as_padding(0, "SS"), stored=stored), in_ras(stored))
    assert any("hold the padding value (0)" in note for note in volume.notes) and not volume.corrections


def test_padding_that_no_voxel_holds(tmp_path: Path) -> None:
    volume = accepted(series(tmp_path, as_padding(-2000, "SS")))
    assert not volume.corrections and not any("padding" in note for note in volume.notes)


def test_nothing_but_padding(tmp_path: Path) -> None:
    from teravox.checks import check_intensities

    folder = series(tmp_path, as_padding(-2000, "SS"), stored=np.full(STORED.shape, -2000, np.int16))
    with pytest.raises(RejectedCase, match="all voxels are -2000"):
        check_intensities(read(folder).array, str(folder))


def test_padding_is_rescaled_away_too(tmp_path: Path) -> None:
    stored = padded(-2000)
    folder = series(tmp_path, as_padding(-2000, "SS"), set_all(RescaleSlope=2, RescaleIntercept=-24), stored=stored)
    accepted(folder, lowest(stored, stored == -2000).astype(float) * 2 - 24)


def test_padding_where_monochrome1_is_inverted(tmp_path: Path) -> None:
    """Padding is a stored value; the lowest other one is that of the volume as it is given, after the inversion."""
    stored = padded(0, (STORED - STORED.min() + 1000).astype(np.int16))
    changes = [as_padding(0, "US"), set_all(BitsStored=12, HighBit=11, PixelRepresentation=0)]
    where = stored == 0
    expected = in_ras(np.where(where, 4095 - stored[~where].max(), 4095 - stored))
    array, _, volume = canonical(mono(tmp_path, stored, *changes))
    np.testing.assert_array_equal(array, expected)
    assert len(volume.corrections) == 2


# Transfer syntaxes and files


def rewritten(syntax: str, dtype: str = "i2") -> Change:
    def change(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.file_meta.TransferSyntaxUID = syntax
            if syntax == ExplicitVRBigEndian:
                pixels_of = np.frombuffer(data.PixelData, np.dtype(dtype))
                data.PixelData = pixels_of.astype(np.dtype(dtype).newbyteorder(">")).tobytes()
                if np.dtype(dtype).itemsize == 1:  # OW: the bytes of a word change places too
                    data.PixelData = np.frombuffer(data.PixelData, "<u2").astype(">u2").tobytes()
                    data["PixelData"].VR = "OW"

    return change


@pytest.mark.parametrize("syntax", [ImplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian, RLELossless, JPEG2000Lossless])
@pytest.mark.parametrize("dtype", ["i2", "u2", "u1", "i1"])
def test_every_type_in_every_syntax(tmp_path: Path, syntax: str, dtype: str) -> None:  # A17
    large = np.kron(voxels(dtype), np.ones((1, 8, 8), dtype))

    def grown(datasets: list[pydicom.Dataset]) -> None:
        for data, plane in zip(datasets, large, strict=True):
            data.Rows, data.Columns = plane.shape
            data.PixelData = plane.tobytes()

    encoded = compress(syntax) if syntax in {RLELossless, JPEG2000Lossless} else rewritten(syntax, dtype)
    folder = series(tmp_path, typed(dtype), grown, encoded)
    np.testing.assert_array_equal(canonical(folder)[0], in_ras(large))


def test_pixels_under_another_representation_of_their_bytes(tmp_path: Path) -> None:
    def as_bytes(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data["PixelData"].VR = "OB"

    accepted(series(tmp_path, as_bytes))


def test_icon_is_never_taken_for_the_image(tmp_path: Path) -> None:
    icon = item(
        Rows=2, Columns=2, SamplesPerPixel=1, PhotometricInterpretation="MONOCHROME2", BitsAllocated=8, BitsStored=8, HighBit=7, PixelRepresentation=0
    )
    icon[0].PixelData = bytes(4)
    icon[0]["PixelData"].VR = "OB"
    for syntax in ("1.2.840.10008.1.2.1", ImplicitVRLittleEndian):
        accepted(series(tmp_path / syntax, set_all(IconImageSequence=icon), rewritten(syntax)))

        def undefined(datasets: list[pydicom.Dataset]) -> None:
            for data in datasets:
                data["IconImageSequence"].is_undefined_length = True
                data["IconImageSequence"].value[0].is_undefined_length_sequence_item = True

        accepted(series(tmp_path / f"{syntax} open", set_all(IconImageSequence=icon), undefined, rewritten(syntax)))
    rejected(series(tmp_path / "only", set_all(IconImageSequence=icon), set_one(2, PixelData=None)), "2.dcm", "without PixelData")


def test_elements_around_the_pixels(tmp_path: Path) -> None:
    def trailing(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.add_new(0xFFFCFFFC, "OB", bytes(1000))  # DataSetTrailingPadding
            data.add_new(0x00280000, "UL", 12)

    folder = series(tmp_path, trailing)
    (folder / "2.dcm").write_bytes((folder / "2.dcm").read_bytes() + b"\0" * 77)
    accepted(folder)


@pytest.mark.parametrize(("extra", "fine"), [(2, True), (158, True), (160, False), (1600, False)])
def test_more_pixels_than_the_header_says(tmp_path: Path, extra: int, fine: bool) -> None:
    """A whole plane more means that the header lies about the planes, or about their size."""
    folder = series(tmp_path, set_one(2, PixelData=STORED[2].tobytes() + bytes(extra)))
    if fine:
        accepted(folder)
    else:
        rejected(folder, "2.dcm", f"found {160 + extra} bytes of pixels, expected 160")


FLOATS: dict[str, tuple[str, type]] = {"FloatPixelData": ("OF", np.float32), "DoubleFloatPixelData": ("OD", np.float64)}


@pytest.mark.parametrize("keyword", FLOATS)
def test_floating_point_pixels_are_refused(tmp_path: Path, keyword: str) -> None:
    def change(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            del data.PixelData
            data.add_new(keyword, FLOATS[keyword][0], STORED[0].astype(FLOATS[keyword][1]).tobytes())

    rejected(series(tmp_path, change), f"pixels in {keyword}, expected integers in PixelData")


def multiframe(syntax: str, fragments: Callable[[list[bytes]], dict[str, Any]]) -> pydicom.Dataset:
    """An enhanced object whose frames are encapsulated anew. fragments : streams of the frames -> attributes."""
    data = enhanced(LARGE)
    data.Rows, data.Columns = LARGE.shape[1:]
    slices = s6([compress(syntax)], LARGE)
    streams = [next(pydicom.encaps.generate_frames(part.PixelData, number_of_frames=1)) for part in slices]
    data.file_meta.TransferSyntaxUID = syntax
    for keyword, value in fragments(streams).items():
        setattr(data, keyword, value)
    data["PixelData"].is_undefined_length = True
    data["PixelData"].VR = "OB"
    return data


def extended(streams: list[bytes]) -> dict[str, Any]:
    pixel_data, offsets, lengths = encapsulate_extended(streams)
    return {"PixelData": pixel_data, "ExtendedOffsetTable": offsets, "ExtendedOffsetTableLengths": lengths}


FRAGMENTS: dict[str, Callable[[list[bytes]], dict[str, Any]]] = {
    "offset table": lambda streams: {"PixelData": encapsulate(streams)},
    "no offset table": lambda streams: {"PixelData": encapsulate(streams, has_bot=False)},
    "several fragments": lambda streams: {"PixelData": encapsulate(streams, fragments_per_frame=3)},
    "extended offset table": extended,
}


@pytest.mark.parametrize(("syntax", "kind"), [(syntax, kind) for syntax in (JPEG2000Lossless, RLELossless) for kind in FRAGMENTS])
def test_frames_in_fragments(tmp_path: Path, syntax: str, kind: str) -> None:
    folder = write(tmp_path, [multiframe(syntax, FRAGMENTS[kind])])
    if kind == "several fragments":
        rejected(folder, "neither dcm2niix nor GDCM")
        return
    np.testing.assert_array_equal(canonical(folder)[0], in_ras(LARGE))


def test_compressed_image_of_another_size_than_its_header_says(tmp_path: Path) -> None:
    """Equally many pixels, but other rows and columns."""
    folder = series(tmp_path, compress(JPEG2000Lossless), set_all(Rows=80, Columns=64), stored=LARGE)
    rejected(folder)
    rejected(series(tmp_path / "b", compress(JPEG2000Lossless), set_all(Rows=32), stored=LARGE))


# Colour


def colour(photometric: str, planar: int = 0, wide: bool = False) -> Change:
    def change(datasets: list[pydicom.Dataset]) -> None:
        for number, data in enumerate(datasets):
            plane = rgb(number)
            data.SamplesPerPixel, data.PhotometricInterpretation, data.PlanarConfiguration = 3, photometric, planar
            data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
            data.PixelData = (plane.transpose(2, 0, 1) if planar else plane).tobytes()
            data["PixelData"].VR = "OB"

    return change


def rgb(number: int) -> np.ndarray:
    """(row, column, component) of one slice."""
    return np.random.default_rng(number).integers(0, 256, (8, 10, 3)).astype(np.uint8)


@pytest.mark.parametrize("planar", [0, 1])
@pytest.mark.parametrize("syntax", ["1.2.840.10008.1.2.1", ImplicitVRLittleEndian, RLELossless])
def test_colour_gives_its_components(tmp_path: Path, planar: int, syntax: str) -> None:
    if syntax == RLELossless:  # each component is a segment of its own, whatever PlanarConfiguration says
        changes = [colour("RGB"), compress(syntax), set_all(PlanarConfiguration=planar)]
    else:
        changes = [colour("RGB", planar), rewritten(syntax)]
    folder = series(tmp_path, *changes)
    rejected(folder, "component (blue, green, red)")
    if (syntax, planar) == (RLELossless, 1):  # dcm2niix and GDCM both take the components apart once more
        with pytest.raises(RejectedCase, match="neither dcm2niix nor GDCM"):
            read(folder, component="red")
        return
    for number, component in enumerate(("red", "green", "blue")):
        array = read(folder, component=component).array
        np.testing.assert_array_equal(array, np.stack([rgb(plane)[:, :, number] for plane in range(6)]).transpose(2, 1, 0))


@pytest.mark.parametrize("photometric", ["YBR_FULL", "YBR_FULL_422", "YBR_PARTIAL_422", "HSV"])
def test_other_colours_are_refused(tmp_path: Path, photometric: str) -> None:
    """A component of YBR is no red, green or blue."""
    rejected(series(tmp_path, colour(photometric)), f"photometric interpretation {photometric} with 3 samples per pixel, expected RGB")


def test_short_rows_of_halved_colour_are_not_called_truncated(tmp_path: Path) -> None:
    folder = series(tmp_path, colour("YBR_FULL_422"), set_all(PixelData=bytes(160)))
    assert "truncated" not in rejected(folder, "YBR_FULL_422")


def test_palette_is_refused(tmp_path: Path) -> None:
    rejected(series(tmp_path, set_all(PhotometricInterpretation="PALETTE COLOR")), "PALETTE COLOR with 1 samples per pixel")


def test_planted_photometric_interpretation_is_not_shown(tmp_path: Path) -> None:
    assert "DOE" not in rejected(series(tmp_path, set_all(PhotometricInterpretation="DOEJOHN1950")), "photometric interpretation another text")


# The second opinion


def corrupted(monkeypatch: pytest.MonkeyPatch, component: int | None = None) -> None:
    """One voxel of every stack comes out one higher."""
    real = pixels.stored

    def stored(*arguments: Any) -> np.ndarray:
        array = real(*arguments)
        array[-1, -1, -1] += 1
        return array

    monkeypatch.setattr(pixels, "stored", stored)


def per_frame_slopes() -> list[pydicom.Dataset]:
    data = enhanced()
    for number, groups in enumerate(data.PerFrameFunctionalGroupsSequence):
        groups.PixelValueTransformationSequence[0].RescaleSlope = 1 + number / 4
    return [data]


SERIES: dict[str, tuple[Callable[[], list[pydicom.Dataset]], dict[str, Any]]] = {
    "classic": (s6, {}),
    "large values": (lambda: s6([typed("u2")]), {}),
    "bytes": (lambda: s6([typed("i1")]), {}),
    "32 bits": (lambda: s6([typed("i4")]), {}),
    "intercept": (lambda: s6([set_all(RescaleIntercept=-1024.5)]), {}),
    "an outlier": (lambda: s6([set_each("RescaleSlope", [1e6, 1, 1, 1, 1, 1])]), {}),
    "slopes": (lambda: s6([set_each("RescaleSlope", [1, 0.5, 0.25, 1.5, 2.5, 0.1])]), {}),
    "enhanced": (lambda: [enhanced()], {}),
    "enhanced with slopes": (per_frame_slopes, {}),
    "red": (lambda: s6([colour("RGB")]), {"component": "red"}),
    "blue": (lambda: s6([colour("RGB", 1)]), {"component": "blue"}),
    "jpeg": (lambda: s6([compress(JPEG2000Lossless)], LARGE), {}),
    "monochrome1": (lambda: s6([set_all(PhotometricInterpretation="MONOCHROME1", Modality="MR")]), {}),
}


@pytest.mark.parametrize("kind", SERIES)
def test_one_voxel_that_nobody_else_reads_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make, rules = SERIES[kind]
    folder = write(tmp_path, make())
    assert read(folder, **rules).checked_by
    corrupted(monkeypatch)
    with pytest.raises(RejectedCase, match="neither dcm2niix nor GDCM reads the voxels") as caught:
        read(folder, **rules)
    assert str(caught.value).startswith(str(folder))


SHIFTS: dict[str, np.ndarray] = {
    "half a voxel": np.array([0.35, 0, 0]),
    "a slice": np.array([0, 0, 2.0]),
    "a twentieth of a voxel": np.array([0, 0.025, 0]),
}


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("kind", ["classic", "bytes", "enhanced", "red", "many"])
def test_grid_that_nobody_else_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, shift: str) -> None:
    from teravox.dicom import stacks

    many = np.arange(100 * 80).reshape(100, 8, 10).astype(np.int16)
    make, rules = SERIES[kind] if kind != "many" else (lambda: s6(stored=many), {})
    folder = write(tmp_path, make())
    assert read(folder, **rules).checked_by
    real = stacks.regular

    def moved(*arguments: Any) -> stacks.Grid:
        grid = real(*arguments)
        grid.affine[:3, 3] += SHIFTS[shift]
        return grid

    monkeypatch.setattr(stacks, "regular", moved)
    with pytest.raises(RejectedCase, match="dcm2niix") as caught:
        read(folder, **rules)
    assert str(caught.value).startswith(str(folder))


@pytest.mark.parametrize(
    "turn", [np.diag([-1.0, 1, 1, 1]), np.diag([1.0, 1, 1.02, 1]), np.array([[0, 1.0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])]
)
def test_axes_that_nobody_else_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turn: np.ndarray) -> None:
    from teravox.dicom import stacks

    folder = write(tmp_path, s6())
    real = stacks.regular

    def turned(*arguments: Any) -> stacks.Grid:
        grid = real(*arguments)
        grid.affine[:] = grid.affine @ turn
        return grid

    monkeypatch.setattr(stacks, "regular", turned)
    rejected(folder, "dcm2niix")


def test_same_values() -> None:
    """An integer must be equal; of a scaled value the tolerance is its own size, not that of the largest."""
    whole = np.arange(24).reshape(2, 3, 4)
    assert witness.same_values(whole, whole.astype(np.uint8))
    for number in range(24):
        other = whole.copy()
        other.flat[number] += 1
        assert not witness.same_values(other, whole)
        scaled = whole * 0.1
        scaled[0, 0, 0] = 1e9
        changed = scaled.copy()
        changed.flat[number] *= 1.001
        changed.flat[number] += 0.001 * (number == 0)
        assert witness.same_values(scaled.astype(np.float32), scaled)
        assert not witness.same_values(changed, scaled)
    assert not witness.same_values(whole * np.nan, whole * 1.0)


def mosaic(shared: Path, folder: Path, change: Callable[[pydicom.Dataset], None]) -> Path:
    data = pydicom.dcmread(shared / "data/dicom/transfer_syntaxes/In/4.dcm")
    if data.file_meta.TransferSyntaxUID.is_compressed:
        data.decompress()
    change(data)
    folder.mkdir()
    data.save_as(folder / "m.dcm")
    return folder


def test_mosaics(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of slices, the private header and every voxel count."""
    fine = mosaic(shared, tmp_path / "fine", lambda data: None)
    whole = read(fine)
    csa = pydicom.dcmread(fine / "m.dcm")[0x00291010].value
    name = csa.index(b"NumberOfImagesInMosaic")

    def fewer(data: pydicom.Dataset) -> None:
        count = str(whole.array.shape[2]).encode()
        at = data[0x00291010].value.index(count, name)
        data[0x00291010].value = csa[:at] + str(whole.array.shape[2] - 1).encode() + csa[at + len(count) :]
        data[0x0019100A].value = whole.array.shape[2] - 1

    rejected(mosaic(shared, tmp_path / "fewer", fewer), "pixels in the tiles after them")

    def bare(data: pydicom.Dataset) -> None:
        for tag in [element.tag for element in data if element.tag.is_private]:
            del data[tag]

    rejected(mosaic(shared, tmp_path / "bare", bare), "mosaic without a readable Siemens header")
    rejected(mosaic(shared, tmp_path / "slope", lambda data: setattr(data, "RescaleSlope", 0)), "RescaleSlope is 0")
    real = pixels.stored

    def stored(*arguments: Any) -> np.ndarray:
        array = real(*arguments)
        array[0, 10, 10] += 1
        return array

    monkeypatch.setattr(pixels, "stored", stored)
    rejected(fine, "neither dcm2niix nor GDCM")


def test_values_in_a_private_unit_are_not_taken(tmp_path: Path) -> None:
    """An MR series without a rescaling is given as stored."""
    folder = series(tmp_path, set_all(SOPClassUID=MR_STORAGE, Modality="MR", RescaleSlope=None, RescaleIntercept=None))
    accepted(folder)
