"""DICOM series and DICOM SEG: the right volume, or a refusal with one line. Hazards by the names of common faults."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
import pytest
from pydicom.encaps import encapsulate, generate_frames
from pydicom.uid import JPEG2000Lossless, RLELossless, generate_uid

import builders
from builders import AFFINE, EXPECTED, STORED, Change, compress, enhanced, place, s6, set_all, set_each, set_one, write
from dicom_reading import OPTIONS, accepted, canonical, in_ras, read, rejected, series
from teravox import checks, dicom_seg, geometry, volumes
from teravox.dicom import witness
from teravox.errors import RejectedCase

LARGE = np.kron(STORED, np.ones((1, 8, 8), np.int16))  # JPEG 2000 needs more than 8 rows
LABELS = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]


def segmented(path: Path, shape: Any, affine: np.ndarray, labels: list[dict[str, Any]], frame_of_reference: str = "") -> np.ndarray:
    return dicom_seg.read_segmentation(path, shape, affine, [{"segment": "", **label} for label in labels], frame_of_reference, OPTIONS).label


def equals(volume: checks.Volume, reference: Path) -> None:
    """The voxels and the grid of a NIfTI file, in canonical order."""
    other = volumes.read_nifti(reference)
    array, affine = geometry.to_canonical(volume.array, volume.affine)
    expected, grid = geometry.to_canonical(other.array, other.affine)
    np.testing.assert_array_equal(array, expected)
    np.testing.assert_allclose(affine, grid, atol=1e-4)
    assert geometry.grid_difference(grid, affine, array.shape) * geometry.spacing_of(grid).max() < 1e-3  # mm


def test_series(tmp_path: Path) -> None:
    """F12 too: a voxel of S6 is 0.7 mm^3."""
    volume = accepted(series(tmp_path))
    assert volume.array.dtype == np.int16
    assert volume.frame_of_reference
    assert geometry.voxel_volume_ml(volume.affine) == pytest.approx(0.7e-3)


ORDERS: dict[str, Sequence[Change]] = {
    "equal numbers": [set_all(InstanceNumber=1)],
    "no numbers": [set_all(InstanceNumber=None)],
    "reversed numbers": [set_each("InstanceNumber", [6, 5, 4, 3, 2, 1])],
    "restarted numbers": [set_each("InstanceNumber", [1, 2, 3, 1, 2, 3])],
}


@pytest.mark.parametrize("name", ORDERS)
def test_order_is_that_of_positions_not_of_instance_numbers(tmp_path: Path, name: str) -> None:  # A1
    accepted(series(tmp_path, *ORDERS[name]))


def test_order_is_that_of_positions_not_of_names(tmp_path: Path) -> None:  # A1
    accepted(write(tmp_path, s6(), ["3.dcm", "1.dcm", "5.dcm", "0.dcm", "2.dcm", "4.dcm"]))


@pytest.mark.parametrize("name", ["IM{}", "-b y {}%s\"'.dcm", "{}.DCM", "CT.1.2.3.{}"])
def test_odd_names(tmp_path: Path, name: str) -> None:
    accepted(write(tmp_path, s6(), [name.format(number) for number in range(6)]))


def test_descending_positions(tmp_path: Path) -> None:
    accepted(series(tmp_path, place([(0, 0, 10 - 2 * number) for number in range(6)]), stored=STORED[::-1]))


@pytest.mark.parametrize("spacing", [-2.0, 5.0])
def test_spacing_comes_from_positions(tmp_path: Path, spacing: float) -> None:  # A10
    accepted(series(tmp_path, set_all(SpacingBetweenSlices=spacing)))


def test_oblique_series(tmp_path: Path) -> None:
    row, column = np.array([0.8, 0.6, 0]), np.array([0, 0, -1.0])
    normal, origin = np.cross(row, column), np.array([10.0, -20, 30])
    folder = series(
        tmp_path,
        set_all(ImageOrientationPatient=[*row, *column]),
        place([tuple(origin + 2 * number * normal) for number in range(6)]),
    )
    volume = read(folder)
    # The value stored at (slice, row, column) must be found at its place in the patient, whatever the axes' order.
    for number, y, x in [(0, 0, 0), (5, 7, 9), (2, 3, 1)]:
        point = origin + number * 2 * normal + x * 0.7 * row + y * 0.5 * column
        index = np.linalg.inv(volume.affine) @ [*(point * [-1, -1, 1]), 1]
        np.testing.assert_allclose(index, np.rint(index), atol=1e-3)
        assert volume.array[tuple(np.rint(index[:3]).astype(int))] == STORED[number, y, x]


POSITIONS: dict[str, tuple[list[float], str]] = {
    "A3 missing slice": ([0, 2, 4, 8, 10, 12], "slice gap 4.000 mm, expected 2.000 mm"),
    "A19 two steps": ([0, 2, 4, 7, 10, 13], "slice gap 2.000 mm, expected 3.000 mm"),
    "A19 1.5 percent": ([0, 2, 4, 6.03, 8, 10], "slice gap 2.030 mm"),
    "one position twice": ([0, 2, 4, 4, 6, 8], "second slice at one position"),
    "differences that add up": ([0, 2.018, 4.036, 6.036, 8.018, 10.0], "off regular positions"),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_irregular_positions_are_refused(tmp_path: Path, name: str) -> None:
    heights, words = POSITIONS[name]
    rejected(series(tmp_path, place([(0, 0, height) for height in heights])), words)


def test_rounded_positions_are_accepted(tmp_path: Path) -> None:
    """The step is the mean of all gaps, not the first: 0.625 mm with two decimals is 0.62 and 0.63 by turns."""
    accepted(series(tmp_path / "a", place([(0, 0, height) for height in (0, 2.004, 3.996, 6, 8.004, 10)])))
    stored = np.arange(200 * 80).reshape(200, 8, 10).astype(np.int16)
    heights = [round(number * 0.625, 2) for number in range(200)]
    affine = AFFINE.copy()
    affine[2, 2] = (heights[-1] - heights[0]) / 199
    accepted(series(tmp_path / "b", place([(0, 0, height) for height in heights]), stored=stored), in_ras(stored), affine)


REFUSED: dict[str, tuple[Sequence[Change], str]] = {
    "A4 another orientation": (
        [set_one(0, ImageOrientationPatient=[0, 1, 0, 0, 0, -1])],
        "they differ in orientation (axial, sagittal), slices (1, 5)",
    ),
    "A4 localizers": ([set_all(ImageType=["ORIGINAL", "PRIMARY", "LOCALIZER"])], "LOCALIZER"),
    "A6 gantry tilt": ([set_all(ImageOrientationPatient=[1, 0, 0, 0, 0.9659, -0.2588])], "gantry tilt"),
    "A8 inverted": ([set_all(PhotometricInterpretation="MONOCHROME1")], "MONOCHROME1 in CT, whose values have a unit, expected MONOCHROME2"),
    "A13 no spacing": ([set_all(PixelSpacing=None)], "PixelSpacing is missing"),
    "A13 detector spacing": ([set_all(PixelSpacing=None, ImagerPixelSpacing=[0.5, 0.7])], "PixelSpacing is missing"),
    "spacing zero": ([set_all(PixelSpacing=[0, 0])], "spacing above 0"),
    "spacing negative": ([set_all(PixelSpacing=[-0.5, 0.7])], "spacing above 0"),
    "one number of spacing": ([set_all(PixelSpacing=[0.5])], "PixelSpacing is missing"),
    "A26 frame of reference": ([set_one(3, FrameOfReferenceUID=generate_uid())], "FrameOfReferenceUID"),
    "rescaling of one slice lost": ([set_all(RescaleIntercept=-1024), set_one(3, RescaleIntercept=None)], "is 1, but 2"),
    "slice of another patient": ([set_one(3, PatientID="DOE")], "PatientID is another than in"),
    "A26 voltage": ([set_one(3, KVP=120)], "KVP is 120"),
    "A26 kernel": ([set_one(3, ConvolutionKernel="B")], "ConvolutionKernel"),
    "A26 units": ([set_one(3, Units="BQML")], "Units"),
    "A26 modality": ([set_one(3, Modality="MR")], "Modality"),
    "A15 sign of one slice": ([set_one(3, PixelRepresentation=0)], "PixelRepresentation is 0, but 1"),
    "A15 bits of one slice": ([set_one(3, BitsStored=12, HighBit=11)], "BitsStored is 12, but 16"),
    "high bit": ([set_all(BitsStored=12, PixelRepresentation=0)], "HighBit is 15, expected 11"),
    "slope zero": ([set_all(RescaleSlope=0)], "RescaleSlope is 0"),
    "no orientation": ([set_all(ImageOrientationPatient=[0] * 6)], "perpendicular unit vectors"),
    "long cosines": ([set_all(ImageOrientationPatient=[2, 0, 0, 0, 2, 0])], "perpendicular unit vectors"),
    "axes not perpendicular": ([set_all(ImageOrientationPatient=[1, 0, 0, 0.3, 0.954, 0])], "perpendicular unit vectors"),
    "no rows": ([set_all(Rows=0)], ""),
    "one mosaic among slices": ([set_one(2, ImageType=["ORIGINAL", "PRIMARY", "MOSAIC"])], "stands alone"),
    "A13 nowhere": ([set_all(ImagePositionPatient=None)], "ImagePositionPatient, ImageOrientationPatient or PixelSpacing is missing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_headers_that_are_refused(tmp_path: Path, name: str) -> None:
    changes, words = REFUSED[name]
    rejected(series(tmp_path, *changes), words)


def test_number_written_in_two_ways_is_one(tmp_path: Path) -> None:
    accepted(series(tmp_path, set_each("RescaleSlope", ["1", "1.0", "1", "1.00", "1", "1"])))


def test_rescale(tmp_path: Path) -> None:
    accepted(series(tmp_path / "a", set_all(RescaleIntercept=-1024)), EXPECTED.astype(int) - 1024)
    accepted(series(tmp_path / "b", set_all(RescaleSlope=0.5, RescaleIntercept=-10)), EXPECTED * 0.5 - 10)
    bare = accepted(series(tmp_path / "c", set_all(RescaleSlope=None, RescaleIntercept=None)))
    assert "CT without RescaleSlope and RescaleIntercept: values are as stored, which need not be HU" in bare.notes


def test_philips_values_are_those_of_the_standard_rescaling(tmp_path: Path) -> None:
    """A private scale slope (2005,100E) must not win over RescaleSlope, which every other reader applies."""

    def philips(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data.Manufacturer, data.Modality, data.SOPClassUID = "Philips Medical Systems", "MR", builders.MR_STORAGE
            data.file_meta.MediaStorageSOPClassUID = builders.MR_STORAGE
            data.RescaleSlope, data.RescaleIntercept = 2.5, 0
            data.private_block(0x2005, "Philips MR Imaging DD 001", create=True).add_new(0x0E, "FL", 0.125)

    accepted(series(tmp_path, philips), EXPECTED * 2.5)


def eight_bits(datasets: list[pydicom.Dataset]) -> None:
    for data, pixels in zip(datasets, STORED, strict=True):
        data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
        data.PixelData = (pixels % 256).astype(np.uint8).tobytes()


def test_stored_types(tmp_path: Path) -> None:  # A15
    twelve = set_all(BitsStored=12, HighBit=11)
    unsigned = set_all(PixelRepresentation=0)
    accepted(series(tmp_path / "signed", twelve, stored=STORED & 0xFFF))  # 0x0FFF is -1
    accepted(series(tmp_path / "unsigned", twelve, unsigned, stored=STORED + 700), EXPECTED + 700)
    accepted(series(tmp_path / "overlay", twelve, unsigned, stored=(STORED + 700) | 0x1000), EXPECTED + 700)
    lowest = np.where(STORED.min() == STORED, -32768, STORED).astype(np.int16)
    accepted(series(tmp_path / "lowest", stored=lowest), in_ras(lowest))
    volume = accepted(series(tmp_path / "uint16", unsigned), EXPECTED.astype(np.uint16))
    assert volume.array.dtype == np.uint16 and volume.array.max() == 65535
    accepted(series(tmp_path / "uint8", eight_bits), EXPECTED % 256)


def test_one_agreeing_reader_is_enough_and_none_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dcm2niix takes signed bytes for unsigned ones."""
    folder = series(tmp_path, eight_bits, set_all(PixelRepresentation=1))
    volume = accepted(folder, (EXPECTED % 256).astype(np.uint8).view(np.int8))
    assert volume.checked_by == "GDCM" and "dcm2niix gives no equal volume; GDCM reads equal voxels" in volume.notes
    monkeypatch.setattr(witness, "gdcm_agrees", lambda *_: False)
    rejected(folder, "neither dcm2niix nor GDCM reads the voxels")


def test_lookup_table_is_refused(tmp_path: Path) -> None:
    table = pydicom.Dataset()
    table.LUTDescriptor, table.LUTData, table.ModalityLUTType = [4096, 0, 16], bytes(8192), "US"
    rejected(series(tmp_path, set_all(ModalityLUTSequence=pydicom.Sequence([table]))), "ModalityLUTSequence")


def test_several_series_are_refused(tmp_path: Path) -> None:  # A5
    write(tmp_path, s6()[:4])
    rejected(write(tmp_path, s6()[:3], ["a", "b", "c"]), "found 2 volume(s) of 2 series", "slices (3, 4)")


def test_two_time_points_in_one_series_are_refused(tmp_path: Path) -> None:  # A18
    write(tmp_path, first := s6())
    later = [set_all(AcquisitionTime="120010", SeriesInstanceUID=first[0].SeriesInstanceUID, FrameOfReferenceUID=first[0].FrameOfReferenceUID)]
    rejected(write(tmp_path, s6(later), list("abcdef")), "found 2 volume(s) of 1 series", "only their order differs")


def test_two_matrix_sizes_are_refused(tmp_path: Path) -> None:  # A11
    rejected(series(tmp_path, set_one(0, Rows=16, Columns=16, PixelData=bytes(512))), "pixels (10 x 8, 16 x 16)", "0.dcm stands alone")
    rejected(series(tmp_path, set_one(0, PixelSpacing=[0.5, 0.8])), "spacing (0.5 x 0.7, 0.5 x 0.8)")


def test_too_few_slices_are_refused(tmp_path: Path) -> None:
    """Between two slices nothing shows whether one is missing, unless an attribute says how far apart they are."""
    rejected(write(tmp_path / "none", s6()[:0]), "found no DICOM image")
    rejected(write(tmp_path / "one", s6()[:1]), "found 1 slice, expected at least 2")
    accepted(write(tmp_path / "two", s6()[:2]), EXPECTED[:, :, :2])
    rejected(write(tmp_path / "apart", s6([set_all(SliceThickness=1)])[:2]), "found 2 slices 2.000 mm apart, and neither SliceThickness")
    accepted(write(tmp_path / "told", s6([set_all(SliceThickness=1, SpacingBetweenSlices=2)])[:2]), EXPECTED[:, :, :2])


SYNTAXES = {"raw": [], "rle": [compress(RLELossless)], "jpeg 2000": [compress(JPEG2000Lossless)]}


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("kept", [-40, -60, 600, 400, 250, 140, 10, 0])
@pytest.mark.parametrize("number", [2, 5])  # the last slice leaves no gap behind
def test_truncated_slice_is_refused(tmp_path: Path, syntax: str, kept: int, number: int) -> None:  # A12
    folder = series(tmp_path, *SYNTAXES[syntax], stored=LARGE)
    path = folder / f"{number}.dcm"
    path.write_bytes(path.read_bytes()[:kept])
    rejected(folder, path.name)


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_transfer_syntaxes(tmp_path: Path, syntax: str) -> None:  # A17
    array, _, _ = canonical(series(tmp_path, *SYNTAXES[syntax], stored=LARGE))
    np.testing.assert_array_equal(array, in_ras(LARGE))


@pytest.mark.parametrize("syntax", ["rle", "jpeg 2000"])
def test_short_compressed_stream_is_refused(tmp_path: Path, syntax: str) -> None:  # A17
    def shorten(datasets: list[pydicom.Dataset]) -> None:
        stream = next(generate_frames(datasets[2].PixelData))
        datasets[2].PixelData = encapsulate([stream[: len(stream) // 4 * 2]])

    rejected(series(tmp_path, *SYNTAXES[syntax], shorten, stored=LARGE))


def test_image_without_pixels_is_refused(tmp_path: Path) -> None:
    rejected(series(tmp_path, set_one(5, PixelData=None)), "5.dcm", "without PixelData")


def structured_report() -> pydicom.Dataset:
    data = s6()[0]
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = builders.SR_STORAGE
    data.Modality = "SR"
    for keyword in ("PixelData", "Rows", "Columns", "ImagePositionPatient"):
        delattr(data, keyword)
    return data


def test_objects_without_an_image(tmp_path: Path) -> None:  # A25
    folder = write(tmp_path, [*s6(), structured_report()])
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "DICOMDIR").write_bytes(b"x")
    (folder / "._0.dcm").write_bytes(b"x")
    assert "left out 1 file(s): object without an image: Basic Text SR Storage" in accepted(folder).notes
    rejected(write(tmp_path / "only", [structured_report()]), "found no DICOM image")


@pytest.mark.parametrize("content", [b"", b"\0" * 4000, b"\1\2\3\xff" * 500])
@pytest.mark.parametrize("name", ["note.txt", "6", "6.dcm", "x.7"])
def test_file_that_is_no_dicom_is_refused(tmp_path: Path, name: str, content: bytes) -> None:  # A25
    (series(tmp_path) / name).write_bytes(content)
    rejected(tmp_path / "series", name, "not readable as DICOM")


@pytest.mark.parametrize("name", ["6", "6.dcm", "IM.1.2.7"])
def test_text_in_the_place_of_a_slice_is_refused(tmp_path: Path, name: str) -> None:
    (series(tmp_path) / name).write_text("<html>Not found</html>")
    rejected(tmp_path / "series", name, "not readable as DICOM")


@pytest.mark.parametrize(("name", "content"), [("note.txt", b"a note\n"), ("LICENSE", b"x"), ("x.pdf", b"%PDF-1.7\0"), ("s.nii.gz", b"\x1f\x8b\0")])
def test_file_that_is_surely_no_slice_is_left_out(tmp_path: Path, name: str, content: bytes) -> None:  # A25
    folder = series(tmp_path)
    (folder / name).write_bytes(content)
    volume = accepted(folder)
    assert [(account.path.name, account.status) for account in volume.accounts if account.reason] == [(name, "skipped")]
    assert len(volume.accounts) == 7


@pytest.mark.parametrize("place", ["sub/3.dcm", "1/2/3/4/5/6/7/8/9/3.dcm", ".3.dcm", ".hidden/3.dcm"])
def test_slice_in_a_subfolder_or_hidden_is_read(tmp_path: Path, place: str) -> None:
    folder = series(tmp_path)
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    (folder / "3.dcm").rename(folder / place)
    accepted(folder)
    (folder / "5.dcm").rename(folder / ".5.dcm")  # the last slice leaves no gap behind
    accepted(folder)


def test_links(tmp_path: Path) -> None:
    folder = series(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    for path in list(folder.iterdir()):
        path.rename(tmp_path / "elsewhere" / path.name)
        path.symlink_to(tmp_path / "elsewhere" / path.name)
    rejected(folder, "0.dcm", "symbolic link to a folder, to nothing or out of the source")
    (tmp_path / "elsewhere").rename(folder / ".elsewhere")
    for path in folder.glob("*.dcm"):
        path.unlink()
        path.symlink_to(folder / ".elsewhere" / path.name)
    assert accepted(folder).corrections == ("left out 6 identical copies of files",)
    (tmp_path / "name").symlink_to(folder)
    assert read(tmp_path / "name").corrections
    (folder / "loop").symlink_to(folder)
    rejected(folder, "loop", "symbolic link")
    (folder / "loop").unlink()
    (folder / ".elsewhere" / "5.dcm").unlink()
    rejected(folder, "5.dcm", "symbolic link")
    (folder / "5.dcm").unlink()
    (folder / "5.dcm").symlink_to("5.dcm")
    rejected(folder, "5.dcm", "symbolic link")


def test_name_that_is_not_utf8(tmp_path: Path) -> None:  # A22
    folder = series(tmp_path)
    (folder / "3.dcm").rename(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.dcm"))
    accepted(folder)


def test_patient_names_in_any_character_set(tmp_path: Path) -> None:  # A22
    accepted(series(tmp_path / "a", set_all(SpecificCharacterSet=["", "ISO 2022 IR 87"], PatientName="山田^太郎")))

    def unlabelled(datasets: list[pydicom.Dataset]) -> None:
        for data in datasets:
            data[0x00100010] = pydicom.dataelem.RawDataElement(pydicom.tag.Tag(0x00100010), "PN", 8, "Müller^Ä".encode("latin-1"), 0, False, True)

    accepted(series(tmp_path / "b", unlabelled))


def test_value_of_the_wrong_kind_is_refused_without_showing_it(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    folder = series(tmp_path)
    path = folder / "3.dcm"
    data = path.read_bytes()
    assert data.count(b"0.5\\0.7 ") == 1
    path.write_bytes(data.replace(b"0.5\\0.7 ", b"DOE^JOHN"))
    assert "DOE" not in rejected(folder, "3.dcm")
    assert not recwarn.list


def test_text_attributes_are_not_shown(tmp_path: Path) -> None:
    assert "DOE" not in rejected(series(tmp_path, set_one(3, ConvolutionKernel="DOE^JOHN")), "ConvolutionKernel")


# Multi-frame


def one(folder: Path, data: pydicom.Dataset) -> Path:
    return write(folder, [data])


def frames(data: pydicom.Dataset) -> list[pydicom.Dataset]:
    return list(data.PerFrameFunctionalGroupsSequence)


def move(data: pydicom.Dataset, heights: Sequence[float]) -> pydicom.Dataset:
    for frame, height in zip(frames(data), heights, strict=True):
        frame.PlanePositionSequence[0].ImagePositionPatient = [0, 0, height]
    return data


def test_multiframe(tmp_path: Path) -> None:
    accepted(one(tmp_path / "a", enhanced()))
    accepted(one(tmp_path / "b", move(enhanced(), [10, 8, 6, 4, 2, 0])), EXPECTED[:, :, ::-1])
    negative = move(enhanced(), [10, 8, 6, 4, 2, 0])
    negative.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SpacingBetweenSlices = -2
    accepted(one(tmp_path / "c", negative), EXPECTED[:, :, ::-1])  # A10


def test_multiframe_that_is_refused(tmp_path: Path) -> None:
    """A3, A6, A7, A18, A19 hold for frames as they do for files."""
    rejected(one(tmp_path / "a", move(enhanced(), [0, 2, 4, 7, 10, 13])), "slice gap")
    rejected(one(tmp_path / "b", move(enhanced(), [0, 2, 2, 4, 6, 8])), "second slice at one position")
    tilted = enhanced()
    tilted.SharedFunctionalGroupsSequence[0].PlaneOrientationSequence[0].ImageOrientationPatient = [1, 0, 0, 0, 0.9659, -0.2588]
    rejected(one(tmp_path / "e", tilted), "gantry tilt")
    nowhere = enhanced()
    for frame in frames(nowhere):
        del frame.PlanePositionSequence
    nowhere.ImagePositionPatient = [0, 0, 0]
    rejected(one(tmp_path / "f", nowhere), "ImagePositionPatient")
    fewer = enhanced()
    fewer.PerFrameFunctionalGroupsSequence = fewer.PerFrameFunctionalGroupsSequence[:5]
    rejected(one(tmp_path / "g", fewer), "5 items in PerFrameFunctionalGroupsSequence, expected 6")
    both = enhanced()
    extra = s6([set_all(SeriesInstanceUID=both.SeriesInstanceUID)])[0]
    rejected(write(tmp_path / "h", [both, extra]), "slices (1, 6)", "1.dcm stands alone")
    short = enhanced()
    short.PixelData = short.PixelData[:-2]
    rejected(one(tmp_path / "i", short), "truncated")


# DICOM SEG


@pytest.fixture(scope="module")
def source() -> list[pydicom.Dataset]:
    return s6([set_all(PatientID="x")])


def mask() -> np.ndarray:
    """(slice, row, column): two planes of six hold a segment each."""
    values = np.zeros(STORED.shape, np.uint8)
    values[1, 2:4, 3:6], values[4, 1, 1] = 1, 2
    return values


def read_seg(folder: Path, data: pydicom.Dataset, frame_of_reference: str = "", labels: list[dict] = LABELS) -> np.ndarray:
    data.save_as(folder / "seg.dcm", enforce_file_format=True)
    return segmented(folder / "seg.dcm", EXPECTED.shape, AFFINE, labels, frame_of_reference)


def seg_rejected(folder: Path, data: pydicom.Dataset, words: str, frame_of_reference: str = "") -> None:
    with pytest.raises(RejectedCase, match=words) as caught:
        read_seg(folder, data, frame_of_reference)
    assert str(caught.value).startswith(str(folder))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("omit", [True, False])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [3, 1, 5, 0, 2, 4]])
def test_seg_frames_lie_at_their_own_positions(tmp_path: Path, source: list[pydicom.Dataset], omit: bool, order: list[int]) -> None:  # A20
    data = builders.segmentation([source[i] for i in order], mask()[order], ["a", "B "], omit_empty_frames=omit)
    label = read_seg(tmp_path, data, source[0].FrameOfReferenceUID)
    assert label.dtype == np.uint8
    np.testing.assert_array_equal(label, in_ras(mask()))


def test_seg_names_decide_the_values(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    label = read_seg(tmp_path, builders.segmentation(source, mask(), ["b", "a"]), labels=[{"name": "a", "value": 300}, {"name": "b", "value": 7}])
    np.testing.assert_array_equal(label, np.array([0, 7, 300], np.uint16)[in_ras(mask())])


@pytest.mark.parametrize("number", range(6))
def test_seg_of_one_plane(tmp_path: Path, source: list[pydicom.Dataset], number: int) -> None:
    values = np.zeros(STORED.shape, np.uint8)
    values[number, 2:4, 3:6] = 1
    np.testing.assert_array_equal(read_seg(tmp_path, builders.segmentation(source, values, ["a"])), in_ras(values))


def test_seg_without_a_voxel(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    assert not read_seg(tmp_path, builders.segmentation(source, mask() * 0, ["a"], omit_empty_frames=False)).any()


def test_seg_that_is_refused(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    frame = source[0].FrameOfReferenceUID
    seg_rejected(tmp_path, builders.segmentation(s6([set_all(PatientID="y")]), mask(), ["a", "b"]), "FrameOfReferenceUID", frame)
    overlap = np.stack([mask() == 1, mask() > 0], axis=-1).astype(np.uint8)
    seg_rejected(tmp_path, builders.segmentation(source, overlap, ["a", "b"]), "overlap")
    seg_rejected(tmp_path, builders.segmentation(source, mask(), ["a", "DOE^JOHN"]), r"segment 2 is named otherwise than any label, expected a, b$")
    shifted = s6([place([(0.35, 0, 2 * number) for number in range(6)]), set_all(PatientID="x")])
    seg_rejected(tmp_path, builders.segmentation(shifted, mask(), ["a", "b"]), "image's grid")
    outside = s6([place([(0, 0, 2 * number + 10) for number in range(6)]), set_all(PatientID="x")])
    seg_rejected(tmp_path, builders.segmentation(outside, mask(), ["a", "b"]), "outside the image")
    seg_rejected(tmp_path, source[0], "not usable as a DICOM SEG")


def test_seg_that_is_damaged_is_refused(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    data = builders.segmentation(source, mask(), ["a", "b"])
    data.SegmentSequence[1].SegmentNumber = 7
    seg_rejected(tmp_path, data, "segment 2, which SegmentSequence does not describe")
    data = builders.segmentation(source, mask(), ["a", "b"])
    data.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence[0].ImagePositionPatient = [0, 0, 3]
    seg_rejected(tmp_path, data, "image's grid|regularly")
    builders.segmentation(source, mask(), ["a", "b"]).save_as(path := tmp_path / "seg.dcm")
    content = path.read_bytes()
    for kept in (140, 400, 1000, len(content) // 2, len(content) - 40, len(content) - 2):
        path.write_bytes(content[:kept])
        with pytest.raises(RejectedCase):
            segmented(path, EXPECTED.shape, AFFINE, LABELS)


# Real series


def test_seven_series_in_one_folder(shared: Path) -> None:  # A5, A18
    folder = shared / "data/dicom/seven_series_one_folder/DICOM"
    rejected(folder, "found 17 volume(s) of 7 series", "b_value (0, 1000)")
    weighted = [read(folder, b_value=1000, volume=number).array for number in range(1, 7)]
    assert len({array.tobytes() for array in weighted}) == 6
    assert read(folder, image_type="DIFFUSION", b_value=0).array.mean() > max(array.mean() for array in weighted)
    assert read(folder, description="^fieldmap", image_type="VELOCITY").array.min() < 0
    asked: list[dict[str, Any]] = [{"description": "^T1"}, {"sequence": "TFE"}, {"echo_time_ms": [2, 3]}]
    for rules in asked:
        np.testing.assert_array_equal(read(folder, **rules).array, read(folder, description="^T1").array)
    with pytest.raises(RejectedCase, match=r"none of 17 volume\(s\) of 7 series fits the channel's rules \(modality\)"):
        read(folder, modality="CT")


def test_other_real_series(shared: Path) -> None:
    root = shared / "data/dicom"
    assert canonical(root / "rtstruct_two_slices/mock_data")[0].shape == (512, 512, 2)
    rejected(root / "seg_highdicom/CT2", "slice gap")
    array, affine, _ = canonical(root / "rtstruct_two_slices/oriented_data")
    slices = [pydicom.dcmread(path) for path in sorted((root / "rtstruct_two_slices/oriented_data").glob("*.dcm"))]
    point = np.array(slices[1].ImagePositionPatient, float) * [-1, -1, 1]
    index = np.linalg.inv(affine) @ [*point, 1]
    value = float(slices[1].pixel_array[0, 0]) * float(slices[1].RescaleSlope)
    assert array[tuple(np.rint(index[:3]).astype(int))] == pytest.approx(value)


SEGMENTATIONS = [
    ("liver.dcm", "ct-3slice", "liver_seg.nrrd"),
    ("24x38x3/seg/label.seg", "24x38x3/image", "24x38x3/nrrd/label.nrrd"),
    ("24x38x3/seg/label.seg", "24x38x3/multiframe", "24x38x3/nrrd/label.nrrd"),
    ("23x38x3/seg/label.seg", "23x38x3/image", "23x38x3/nrrd/label.nrrd"),
]


@pytest.mark.parametrize(("name", "image", "reference"), SEGMENTATIONS)
def test_real_segmentations(shared: Path, name: str, image: str, reference: str) -> None:  # A20
    root = shared / "data/dicom/seg_ct_liver/segmentations"
    array, affine, volume = canonical(root / image)
    label = segmented(root / name, array.shape, affine, [{"name": "liver", "value": 1}], volume.frame_of_reference)
    truth = volumes.read_itk(root / reference)
    expected, grid = geometry.to_canonical(truth.array, truth.affine)
    assert geometry.grid_difference(affine, grid, array.shape) < geometry.GRID_ATOL_VOXELS
    np.testing.assert_array_equal(label, expected)
    assert label.any()


@pytest.mark.parametrize(
    ("name", "image", "words"),
    [
        ("partial_overlaps.dcm", "ct-3slice", "overlap"),
        ("liver.dcm", "24x38x3/image", "FrameOfReferenceUID"),
    ],
)
def test_real_segmentations_refused(shared: Path, name: str, image: str, words: str) -> None:
    root = shared / "data/dicom/seg_ct_liver/segmentations"
    array, affine, volume = canonical(root / image)
    labels = [
        {"name": item.SegmentLabel, "value": value}
        for value, item in enumerate(pydicom.dcmread(root / name, stop_before_pixels=True).SegmentSequence, start=1)
    ]
    with pytest.raises(RejectedCase, match=words):
        segmented(root / name, array.shape, affine, labels, volume.frame_of_reference)


def test_highdicom_segmentations(shared: Path) -> None:  # A20
    """Of the CT2 series three slices are neighbours; the image's grid is taken to be theirs."""
    root = shared / "data/dicom/seg_highdicom"
    slices = [pydicom.dcmread(path) for path in sorted((root / "CT2").iterdir())][1:]
    affine = np.diag([*np.array(slices[0].PixelSpacing, float)[::-1], 1.25, 1.0])
    affine[:3, 3] = np.array(slices[0].ImagePositionPatient, float)
    turned = np.zeros((slices[0].Columns, slices[0].Rows, 3), bool)
    array, grid = geometry.to_canonical(turned, geometry.LPS_FROM_RAS @ affine)
    labels = [{"name": "first segment", "value": 1}, {"name": "second segment", "value": 2}]
    path = root / "seg_image_ct_binary.dcm"
    label = segmented(path, array.shape, grid, labels, str(slices[0].FrameOfReferenceUID))
    pixels = pydicom.dcmread(path)
    expected = np.zeros((3, slices[0].Rows, slices[0].Columns), np.uint8)
    for plane, groups in zip(pixels.pixel_array, pixels.PerFrameFunctionalGroupsSequence, strict=True):
        height = float(groups.PlanePositionSequence[0].ImagePositionPatient[2])
        expected[round((height - affine[2, 3]) / 1.25)] = plane
    np.testing.assert_array_equal(label, in_ras(expected))
    assert label.any()
    assert hd.seg.segread(path).segmentation_type.value == "BINARY"
