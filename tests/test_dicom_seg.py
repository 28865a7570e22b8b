"""DICOM SEG of every kind: the voxels that an independent decoding gives, or a refusal with one line."""

import itertools
import zlib
from pathlib import Path
from typing import Any

import highdicom as hd
import numpy as np
import pydicom
import pytest
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels import get_encoder
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

import builders
from builders import AFFINE, EXPECTED, OPTIONS, STORED, place, s6, set_all
from teravox import dicom_seg, geometry, seg_frames, segments, volumes
from teravox.errors import RejectedCase

LABELS = [{"name": "a", "value": 1}, {"name": "b", "value": 2}]
PRIORITY = {**OPTIONS, "overlap": "priority"}


@pytest.fixture(scope="module")
def source() -> list[pydicom.Dataset]:
    return s6([set_all(PatientID="x")])


LARGE = (6, 45, 41)  # slices, rows, columns: large enough for JPEG 2000's wavelets, and no multiple of 8


@pytest.fixture(scope="module")
def large() -> list[pydicom.Dataset]:
    return s6([set_all(PatientID="x")], np.zeros(LARGE, np.int16))


def random_mask(seed: int, *segments: int, shape: tuple[int, ...] = STORED.shape) -> np.ndarray:
    """(slice, row, column[, segment]) of 0 and 1; slices 0, 2 and 5 are empty."""
    values = (np.random.default_rng(seed).random((*shape, *segments)) < 0.3).astype(np.uint8)
    values[[0, 2, 5]] = 0
    return values


def in_ras(array: np.ndarray) -> np.ndarray:
    """(slice, row, column) as DICOM stores it -> (x, y, z)."""
    return array.transpose(2, 1, 0)[::-1, ::-1]


def read(folder: Path, data: pydicom.Dataset, labels: list[dict[str, Any]] = LABELS, options: dict[str, Any] = OPTIONS) -> segments.Labelled:
    data.save_as(folder / "seg.dcm", enforce_file_format=True)
    return dicom_seg.read_segmentation(folder / "seg.dcm", EXPECTED.shape, AFFINE, labels, "", options)


def read_large(path: Path) -> np.ndarray:
    affine = np.diag([0.7, 0.5, 2, 1])
    affine[:2, 3] = -0.7 * (LARGE[2] - 1), -0.5 * (LARGE[1] - 1)
    return dicom_seg.read_segmentation(path, LARGE[::-1], affine, LABELS, "", OPTIONS).label


def in_order(data: pydicom.Dataset, values: np.ndarray) -> np.ndarray:
    """(slice, row, column) -> (frame, row, column), as the file's own positions order them."""
    heights = [float(frame.PlanePositionSequence[0].ImagePositionPatient[2]) for frame in data.PerFrameFunctionalGroupsSequence]
    return values[np.rint(np.array(heights) / 2).astype(int)]


def refused(folder: Path, data: pydicom.Dataset, words: str, labels: list[dict[str, Any]] = LABELS, options: dict[str, Any] = OPTIONS) -> None:
    with pytest.raises(RejectedCase, match=words) as caught:
        read(folder, data, labels, options)
    assert str(caught.value).startswith(str(folder))
    assert len(str(caught.value).splitlines()) == 1


# Kinds


@pytest.mark.parametrize("kind", ["PROBABILITY", "OCCUPANCY"])
@pytest.mark.parametrize(("threshold", "lowest"), [(0.5, 5), (0.7, 7), (0.3, 3), (1, 10), (0.05, 1), (0.31, 4)])
def test_fractional(tmp_path: Path, source: list[pydicom.Dataset], kind: str, threshold: float, lowest: int) -> None:
    """Of a maximum of 10, exactly 7 is 0.7: no rounding of floats decides."""
    values = np.random.default_rng(3).integers(0, 11, STORED.shape).astype(np.uint8)
    data = builders.segmentation(source, values / 10, ["a"], "FRACTIONAL", omit_empty_frames=False)
    data.SegmentationFractionalType, data.MaximumFractionalValue = kind, 10
    data.PixelData = in_order(data, values).tobytes()
    found = read(tmp_path, data, options={**OPTIONS, "fractional_threshold": threshold})
    np.testing.assert_array_equal(found.label, in_ras(values >= lowest))
    assert found.corrections == (f"{kind} of at least {threshold:g} (of MaximumFractionalValue 10) taken as belonging to the segment",)
    data.MaximumFractionalValue = 9
    refused(tmp_path, data, "holds 10, expected at most 9")
    data.MaximumFractionalValue = 0
    refused(tmp_path, data, "MaximumFractionalValue 0")
    data.SegmentationFractionalType, data.MaximumFractionalValue = "DOE", 10
    refused(tmp_path, data, "SegmentationFractionalType")


@pytest.mark.parametrize("padding", [None, 0, 9])
@pytest.mark.parametrize("numbers", [(1, 2), (3, 300)])
def test_labelmap(tmp_path: Path, source: list[pydicom.Dataset], padding: int | None, numbers: tuple[int, int]) -> None:
    segment = np.random.default_rng(4).integers(0, 3, STORED.shape).astype(np.uint8)
    segment[2] = 0
    data = builders.segmentation(source, segment, ["a", "b"], "LABELMAP")
    assert data.NumberOfFrames == 5
    for item, number in zip([item for item in data.SegmentSequence if item.SegmentNumber], numbers, strict=True):
        item.SegmentNumber = number
    if "PixelPaddingValue" in data:
        del data.PixelPaddingValue
    if padding is not None:
        data.PixelPaddingValue = padding
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16, 15
    stored = np.array([padding or 0, *numbers], "<u2")[in_order(data, segment)]
    data.PixelData = stored.tobytes()
    found = read(tmp_path, data)
    np.testing.assert_array_equal(found.label, in_ras(segment))
    assert found.corrections == found.notes == ()
    stored[0, 0, 0] = 77
    data.PixelData = stored.tobytes()
    refused(tmp_path, data, "segment 77, which SegmentSequence does not describe")
    data.PixelPaddingValue = numbers[0]
    refused(tmp_path, data, "PixelPaddingValue . is the number of a segment too")


def test_labelmap_whose_background_is_described(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    """A segment coded as background needs no label, whatever its number; one that is only named so does."""
    segment = random_mask(5)
    data = builders.segmentation(source, segment, ["a", "Nothing"], "LABELMAP")
    refused(tmp_path, data, "named otherwise")
    described = [item for item in data.SegmentSequence if item.SegmentNumber == 2]
    code = described[0].SegmentedPropertyTypeCodeSequence[0]
    code.CodeValue, code.CodingSchemeDesignator = "125040", "DCM"
    pixels = data.pixel_array.copy()
    pixels[pixels == 0] = 2
    data.PixelData = pixels.tobytes()
    np.testing.assert_array_equal(read(tmp_path, data).label, in_ras(segment))


# Overlap


def test_overlap_goes_by_the_order_of_labels_and_is_counted(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    """Three labels, four segments of which two make one label, against a loop over voxels."""
    claims = random_mask(6, 4)
    names = ["c", "a", "b", "A "]
    order: list[dict[str, Any]] = [{"name": "b", "value": 9}, {"name": "a", "value": 300}, {"name": "c", "value": 4}]
    data = builders.segmentation(source, claims, names)
    expected = np.zeros(STORED.shape, np.uint16)
    lost = dict.fromkeys(itertools.combinations("bac", 2), 0)
    for index in np.ndindex(STORED.shape):
        claiming = [label for label in order if any(claims[index][n] for n, name in enumerate(names) if name.strip().lower() == label["name"])]
        if claiming:
            expected[index] = claiming[0]["value"]
        for loser in claiming[1:]:
            lost[str(claiming[0]["name"]), str(loser["name"])] += 1
    assert min(lost.values()) > 0
    found = read(tmp_path, data, order, PRIORITY)
    assert found.label.dtype == np.uint16
    np.testing.assert_array_equal(found.label, in_ras(expected))
    assert sorted(found.corrections) == sorted(
        f"{count} voxels of label {second} that overlap {first} given to {first}, which stands first" for (first, second), count in lost.items()
    )
    (first, second), count = max(lost.items(), key=lambda item: item[1])
    refused(tmp_path, data, rf"labels {first} and {second} overlap in {count} voxels, and 2 other pair", order)


def test_segments_of_one_label_are_united(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    claims = random_mask(7, 2)
    found = read(tmp_path, builders.segmentation(source, claims, ["Lesion 1", "Lesion 2"]), [{"name": "a", "value": 5, "segment": r"lesion \d"}])
    np.testing.assert_array_equal(found.label, 5 * in_ras(claims.max(axis=-1)))
    assert found.corrections == ()


# Names


def test_names(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    data = builders.segmentation(source, random_mask(8, 3) * np.array([1, 0, 0], np.uint8), ["GTV-1", "DOE^JOHN", "b"])
    labels = [{"name": "a", "value": 1, "segment": "gtv.*"}, {"name": "b", "value": 2, "segment": ""}, {"name": "c", "value": 3}]
    assert read(tmp_path, data, labels).notes == ("1 of 3 segments fit no label and were left out", "no segment fits label c")
    labels[0]["segment"] = "gtv"  # the whole name, not a part of it
    assert "2 of 3 segments fit no label and were left out" in read(tmp_path, data, labels).notes
    labels[1]["segment"] = ".*"
    labels[0]["segment"] = ".*1"
    refused(tmp_path, data, "segment 1 fits labels a and b, expected one", labels)
    refused(tmp_path, data, "none of 3 segments fits a label", [{"name": "x", "value": 1, "segment": "y"}])
    refused(tmp_path, data, "segment 1 is named otherwise than any label, expected b$", [{"name": "b", "value": 2, "segment": ""}])


def test_a_hostile_name_takes_no_longer_than_the_limit(tmp_path: Path, source: list[pydicom.Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    data = builders.segmentation(source, random_mask(8), ["a" * 60])
    monkeypatch.setattr(segments, "MATCH_SECONDS", 0.5)
    refused(tmp_path, data, "simplify the regular expressions", [{"name": "x", "value": 1, "segment": "(a+)+b"}])
    data.SegmentSequence[0].SegmentLabel = "a" * (segments.NAME_CHARACTERS + 1)
    refused(tmp_path, data, "none of 1 segments", [{"name": "x", "value": 1, "segment": "(a+)+b"}])


# Frames


@pytest.mark.parametrize(("rows", "columns"), [(7, 9), (1, 1), (3, 5), (8, 8), (13, 11)])
def test_bits_are_packed_without_gaps_between_frames(rows: int, columns: int) -> None:
    frames = np.random.default_rng(rows).integers(0, 2, (9, rows, columns)).astype(np.uint8)
    packed = np.packbits(frames.ravel(), bitorder="little").tobytes()
    for number, frame in enumerate(frames):
        np.testing.assert_array_equal(seg_frames.unpack(packed, number, rows * columns), frame.ravel())


@pytest.mark.parametrize("kind", ["FRACTIONAL", "LABELMAP"])
@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, DeflatedExplicitVRLittleEndian, RLELossless, JPEG2000Lossless, JPEGLSLossless])
def test_compressed_frames(tmp_path: Path, large: list[pydicom.Dataset], kind: str, syntax: str) -> None:
    values = random_mask(9, shape=LARGE)
    data = builders.segmentation(large, values.astype(np.float32) if kind == "FRACTIONAL" else values, ["a"], kind)
    assert data.BitsAllocated == 8
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    if syntax in (RLELossless, JPEG2000Lossless, JPEGLSLossless):
        data.compress(syntax, generate_instance_uid=False)
    data.file_meta.TransferSyntaxUID = syntax
    data.save_as(tmp_path / "seg.dcm", enforce_file_format=True)
    np.testing.assert_array_equal(read_large(tmp_path / "seg.dcm"), in_ras(values))


def test_deflated_bits(tmp_path: Path, large: list[pydicom.Dataset]) -> None:
    values = random_mask(9, shape=LARGE)
    data = builders.segmentation(large, values, ["a"])
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    data.save_as(tmp_path / "seg.dcm", enforce_file_format=True)
    np.testing.assert_array_equal(read_large(tmp_path / "seg.dcm"), in_ras(values))


@pytest.mark.parametrize("bits", [1, 8])
def test_bits_as_jpeg_2000(tmp_path: Path, large: list[pydicom.Dataset], bits: int) -> None:
    """Writers store them with a precision of one bit, or as bytes."""
    values = np.zeros(LARGE, np.uint8)
    values[1, 3:17, 5:30], values[1, 20:40, 1:4], values[4, 44, 40] = 1, 1, 1
    data = builders.segmentation(large, values, ["a"])
    encoder = get_encoder(JPEG2000Lossless)
    layout = {"rows": LARGE[1], "columns": LARGE[2], "number_of_frames": 1, "samples_per_pixel": 1, "pixel_representation": 0}
    frames = [
        encoder.encode(frame * (2**bits - 1), bits_allocated=8, bits_stored=bits, photometric_interpretation="MONOCHROME2", **layout)
        for frame in in_order(data, values)
    ]
    data.file_meta.TransferSyntaxUID = JPEG2000Lossless
    data.PixelData = encapsulate(frames)
    data["PixelData"].is_undefined_length = True
    data.save_as(tmp_path / "seg.dcm", enforce_file_format=True)
    np.testing.assert_array_equal(read_large(tmp_path / "seg.dcm"), in_ras(values))


@pytest.mark.parametrize("kind", ["BINARY", "LABELMAP"])
def test_deflated_frames(tmp_path: Path, source: list[pydicom.Dataset], kind: str) -> None:
    values = random_mask(10)
    data = builders.segmentation(source, values, ["a"], kind)
    raw = [np.packbits(frame.ravel(), bitorder="little").tobytes() if kind == "BINARY" else frame.tobytes() for frame in in_order(data, values)]

    def written(frames: list[bytes]) -> Path:
        packed = []
        for content in frames:
            packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
            packed.append(packer.compress(content) + packer.flush())
        data.file_meta.TransferSyntaxUID = JPEG2000Lossless  # pydicom knows no deflated frames
        data.PixelData = encapsulate(packed, has_bot=False)
        data["PixelData"].is_undefined_length = True
        data.save_as(tmp_path / "seg.dcm", enforce_file_format=True)
        content = (tmp_path / "seg.dcm").read_bytes()
        (tmp_path / "seg.dcm").write_bytes(content.replace(JPEG2000Lossless.encode(), seg_frames.DEFLATED_FRAMES.encode() + b"\0", 1))
        return tmp_path / "seg.dcm"

    label = dicom_seg.read_segmentation(written(raw), EXPECTED.shape, AFFINE, LABELS, "", OPTIONS).label
    np.testing.assert_array_equal(label, in_ras(values))
    for wrong in ([frame + bytes(10**7) for frame in raw], [frame[:-1] for frame in raw]):
        with pytest.raises(RejectedCase, match=r"frame \d inflates to another size"):
            dicom_seg.read_segmentation(written(wrong), EXPECTED.shape, AFFINE, LABELS, "", OPTIONS)


def test_decompression_is_bounded(tmp_path: Path, large: list[pydicom.Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    def make(syntax: str) -> pydicom.Dataset:
        data = builders.segmentation(large, random_mask(11, shape=LARGE), ["a"], "LABELMAP")
        data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        data.compress(syntax, generate_instance_uid=False)
        return data

    def refused_large(data: pydicom.Dataset, words: str) -> None:
        data.save_as(tmp_path / "seg.dcm", enforce_file_format=True)
        with pytest.raises(RejectedCase, match=words):
            read_large(tmp_path / "seg.dcm")

    data = make(JPEG2000Lossless)
    frames = [bytearray(frame) for frame in pydicom.encaps.generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames)]
    assert seg_frames.coded_size(bytes(frames[1])) == LARGE[1:]
    frames[1][8:16] = (60000).to_bytes(4, "big") * 2
    data.PixelData = encapsulate([bytes(frame) for frame in frames])
    refused_large(data, "compressed frame 2 has another size than 45 x 41")
    data = make(JPEGLSLossless)
    data.Rows = 44
    refused_large(data, r"compressed frame \d has another size than 44 x 41")
    data = make(RLELossless)
    frames = [bytearray(frame) for frame in pydicom.encaps.generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames)]
    data.PixelData = encapsulate([bytes(frame[: len(frame) // 4 * 2]) for frame in frames])
    refused_large(data, "not usable as a DICOM SEG")
    data = builders.segmentation(large, random_mask(11, shape=LARGE), ["a"])
    data.file_meta.TransferSyntaxUID = DeflatedExplicitVRLittleEndian
    monkeypatch.setattr(segments, "INFLATED_BYTES", 1000)
    refused_large(data, "inflates to more than 1000 bytes")


def test_frames_that_are_refused(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    def make(kind: str = "BINARY") -> pydicom.Dataset:
        return builders.segmentation(source, random_mask(12), ["a"], kind)

    data = make()
    data.PixelData = data.PixelData[:-2]
    refused(tmp_path, data, r"truncated, found 2. bytes of pixels, expected 30")
    data = make("LABELMAP")
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data.compress(RLELossless, generate_instance_uid=False)
    data.NumberOfFrames = 4
    data.PerFrameFunctionalGroupsSequence.append(data.PerFrameFunctionalGroupsSequence[0])
    refused(tmp_path, data, "3 compressed frames, expected 4|not usable")
    data = make()
    data.NumberOfFrames = 2
    refused(tmp_path, data, "3 items in PerFrameFunctionalGroupsSequence, expected 2")
    data = make()
    data.SegmentSequence.append(data.SegmentSequence[0])
    refused(tmp_path, data, "describes segment 1 twice")
    data = make()
    data.file_meta.TransferSyntaxUID = JPEGLosslessSV1
    data.PixelData = encapsulate([b"1234"] * 3)
    data["PixelData"].is_undefined_length = True
    refused(tmp_path, data, "a transfer syntax other than")
    data = make("LABELMAP")
    data.SegmentationType = "BINARY"
    refused(tmp_path, data, "not usable as a DICOM SEG")
    data = make()
    data.Rows, data.Columns = 40000, 40000
    refused(tmp_path, data, "truncated")


def test_big_endian_is_refused(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    data = builders.segmentation(source, random_mask(13), ["a"])
    data.save_as(tmp_path / "seg.dcm", enforce_file_format=True)
    data = pydicom.dcmread(tmp_path / "seg.dcm")
    data.file_meta.TransferSyntaxUID = ExplicitVRBigEndian
    pydicom.dcmwrite(tmp_path / "big.dcm", data, implicit_vr=False, little_endian=False)
    with pytest.raises(RejectedCase, match="a transfer syntax other than"):
        dicom_seg.read_segmentation(tmp_path / "big.dcm", EXPECTED.shape, AFFINE, LABELS, "", OPTIONS)


@pytest.mark.parametrize("turn", list(itertools.product([1, -1], [1, -1], [False, True])))
def test_frames_turned_against_the_image(tmp_path: Path, source: list[pydicom.Dataset], turn: tuple[int, int, bool]) -> None:
    """A SEG whose rows and columns run otherwise than the image's, on the same voxels."""
    rows, columns, transpose = turn
    values = random_mask(14)
    data = builders.segmentation(source, values, ["a"])
    moved = in_order(data, values)[:, ::rows, ::columns]
    along_row, along_column = np.array([columns, 0, 0]), np.array([0, rows, 0])
    origin = np.array([0.7 * 9 * (columns < 0), 0.5 * 7 * (rows < 0), 0])
    spacing = [0.5, 0.7]
    if transpose:
        moved, along_row, along_column, spacing = moved.transpose(0, 2, 1), along_column, along_row, spacing[::-1]
    shared = data.SharedFunctionalGroupsSequence[0]
    shared.PlaneOrientationSequence[0].ImageOrientationPatient = [*along_row.tolist(), *along_column.tolist()]
    shared.PixelMeasuresSequence[0].PixelSpacing = spacing
    data.Rows, data.Columns = moved.shape[1:]
    data.PixelData = np.packbits(moved.ravel(), bitorder="little").tobytes()
    for frame in data.PerFrameFunctionalGroupsSequence:
        position = frame.PlanePositionSequence[0]
        position.ImagePositionPatient = [*origin[:2].tolist(), position.ImagePositionPatient[2]]
    np.testing.assert_array_equal(read(tmp_path, data).label, in_ras(values))


def test_a_coarser_finer_or_shifted_grid_is_refused(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    coarse = s6([place([(0, 0, 4 * number) for number in range(6)]), set_all(PatientID="x", SpacingBetweenSlices=4)])[:3]
    data = builders.segmentation(coarse, random_mask(15)[[1, 3, 4]], ["a"])
    data.SharedFunctionalGroupsSequence[0].PixelMeasuresSequence[0].SpacingBetweenSlices = 4
    refused(tmp_path, data, "SpacingBetweenSlices is 4 mm, but the image's slices are 2 mm apart")
    fine = s6([place([(0, 0, number) for number in range(6)]), set_all(PatientID="x")])
    refused(tmp_path, builders.segmentation(fine, random_mask(15), ["a"]), "image's grid")
    shifted = s6([place([(0, 0.02, 2 * number) for number in range(6)]), set_all(PatientID="x")])
    refused(tmp_path, builders.segmentation(shifted, random_mask(15), ["a"]), "image's grid")
    far = s6([place([(0, 0, 1e5 + 2 * number) for number in range(6)]), set_all(PatientID="x")])
    refused(tmp_path, builders.segmentation(far, random_mask(15), ["a"]), "outside the image")
    data = builders.segmentation(source, random_mask(15), ["a"])
    data.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence[0].ImagePositionPatient = [0, 0, "1e300"]
    refused(tmp_path, data, "outside the image|image's grid")


# Real files


def grid_of(folder: Path, slices: slice = slice(None)) -> tuple[tuple[int, int, int], np.ndarray, str]:
    """Shape and affine in canonical order, and frame of reference, from the headers of a folder's slices, sorted by height."""
    data = sorted((pydicom.dcmread(path) for path in folder.iterdir()), key=lambda item: float(item.ImagePositionPatient[2]))[slices]
    step = min(np.diff([float(item.ImagePositionPatient[2]) for item in data]))
    count = round((float(data[-1].ImagePositionPatient[2]) - float(data[0].ImagePositionPatient[2])) / step) + 1
    affine = np.diag([*np.array(data[0].PixelSpacing, float)[::-1], step, 1.0])
    affine[:3, 3] = np.array(data[0].ImagePositionPatient, float)
    blank = np.zeros((data[0].Columns, data[0].Rows, count), bool)
    turned, grid = geometry.to_canonical(blank, geometry.LPS_FROM_RAS @ affine)
    return turned.shape, grid, str(data[0].FrameOfReferenceUID)


def labels_named(names: list[str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for value, name in enumerate(names, start=1)]


COLOURS = labels_named(["green", "orange", "purple", "light_blue", "dark_blue"])
LIVER = labels_named(["liver"])
SEGMENTS = [{"name": "one", "value": 1, "segment": "first segment"}, {"name": "two", "value": 2, "segment": "second segment"}]
QIICR = {
    "liver.dcm": ("ct-3slice", LIVER, ["liver_seg.nrrd"], ""),
    "partial_overlaps.dcm": ("ct-3slice", COLOURS, ["partial_overlaps-1.nrrd", "partial_overlaps-2.nrrd", "partial_overlaps-3.nrrd"], "overlap"),
    "24x38x3/seg/label.seg": ("24x38x3/image", LIVER, ["24x38x3/nrrd/label.nrrd"], ""),
    "23x38x3/seg/label.seg": ("23x38x3/image", LIVER, ["23x38x3/nrrd/label.nrrd"], ""),
    "sparse-labelmap-ppv5.dcm": ("24x38x3/image", LIVER, ["sparse_labelmap_ppv5_seg.nrrd"], ""),
    "sparse-labelmap-noppv.dcm": ("24x38x3/image", LIVER, ["sparse_labelmap_noppv_seg.nrrd"], ""),
}


@pytest.mark.parametrize("name", QIICR)
def test_files_of_dcmqi_are_as_their_references(shared: Path, name: str) -> None:
    """Each segment's voxels, read alone so that none overlaps, are those of its value in the NRRD files."""
    root = shared / "data/dicom/seg_ct_liver/segmentations"
    image, labels, references, words = QIICR[name]
    shape, affine, frame = grid_of(root / image)
    truth = []
    for reference in references:
        volume = volumes.read_itk(root / reference)
        array, grid = geometry.to_canonical(volume.array, volume.affine)
        assert array.shape == shape
        assert geometry.grid_difference(affine, grid, shape) < geometry.GRID_ATOL_VOXELS
        truth.append(array)
    expected = np.zeros(shape, np.uint8)
    for label in labels:
        alone = [{**label, "segment": label["name"]}]
        found = dicom_seg.read_segmentation(root / name, shape, affine, alone, frame, OPTIONS).label
        voxels = np.any([array == label["value"] for array in truth], axis=0)
        assert voxels.any()
        np.testing.assert_array_equal(found == label["value"], voxels)
        expected[voxels & (expected == 0)] = label["value"]
    np.testing.assert_array_equal(dicom_seg.read_segmentation(root / name, shape, affine, labels, frame, PRIORITY).label, expected)
    if words:
        with pytest.raises(RejectedCase, match=words):
            dicom_seg.read_segmentation(root / name, shape, affine, labels, frame, OPTIONS)
    else:
        np.testing.assert_array_equal(dicom_seg.read_segmentation(root / name, shape, affine, labels, frame, OPTIONS).label, expected)


def test_files_of_dcmqi_on_another_image(shared: Path) -> None:
    root = shared / "data/dicom/seg_ct_liver/segmentations"
    shape, affine, frame = grid_of(root / "24x38x3/image")
    for name, (image, labels, _, _) in QIICR.items():
        if image != "24x38x3/image":
            with pytest.raises(RejectedCase, match="FrameOfReferenceUID"):
                dicom_seg.read_segmentation(root / name, shape, affine, labels, frame, OPTIONS)
        if image == "ct-3slice":
            with pytest.raises(RejectedCase, match="image's grid"):
                dicom_seg.read_segmentation(root / name, shape, affine, labels, "", OPTIONS)


def decoded(path: Path, shape: tuple[int, int, int], affine: np.ndarray, threshold: int = 1) -> np.ndarray:
    """(segment, x, y, z) bool by numpy alone: frames of an axial SEG at the slice of their height."""
    data = pydicom.dcmread(path)
    size, count = data.Rows * data.Columns, int(data.NumberOfFrames)
    raw = np.frombuffer(data.PixelData, np.uint8)
    frames = (np.unpackbits(raw, bitorder="little") if data.BitsAllocated == 1 else raw)[: size * count].reshape(count, data.Rows, data.Columns)
    found = np.zeros((len(data.SegmentSequence), *shape), bool)
    for frame, groups in zip(frames, data.PerFrameFunctionalGroupsSequence, strict=True):
        height = (float(groups.PlanePositionSequence[0].ImagePositionPatient[2]) - affine[2, 3]) / affine[2, 2]
        number = groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        found[number - 1, :, :, round(height)] = (frame >= threshold).T[::-1, ::-1]
    return found


@pytest.mark.parametrize("slices", [slice(None), slice(1, None)], ids=["all four slices", "the three neighbours"])
def test_files_of_highdicom(shared: Path, slices: slice) -> None:
    """The CT has four slices, of which three are 1.25 mm apart and one 202.5 mm below: its grid has all slices between them."""
    root = shared / "data/dicom/seg_highdicom"
    shape, affine, frame = grid_of(root / "CT2", slices)
    assert shape[2] == (165 if slices.start is None else 3)
    for name, threshold in {"binary": 1, "binary_fractional": 128, "true_fractional": 128}.items():
        path = root / f"seg_image_ct_{name}.dcm"
        found = dicom_seg.read_segmentation(path, shape, affine, SEGMENTS, frame, OPTIONS)
        np.testing.assert_array_equal(found.label, decoded(path, shape, affine, threshold)[0])
        assert found.label.any()
        assert len(found.corrections) == ("fractional" in name)
        assert found.notes == ("no segment fits label two",)
    lenient = dicom_seg.read_segmentation(path, shape, affine, SEGMENTS, frame, {**OPTIONS, "fractional_threshold": 0.1})
    np.testing.assert_array_equal(lenient.label, decoded(path, shape, affine, 26)[0])
    path = root / "seg_image_ct_binary_overlap.dcm"
    if slices.start is not None:
        with pytest.raises(RejectedCase, match="outside the image"):
            dicom_seg.read_segmentation(path, shape, affine, SEGMENTS, frame, OPTIONS)
        return
    first, second = decoded(path, shape, affine)
    with pytest.raises(RejectedCase, match=f"labels one and two overlap in {np.count_nonzero(first & second)} voxels"):
        dicom_seg.read_segmentation(path, shape, affine, SEGMENTS, frame, OPTIONS)
    for order, expected in ((SEGMENTS, np.where(first, 1, second * 2)), (SEGMENTS[::-1], np.where(second, 2, first))):
        found = dicom_seg.read_segmentation(path, shape, affine, order, frame, PRIORITY)
        np.testing.assert_array_equal(found.label, expected)
        assert found.corrections[0].startswith(f"{np.count_nonzero(first & second)} voxels of label")


def test_single_frame_of_highdicom(shared: Path) -> None:
    """Its image is not here: refused on another, and right on the grid that its own headers give."""
    path = shared / "data/dicom/seg_highdicom/seg_image_ct_binary_single_frame.dcm"
    shape, affine, frame = grid_of(path.parent / "CT2")
    with pytest.raises(RejectedCase, match="FrameOfReferenceUID"):
        dicom_seg.read_segmentation(path, shape, affine, SEGMENTS, frame, OPTIONS)
    volume = hd.seg.segread(path).get_volume(combine_segments=True)
    expected, grid = geometry.to_canonical(np.asarray(volume.array), geometry.LPS_FROM_RAS @ volume.affine)
    found = dicom_seg.read_segmentation(path, expected.shape, grid, SEGMENTS, "", OPTIONS)
    np.testing.assert_array_equal(found.label, expected)
    assert found.label.any()


def test_every_file_has_its_place_in_a_table(shared: Path) -> None:
    root = shared / "data/dicom"
    found = {path.relative_to(root / "seg_ct_liver/segmentations").as_posix() for path in (root / "seg_ct_liver").rglob("*") if path.is_file()}
    objects = {name for name in found if not name.endswith(".nrrd") and not {"image", "multiframe", "ct-3slice"} & set(Path(name).parts)}
    assert objects == set(QIICR)
    names = {"binary", "binary_overlap", "binary_fractional", "true_fractional", "binary_single_frame"}
    assert {path.name for path in (root / "seg_highdicom").glob("*.dcm")} == {f"seg_image_ct_{name}.dcm" for name in names}


def test_pixels_of_another_meaning_are_refused(tmp_path: Path, source: list[pydicom.Dataset]) -> None:
    data = builders.segmentation(source, random_mask(1), ["a"])
    for value in ("MOLOCHROME2", "MONOCHROME1", "RGB"):
        data.PhotometricInterpretation = value
        refused(tmp_path, data, "PhotometricInterpretation is none of a segmentation's")


@pytest.mark.parametrize("stored", [None, 0, 9])
def test_bits_that_cannot_be(tmp_path: Path, source: list[pydicom.Dataset], stored: int | None) -> None:
    data = builders.segmentation(source, random_mask(1), ["a"], "LABELMAP")
    data.BitsStored = stored
    refused(tmp_path, data, "BitsStored is missing or not within")


@pytest.mark.parametrize("syntax", [JPEG2000Lossless, JPEGLSLossless])
def test_a_compressed_frame_that_ends_early(tmp_path: Path, large: list[pydicom.Dataset], syntax: str) -> None:
    data = builders.segmentation(large, random_mask(2, shape=LARGE), ["a", "b"], "LABELMAP")
    data.compress(syntax, generate_instance_uid=False)
    frames = list(generate_frames(data.PixelData, number_of_frames=data.NumberOfFrames))
    data.PixelData = encapsulate([frame[:-20] for frame in frames])
    data["PixelData"].is_undefined_length = True
    data.save_as(tmp_path / "seg.dcm", enforce_file_format=True)
    with pytest.raises(RejectedCase, match="no end marker"):
        read_large(tmp_path / "seg.dcm")
